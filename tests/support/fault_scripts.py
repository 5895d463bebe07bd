"""Runs of the scripts in tools/faults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parents[2] / "tools" / "faults"


def script(name: str, *words: str) -> str:
    """Run a script, assert exit code 0 and return its output."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(FAULTS.parent.parent), *sys.path])
    }
    command = [sys.executable, "-W", "ignore", str(FAULTS / name), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
