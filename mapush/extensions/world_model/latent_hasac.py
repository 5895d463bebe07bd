"""HASAC with a latent model: critics read it, and their targets imagine further decisions.

B rows, A agents, O obs size, U action size, G critic views, S state size, H decisions of a window.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import mapush
from harl_mapush.algorithms.hasac import Hasac, HasacCfg
from harl_mapush.learning.off_policy.replay_buffer import RingReplay
from mapush.extensions.world_model.latent_model import LatentCritic
from mqe.config import option


@dataclass(frozen=True)
class LatentHasacCfg(HasacCfg):
    """The settings of HASAC with a latent model."""

    name: str = option("latent_hasac", "name of the learning algorithm")
    latent_size: int = option(64, "numbers in a robot's latent state", min=1, max=4096)
    horizon: int = option(3, "decisions over which the model predicts", min=1, max=100)
    reads: bool = option(True, "latents of the model among the critics' inputs")
    shapes: bool = option(False, "training of the model by the critics' loss as well")
    imagines: int = option(0, "imagined decisions in the critics' targets", min=0, max=100)


class Windows(NamedTuple):
    """Transitions over up to n decisions, each with H consecutive decisions from its first on."""

    obs: Tensor
    state: Tensor  # (B, G, S + A O), the observations behind the state
    actions: Tensor
    active: Tensor
    returns: Tensor
    discount: Tensor
    next_obs: Tensor
    next_state: Tensor
    window_actions: Tensor  # (B, H, A, U)
    window_rewards: Tensor  # (B, H), the views' mean
    window_continues: Tensor  # (B, H) 0 where the task ended the episode
    window_obs: Tensor  # (B, H, A, O), after each decision
    window_state: Tensor  # (B, H, G, S), after each decision
    weights: Tensor  # (B, H) 1 within the episode


class LatentHasac(Hasac):
    """HASAC whose critics read a latent model, or learn from imagined decisions."""

    cfg: LatentHasacCfg
    batch_class = Windows
    critic: LatentCritic
    target_critic: LatentCritic

    def make_critic(self) -> LatentCritic:
        cfg = self.cfg
        return LatentCritic(
            self.network,
            self.spec,
            self.num_views,
            cfg.latent_size,
            reads=cfg.reads,
            shapes=cfg.shapes,
        )

    def sample(self, replay: RingReplay, size: int) -> Any:
        """Draw transitions with their windows."""
        rows = replay.draw_rows(size)
        batch = self.images(replay.look_up(rows))
        single = copy(replay)
        single.num_steps = 1
        steps = []
        weights = [torch.ones_like(rows, dtype=torch.bool)]
        for _ in range(self.cfg.horizon):
            steps.append(self.images(single.look_up(rows)))
            rows, is_usable = replay.next_rows(rows)
            weights.append(weights[-1] & is_usable)
        seen = batch._replace(
            state=_with_obs(batch.state, batch.obs),
            next_state=_with_obs(batch.next_state, batch.next_obs),
        )
        return Windows(
            *seen,
            window_actions=torch.stack([step.actions for step in steps], dim=1),
            window_rewards=torch.stack([step.returns.mean(1) for step in steps], dim=1),
            window_continues=torch.stack([step.discount > 0.0 for step in steps], dim=1).float(),
            window_obs=torch.stack([step.next_obs for step in steps], dim=1),
            window_state=torch.stack([step.next_state for step in steps], dim=1),
            weights=torch.stack(weights[:-1], dim=1).float(),
        )

    def _update_critic(self, batch: Any) -> dict[str, Tensor]:
        with torch.no_grad():
            batch = self.imagined(batch)
        return super()._update_critic(batch)

    def imagined(self, batch: Any) -> Any:
        """Extend the returns (B, G) by imagined decisions of the newest actors."""
        size = self.spec.state_size
        obs = batch.next_obs
        state = batch.next_state[..., :size]
        returns = batch.returns
        discount = batch.discount.view(len(obs), -1)
        scale = self.learned_normalizer.scale()
        for _ in range(self.cfg.imagines):
            actions, bonus = self.next_decisions(obs)
            by_agent = actions.unflatten(-1, (self.num_agents, -1))
            step = self.critic.model(obs, state, by_agent)
            gain = step.reward + bonus / scale
            returns = returns + discount * gain.unsqueeze(1)
            discount = discount * self.cfg.gamma * step.continuing.sigmoid().unsqueeze(1)
            obs = step.obs
            state = step.state
        return batch._replace(
            returns=returns, discount=discount, next_obs=obs, next_state=_with_obs(state, obs)
        )

    def model_loss(self, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of predictions over a window.

        Errors of observations and states in the metrics are shares of their mean square change,
        those of rewards are shares of the rewards' mean square.
        """
        obs = batch.obs
        state = batch.state[..., : self.spec.state_size]
        first_obs, first_state = obs, state
        obs_unit = _spread(batch.window_obs[:, 0] - obs)
        state_unit = _spread(batch.window_state[:, 0] - state)
        reward_unit = _spread(batch.window_rewards[:, 0])
        total: Tensor | float = 0.0
        metrics = {}
        for k in range(self.cfg.horizon):
            step = self.critic.model(obs, state, batch.window_actions[:, k])
            weights = batch.weights[:, k]
            weights = weights / weights.sum().clamp(min=1.0)
            next_obs = batch.window_obs[:, k]
            next_state = batch.window_state[:, k]
            obs_errors = ((step.obs - next_obs) / obs_unit).square().mean((1, 2))
            state_errors = ((step.state - next_state) / state_unit).square().mean((1, 2))
            reward_errors = ((step.reward - batch.window_rewards[:, k]) / reward_unit).square()
            ends = binary_cross_entropy_with_logits(
                step.continuing, batch.window_continues[:, k], reduction="none"
            )
            total = total + ((obs_errors + state_errors + reward_errors + ends) * weights).sum()
            changes = ((first_obs - next_obs) / obs_unit).square().mean((1, 2))
            changes = (changes * weights).sum().clamp(min=1e-9)
            metrics[f"model/obs_error_{k + 1}"] = (obs_errors.detach() * weights).sum() / changes
            changes = ((first_state - next_state) / state_unit).square().mean((1, 2))
            changes = (changes * weights).sum().clamp(min=1e-9)
            state_error = (state_errors.detach() * weights).sum()
            metrics[f"model/state_error_{k + 1}"] = state_error / changes
            metrics[f"model/reward_error_{k + 1}"] = (reward_errors.detach() * weights).sum()
            obs, state = step.obs, step.state
        return total / self.cfg.horizon, metrics


_SMALLEST = 0.01  # unit of a component that hardly changes


def _spread(values: Tensor) -> Tensor:
    """Return the root mean square of each component over the rows."""
    return values.square().mean(0, keepdim=True).sqrt().clamp(min=_SMALLEST)


def _with_obs(state: Tensor, obs: Tensor) -> Tensor:
    """Return states (B, G, S + A O) with all observations behind them."""
    rows = obs.flatten(1).unsqueeze(1).expand(-1, state.shape[1], -1)
    return torch.cat([state, rows], dim=-1)


mapush.register_algorithm("latent_hasac", LatentHasacCfg, LatentHasac)
