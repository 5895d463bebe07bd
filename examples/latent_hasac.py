"""HASAC with a latent model, as in SeqWM (2509.13095): critics read it and imagine with it.

mapush train --import latent_hasac --algo latent_hasac --preset team2

B rows, A agents, O obs size, U action size, G critic views, S state size, Z latent size, H
decisions of a window.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, layer_norm

import mapush
from harl_mapush.algorithms.hasac import Hasac, HasacCfg
from harl_mapush.learning.off_policy.q_networks import Mlp, TwinCritic
from harl_mapush.learning.off_policy.replay_buffer import DONE, VALID, Batch, RingReplay
from harl_mapush.learning.settings import NetworkCfg
from mqe.config import option
from mqe.vec_env import TeamSpec

CHANGE = 0.1  # unit of predicted changes
LEAST_SPREAD = 0.01  # unit of a component that hardly changes
CONTINUES = 4.0  # initial logit of the probability that an episode goes on


@dataclass(frozen=True)
class LatentHasacCfg(HasacCfg):
    """The settings of HASAC with a latent model."""

    name: str = option("latent_hasac", "name of the learning algorithm")
    latent_size: int = option(64, "numbers in a robot's latent state", min=1, max=4096)
    horizon: int = option(3, "decisions over which the model predicts", min=1, max=100)
    imagines: int = option(5, "imagined decisions in the critics' targets", min=0, max=100)


# The model


class Prediction(NamedTuple):
    """The model's view of one decision."""

    obs: Tensor  # (B, A, O) after the decision
    state: Tensor  # (B, G, S) after the decision
    reward: Tensor  # (B,)
    continuing: Tensor  # (B,) logit of the probability that the task does not end the episode


