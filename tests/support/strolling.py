"""A task with one robot and no object."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mqe.tasks.terms import MeasureTerm, MetricTerm, ObservationTerm, RewardTerm, TerminationTerm
from mqe.tasks.walking import WalkingCfg, WalkingTask, walking_entry

LYING_HEIGHT = 0.2  # [m] of a trunk


@dataclass(frozen=True)
class StrollCfg(WalkingCfg):
    """Settings with known terms only."""

    def __post_init__(self) -> None:
        terms = STROLL.terms
        assert terms is not None
        self.check_terms(terms)


class Stroll(WalkingTask):
    """A robot walks ahead. A trunk near the floor ends the episode."""

    settings = StrollCfg
    decision_period = 1
    observations = {
        "height": ObservationTerm("height", lambda walk: walk.state.robot_pos[..., 2:], "m"),
        "heading": ObservationTerm("heading", lambda walk: walk.state.robot_frame[..., 0, :]),
    }
    state = {"height": ObservationTerm("height", lambda walk: walk.state.robot_pos[:, 0, 2:], "m")}
    rewards = {"ahead": RewardTerm("speed", lambda walk: walk.state.robot_linvel[..., 0], "m/s", 1)}
    terminations = {
        "lying": TerminationTerm(
            "a trunk near the floor", lambda walk: walk.state.robot_pos[:, 0, 2] < LYING_HEIGHT
        )
    }
    measures = {"height": MeasureTerm("height", lambda walk: walk.state.robot_pos[:, 0, 2], "m")}
    metrics = {"height": MetricTerm("mean height", lambda e: e.mean("height"), "m")}

    def starts(self, episode: Tensor) -> Tensor:
        """Stand at the origin with any heading."""
        starts = torch.zeros(len(episode), self.num_agents, 3, device=episode.device)
        starts[..., 2] = self.streams.uniform(0, episode).unsqueeze(1)
        return starts


STROLL = walking_entry(Stroll)
