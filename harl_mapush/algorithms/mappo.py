"""MAPPO (Yu et al. 2022): independent or shared actors and a centralised critic."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from harl_mapush.algorithms.on_policy import OnPolicy
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.on_policy.surrogate import actor_batch
from harl_mapush.learning.settings import OnPolicyCfg
from mqe.config import option


@dataclass(frozen=True)
class MappoCfg(OnPolicyCfg):
    """MAPPO's settings."""

    name: str = option("mappo", "name of the learning algorithm")
    share_param: bool = option(True, "one actor shared by all agents")


class Mappo(OnPolicy):
    """Clipped updates without a factor. A shared actor learns from all agents' data at once."""

    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        storage.factor.fill_(1.0)
        agents = range(self.num_agents)
        if self.cfg.share_param:
            update = partial(self._update_actor, storage, agents)
            metrics = self.graphs("team", update, over=storage)
            return dict.fromkeys(agents, metrics)

        metrics = {}
        for agent in agents:
            update = partial(self._update_actor, storage, [agent])
            metrics[agent] = self.graphs(("agent", agent), update, over=storage)
        return metrics

    def _update_actor(self, storage: Storage, agents: Sequence[int]) -> dict[str, Tensor]:
        """Update these agents' actor on their rows. Several agents share one actor."""
        advantages = self.advantages(storage)
        length = self.value.chunk_length(storage)
        batches = [actor_batch(self.actors[i], storage, i, advantages[i], length) for i in agents]
        return self.update_policy(agents[0], batches)

    @property
    def joins_advantages(self) -> bool:
        return self.cfg.share_param or super().joins_advantages
