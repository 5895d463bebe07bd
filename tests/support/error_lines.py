"""The line on stderr that a command ends with after a mistake of the user's."""

from __future__ import annotations


def error_line(capsys) -> str:
    """Return the one line that a command has written to stderr."""
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert "Traceback" not in captured.err
    return captured.err
