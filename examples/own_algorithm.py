"""An algorithm of your own: HAPPO with SPO's surrogate (Xie et al. 2024).

mapush train --import own_algorithm --algo haspo
"""

from dataclasses import dataclass

from torch import Tensor

import mapush
from harl_mapush.algorithms.happo import Happo, HappoCfg
from mqe.config import option


@dataclass(frozen=True)
class HaspoCfg(HappoCfg):
    """HASPO's settings. clip_param is the best ratio's distance from 1."""

    name: str = option("haspo", "name of the learning algorithm")


class Haspo(Happo):
    """Sequential updates with a penalty on the probability ratio instead of a clip."""

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        penalty = advantages.abs() * (ratio - 1.0) ** 2 / (2.0 * self.cfg.clip_param)
        return ratio * advantages - penalty


mapush.register_algorithm("haspo", HaspoCfg, Haspo)
