"""Run folders, checkpoints, resuming and provenance."""

from harl_mapush.runs import exported  # noqa: F401, registers a reader of policies
