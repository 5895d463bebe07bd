"""Onboard senses with messages: in every decision robots tell each other where they are.

A message has four numbers, the sender's place and heading in its odometry frame. It arrives a
decision later. N worlds, A robots.

mapush train --preset onboard_any --import onboard_places --set task.senses.name=onboard_places

Suites have the senses ``onboard``, without messages: name these ones in ``mapush test``, too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.recollection import Recollection
from mapush.extensions.onboard.settings import OnboardCfg
from mqe.config import option
from mqe.tasks.push.senses import SENSES, SensesEntry
from mqe.world.geometry import rotate_2d
from mqe.world.scene import STEP_DT

STREAM = 63  # of the lost messages
KEYS_AN_EPISODE = 1 << 26  # more control steps than any episode has


@dataclass(frozen=True)
class PlacesCfg(OnboardCfg):
    """Settings of the onboard senses with messages."""

    lost_messages: float = option(0.2, "fraction of messages that get lost", min=0.0, max=1.0)


class TellingSenses(OnboardSenses):
    """The onboard senses of robots that tell each other where they are."""

    def _detect(self, takes_part: Tensor) -> None:
        super()._detect(takes_part)
        memory = self._recollection
        period = self._constants.cfg.decision_period
        origin, ahead = self._history[:, period, :-1].split(2, dim=-1)  # (N, A, 2)
        place = origin + memory.drift[..., :2]
        heading = rotate_2d(ahead, memory.drift[..., 2])
        age = STEP_DT * period / self._cfg.memory_time
        fresh = torch.full_like(place[..., :1], 1.0 - age)
        sender = self._constants.order[:, 1:]  # (A, A - 1)
        message = torch.cat((place, heading, fresh), dim=-1)[:, sender]

        key = self._episode * KEYS_AN_EPISODE + self._time.long()
        is_lost = self._streams.uniform(STREAM, key, sender.shape) < self._cfg.lost_messages
        # There is nothing to tell in the first decision.
        arrives = ~is_lost & (takes_part[:, sender] > 0.0) & (self._time > period).view(-1, 1, 1)
        others = memory.entities[:, :, 1:]
        others.copy_(torch.where(arrives.unsqueeze(-1), message, others))


SENSES.register("onboard_places", SensesEntry(PlacesCfg, Recollection.num_columns, TellingSenses))
