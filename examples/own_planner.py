"""A planner of your own: the straight way, or a detour to one side, whichever has more room.

mapush play planner --import own_planner --task go1push_upper --set task.planner=detour
"""

import torch
from torch import Tensor

import mapush

SIDES = (0.0, 2.0, -2.0, 4.0, -4.0)  # [m] of the detours, to the left of the straight way


def detour(problem: mapush.Problem) -> Tensor:
    """The least of five detours clear of obstacles."""
    start = problem.maps.start  # (M, 2)
    goal = problem.maps.goal
    middle = 0.5 * (start + goal)
    ahead = torch.nn.functional.normalize(goal - start, dim=1)
    left = torch.stack((-ahead[:, 1], ahead[:, 0]), dim=1)
    ways = [torch.stack((start, middle + side * left, goal), dim=1) for side in SIDES]

    # Ten points of each half of a way, and the one of them with the least room.
    shares = torch.linspace(0.0, 1.0, 10, device=start.device).view(1, -1, 1)
    halves = [
        [torch.lerp(way[:, None, k], way[:, None, k + 1], shares) for k in (0, 1)] for way in ways
    ]
    room = [problem.clearance(torch.cat(half, dim=1)).amin(dim=1) for half in halves]
    best = torch.stack(room).clamp(max=problem.reach).argmax(dim=0)  # the first of equals
    return torch.stack(ways)[best, torch.arange(len(best), device=best.device)]


mapush.register_planner("detour", detour)
