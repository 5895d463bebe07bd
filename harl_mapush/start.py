"""The start of a run: in a new folder, or from a saved run's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from harl_mapush.config import RunCfg
from harl_mapush.runs import checkpoint, init_from, resume, run_folder
from harl_mapush.runs.resume import SavedRun
from harl_mapush.trainer import Trainer
from mqe.registry import TASKS


class Start(NamedTuple):
    """A run's folder, the saved run to continue, and the checkpoint with the initial networks."""

    folder: Path
    is_named: bool = False  # whether the user named the new folder
    saved: SavedRun | None = None
    init_from: str | None = None

    @classmethod
    def anew(cls, cfg: RunCfg) -> Self:
        """Return the start of a new run."""
        logger = cfg.logger
        if logger.out_dir is not None:
            return cls(Path(logger.out_dir), is_named=True, init_from=cfg.runner.init_from)
        folder = run_folder.default_run_dir(
            TASKS[cfg.task.name].subject(cfg.task),
            cfg.algorithm.name,
            logger.exp_name,
            cfg.runner.seed,
            datetime.now(),
        )
        return cls(folder, init_from=cfg.runner.init_from)

    @classmethod
    def again(cls, saved: SavedRun, cfg: RunCfg) -> Self:
        """Return the start of a saved run in its own folder."""
        return cls(saved.run, saved=saved, init_from=cfg.runner.init_from)

    def check_folder(self, stack: ExitStack) -> None:
        """Lock a saved run's folder, or check a new one in advance.

        Raises ConfigError if the folder is unusable.
        """
        if self.saved is None:
            run_folder.check_new_run_dir(self.folder if self.is_named else self.folder.parent)
        else:
            stack.enter_context(run_folder.locked(self.folder))

    def read_state(self, task: str) -> dict[str, Any] | None:
        """Return the saved state. Without one, check the initial networks for a run of ``task``."""
        if self.saved is not None and self.saved.folder is not None:
            return resume.read(self.saved)
        init_from.check(self.init_from, task)
        return None

    def load(
        self,
        trainer: Trainer,
        num_agents: int,
        algorithm: Any,
        state: dict[str, Any] | None,
        say: Callable[[str], None],
    ) -> None:
        """Load the saved ``state``, or the initial networks, with the section ``algorithm``."""
        if self.saved is not None and state is not None:
            _load_state(trainer, self.saved, state)
        elif self.init_from is not None:
            networks = trainer.algorithm.networks
            say(f"{init_from.load(self.init_from, networks, num_agents, algorithm)}.")

    def open_folder(self, stack: ExitStack, say: Callable[[str], None]) -> Path:
        """Return a new run folder, or a saved run's without partial files."""
        if self.saved is None:
            return stack.enter_context(run_folder.new_run_dir(self.folder, is_named=self.is_named))
        checkpoint.remove_partial(self.folder)
        for path in run_folder.set_aside_after(self.folder, self.saved.env_steps):
            say(f"Note: a later checkpoint is now called {path}.")
        return self.folder

    def how_to_resume(self, program: str, imports: Sequence[str]) -> str:
        """Return the hint for resuming after an early end."""
        return resume.how_to_resume(self.folder, program, imports)


def _load_state(trainer: Trainer, saved: SavedRun, state: dict[str, Any]) -> None:
    """Load a saved state into a trainer. Raise ConfigError for another trainer's state."""
    try:
        trainer.load_state_dict(state)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        message = " ".join(str(error).split())[:160]
        raise resume.damaged(saved, f"{type(error).__name__}: {message}") from None
    env_steps = trainer.progress.env_steps
    if env_steps != saved.env_steps:
        raise resume.damaged(saved, f"it is the state after {env_steps} env steps")
