"""Worker jobs, some fatal to their process. Few imports, since each process imports the module
anew.
"""

from __future__ import annotations

import os
import signal

from harl_mapush.evaluation.workers import worker_number
from mqe.config import ConfigError
from mqe.sim.simulator import SimulatorError


def square(number: int) -> int:
    """Return a number's square."""
    return number * number


def number_of_worker(_: int) -> int:
    """Return this worker's number."""
    return worker_number()


def fail(job: str) -> None:
    """Fail as the job says."""
    if job == "exit":
        os._exit(3)
    if job == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "ConfigError":
        raise ConfigError("no such thing")
    if job == "SimulatorError":
        raise SimulatorError("no such thing")
    raise ZeroDivisionError
