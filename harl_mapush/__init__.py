"""How policies learn: algorithms, storage, runner, checkpoints, evaluation."""

import mqe as mqe  # before torch: it says how OpenMP's threads wait
