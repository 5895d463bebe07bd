"""The contract between a run with collectors and its learner, in addition to ``Algorithm``.

Algorithms with the setting ``takes_collectors`` fulfil it. N environments, A agents, O obs size, U
action size, G critic views.
"""

from typing import Any, Protocol

from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.replay_buffer import ReplayShape
from harl_mapush.learning.settings import OffPolicyCfg


class ReplayLearner(Algorithm, Protocol):
    """An algorithm with a replay buffer. Collectors with its actors can fill the buffer."""

    cfg: OffPolicyCfg
    num_updates: int
    # The first of a collector's worlds and the number of all; None if one process has all worlds.
    world_share: tuple[int, int] | None

    @property
    def unique_actors(self) -> list[Any]:
        """The actors without repetition: one if it is shared."""
        ...

    def replay_shape(self, num_envs: int, num_rings: int = 1) -> ReplayShape:
        """Return the sizes of a replay buffer for ``num_envs`` environments in rings."""
        ...

    def make_rings(self, num_envs: int, num_rings: int) -> ReplayExperience:
        """Allocate a replay buffer with an equal ring for each of ``num_rings`` processes."""
        ...

    def team_rewards(self, rewards: Tensor) -> Tensor:
        """Return the learned rewards (N, G) from the agents' rewards (N, A)."""
        ...
