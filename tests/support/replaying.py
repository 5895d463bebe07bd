"""A small off-policy learner with a replay: noise and a warm-up in ``act``, several updates a
block, saved or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import AlgorithmCfg, NetworkCfg
from mqe.vec_env import TeamSpec, TimeStep


@dataclass(frozen=True)
class ReplayingCfg(AlgorithmCfg):
    """Settings."""

    name: str = "replaying"
    learning_rate: float = 3e-3
    capacity: int = 64  # decisions of every environment
    batch_size: int = 64
    warmup: int = 8  # decisions at random, of every environment
    num_updates: int = 4  # a block
    saves_replay: bool = True


class Replay:
    """The last decisions of every environment, in a ring."""

    def __init__(
        self, cfg: ReplayingCfg, spec: TeamSpec, num_envs: int, device: torch.device | str
    ) -> None:
        def zeros(*size: int) -> Tensor:
            return torch.zeros(cfg.capacity, num_envs, *size, device=device)

        self.obs, self.next_obs = (zeros(spec.num_agents, spec.obs_size) for _ in range(2))
        self.actions = zeros(spec.num_agents, spec.action_size)
        self.rewards = zeros()
        self.continues = zeros()
        self.valid = zeros()
        self.count = 0
        self.is_saved = cfg.saves_replay

    def start(self, obs: Tensor, state: Tensor) -> None: ...

    def begin(self) -> None: ...

    def finish(self) -> None: ...

    def hidden(self, t: int) -> None:
        return None

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        row = self.count % len(self.rewards)
        self.obs[row] = obs
        self.actions[row] = decision.actions
        self.next_obs[row] = step.final_obs
        self.rewards[row] = step.reward.mean(1)
        self.valid[row] = step.valid.float()
        self.continues[row] = 1.0 - step.terminated.all(1).float()
        self.count += 1

    def state_dict(self) -> dict[str, Any]:
        if self.is_saved:
            return {name: value for name, value in vars(self).items() if name != "is_saved"}
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state.get("count", 0)
        for name, value in state.items():
            if isinstance(value, Tensor):
                getattr(self, name).copy_(value)


class Replaying:
    """Independent deterministic policy gradients."""

    def __init__(
        self,
        cfg: ReplayingCfg,
        network: NetworkCfg,
        spec: TeamSpec,
        device: torch.device | str = "cpu",
        seed: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        self.cfg = cfg
        self.spec = spec
        self.device = torch.device(device)
        sizes = zip(spec.obs_sizes, spec.action_sizes, strict=True)
        self.actors = nn.ModuleList([Actor(network, *pair) for pair in sizes]).to(self.device)
        rows = sum(spec.obs_sizes) + sum(spec.action_sizes)
        self.critic = nn.Sequential(nn.Linear(rows, 32), nn.ELU(), nn.Linear(32, 1)).to(self.device)
        parts = {"actors": self.actors, "critic": self.critic}
        self.optimizers = {
            name: FlatAdam(part, cfg.learning_rate, 1e-8, 0.0) for name, part in parts.items()
        }
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.num_decisions = 0

    def make_experience(self, num_steps: int, num_envs: int) -> Replay:
        if num_steps > self.cfg.capacity:
            raise ValueError(
                f"capacity must be at least {num_steps}, one block, not {self.cfg.capacity}"
            )
        return Replay(self.cfg, self.spec, num_envs, self.device)

    @torch.no_grad()
    def act(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        means = self._means(obs)
        self.num_decisions += 1
        noise = torch.randn(means.shape, generator=self.generator, device=self.device)
        is_random = self.num_decisions <= self.cfg.warmup and not self.spec.is_trained
        return Decision((noise if is_random else means + 0.3 * noise).clamp(-1, 1), None, None)

    def update(self, experience: Replay, progress: float = 0.0) -> dict[str, Tensor]:
        losses = [torch.zeros((), device=self.device)]
        for _ in range(self.cfg.num_updates if self.num_decisions > self.cfg.warmup else 0):
            losses.append(self._update(experience))
        return {"critic/value_loss": torch.stack(losses).mean()}

    @property
    def networks(self) -> dict[str, nn.Module]:
        return {f"actor_agent{i}": actor for i, actor in enumerate(self.actors)} | {
            "critic_agent": self.critic
        }

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: optimizer.flat for name, optimizer in self.optimizers.items()}

    def state_dict(self) -> dict[str, Any]:
        adams = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        draws = {"generator": self.generator.get_state(), "num_decisions": self.num_decisions}
        return {
            "weights": {name: flat.clone() for name, flat in self.weights.items()},
            "adams": adams,
        } | draws

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, optimizer in self.optimizers.items():
            optimizer.flat.copy_(state["weights"][name])
            optimizer.load_state_dict(state["adams"][name])
        self.generator.set_state(state["generator"])
        self.num_decisions = state["num_decisions"]

    def _means(self, obs: Tensor) -> Tensor:
        means = [actor(obs[:, i, : actor.obs_size]) for i, actor in enumerate(self.actors)]  # type: ignore[operator, misc]
        return torch.stack(means, 1).tanh()

    def _q(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.critic(torch.cat([obs.flatten(1), actions.flatten(1)], 1)).squeeze(1)

    def _update(self, replay: Replay) -> Tensor:
        shape = (min(replay.count, len(replay.rewards)), replay.rewards.shape[1])
        size = (self.cfg.batch_size,)
        t, n = (
            torch.randint(high, size, generator=self.generator, device=self.device)
            for high in shape
        )
        obs = replay.obs[t, n]
        next_obs = replay.next_obs[t, n]
        actions = replay.actions[t, n]
        with torch.no_grad():
            target = replay.rewards[t, n] + 0.95 * replay.continues[t, n] * self._q(
                next_obs, self._means(next_obs)
            )
        loss = ((self._q(obs, actions) - target).square() * replay.valid[t, n]).mean()
        self._step("critic", loss)
        std = torch.cat([actor.std() for actor in self.actors]).sum()  # type: ignore[operator]
        self._step("actors", 0.0 * std - self._q(obs, self._means(obs)).mean())
        return loss.detach()

    def _step(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        self.optimizers[name].add_gradient(loss)
        self.optimizers[name].step(1.0)
