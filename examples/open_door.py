"""Open a door: robots push a panel on a hinge beyond an angle.

mapush train --import open_door --task open_door --preset laptop_hasac --set algorithm.symmetries=[]
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import mapush
from mqe.world.geometry import in_frame, length
from mqe.world.state import SceneState

FILE = Path(__file__).parent / "things" / "door.xml"


@dataclass(frozen=True)
class OpenDoorCfg(mapush.WalkingCfg):
    """A door's section ``task``."""

    name: str = mapush.option("open_door", "the task", choices=("open_door",))
    opening: float = mapush.option(1.0, "angle of an open door [rad]", above=0.0, max=1.7)


def to_handle(state: SceneState) -> Tensor:
    """(N, A, 2) [m] from each robot to the handle, world frame."""
    return state.pose("door/handle").pos[:, None, :2] - state.robot_pos[..., :2]


def view(door: mapush.WalkingFeatures) -> Tensor:
    """(N, A, 6) handle and direction of the panel in the heading frame, angle and rate."""
    state = door.state
    along = state.pose("door/panel").rotation[:, None, :2, 1]
    hinge = torch.cat((state.joint("door/hinge"), state.joint_rate("door/hinge")), dim=1)
    hinge = hinge.unsqueeze(1).expand(-1, state.num_robots, -1)
    frame = state.robot_frame
    return torch.cat((in_frame(to_handle(state), frame), in_frame(along, frame), hinge), dim=-1)


def approach(door: mapush.WalkingFeatures) -> Tensor:
    """(N, A) [m] by which a robot has come closer to the handle."""
    return length(to_handle(door.prev)) - length(to_handle(door.state))


def swing(door: mapush.WalkingFeatures) -> Tensor:
    """(N,) [rad] by which the door has opened."""
    return (door.state.joint("door/hinge") - door.prev.joint("door/hinge"))[:, 0]


def is_open(door: mapush.WalkingFeatures) -> Tensor:
    """(N,) bool: the door is open."""
    return door.state.joint("door/hinge")[:, 0] > door.task.cfg.opening


class OpenDoor(mapush.WalkingTask):
    """The door opens beyond ``task.opening``."""

    settings = OpenDoorCfg
    observations = {"view": mapush.ObservationTerm("handle and panel", view, "m, 1, rad, rad/s")}
    state = {
        "views": mapush.ObservationTerm("handle and panel", view, "m, 1, rad, rad/s", over="robots")
    }
    rewards = {
        "approach": mapush.RewardTerm("way to the handle", approach, "m", weight=0.5),
        "swing": mapush.RewardTerm("opening of the door", swing, "rad", weight=2.0),
    }
    terminations = {"opened": mapush.TerminationTerm("open door", is_open, is_failure=False)}
    metrics = {"opened": mapush.MetricTerm("open doors", lambda e: e.terminated["opened"])}
    report = mapush.Report(
        rates=("opened",), headline=(("Opened", "opened_rate"),), outcomes={"opened": "opened"}
    )

    @classmethod
    def things(cls, cfg: OpenDoorCfg) -> list[mapush.Thing]:
        """Return the door, whose hinge is door/hinge."""
        return [mapush.Thing("door", FILE)]

    def starts(self, episode: Tensor) -> Tensor:
        """Stand side by side before the door, with random distances and headings."""
        places = self.streams.uniform(0, episode, (self.num_agents, 3)) - 0.5
        places *= torch.tensor([0.6, 0.3, 3.0], device=episode.device)
        lanes = torch.arange(self.num_agents, device=episode.device)
        places[..., 1] += 0.7 * (lanes - 0.5 * (self.num_agents - 1))
        return places


mapush.register_task("open_door", OpenDoor)
