"""IPPO (de Witt et al. 2020): MAPPO with a critic of each agent's own observation."""

from dataclasses import dataclass

from torch import Tensor

from harl_mapush.algorithms.mappo import Mappo, MappoCfg
from mqe.config import option
from mqe.vec_env import EntityBlock


@dataclass(frozen=True)
class IppoCfg(MappoCfg):
    """IPPO's settings."""

    name: str = option("ippo", "name of the learning algorithm")
    share_param: bool = option(False, "one actor shared by all agents")


class Ippo(Mappo):
    """Independent learners: one critic network values every agent's own observation."""

    def critic_input(self) -> tuple[str, int]:
        return "FP", self.spec.obs_size

    def critic_sets(self) -> tuple[EntityBlock, ...]:
        return self.spec.obs_sets

    @staticmethod
    def critic_state(obs: Tensor, state: Tensor) -> Tensor:
        return obs
