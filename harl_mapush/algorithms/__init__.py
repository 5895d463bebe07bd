"""The learning algorithms by name; adding one is a file here, a line below and its section in the
documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from harl_mapush.algorithms.algorithm import Algorithm, AlgorithmCfg, Decision
from harl_mapush.algorithms.haa2c import Haa2c, Haa2cCfg
from harl_mapush.algorithms.happo import Happo, HappoCfg
from harl_mapush.algorithms.hasac import Hasac, HasacCfg, MasacCfg
from harl_mapush.algorithms.hatd3 import Hatd3, Hatd3Cfg, Matd3Cfg
from harl_mapush.algorithms.hatrpo import Hatrpo, HatrpoCfg
from harl_mapush.algorithms.ippo import Ippo, IppoCfg
from harl_mapush.algorithms.mappo import Mappo, MappoCfg
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.algorithms.team import TeamSpec
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.on_policy.settings import OnPolicyCfg


class AlgorithmEntry(NamedTuple):
    """An algorithm: the dataclass of its settings, and what builds the learner, as
    ``make_algorithm`` calls it.
    """

    cfg: type[AlgorithmCfg]
    cls: Callable[..., Algorithm]


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "happo": AlgorithmEntry(HappoCfg, Happo),
    "hatrpo": AlgorithmEntry(HatrpoCfg, Hatrpo),
    "haa2c": AlgorithmEntry(Haa2cCfg, Haa2c),
    "mappo": AlgorithmEntry(MappoCfg, Mappo),
    "ippo": AlgorithmEntry(IppoCfg, Ippo),
    "hasac": AlgorithmEntry(HasacCfg, Hasac),
    "hatd3": AlgorithmEntry(Hatd3Cfg, Hatd3),
    "masac": AlgorithmEntry(MasacCfg, Hasac),
    "matd3": AlgorithmEntry(Matd3Cfg, Hatd3),
}


def make_algorithm(
    cfg: AlgorithmCfg,
    network: NetworkCfg,
    spec: TeamSpec,
    device: torch.device | str,
    seed: int,
    ranks: Ranks = ALONE,
) -> Algorithm:
    """Build the algorithm that ``cfg`` names on a device; its actions, orders and shuffles are
    drawn from ``seed``.

    It learns from what all ``ranks`` collect.
    """
    return ALGORITHMS[cfg.name].cls(cfg, network, spec, device, seed, ranks)


__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmCfg",
    "AlgorithmEntry",
    "Decision",
    "OnPolicy",
    "OnPolicyCfg",
    "TeamSpec",
    "make_algorithm",
]
