"""Build through setuptools; everything it needs to know is in pyproject.toml."""

from setuptools import setup

setup()
