"""Run folders, checkpoints, resuming and provenance."""

from harl_mapush.runs import team_export  # noqa: F401, registers a reader for task.team
