"""The final stderr line of a command after a user's mistake."""

from __future__ import annotations


def error_line(capsys) -> str:
    """Return a command's single line on stderr."""
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    assert "Traceback" not in captured.err
    return captured.err