class LatentModel(nn.Module):
    """Encoder, dynamics and heads. All robots share the encoder, the dynamics and the decoder."""

    def __init__(self, cfg: NetworkCfg, spec: TeamSpec, num_views: int, latent_size: int) -> None:
        super().__init__()
        self.latent_size = latent_size
        hidden = cfg.critic_hidden_sizes or cfg.hidden_sizes
        model_cfg = replace(cfg, activation="elu", use_layer_norm=True)

        def mlp(in_size: int, out_size: int) -> Mlp:
            return Mlp(model_cfg, (in_size, *hidden, out_size), None)

        self.encoder = mlp(spec.obs_size, latent_size)
        self.dynamics = mlp(2 * latent_size + spec.action_size, latent_size)
        self.decoder = nn.Linear(latent_size, spec.obs_size)
        state_size = num_views * spec.state_size
        self.team = mlp(2 * spec.num_agents * latent_size + state_size, state_size + 2)
        # At first the model predicts that nothing changes.
        for weights in (*self.decoder.parameters(), *self.team.mlp[-2].parameters()):
            nn.init.zeros_(weights)

    def latents(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Return latents (B, A, 2 Z) of obs (B, A, O) before and after actions (B, A, U).

        A robot's prediction reads the sum of the preceding robots' predictions.
        """
        before = layer_norm(self.encoder(obs), (self.latent_size,))
        after: list[Tensor] = []
        message = torch.zeros_like(before[:, 0])
        for latent, action in zip(before.unbind(1), actions.unbind(1), strict=True):
            change = self.dynamics(torch.cat([latent, action, message], dim=-1))
            after.append(layer_norm(latent + change, (self.latent_size,)))
            message = message + after[-1]
        return torch.cat([before, torch.stack(after, dim=1)], dim=-1)

    def forward(self, obs: Tensor, state: Tensor, actions: Tensor) -> Prediction:
        """Predict a decision's results from obs (B, A, O), state (B, G, S), actions (B, A, U)."""
        latents = self.latents(obs, actions)
        of_team = self.team(torch.cat([latents.flatten(1), state.flatten(1)], dim=-1))
        return Prediction(
            obs=obs + CHANGE * self.decoder(latents[..., self.latent_size :]),
            state=state + CHANGE * of_team[:, 2:].view_as(state),
            reward=of_team[:, 0],
            continuing=of_team[:, 1] + CONTINUES,
        )


class LatentCritic(TwinCritic):
    """Two critics that read the model's latents before and after a decision.

    States have the agents' observations behind them: (B, G, S + A O).
    """

    def __init__(
        self, spec: TeamSpec, num_views: int, latent_size: int, cfg: NetworkCfg, *_: Any
    ) -> None:
        size = spec.state_size + 2 * spec.num_agents * latent_size
        super().__init__(cfg, size, spec.action_sizes, spec.state_sets)
        self.model = LatentModel(cfg, spec, num_views, latent_size)
        self.state_size = spec.state_size

    def forward(self, state: Tensor, actions: Tensor, *, only_first: bool = False) -> Tensor:
        obs = state[:, 0, self.state_size :].unflatten(-1, (self.num_agents, -1))
        by_agent = actions.unflatten(-1, (self.num_agents, -1))
        # Only the actors' gradient passes through the model.
        with torch.set_grad_enabled(torch.is_grad_enabled() and actions.requires_grad):
            latents = self.model.latents(obs, by_agent).flatten(1)
        latents = latents.unsqueeze(1).expand(-1, state.shape[1], -1)
        x = torch.cat([state[..., : self.state_size], latents], dim=-1)
        return super().forward(x, actions, only_first=only_first)


# Windows of the replay buffer


class Window(NamedTuple):
    """H consecutive decisions."""

    actions: Tensor  # (B, H, A, U)
    rewards: Tensor  # (B, H), the views' mean
    continues: Tensor  # (B, H) 0 where the task ended the episode
    obs: Tensor  # (B, H, A, O), after each decision
    state: Tensor  # (B, H, G, S), after each decision
    weights: Tensor  # (B, H) 1 within the episode


class WindowReplay(RingReplay):
    """A replay buffer that draws the decisions after a transition's first one as well."""

    def __init__(self, horizon: int, *args: Any) -> None:
        super().__init__(*args)
        self.horizon = horizon

    def look_up(self, index: Tensor) -> Any:
        """Return transitions at rows ``index`` (B,), H single decisions from there on, and a mask.

        The mask (B, H) has the decisions of the same episode.
        """
        batch = super().look_up(index)
        single = copy(self)
        single.num_steps = 1
        shape = self.shape
        flags = self.flags.view(-1)
        first = index // shape.ring_size * shape.ring_size
        newest = self.newest[index // shape.ring_size]

        steps = []
        masks = [torch.ones_like(index, dtype=torch.bool)]
        for _ in range(self.horizon):
            steps.append(RingReplay.look_up(single, index))
            after = first + (index - first + shape.num_envs) % shape.ring_size
            goes_on = (flags[index] & DONE == 0) & (index // shape.num_envs != newest)
            masks.append(masks[-1] & goes_on & (flags[after] & VALID != 0))
            index = after
        return batch, steps, torch.stack(masks[:-1], dim=1)


# The algorithm


class LatentHasac(Hasac):
    """HASAC whose critics read a latent model and learn from imagined decisions."""

    cfg: LatentHasacCfg
    critic: LatentCritic

    @property
    def critic_class(self) -> Any:
        return partial(LatentCritic, self.spec, self.num_views, self.cfg.latent_size)

    @property
    def replay_class(self) -> Any:
        return partial(WindowReplay, self.cfg.horizon)

    def draw(self, replay: RingReplay, count: int) -> list[Any]:
        """Draw ``count`` batches, each with the tensors of its window behind its own."""
        size = math.ceil(self.cfg.batch_size / self.ranks.size)
        sample = partial(self._sample, replay, count * size)
        drawn = self.graphs(("sample", count), sample, over=replay)
        return list(zip(*(part.split(size) for part in drawn), strict=True))

    def _sample(self, replay: RingReplay, size: int) -> tuple[Tensor, ...]:
        batches: Any = replay.sample(size)
        batch, steps, mask = batches
        if self._images is not None:
            batch = self._images(batch)
            steps = [self._images(step) for step in steps]
        window = Window(
            actions=torch.stack([step.actions for step in steps], dim=1),
            rewards=torch.stack([step.returns.mean(1) for step in steps], dim=1),
            continues=torch.stack([step.discount > 0.0 for step in steps], dim=1).float(),
            obs=torch.stack([step.next_obs for step in steps], dim=1),
            state=torch.stack([step.next_state for step in steps], dim=1),
            weights=mask.float(),
        )
        return *_seen(batch), *window

    def _learn(
        self, order: tuple[int, ...], moves_targets: bool, *parts: Tensor
    ) -> dict[str, Tensor]:
        size = len(Batch._fields)
        self.window = Window(*parts[size:])
        return super()._learn(order, moves_targets, *parts[:size])

    def _update_critic(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            batch = self.imagined(batch)
        self.errors: dict[str, Tensor] = {}
        return super()._update_critic(batch) | self.errors

    def imagined(self, batch: Batch) -> Batch:
        """Extend the returns (B, G) by imagined decisions of the newest actors."""
        obs = batch.next_obs
        state = batch.next_state[..., : self.spec.state_size]
        returns = batch.returns
        discount = batch.discount.view(len(obs), -1)
        scale = self.learned_normalizer.scale()
        for _ in range(self.cfg.imagines):
            actions, bonus = self.next_decisions(obs)
            step = self.critic.model(obs, state, actions.unflatten(-1, (self.num_agents, -1)))
            returns = returns + discount * (step.reward + bonus / scale).unsqueeze(1)
            discount = discount * self.cfg.gamma * step.continuing.sigmoid().unsqueeze(1)
            obs = step.obs
            state = step.state
        imagined = batch._replace(next_obs=obs, next_state=_with_obs(state, obs))
        return imagined._replace(returns=returns, discount=discount)

    def critic_loss(self, loss: Tensor, batch: Batch) -> Tensor:
        """Add the loss of predictions over a window.

        Errors of observations and states in the metrics are shares of their mean square change,
        those of rewards are shares of the rewards' mean square.
        """
        window = self.window
        obs = first_obs = batch.obs
        state = first_state = batch.state[..., : self.spec.state_size]
        obs_unit = _spread(window.obs[:, 0] - obs)
        state_unit = _spread(window.state[:, 0] - state)
        reward_unit = _spread(window.rewards[:, 0])
        total: Tensor | float = 0.0
        for k in range(self.cfg.horizon):
            obs, state, reward, continuing = self.critic.model(obs, state, window.actions[:, k])
            weights = window.weights[:, k]
            weights = weights / weights.sum().clamp(min=1.0)
            next_obs = window.obs[:, k]
            next_state = window.state[:, k]
            of_obs = _errors(obs, next_obs, obs_unit)
            of_state = _errors(state, next_state, state_unit)
            of_reward = ((reward - window.rewards[:, k]) / reward_unit).square()
            of_ends = binary_cross_entropy_with_logits(
                continuing, window.continues[:, k], reduction="none"
            )
            total = total + ((of_obs + of_state + of_reward + of_ends) * weights).sum()

            changes = {
                "obs": (of_obs, _errors(first_obs, next_obs, obs_unit)),
                "state": (of_state, _errors(first_state, next_state, state_unit)),
                "reward": (of_reward, torch.ones_like(weights)),
            }
            for name, (errors, change) in changes.items():
                share = (errors.detach() * weights).sum() / (change * weights).sum().clamp(min=1e-9)
                self.errors[f"model/{name}_error_{k + 1}"] = share
        return loss + total / self.cfg.horizon


def _errors(predicted: Tensor, target: Tensor, unit: Tensor) -> Tensor:
    """Return the mean square errors (B,) of rows' components, in units of each component."""
    return ((predicted - target) / unit).square().mean((1, 2))


def _spread(values: Tensor) -> Tensor:
    """Return the root mean square of each component over the rows."""
    return values.square().mean(0, keepdim=True).sqrt().clamp(min=LEAST_SPREAD)


def _with_obs(state: Tensor, obs: Tensor) -> Tensor:
    """Return states (B, G, S + A O) with all observations behind them."""
    rows = obs.flatten(1).unsqueeze(1).expand(-1, state.shape[1], -1)
    return torch.cat([state, rows], dim=-1)


def _seen(batch: Batch) -> Batch:
    """Return a batch with the observations behind its states."""
    return batch._replace(
        state=_with_obs(batch.state, batch.obs),
        next_state=_with_obs(batch.next_state, batch.next_obs),
    )


mapush.register_algorithm("latent_hasac", LatentHasacCfg, LatentHasac)
