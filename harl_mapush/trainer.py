"""The contract for trainers, and their common checks and reports."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.callback import Callback
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.progress import IterationReport, Progress

_MOST_BROKEN = 0.1  # largest share of broken transitions in a rollout


class NonFiniteError(RuntimeError):
    """A loss or weight became infinite or not a number. The message has its name."""


class BrokenWorldsError(RuntimeError):
    """The simulation breaks in too many transitions. The message has their number."""


class Trainer(Protocol):
    """Trains an algorithm, with or without collecting processes beside it."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm in training."""
        ...

    @property
    def progress(self) -> Progress:
        """The run's position."""
        ...

    def learn(self, callbacks: Sequence[Callback] = (), folder: Path | None = None) -> None:
        """Train to the end and call the hooks of ``callbacks``.

        ``folder`` takes the log files of the trainer's own processes, if it has any. None: a
        temporary folder. Raises NonFiniteError as soon as a loss or weight is not finite. Raises
        BrokenWorldsError if the simulation breaks in more than a tenth of the transitions in two
        successive iterations. A single such iteration may be due to buffers of too small a size.
        """
        ...

    def statistics(self) -> dict[str, float]:
        """Return means over all ranks' last finished episodes."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, between iterations."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        ...


class Monitor:
    """Checks each iteration's metrics and reports them to the callbacks, for all trainers."""

    def __init__(self, progress: Progress, callbacks: Sequence[Callback], ranks: Ranks) -> None:
        self._progress = progress
        self._callbacks = callbacks
        self._ranks = ranks
        self._breaks_often = False  # whether too many worlds broke in the last iteration

    def to_host(self, metrics: dict[str, Tensor], weights: dict[str, Tensor]) -> dict[str, float]:
        """Copy the iteration's metrics to the host at once. Raise NonFiniteError for an infinite
        value or NaN.

        The error names the first such metric. Rewards come first, since losses depend on them.
        """
        sizes = {f"{name}/weights": flat.abs().max() for name, flat in weights.items()}
        everything = metrics | sizes
        stacked = torch.stack([x.to(torch.float32) for x in everything.values()])
        numbers = self._ranks.mean_(stacked).tolist()
        values = dict(zip(everything, numbers, strict=True))

        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            more = ""
            if len(bad) > 1:
                more = f" (and {len(bad) - 1} more: {', '.join(bad[1:])})"
            env_steps = self._progress.env_steps + self._progress.steps_per_iteration
            raise NonFiniteError(
                f"{bad[0]} is {values[bad[0]]}{more} after {env_steps} env steps: the run is "
                "stopped"
            )
        return {name: values[name] for name in metrics}

    def note_broken_worlds(self, num_broken: float, note: str | None) -> str | None:
        """Return ``note`` with the number of broken transitions.

        Raises BrokenWorldsError if there are too many for the second time in a row.
        """
        if not num_broken:
            self._breaks_often = False
            return note
        env_steps = self._progress.env_steps
        num_transitions = self._progress.num_transitions
        line = (
            f"the simulation broke in {num_broken:.0f} of {num_transitions} transitions, which are "
            "left out"
        )
        breaks_often = num_broken > _MOST_BROKEN * num_transitions
        if breaks_often and self._breaks_often:
            more = "" if note is None else f" ({note})"
            raise BrokenWorldsError(
                f"{line}, as in the rollout before: more than {_MOST_BROKEN:.0%} each, up to "
                f"{env_steps} env steps; the run is stopped{more}"
            )
        self._breaks_often = breaks_often
        return line if note is None else f"{line}; {note}"

    def report(
        self,
        metrics: dict[str, float],
        collect_s: float,
        update_s: float,
        note: str | None,
        health: tuple[str, ...],
    ) -> None:
        """Report the last iteration to the callbacks."""
        progress = self._progress
        report = IterationReport(
            progress.iteration,
            progress.num_iterations,
            progress.env_steps,
            progress.num_env_steps,
            collect_s,
            update_s,
            metrics,
            note,
            health,
        )
        for callback in self._callbacks:
            callback.on_iteration(report)

    def checkpoint(self) -> None:
        """Call the callbacks' ``on_checkpoint`` if a checkpoint is due."""
        if self._progress.is_checkpoint_due():
            for callback in self._callbacks:
                callback.on_checkpoint(self._progress.env_steps)

    def wait(self) -> None:
        """Call the callbacks' ``on_wait``."""
        for callback in self._callbacks:
            callback.on_wait()


@contextmanager
def fast_products() -> Iterator[None]:
    """Context manager: compute float32 matrix products on a GPU in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
