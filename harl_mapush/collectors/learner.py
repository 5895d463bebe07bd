"""The contract between a learner and the collectors beside it: what a run with collectors uses
besides ``Algorithm``.

Settings with ``takes_collectors`` name an algorithm that has it. N environments, A agents, O obs
size, U action size, G critic views.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.replay_buffer import ReplayShape, RingReplay
from harl_mapush.learning.settings import OffPolicyCfg
from harl_mapush.learning.world_model.world_model import WorldModel


class ReplayLearner(Algorithm, Protocol):
    """An algorithm that learns from a replay, which other processes fill with what its actors do
    there.
    """

    cfg: OffPolicyCfg
    model: WorldModel | None  # of the worlds, learned beside the team
    num_updates: int
    num_owed: float  # updates that the settings ask for, and that are still to do
    # First world and their number, where others have some as well.
    world_share: tuple[int, int] | None

    @property
    def unique_actors(self) -> list[Any]:
        """Actors without repetition: one if shared."""
        ...

    def replay_shape(self, num_envs: int, num_rings: int = 1) -> ReplayShape:
        """Return the sizes of the replay of ``num_envs`` environments, shared out over rings."""
        ...

    def make_rings(self, num_envs: int, num_rings: int) -> ReplayExperience:
        """Allocate a replay for ``num_rings`` processes that collect, each in its share of the
        environments.
        """
        ...

    def team_rewards(self, rewards: Tensor) -> Tensor:
        """Turn the agents' rewards (N, A) into those that are learned (N, G)."""
        ...

    def explore(self, obs: Tensor) -> Tensor:
        """Return actions (N, A, U) that explore, for obs (N, A, O)."""
        ...

    def set_progress(self, progress: float) -> None:
        """Set what follows the share of the run that is done, ``progress`` in [0, 1)."""
        ...

    def learn_from(self, replay: RingReplay) -> dict[str, Tensor]:
        """Take one update from a replay; return its metrics as 0-dim tensors on the device."""
        ...
