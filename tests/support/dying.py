"""Worker jobs, some fatal to their process. Few imports, since each process imports the module
anew.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from mqe.config import ConfigError
from mqe.sim.simulator import SimulatorError

_MARK = Path(os.environ.get("TMPDIR", "/tmp")) / f"mapush-unlucky-{os.getppid()}"


def square(job: tuple[int, str | None], worker: int) -> int:
    """Return a number's square. With a file name, the first process to try dies."""
    number, mark = job
    if mark is not None and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def fail(job: str, worker: int) -> None:
    """Fail as the job says."""
    if job == "exit":
        os._exit(3)
    if job == "ConfigError":
        raise ConfigError("no such thing")
    if job == "SimulatorError":
        raise SimulatorError("no such thing")
    raise ZeroDivisionError


def unlucky(job: Any, worker: int) -> Any:
    """Play episodes. Worker 0 is killed in the middle of its first part."""
    from threading import Timer

    from harl_mapush.evaluation.episodes import play

    if worker == 0 and not _MARK.exists():
        _MARK.touch()
        Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    return play(job, worker)
