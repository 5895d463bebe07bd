"""One trial's training in a separate process.

``python -m mapush.extensions.sweep.child`` takes the arguments of ``harl_mapush.train``. Its
standard input is a pipe from the sweep. When the pipe is closed, also by the sweep's death, the
training saves its state and ends.
"""

import os
import signal
import sys
import threading
import time
from pathlib import Path

GRACE_S = 60.0  # between asking a training to save and killing it


def main() -> int:
    """Train by the command line's arguments until the sweep ends. Return the exit code."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from harl_mapush import train  # an import of seconds, during which the sweep may end

    return train.main(sys.argv[1:])


def wait_until_saved(folder: Path) -> None:
    """Wait until no process trains in a run folder, for at most ``GRACE_S``."""
    from harl_mapush.runs import run_folder
    from mqe.config import ConfigError

    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline:
        try:
            with run_folder.locked(folder):
                return
        except ConfigError:
            time.sleep(0.2)


def _end_with_parent() -> None:
    """Wait for the end of standard input, then end this process as a cluster would."""
    while os.read(sys.__stdin__.fileno() if sys.__stdin__ else 0, 1024):
        pass
    signal.raise_signal(signal.SIGTERM)  # Windows' kill would end the process without a save
    time.sleep(GRACE_S)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
