"""Pull a sled: every robot is roped to it, and it has to come to its finish.

mapush train --import pull_sled --task pull_sled --preset laptop_hasac --set algorithm.symmetries=[]
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import mapush
from mqe.world.geometry import in_frame, length
from mqe.world.state import SceneState

FILE = Path(__file__).parent / "things" / "sled.xml"


@dataclass(frozen=True)
class PullSledCfg(mapush.WalkingCfg):
    """A sled's section ``task``."""

    name: str = mapush.option("pull_sled", "the task", choices=("pull_sled",))
    episode_length_s: float = mapush.option(15.0, "time limit of an episode [s]", above=0.0)
    rope: float = mapush.option(0.8, "length of the ropes [m]", min=0.3)
    reach: float = mapush.option(0.8, "distance from the finish that counts [m]", above=0.0)


def distance(state: SceneState) -> Tensor:
    """(N,) [m] from the sled to the finish."""
    return length((state.pose("sled/finish").pos - state.pose("sled/sled").pos)[:, :2])


def view(pull: mapush.WalkingFeatures) -> Tensor:
    """(N, A, 6) [m, 1] hook, finish and direction of the sled, heading frame."""
    state = pull.state
    pos = state.robot_pos[..., :2]
    hook = state.pose("sled/hook").pos[:, None, :2] - pos
    finish = state.pose("sled/finish").pos[:, None, :2] - pos
    along = state.pose("sled/sled").rotation[:, None, :2, 0]
    return torch.cat([in_frame(way, state.robot_frame) for way in (hook, finish, along)], dim=-1)


def progress(pull: mapush.WalkingFeatures) -> Tensor:
    """(N,) [m] by which the sled has come closer to the finish."""
    return distance(pull.prev) - distance(pull.state)


def is_there(pull: mapush.WalkingFeatures) -> Tensor:
    """(N,) bool: the sled is at the finish."""
    return distance(pull.state) < pull.task.cfg.reach


class PullSled(mapush.WalkingTask):
    """The sled comes within ``task.reach`` of the site sled/finish."""

    settings = PullSledCfg
    observations = {"view": mapush.ObservationTerm("hook, finish, sled", view, "m, 1")}
    state = {"views": mapush.ObservationTerm("hook, finish, sled", view, "m, 1", over="robots")}
    rewards = {
        "progress": mapush.RewardTerm("way of the sled", progress, "m", weight=2.0),
        "arrival": mapush.RewardTerm("arrival", lambda pull: is_there(pull).float(), weight=3.0),
    }
    terminations = {"arrived": mapush.TerminationTerm("arrival", is_there, is_failure=False)}
    metrics = {"arrived": mapush.MetricTerm("arrivals", lambda e: e.terminated["arrived"])}
    report = mapush.Report(
        rates=("arrived",), headline=(("Arrived", "arrived_rate"),), outcomes={"arrived": "arrived"}
    )

    @classmethod
    def things(cls, cfg: PullSledCfg) -> list[mapush.Thing]:
        """Return the sled, tied to every robot's trunk."""
        return [mapush.Thing("sled", FILE, hook="hook", rope=cfg.rope)]

    def thing_starts(self, episode: Tensor) -> dict[str, Tensor]:
        """Turn the sled by up to 0.5 rad."""
        pose = self.streams.uniform(0, episode, (3,)) - 0.5
        return {"sled/sled": pose * torch.tensor([0.0, 0.6, 1.0], device=episode.device)}

    def starts(self, episode: Tensor) -> Tensor:
        """Stand side by side ahead of the sled, with random headings."""
        places = self.streams.uniform(1, episode, (self.num_agents, 3)) - 0.5
        places *= torch.tensor([0.1, 0.1, 3.0], device=episode.device)
        places[..., 0] += 0.9
        lanes = torch.arange(self.num_agents, device=episode.device)
        places[..., 1] += 0.7 * (lanes - 0.5 * (self.num_agents - 1))
        return places


mapush.register_task("pull_sled", PullSled)
