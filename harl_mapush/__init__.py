"""How policies learn: algorithms, storage, runner, checkpoints, evaluation."""

import sys

try:
    import mqe as mqe  # before torch: it says how OpenMP's threads wait
except ImportError as error:
    # argv is Python's documented sign that a module in here is about to run as a program: python -m harl_mapush.train
    if "MUJOCO_GL" not in str(error) or sys.argv[:1] != ["-m"]:
        raise
    sys.stderr.write(f"harl_mapush: {error}\n")
    sys.exit(2)
