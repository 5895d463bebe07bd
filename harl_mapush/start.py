"""The start of a run: in a new folder, or from a saved run's state."""

import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from harl_mapush.config import RunCfg
from harl_mapush.parts import Parts
from harl_mapush.process import say
from harl_mapush.runs import checkpoint, exported, init_from, named_files, run_folder
from harl_mapush.runs.record import RunRecord
from harl_mapush.runs.resume import SavedRun
from harl_mapush.trainer import Trainer
from mqe.config import reason_of, to_dict
from mqe.registry import TASKS

PROGRAM = "mapush train"  # in messages, also if it runs as a module


class Start(NamedTuple):
    """A run's folder, the saved run to continue, and the checkpoint with the initial networks."""

    folder: Path
    digests: Mapping[str, str]  # of the files and policies named in the settings
    imports: tuple[str, ...] = ()  # the user's modules
    is_named: bool = False  # whether the user named the new folder
    saved: SavedRun | None = None
    init_from: str | None = None

    @classmethod
    def anew(cls, cfg: RunCfg) -> Self:
        """Return the start of a new run."""
        logger = cfg.logger
        if logger.out_dir is not None:
            folder = Path(logger.out_dir)
        else:
            folder = run_folder.default_run_dir(
                TASKS[cfg.task.name].subject(cfg.task),
                cfg.algorithm.name,
                logger.exp_name,
                cfg.runner.seed,
                datetime.now(),
            )
        start = cls(folder, named_files.digests_of(cfg), cfg.env.imports)
        return start._replace(is_named=logger.out_dir is not None, init_from=cfg.runner.init_from)

    def check_folder(self, stack: ExitStack) -> None:
        """Lock a saved run's folder, or check a new one in advance.

        Raises ConfigError if the folder is unusable.
        """
        if self.saved is None:
            run_folder.check_new_run_dir(self.folder if self.is_named else self.folder.parent)
        else:
            stack.enter_context(run_folder.locked(self.folder))

    def read_state(self) -> dict[str, Any] | None:
        """Return the saved state on the CPU. None: the run has none.

        Raises ConfigError for a damaged state.
        """
        if self.saved is None or self.saved.folder is None:
            return None
        return checkpoint.read_training_state(self.saved.folder)

    def load(
        self, trainer: Trainer, num_agents: int, algorithm: Any, state: dict[str, Any] | None
    ) -> None:
        """Load the saved ``state``, or the initial networks, with the section ``algorithm``."""
        if self.saved is not None and state is not None:
            _load_state(trainer, self.saved, state)
        elif self.init_from is not None:
            networks = trainer.algorithm.networks
            say(f"{init_from.load(self.init_from, networks, num_agents, algorithm)}.")

    def open_folder(self, stack: ExitStack) -> Path:
        """Return a new run folder, or a saved run's without partial files."""
        if self.saved is None:
            return stack.enter_context(run_folder.new_run_dir(self.folder, is_named=self.is_named))
        checkpoint.remove_partial(self.folder)
        for path in run_folder.set_aside_after(self.folder, self.saved.env_steps):
            say(f"Note: a later checkpoint is now called {path}.")
        return self.folder

    def record(self, cfg: RunCfg, parts: Parts) -> RunRecord:
        """Return the run's record with the stored settings ``cfg``."""
        task = parts.env.task
        networks = parts.trainer.algorithm.networks
        actors = [networks[f"actor_agent{i}"] for i in range(parts.env.num_agents)]
        export = partial(exported.export, cfg=cfg, actors=actors, task=task)
        weights = task.features.reward_weights
        return RunRecord(self.folder, to_dict(cfg), weights, self.digests, export)

    def command(self) -> str:
        """Return the command line for resuming the run, with ``--import`` of its modules."""
        words = "".join(f"--import {shlex.quote(name)} " for name in self.imports)
        return f"{PROGRAM} {words}--resume {shlex.quote(str(self.folder))}"

    def how_to_resume(self, more: str = "") -> str:
        """Return the hint for resuming after an early end. ``more`` is added to the command."""
        if not self.folder.is_dir():
            return "the folder is gone; if it was moved, --resume takes its new place"
        if run_folder.checkpoints(self.folder):
            return f"resume from its last checkpoint with: {self.command()}{more}"
        additions = f" with{more}" if more else ""
        return f"it has no checkpoint yet, start it again{additions}"


def _load_state(trainer: Trainer, saved: SavedRun, state: dict[str, Any]) -> None:
    """Load a saved state into a trainer. Raise ConfigError for another trainer's state."""
    assert saved.folder is not None
    try:
        trainer.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        message = reason_of(error)[:160]
        detail = f"{type(error).__name__}: {message}"
        raise checkpoint.damaged_state(saved.folder, detail) from None
    env_steps = trainer.progress.env_steps
    if env_steps != saved.env_steps:
        detail = f"it is the state after {env_steps} env steps"
        raise checkpoint.damaged_state(saved.folder, detail)
