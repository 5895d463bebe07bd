"""A task of your own: every robot runs at top speed along x, in its own lane.

mapush train --import own_task --task race --num_agents 3
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import mapush


@dataclass(frozen=True)
class RaceCfg(mapush.WalkingCfg):
    """A race's section ``task``."""

    name: str = mapush.option("race", "the task", choices=("race",))
    finish: float = mapush.option(4.0, "end of the lanes [m]", above=0.0)


def place(race: mapush.WalkingFeatures) -> Tensor:
    """(N, A, 4) [m, 1] position along and across the lane, cosine and sine of the heading."""
    pos = race.state.robot_pos
    lanes = 1.5 * torch.arange(pos.shape[1], device=pos.device)
    across = (pos[..., 1] - lanes).unsqueeze(-1)
    return torch.cat((pos[..., :1], across, race.state.robot_frame[..., 0, :]), dim=-1)


def speed(race: mapush.WalkingFeatures) -> Tensor:
    """(N, A) [m/s] along the lanes."""
    return race.state.robot_linvel[..., 0]


def is_finished(race: mapush.WalkingFeatures) -> Tensor:
    """(N,) bool: the first robot has reached its lane's end."""
    return (race.state.robot_pos[..., 0] > race.task.cfg.finish).any(dim=1)


class Race(mapush.WalkingTask):
    """The first robot at its lane's end wins."""

    settings = RaceCfg
    observations = {"place": mapush.ObservationTerm("place in the lane and heading", place, "m, 1")}
    state = {
        "places": mapush.ObservationTerm(
            "places of all robots",
            place,
            "m, 1",
            numbers=("along", "across", "cos", "sin"),
            over="robots",
        )
    }
    rewards = {"speed": mapush.RewardTerm("speed of the robot", speed, "m/s", weight=0.1)}
    terminations = {
        "finished": mapush.TerminationTerm("end of a lane", is_finished, is_failure=False)
    }
    measures = {"speed": mapush.MeasureTerm("speed of a robot", speed, "m/s", per_robot=True)}
    metrics = {
        "finished": mapush.MetricTerm("finished races", lambda e: e.terminated["finished"]),
        "speed": mapush.MetricTerm("mean speed", lambda e: e.mean("speed").mean(dim=1), "m/s"),
    }
    report = mapush.Report(
        rates=("finished",),
        headline=(("Finished", "finished_rate"),),
        outcomes={"finished": "finished"},
    )

    def starts(self, episode: Tensor) -> Tensor:
        """Stand at the start of the lanes."""
        places = episode.new_zeros(len(episode), self.num_agents, 3, dtype=torch.float32)
        places[..., 1] = 1.5 * torch.arange(self.num_agents, device=episode.device)
        return places


mapush.register_task("race", Race)
