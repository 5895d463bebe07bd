"""A run's record in its folder: settings, origin and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from harl_mapush.runs import checkpoint, provenance, run_folder
from mqe.config import dump_yaml
from mqe.manifest import NAMED_FILES


class RunRecord:
    """Writes a run's settings, origin and checkpoints on its first rank."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, Any],
        start: Mapping[str, Any],
        gait: str | None,
        export: Callable[[Path], object],
        keep_files: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Record ``start`` of a run with nested ``settings``. Nothing is written yet.

        ``gait`` is the frozen gaits' digest, None without any. ``export`` writes the policy into a
        checkpoint's folder, ``keep_files`` copies small files into the run folder.
        """
        self.folder = folder
        self.settings = settings
        self.text = dump_yaml(settings)
        self.start = start
        self.run_id = ""
        self._gait = gait
        self._export = export
        self._keep_files = keep_files

    def begin(self) -> None:
        """Write ``config.yaml`` and ``origin.json``."""
        run_folder.write_config(self.folder, self.text)
        self._keep_files(self.folder)
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
            settings=run_folder.with_checksum(self.text),
            device=self.settings["sim"]["device"],
            gait_sha256=self._gait,
            run_id=self.run_id,
            named_files=self.start[NAMED_FILES],
            export=self._export,
        )

    def check_folder(self) -> None:
        """Raise LostFolderError if another run or process has taken the folder."""
        provenance.check_folder(self.folder, self.run_id, self.start)
