"""Onboard senses with messages: in every decision robots tell each other where the object was seen.

mapush train --preset laptop_onboard --import onboard_messages --set
task.senses.name=onboard_messages --set 'task.more_observations=[object_age,told_object]'

A message has three numbers, the place in the sender's odometry frame and the time of the detection.
A robot keeps the freshest one that it got. N worlds, A robots.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.recollection import KnownFeatures, Recollection
from mapush.extensions.onboard.settings import OnboardCfg
from mqe.config import option
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.senses import SENSES, SensesEntry
from mqe.tasks.terms import Memory, ObservationTerm
from mqe.world.geometry import in_frame
from mqe.world.scene import STEP_DT

STREAM = 63  # of the lost messages
KEYS_AN_EPISODE = 1 << 26  # more control steps than any episode has


@dataclass(frozen=True)
class MessagesCfg(OnboardCfg):
    """Settings of the onboard senses with messages."""

    lost_messages: float = option(0.2, "fraction of messages that get lost", min=0.0, max=1.0)


def num_columns(num_agents: int) -> int:
    """Return the observed memory's columns."""
    return Recollection.num_columns(num_agents) + 3 * num_agents


def split(values: Tensor, num_agents: int) -> tuple[Tensor, Tensor]:
    """Return the columns of a robot's own senses, and the freshest messages (N, A, 3): x, y [m],
    freshness.
    """
    num_own = Recollection.num_columns(num_agents)
    messages = values[:, num_own:].unflatten(1, (num_agents, 3))
    return values[:, :num_own], messages


class TalkingSenses(OnboardSenses):
    """The onboard senses of robots that tell each other about the object."""

    def __init__(
        self, cfg: MessagesCfg, memory: Memory, values: Tensor, constants: PushConstants, *more: Any
    ) -> None:
        own_values, messages = split(values, constants.num_agents)
        super().__init__(cfg, memory, own_values, constants, *more)
        self._lost = cfg.lost_messages
        self._messages = memory.keep("messages", messages)
        self._is_self = torch.eye(constants.num_agents, dtype=torch.bool, device=values.device)

    def _detect(self, takes_part: Tensor) -> None:
        super()._detect(takes_part)
        passed = STEP_DT * self._constants.cfg.decision_period / self._cfg.memory_time
        self._messages[..., 2].sub_(passed).clamp_(min=0.0)
        seen = self._recollection.entities[:, :, 0]  # (N, A, 5) the senders' detections
        key = self._episode * KEYS_AN_EPISODE + self._time.long()
        is_lost = self._streams.uniform(STREAM, key, self._is_self.shape) < self._lost
        arrives = ~is_lost & ~self._is_self & (takes_part.unsqueeze(1) > 0.0)
        fresh, sender = (seen[:, None, :, 4] * arrives).max(dim=2)
        place = seen[..., :2].gather(1, sender.unsqueeze(-1).expand(-1, -1, 2))
        message = torch.cat((place, fresh.unsqueeze(-1)), dim=-1)
        is_fresher = (fresh > self._messages[..., 2]).unsqueeze(-1)
        self._messages.copy_(torch.where(is_fresher, message, self._messages))

    def known(self, scene: SceneFeatures, memory: Tensor) -> "FeaturesWithMessages":
        own_memory, messages = split(memory, self._constants.num_agents)
        recollection = Recollection(own_memory, self._constants.num_agents)
        return FeaturesWithMessages(scene, recollection, messages)


class FeaturesWithMessages(KnownFeatures):
    """The scene as each robot knows it, with the freshest message."""

    def __init__(self, scene: SceneFeatures, recollection: Recollection, messages: Tensor) -> None:
        super().__init__(scene, recollection)
        self._messages = messages

    @property
    def told_object(self) -> Tensor:
        """The object's place (N, A, 3) in the freshest message, in the robot's heading frame: x, y
        [m], age.
        """
        place, fresh = self._messages.split((2, 1), dim=-1)
        place = in_frame(place.unsqueeze(2) - self._origin, self._frame).squeeze(2)
        return torch.cat((place * (fresh > 0.0), 1.0 - fresh), dim=-1)


def told_object(scene: SceneFeatures) -> Tensor:
    """Return the object in the freshest message (N, A, 3), zeros without these senses."""
    if isinstance(scene, FeaturesWithMessages):
        return scene.told_object
    return scene.bodies_b.new_zeros(*scene.bodies_b.shape[:2], 3)


OBSERVATIONS["told_object"] = ObservationTerm(
    "the object's place in the freshest message",
    told_object,
    numbers=("told_x", "told_y", "told_age"),
    mirror_signs=(1.0, -1.0, 1.0),
    noise=0.0,
    turn=OBSERVATIONS["others"].turn,
)
SENSES.register("onboard_messages", SensesEntry(MessagesCfg, num_columns, TalkingSenses))
