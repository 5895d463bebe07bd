r"""Carry a plank: it lies on the backs of two robots, and has to pass a line.

mapush train --import carry_plank --task carry_plank --preset laptop_hasac \
    --set algorithm.symmetries=[]
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import mapush
from mqe.world.geometry import in_frame
from mqe.world.state import SceneState

FILE = Path(__file__).parent / "things" / "plank.xml"


@dataclass(frozen=True)
class CarryPlankCfg(mapush.WalkingCfg):
    """A plank's section ``task``."""

    name: str = mapush.option("carry_plank", "the task", choices=("carry_plank",))
    episode_length_s: float = mapush.option(15.0, "time limit of an episode [s]", above=0.0)
    least_height: float = mapush.option(0.25, "height of a carried plank [m]", above=0.0)


def place(state: SceneState) -> Tensor:
    """(N, 3) [m] of the plank's middle."""
    return state.pose("plank/plank").pos


def view(carry: mapush.WalkingFeatures) -> Tensor:
    """(N, A, 9) plank, its direction and the way ahead in the heading frame, height, teammate."""
    state = carry.state
    pos = state.robot_pos[..., :2]
    along = state.pose("plank/plank").rotation[:, None, :2, 1].expand_as(pos)
    ahead = pos.new_tensor([1.0, 0.0]).expand_as(pos)
    ways = (place(state)[:, None, :2] - pos, along, ahead, pos.flip(1) - pos)
    height = place(state)[:, None, 2:].expand(-1, state.num_robots, -1)
    return torch.cat([*(in_frame(way, state.robot_frame) for way in ways), height], dim=-1)


def progress(carry: mapush.WalkingFeatures) -> Tensor:
    """(N,) [m] by which the plank has come closer to the line."""
    return (place(carry.state) - place(carry.prev))[:, 0]


def is_over(carry: mapush.WalkingFeatures) -> Tensor:
    """(N,) bool: the plank is beyond the line."""
    return place(carry.state)[:, 0] > carry.state.pose("plank/line").pos[:, 0]


def is_lost(carry: mapush.WalkingFeatures) -> Tensor:
    """(N,) bool: the plank has fallen."""
    return place(carry.state)[:, 2] < carry.task.cfg.least_height


class CarryPlank(mapush.WalkingTask):
    """The plank passes the site plank/line."""

    settings = CarryPlankCfg
    observations = {"view": mapush.ObservationTerm("plank, way, teammate", view, "m, 1")}
    state = {"views": mapush.ObservationTerm("plank, way, teammate", view, "m, 1", over="robots")}
    rewards = {
        "progress": mapush.RewardTerm("way of the plank", progress, "m", weight=1.0),
        "carried": mapush.RewardTerm("arrival", lambda carry: is_over(carry).float(), weight=3.0),
        "lost": mapush.RewardTerm("lost", lambda carry: is_lost(carry).float(), weight=-3.0),
    }
    terminations = {
        "carried": mapush.TerminationTerm("arrival", is_over, is_failure=False),
        "lost": mapush.TerminationTerm("a fallen plank", is_lost),
    }
    metrics = {"carried": mapush.MetricTerm("arrivals", lambda e: e.terminated["carried"])}
    report = mapush.Report(("carried",), (("Carried", "carried_rate"),), {"carried": "carried"})

    @classmethod
    def things(cls, cfg: CarryPlankCfg) -> list[mapush.Thing]:
        return [mapush.Thing("plank", FILE)]

    def starts(self, episode: Tensor) -> Tensor:
        places = self.streams.uniform(0, episode, (self.num_agents, 3)) - 0.5
        places *= places.new_tensor([0.1, 0.1, 2.0])
        lanes = torch.arange(self.num_agents, device=places.device)
        places[..., 1] += 0.8 * (lanes - 0.5)
        return places


mapush.register_task("carry_plank", CarryPlank)
