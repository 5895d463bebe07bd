"""Training state and curves of a run, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harl_mapush.runs import checkpoint


def state(run: Path, env_steps: int = 128) -> dict[str, Any]:
    return checkpoint.read_training_state(run / "checkpoints" / str(env_steps))


def curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run)).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("perf/")]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}
