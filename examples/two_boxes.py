"""Bring two boxes: two robots push both into the goal.

mapush train --import two_boxes --task two_boxes --preset laptop_hasac --set algorithm.symmetries=[]
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import mapush
from mqe.world.geometry import in_frame, length
from mqe.world.state import SceneState

FOLDER = Path(__file__).parent / "things"
BOXES = ("left/box", "right/box")


@dataclass(frozen=True)
class TwoBoxesCfg(mapush.WalkingCfg):
    """The boxes' section ``task``."""

    name: str = mapush.option("two_boxes", "the task", choices=("two_boxes",))
    episode_length_s: float = mapush.option(15.0, "time limit of an episode [s]", above=0.0)
    reach: float = mapush.option(0.9, "distance from the goal that counts [m]", above=0.0)


def boxes(state: SceneState) -> Tensor:
    """(N, 2, 2) [m]."""
    return torch.stack([state.pose(name).pos[:, :2] for name in BOXES], dim=1)


def to_goal(state: SceneState) -> Tensor:
    """(N, 2, 2) [m] from each box to the goal."""
    return state.pose("zone/goal").pos[:, None, :2] - boxes(state)


def view(task: mapush.WalkingFeatures) -> Tensor:
    """(N, 2, 8) [m] the robot's box, its way to the goal, the other box and robot."""
    state = task.state
    pos = state.robot_pos[..., :2]
    ways = (boxes(state) - pos, to_goal(state), boxes(state).flip(1) - pos, pos.flip(1) - pos)
    return torch.cat([in_frame(way, state.robot_frame) for way in ways], dim=-1)


def progress(task: mapush.WalkingFeatures) -> Tensor:
    """(N, 2) [m] by which a robot has come closer to its box, and four times the box's way."""
    states = (task.prev, task.state)
    left = [length(boxes(s) - s.robot_pos[..., :2]) + 4.0 * length(to_goal(s)) for s in states]
    return left[0] - left[1]


def is_done(task: mapush.WalkingFeatures) -> Tensor:
    """(N,) bool: both boxes are in the goal."""
    return (length(to_goal(task.state)) < task.task.cfg.reach).all(dim=1)


class TwoBoxes(mapush.WalkingTask):
    """Both boxes come within ``task.reach`` of the site zone/goal."""

    settings = TwoBoxesCfg
    observations = {"view": mapush.ObservationTerm("boxes, goal, teammate", view, "m")}
    state = {"views": mapush.ObservationTerm("boxes, goal, teammate", view, "m", over="robots")}
    rewards = {
        "progress": mapush.RewardTerm("way to the box and of it", progress, "m", weight=0.5),
        "both": mapush.RewardTerm("both boxes", lambda task: is_done(task).float(), weight=3.0),
    }
    terminations = {"both": mapush.TerminationTerm("both boxes", is_done, is_failure=False)}
    metrics = {"both": mapush.MetricTerm("both boxes in the goal", lambda e: e.terminated["both"])}
    report = mapush.Report(("both",), (("Both", "both_rate"),), {"both": "both boxes"})

    @classmethod
    def things(cls, cfg: TwoBoxesCfg) -> list[mapush.Thing]:
        files = {"left": "box", "right": "box", "zone": "zone"}
        return [mapush.Thing(name, FOLDER / f"{file}.xml") for name, file in files.items()]

    def thing_starts(self, episode: Tensor) -> dict[str, Tensor]:
        return dict(zip(BOXES, self._lanes(1, episode, 0.8).unbind(dim=1), strict=True))

    def starts(self, episode: Tensor) -> Tensor:
        return self._lanes(0, episode, 0.0)

    def _lanes(self, purpose: int, episode: Tensor, ahead: float) -> Tensor:
        """Return places side by side, (N, 2, 3)."""
        drawn = 0.3 * (self.streams.uniform(purpose, episode, (2, 3)) - 0.5)
        return drawn + drawn.new_tensor([[ahead, 0.6, 0.0], [ahead, -0.6, 0.0]])


mapush.register_task("two_boxes", TwoBoxes)
