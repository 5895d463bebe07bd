"""HAA2C (Zhong et al. 2024): HAPPO's sequential updates with an unclipped surrogate."""

from dataclasses import dataclass

from torch import Tensor

from harl_mapush.algorithms.happo import Happo, HappoCfg
from mqe.config import option


@dataclass(frozen=True)
class Haa2cCfg(HappoCfg):
    """HAA2C's settings. ``clip_param`` clips values only."""

    name: str = option("haa2c", "name of the learning algorithm")


class Haa2c(Happo):
    """Sequential importance-weighted policy gradient with the cumulative ratio factor."""

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        return ratio * advantages
