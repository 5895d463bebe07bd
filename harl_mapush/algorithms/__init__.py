"""The learning algorithms by name; adding one is a file here, a line below and its section in the documentation."""

from __future__ import annotations

from typing import NamedTuple

from harl_mapush.algorithms.haa2c import Haa2c, Haa2cCfg
from harl_mapush.algorithms.happo import Happo, HappoCfg
from harl_mapush.algorithms.hatrpo import Hatrpo, HatrpoCfg
from harl_mapush.algorithms.ippo import Ippo, IppoCfg
from harl_mapush.algorithms.mappo import Mappo, MappoCfg
from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.algorithms.settings import OnPolicyCfg
from harl_mapush.algorithms.team import TeamSpec, make_actors
from harl_mapush.storage import Decision


class AlgorithmEntry(NamedTuple):
    """An algorithm: the dataclass of its settings, and the class that learns."""

    cfg: type[OnPolicyCfg]
    cls: type[OnPolicy]


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "happo": AlgorithmEntry(HappoCfg, Happo),
    "hatrpo": AlgorithmEntry(HatrpoCfg, Hatrpo),
    "haa2c": AlgorithmEntry(Haa2cCfg, Haa2c),
    "mappo": AlgorithmEntry(MappoCfg, Mappo),
    "ippo": AlgorithmEntry(IppoCfg, Ippo),
}

__all__ = ["ALGORITHMS", "AlgorithmEntry", "Decision", "OnPolicy", "OnPolicyCfg", "TeamSpec", "make_actors"]
