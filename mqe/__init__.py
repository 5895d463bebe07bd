"""What happens in the world: simulators, scene, robots, tasks, environment, viewers."""

import os

# OpenMP threads that wait by spinning steal the cores from the simulator's threads: ten times slower on a busy laptop.
# OpenMP reads this once, when torch is loaded, so it has to stand before that.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
