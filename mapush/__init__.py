"""The command line, and what it checks."""

__version__ = "0.1.0"
