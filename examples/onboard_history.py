"""Onboard senses with a history: eight earlier detections of the object, parts of the vector.

mapush train --preset laptop_onboard --import onboard_history --set task.senses.name=onboard_history
--set 'task.more_observations=[object_age,past_objects]'

N worlds, A robots, K detections, newest first.
"""

from typing import Any

import torch
from torch import Tensor

from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.recollection import KnownFeatures, Recollection
from mapush.extensions.onboard.settings import OnboardCfg
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.senses import SENSES, SensesEntry
from mqe.tasks.terms import Memory, ObservationTerm
from mqe.world.geometry import in_frame
from mqe.world.scene import STEP_DT

K = 8
APART = 0.4  # [s] least time between two of them
POSE = 5  # x, y [m], unit vector of the heading, freshness


def num_columns(num_agents: int) -> int:
    """Return the observed memory's columns."""
    return Recollection.num_columns(num_agents) + POSE * K * num_agents


def split(values: Tensor, num_agents: int) -> tuple[Tensor, Tensor]:
    """Return the senses' own columns of a memory, and earlier detections (N, A, K, 5)."""
    own, past = values.tensor_split((Recollection.num_columns(num_agents),), dim=1)
    return own, past.unflatten(1, (num_agents, K, POSE))


class HistorySenses(OnboardSenses):
    """The onboard senses, and detections that newer ones have replaced."""

    def __init__(
        self, cfg: OnboardCfg, memory: Memory, values: Tensor, constants: PushConstants, *more: Any
    ) -> None:
        own, past = split(values, constants.num_agents)
        super().__init__(cfg, memory, own, constants, *more)
        self._past = memory.keep("past", past)

    def _detect(self, takes_part: Tensor) -> None:
        thing = self._recollection.entities[:, :, 0]
        before = thing.clone()
        super()._detect(takes_part)
        second = 1.0 / self._cfg.memory_time  # in units of freshness
        passed = STEP_DT * self._constants.cfg.decision_period * second
        self._past[..., 4].sub_(passed).clamp_(min=0.0)
        before[..., 4].sub_(passed).clamp_(min=0.0)
        newest = self._past[:, :, 0, 4]
        is_replaced = (thing[..., :2] != before[..., :2]).any(dim=-1) & (before[..., 4] > 0.0)
        is_apart = (newest == 0.0) | (before[..., 4] - newest > APART * second)
        longer = torch.cat((before.unsqueeze(2), self._past[:, :, :-1]), dim=2)
        is_kept = (is_replaced & is_apart)[..., None, None]
        self._past.copy_(torch.where(is_kept, longer, self._past))

    def known(self, scene: SceneFeatures, memory: Tensor) -> "FeaturesWithPast":
        own, past = split(memory, self._constants.num_agents)
        return FeaturesWithPast(scene, Recollection(own, self._constants.num_agents), past)


class FeaturesWithPast(KnownFeatures):
    """The scene as each robot knows it, with earlier detections."""

    def __init__(self, scene: SceneFeatures, recollection: Recollection, past: Tensor) -> None:
        super().__init__(scene, recollection)
        self._past = past

    @property
    def past_objects(self) -> Tensor:
        """Earlier detections (N, A, K, 6) in each robot's heading frame: presence, x, y
        [m], sine and cosine of the heading, age.
        """
        place, ahead, fresh = self._past.split((2, 2, 1), dim=-1)
        values = (
            in_frame(place - self._origin, self._frame),
            in_frame(ahead, self._frame).flip(-1),
            1.0 - fresh,
        )
        is_there = (fresh > 0.0).float()
        return torch.cat((is_there, torch.cat(values, dim=-1) * is_there), dim=-1)


def past_objects(scene: SceneFeatures) -> Tensor:
    """Return earlier detections (N, A, K, 6), zeros without these senses."""
    if isinstance(scene, FeaturesWithPast):
        return scene.past_objects
    return scene.bodies_b.new_zeros(*scene.bodies_b.shape[:2], K, POSE + 1)


OBSERVATIONS["past_objects"] = ObservationTerm(
    "earlier detections of the object",
    past_objects,
    mirror_signs=(1.0, 1.0, -1.0, -1.0, 1.0, 1.0) * K,
    noise=0.0,
    turn=OBSERVATIONS["others"].turn,
)
SENSES.register("onboard_history", SensesEntry(OnboardCfg, num_columns, HistorySenses))
