"""The doctor's check of the folder for runs."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from harl_mapush.memory_plan import GIB
from harl_mapush.runs.run_folder import CONFIG, check_new_run_dir
from mapush.doctor.checkup import Checkup
from mqe.config import dump_yaml, to_dict

RESULTS = "results"  # where runs go by default (harl_mapush.runs.run_folder.default_run_dir)


def check_run_folder(checkup: Checkup) -> str:
    """Check that a run can be written to the folder for runs."""
    folder = Path(RESULTS)
    check_new_run_dir(folder / "doctor")
    above = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    with tempfile.TemporaryDirectory(dir=above, prefix=".doctor-") as name:
        (Path(name) / CONFIG).write_text(dump_yaml(to_dict(checkup.cfg)), encoding="utf-8")
    return f"{folder.absolute()} can be written, {shutil.disk_usage(above).free / GIB:.1f} GiB free"
