"""A run's log at Weights & Biases, an optional package. Its failures do not end the run."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harl_mapush.callbacks.logger import scalars
from harl_mapush.config import LoggerCfg
from harl_mapush.progress import IterationReport
from mqe.config import ConfigError, install

_X_AXIS = "env_steps"
_OFFLINE = "logger.wandb=offline writes a run for `wandb sync` to send later"


def check_wandb(cfg: LoggerCfg) -> None:
    """Raise ConfigError if the settings ask for W&B and it cannot be used."""
    if cfg.wandb == "off":
        return
    if importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"logger.wandb={cfg.wandb}: wandb is missing; {install('wandb')}, or leave "
            "the setting out"
        )
    if cfg.wandb == "online" and not _has_key():
        raise ConfigError(
            "logger.wandb=online: this machine has no API key of W&B; run `wandb login` or set "
            f"WANDB_API_KEY, or choose offline ({_OFFLINE})"
        )


class WandbLogger:
    """Sends the curves, settings and films of a run to W&B, or writes them into its folder."""

    def __init__(
        self,
        cfg: LoggerCfg,
        folder: Path,
        run_id: str,
        settings: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        """Open the W&B run of ``run_id``, also again after a resume.

        Raises ConfigError if W&B refuses it.
        """
        self._wandb = importlib.import_module("wandb")
        self._tags = cfg.tags
        self._say = say
        try:
            self._run = self._wandb.init(
                project=cfg.wandb_project,
                name=folder.name,
                id=run_id,
                resume="allow",
                dir=str(folder),
                config=dict(settings),
                mode=cfg.wandb,
                settings=self._wandb.Settings(silent=True, console="off"),
            )
        except self._wandb.Error as error:
            raise ConfigError(
                f"logger.wandb={cfg.wandb}: W&B refuses the run ({error}); {_OFFLINE}"
            ) from None
        # A resumed run may log env steps again, which W&B's own steps do not allow.
        self._run.define_metric("*", step_metric=_X_AXIS)
        destination = f"`wandb sync {Path(self._run.dir).parent}` sends it"
        say(f"W&B run {run_id}: {destination if cfg.wandb == 'offline' else self._run.url}.")

    def log(self, report: IterationReport, statistics: Mapping[str, float]) -> None:
        """Log the scalars of one iteration."""
        self._try(scalars(report, statistics, self._tags), report.env_steps)

    def add_film(self, path: Path, env_steps: int) -> None:
        """Log a film."""
        video = self._wandb.Video(str(path), format=path.suffix.removeprefix("."))
        self._try({"eval/film": video}, env_steps)

    def flush(self) -> None:
        """Do nothing, since W&B writes its data by itself."""

    def close(self) -> None:
        """Finish the W&B run."""
        if self._run is not None:
            self._run.finish()

    def _try(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Log ``values``. After a failure, stop logging with a note."""
        if self._run is None:
            return
        try:
            self._run.log({_X_AXIS: env_steps, **values})
        except (self._wandb.Error, OSError) as error:
            self._run = None
            self._say(f"Note: nothing more is logged to W&B ({error}); training continues.")


def _has_key() -> bool:
    wandb = importlib.import_module("wandb")
    try:
        return bool(wandb.login(prompt=False))
    except (wandb.Error, ValueError, OSError):
        return False
