"""``mapush play CHECKPOINT ...``: the viewer of ``python -m harl_mapush.test``."""

from __future__ import annotations

from collections.abc import Sequence

from harl_mapush import test


def main(argv: Sequence[str] | None = None) -> int:
    """Watch the checkpoint that comes first on the command line; return the exit code."""
    arguments = list(argv or ())
    if arguments and not arguments[0].startswith("-"):
        arguments = ["--checkpoint", *arguments]
    words = (
        "Watch a trained team: mapush play CHECKPOINT is mapush test --checkpoint CHECKPOINT "
        "--mode viewer."
    )
    return test.main(["--mode", "viewer", *arguments], program="mapush play", words=words)
