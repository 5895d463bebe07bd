"""Learning algorithms by name.

A new algorithm here needs its file, a line below and a section in
``docs/background/algorithms.md``. An outside algorithm uses ``mapush.register_algorithm``.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.algorithms.haa2c import Haa2c, Haa2cCfg
from harl_mapush.algorithms.happo import Happo, HappoCfg
from harl_mapush.algorithms.hasac import Hasac, HasacCfg, MasacCfg
from harl_mapush.algorithms.ippo import Ippo, IppoCfg
from harl_mapush.algorithms.mappo import Mappo, MappoCfg
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.settings import AlgorithmCfg, NetworkCfg
from mqe.extensions import Registry
from mqe.vec_env import TeamSpec


class AlgorithmEntry(NamedTuple):
    """An algorithm's settings class and builder.

    The builder takes the arguments of ``make_algorithm``.
    """

    cfg: type[AlgorithmCfg]
    cls: Callable[..., Algorithm]


ALGORITHMS: Registry[AlgorithmEntry] = Registry("algorithm")
ALGORITHMS.register("happo", AlgorithmEntry(HappoCfg, Happo))
ALGORITHMS.register("haa2c", AlgorithmEntry(Haa2cCfg, Haa2c))
ALGORITHMS.register("mappo", AlgorithmEntry(MappoCfg, Mappo))
ALGORITHMS.register("ippo", AlgorithmEntry(IppoCfg, Ippo))
ALGORITHMS.register("hasac", AlgorithmEntry(HasacCfg, Hasac))
ALGORITHMS.register("masac", AlgorithmEntry(MasacCfg, Hasac))


def make_algorithm(
    cfg: AlgorithmCfg,
    network: NetworkCfg,
    spec: TeamSpec,
    device: torch.device | str,
    seed: int,
    ranks: Ranks = ALONE,
) -> Algorithm:
    """Build the algorithm of the settings ``cfg`` on a device.

    ``seed`` determines actions, orders and shuffles. The algorithm learns from all ranks'
    experience.
    """
    return ALGORITHMS[cfg.name].cls(cfg, network, spec, device, seed, ranks)
