"""A run's record in its folder: settings, origin and checkpoints."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from harl_mapush.runs import checkpoint, provenance, run_folder
from mqe.config import dump_yaml


class RunRecord:
    """Writes a run's settings, origin and checkpoints on its first rank."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        reward_weights: Mapping[str, float],
        digests: Mapping[str, str],
        export: Callable[[Path], object],
    ) -> None:
        """Describe a start of a run with nested ``settings``. Nothing is written yet.

        ``export`` writes the policy into a checkpoint's folder.
        """
        self.folder = folder
        self.settings = settings
        self.text = dump_yaml(settings)
        self.start = provenance.describe(settings["sim"]["device"], reward_weights, digests)
        self.run_id = ""
        self._digests = digests
        self._export = export

    def begin(self) -> None:
        """Write ``config.yaml`` and ``origin.json``."""
        run_folder.write_config(self.folder, self.text)
        self.run_id = provenance.write(self.folder, self.start)

    def save(
        self, env_steps: int, networks: Mapping[str, nn.Module], state: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint at ``env_steps``."""
        checkpoint.save(
            self.folder,
            env_steps,
            networks,
            state,
            settings=self.text,
            device=self.start["device"],
            named_files=self._digests,
            export=self._export,
        )

    def check_folder(self) -> None:
        """Raise LostFolderError if another run has taken the folder."""
        provenance.check_folder(self.folder, self.run_id)
