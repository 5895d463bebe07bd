"""MAPPO (Yu et al. 2022): agents improve independently, or as one with shared parameters; a centralised critic."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.algorithms.settings import OnPolicyCfg
from harl_mapush.algorithms.surrogate import actor_batch, improve, joint_advantages
from harl_mapush.storage import Storage


@dataclass(frozen=True)
class MappoCfg(OnPolicyCfg):
    """MAPPO's settings."""

    name: str = "mappo"
    share_param: bool = True


class Mappo(OnPolicy):
    """Clipped updates without a factor; shared actors learn from all agents' data at once."""

    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        cfg, length = self.cfg, self.chunk_length(storage)
        storage.factor.fill_(1.0)
        advantages = self.advantages(storage)
        batches = [actor_batch(actor, storage, i, advantages[i], length) for i, actor in enumerate(self.actors)]
        if cfg.share_param:
            told = improve(self.actors[0], self.optimizer(0), batches, cfg, cfg.clip_param, self.shuffle)
            return dict.fromkeys(range(self.num_agents), told)
        return {
            agent: improve(actor, self.optimizer(agent), [batches[agent]], cfg, cfg.clip_param, self.shuffle)
            for agent, actor in enumerate(self.actors)
        }

    def advantages(self, storage: Storage) -> list[Tensor]:
        return joint_advantages(storage) if self.cfg.share_param else super().advantages(storage)
