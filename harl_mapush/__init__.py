"""How policies learn: algorithms, storage, runner, checkpoints, evaluation."""

import sys

from harl_mapush.interruption import exit_on_signals, program_of_python_m

_program = program_of_python_m()
if _program is not None:  # the next seconds go to importing torch and MuJoCo
    exit_on_signals(_program)

try:
    import mqe as mqe  # before torch, since it sets the waiting of OpenMP's threads
except ImportError as error:
    if "MUJOCO_GL" not in str(error) or _program is None:
        raise
    sys.stderr.write(f"harl_mapush: {error}\n")
    sys.exit(2)
