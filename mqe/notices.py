"""Lines for the user, each written once."""

import functools
import sys


@functools.cache
def note(line: str) -> None:
    """Write a line on stderr, once in a process."""
    sys.stderr.write(f"Note: {line}.\n")
