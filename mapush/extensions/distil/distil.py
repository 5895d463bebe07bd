"""Distillation: a team learns the actions of another team.

The student acts, and learns the teacher's action for each of its own observations
(Ross, Gordon and Bagnell, "A Reduction of Imitation Learning and Structured Prediction to No-Regret
Online Learning", 2011). No reward is needed, and a few million actions are enough. N environments,
A agents, O obs size, U action size, B batch rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.algorithms.team import make_actors
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.off_policy.formulas import OffPolicyFormulas
from harl_mapush.learning.off_policy.q_networks import SquashedActor
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import AlgorithmCfg, NetworkCfg
from mapush.extensions.distil.demonstrations import Demonstrations
from mqe.config import option
from mqe.vec_env import TeamSpec

_ADAM_EPS = 1e-8
_STD_RANGE = (0.02, 1.0)  # that of HASAC, which can train the team on


@dataclass(frozen=True)
class DistilCfg(AlgorithmCfg):
    """Settings of distillation."""

    name: str = option("distil", "name of the learning algorithm")
    share_param: bool = option(True, "one actor shared by all agents")
    teacher: str = option(
        "pretrained:cuboid",
        "team whose actions are learned, which observes the same: a checkpoint or pretrained:NAME",
    )
    learning_rate: float = option(
        3e-4,
        "learning rate; it falls to zero over the second half of the run",
        min=1e-30,
        max=100.0,
    )
    noise: float = option(
        0.1, "standard deviation of the noise on the student's actions", min=0.0, max=10.0
    )
    buffer_size: int = option(500_000, "number of stored decisions of a team", min=1, max=10**8)
    batch_size: int = option(4096, "number of decisions in a batch", min=1, max=2**22)
    update_ratio: float = option(
        0.005, "number of updates per decision of one team", min=1e-6, max=1e4
    )


class Distil:
    """Squashed actors learning the actions of a teacher."""

    actor_class = SquashedActor

    def __init__(
        self,
        cfg: DistilCfg,
        network: NetworkCfg,
        spec: TeamSpec,
        device: torch.device | str = "cpu",
        seed: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        """Build actors and an optimiser on ``device``.

        Networks are initialised on the CPU from torch's global generator. ``seed`` determines noise
        and batches. Every rank has a ring with its own worlds' decisions.
        """
        if network.use_recurrent_policy:
            raise ValueError(
                "distil has no recurrent policies; set network.use_recurrent_policy=false"
            )
        self.cfg = cfg
        self.network = network
        self.spec = spec
        self.device = torch.device(device)
        self.ranks = ranks
        make = partial(
            SquashedActor,
            network,
            sets=spec.obs_sets,
            bound_log_std=partial(OffPolicyFormulas(ranks).log_std, std_range=_STD_RANGE),
            last_activation=network.activation,
        )
        actors = make_actors(make, spec, is_shared=cfg.share_param)
        self.actors: list[SquashedActor] = [actor.to(self.device) for actor in actors]
        # The layers of standard deviations do not learn.
        trained = [nn.ModuleList(actor.layers()) for actor in dict.fromkeys(self.actors)]
        self.optimizer = FlatAdam(
            nn.ModuleList(trained), cfg.learning_rate, _ADAM_EPS, 0.0, ranks, fuses=True
        )
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.num_owed = 0.0  # updates that are due, whole ones and a fraction

    # Acting

    @torch.no_grad()
    def act(
        self, obs: Tensor, hidden: Tensor | None = None, *, deterministic: bool = False
    ) -> Decision:
        """Decide for obs (N, A, O), with noise unless ``deterministic``."""
        return Decision(self._act(obs) if deterministic else self._explore(obs), None, None)

    def _act(self, obs: Tensor) -> Tensor:
        actions = [actor(self._own_obs(agent, obs)) for agent, actor in enumerate(self.actors)]
        width = self.spec.action_size
        return torch.stack([pad(x, (0, width - x.shape[-1])) for x in actions], dim=1)

    def _explore(self, obs: Tensor) -> Tensor:
        actions = self._act(obs)
        noise = self.ranks.draw(
            torch.randn, tuple(actions.shape), generator=self.generator, device=self.device
        )
        return (actions + self.cfg.noise * noise).clamp(-1.0, 1.0)

    def _own_obs(self, agent: int, obs: Tensor) -> Tensor:
        return obs[:, agent, : self.spec.obs_sizes[agent]]

    # Learning

    def make_experience(self, num_steps: int, num_envs: int) -> Demonstrations:
        """Allocate the ring of decisions."""
        return Demonstrations(
            self._num_rows(num_envs),
            num_envs,
            self.spec,
            self.device,
        )

    def update(self, experience: Demonstrations, progress: float = 0.0) -> dict[str, Tensor]:
        """Update ``update_ratio`` times per decision of the last block.

        Return the last update's metrics.
        """
        cfg = self.cfg
        self.optimizer.learning_rate.fill_(cfg.learning_rate * min(1.0, 2.0 - 2.0 * progress))
        self.num_owed += cfg.update_ratio * experience.num_new * self.ranks.size
        experience.num_new = 0
        num_due = int(self.num_owed)
        self.num_owed -= num_due
        metrics = {}
        for _ in range(num_due):
            index = self.ranks.draw(
                partial(torch.randint, len(experience)),
                (self._batch_size,),
                generator=self.generator,
                device=self.device,
            )
            metrics = self._learn(*experience.rows(index))
        return metrics

    def _learn(self, obs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Take one step towards the teacher's actions (B, A, U) for obs (B, A, O)."""
        errors = []
        for agent, actor in enumerate(self.actors):
            actions = actor(self._own_obs(agent, obs))
            error = actions - targets[:, agent, : actor.action_size]
            errors.append(error.square().mean(dim=-1))
        weights = self._presence(obs)
        by_team = (torch.stack(errors, dim=1) * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        loss = by_team.mean()
        self.optimizer.set_gradient(loss)
        self.optimizer.share(None)
        self.optimizer.step(0.0)
        return {"teacher/squared_error": loss.detach()}

    def _presence(self, obs: Tensor) -> Tensor:
        """Return 1 for every participating agent (B, A), else 0."""
        if self.spec.presence is None:
            return torch.ones_like(obs[..., 0])
        return obs[..., self.spec.presence]

    @property
    def _batch_size(self) -> int:
        """Number of this rank's decisions in a batch."""
        return math.ceil(self.cfg.batch_size / self.ranks.size)

    def _num_rows(self, num_envs: int) -> int:
        return max(1, math.ceil(self.cfg.buffer_size / self.ranks.size / num_envs))

    # Saving

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The actors by file name."""
        return {f"actor_agent{agent}": actor for agent, actor in enumerate(self.actors)}

    @property
    def weights(self) -> dict[str, Tensor]:
        """All trained weights as one flat tensor."""
        return {"team": self.optimizer.flat}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume, without the experience."""
        return {
            "actors": [actor.state_dict() for actor in dict.fromkeys(self.actors)],
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "num_owed": self.num_owed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``."""
        for actor, saved in zip(dict.fromkeys(self.actors), state["actors"], strict=True):
            actor.load_state_dict(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.num_owed = state["num_owed"]
