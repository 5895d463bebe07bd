"""A latent model of a team's dynamics, robot by robot.

B rows, A agents, O obs size, U action size, Z latent size, G critic views, S state size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from harl_mapush.learning.off_policy.q_networks import Mlp, TwinCritic
from harl_mapush.learning.settings import NetworkCfg
from mqe.vec_env import TeamSpec

_CHANGE = 0.1  # unit of predicted changes


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

        def mlp(in_size: int, out_size: int) -> Mlp:
            return Mlp((in_size, *hidden, out_size), "elu", None, use_layer_norm=True)

        self.encoder = mlp(spec.obs_size, latent_size)
        self.dynamics = mlp(2 * latent_size + spec.action_size, latent_size)
        self.decoder = nn.Linear(latent_size, spec.obs_size)
        state_size = num_views * spec.state_size
        self.team = mlp(2 * spec.num_agents * latent_size + state_size, state_size + 2)
        # At first the model predicts that nothing changes.
        for head in (self.decoder, self.team.mlp[-2]):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)

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
        change = _CHANGE * self.decoder(latents[..., self.latent_size :])
        return Prediction(
            obs=obs + change,
            state=state + _CHANGE * of_team[:, 2:].view_as(state),
            reward=of_team[:, 0],
            continuing=of_team[:, 1] + 4.0,
        )


class LatentCritic(TwinCritic):
    """Two critics that may read the model's latents before and after a decision.

    States have the agents' observations behind them: (B, G, S + A O).
    """

    def __init__(
        self,
        cfg: NetworkCfg,
        spec: TeamSpec,
        num_views: int,
        latent_size: int,
        *,
        reads: bool,
        shapes: bool,
    ) -> None:
        """Build both critics and the model.

        Critics that ``reads`` have the latents among their inputs. With ``shapes`` their loss
        changes the model.
        """
        size = spec.state_size + reads * 2 * spec.num_agents * latent_size
        super().__init__(cfg, size, spec.action_sizes, spec.state_sets)
        self.model = LatentModel(cfg, spec, num_views, latent_size)
        self.state_size = spec.state_size
        self.reads = reads
        self.shapes = shapes

    def forward(self, state: Tensor, actions: Tensor, *, only_first: bool = False) -> Tensor:
        plain = state[..., : self.state_size]
        if not self.reads:
            return super().forward(plain, actions, only_first=only_first)
        obs = state[:, 0, self.state_size :].unflatten(-1, (self.num_agents, -1))
        by_agent = actions.unflatten(-1, (self.num_agents, -1))
        # Only the actors' gradient passes through the model.
        tracks = torch.is_grad_enabled() and (self.shapes or actions.requires_grad)
        with torch.set_grad_enabled(tracks):
            latents = self.model.latents(obs, by_agent).flatten(1)
        latents = latents.unsqueeze(1).expand(-1, state.shape[1], -1)
        return super().forward(torch.cat([plain, latents], -1), actions, only_first=only_first)
