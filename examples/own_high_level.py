"""A high level of your own: it sees the scene and directs a frozen team's pushes, decision by
decision.

python own_high_level.py [NUM_DECISIONS] reads goals from its input lines, "x y" [m], and keeps the
last one. Without input the goals go around a circle.
"""

import itertools
import math
import sys
from collections.abc import Iterator

import torch

import mapush


def circle() -> Iterator[tuple[float, float]]:
    """Yield points of a circle, one a decision."""
    for k in itertools.count():
        yield 3.0 * math.cos(0.02 * k), 3.0 * math.sin(0.02 * k)


def lines() -> Iterator[tuple[float, float]]:
    """Yield the goals of the input's lines, then the last one for ever."""
    goal = (0.0, 0.0)
    for line in sys.stdin:
        x, y = line.split()
        goal = (float(x), float(y))
        yield goal
    yield from itertools.repeat(goal)


def main(num_decisions: int = 100) -> None:
    """Lead the shipped box team, and print the object's position."""
    env = mapush.make("go1push_upper", num_envs=1, seed=1, settings={"task.map": "scattered"})
    env.reset()
    goals = circle() if sys.stdin.isatty() else lines()
    no_shift = torch.zeros(1, 1, 2, device=env.device)
    for goal in itertools.islice(goals, num_decisions):
        env.set_goal(torch.tensor([goal], device=env.device))
        env.step(no_shift)
        x, y = env.state.object_pos[0, :2].tolist()
        print(f"goal {goal[0]:.2f} {goal[1]:.2f}, object {x:.2f} {y:.2f}")  # noqa: T201
    env.close()


if __name__ == "__main__":
    main(*(int(number) for number in sys.argv[1:2]))
