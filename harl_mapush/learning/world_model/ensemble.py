"""An ensemble of probabilistic networks that predict a planar state.

M members, B rows, A agents, S state size, with W numbers of the world and R of each robot
(``mqe.vec_env.Planar``), U action size.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from harl_mapush.learning.normalization import RunningNorm
from mqe.vec_env import Planar

LOG_VAR_RANGE = (-12.0, 2.0)  # bounds of the log variance of a normalised number
_VARIANCE_MIN = 1e-4  # so constant numbers are scaled by at most 100
_SMALL = 0.1  # initial scale of the last layers, so members first predict little change


class Prediction(NamedTuple):
    """Means (M, B, S) and variances (M, B, S) of the next state, in its own units."""

    mean: Tensor
    variance: Tensor


class Ensemble(nn.Module):
    """Networks that each predict the next state, in normalised numbers.

    A network's output is added to the present state in normalised units. Robots share all weights
    and exchange information only by means over the team, so the prediction is equivariant to the
    order of robots.
    """

    def __init__(
        self,
        planar: Planar,
        action_size: int,
        num_members: int,
        size: int,
        generator: torch.Generator,
    ):
        """Build members with hidden layers of ``size``, drawn from a ``generator`` on the CPU."""
        super().__init__()
        num_world = len(planar.world_names)
        num_robot = len(planar.robot_names)
        own = num_world + num_robot + planar.kinds.shape[1] + action_size

        def layer(size_in: int, size_out: int, scale: float = 1.0) -> _Linear:
            return _Linear(num_members, size_in, size_out, scale, generator)

        # The initial weights are drawn in this order.
        self.own = layer(own, size)
        self.team = layer(2 * size, size)
        self.world = layer(size, size)
        self.world_out = layer(size, 2 * num_world, _SMALL)
        self.robot_out = layer(2 * size, 2 * num_robot, _SMALL)

        self.world_norm = RunningNorm(num_world)
        self.robot_norm = RunningNorm(num_robot)
        self.num_members = num_members
        self._split = planar.split
        self._kinds = planar.kinds

    def update_norms(self, state: Tensor, weights: Tensor) -> None:
        """Update the normalisation with states (B, S) of weights (B,), 0 or 1."""
        world, robots = self._split(state)
        self.world_norm.update(world, weights)
        self.robot_norm.update(robots, weights.unsqueeze(1).expand(robots.shape[:2]))

    def forward(self, state: Tensor, actions: Tensor) -> Prediction:
        """Predict the states after states (M, B, S) and actions (M, B, A, U) of every member."""
        mean, log_var = self._predict(state, actions)
        scale = self._spread()
        return Prediction(mean * scale + self._center(), log_var.exp() * scale.square())

    def loss(self, state: Tensor, actions: Tensor, next_state: Tensor, weights: Tensor) -> Tensor:
        """Return the negative log likelihood of next states (M, B, S), summed over members.

        For each member it is a mean over the numbers of a state and over the rows with weight 1 in
        ``weights`` (M, B), which are 0 or 1.
        """
        mean, log_var = self._predict(state, actions)
        error = mean - self._normalized(next_state)
        neg_log_likelihood = 0.5 * (error.square() * torch.exp(-log_var) + log_var).mean(-1)
        return ((neg_log_likelihood * weights).sum(1) / weights.sum(1).clamp(min=1.0)).sum()

    def _predict(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and log variances (M, B, S) of normalised numbers."""
        world, robots = self._split(self._normalized(state))
        kinds = self._kinds.expand(*robots.shape[:-1], -1)
        shared = world.unsqueeze(2).expand(-1, -1, robots.shape[2], -1)

        # Features of each robot (M, B, A, H), and their mean over the team.
        own = silu(self.own(torch.cat((shared, robots, kinds, actions), dim=-1)))
        team_mean = own.mean(2, keepdim=True).expand_as(own)
        own = silu(self.team(torch.cat((own, team_mean), dim=-1)))
        team = own.mean(2)

        # Changes of the world and of the robots.
        world_mean, world_raw = self.world_out(silu(self.world(team))).chunk(2, dim=-1)
        both = torch.cat((own, team.unsqueeze(2).expand_as(own)), dim=-1)
        robot_mean, robot_raw = self.robot_out(both).chunk(2, dim=-1)

        mean = torch.cat((world + world_mean, (robots + robot_mean).flatten(2)), dim=-1)
        raw = torch.cat((world_raw, robot_raw.flatten(2)), dim=-1)
        low, high = LOG_VAR_RANGE
        return mean, low + (high - low) * torch.sigmoid(raw - 1.0)

    def _normalized(self, state: Tensor) -> Tensor:
        return (state - self._center()) / self._spread()

    def _center(self) -> Tensor:
        robots = self.robot_norm.mean.repeat(len(self._kinds))
        return torch.cat((self.world_norm.mean, robots))

    def _spread(self) -> Tensor:
        robots = self.robot_norm.var.repeat(len(self._kinds))
        return torch.cat((self.world_norm.var, robots)).clamp(min=_VARIANCE_MIN).sqrt()


def disagreement(prediction: Prediction) -> Tensor:
    """Return the spread of the members' means (B,), in predicted standard deviations."""
    between = prediction.mean.var(0, correction=0)
    within = prediction.variance.mean(0)
    return (between / within).mean(-1).sqrt()


def drawn(prediction: Prediction, member: Tensor, noise: Tensor) -> Tensor:
    """Return next states (B, S), row b drawn from the prediction of member ``member[b]``.

    ``noise`` (B, S) is standard normal.
    """
    rows = torch.arange(len(member), device=member.device)
    return prediction.mean[member, rows] + prediction.variance[member, rows].sqrt() * noise


def within_interval(prediction: Prediction, next_state: Tensor, share: float) -> Tensor:
    """Return 1 where the next state lies in a member's ``share`` interval, else 0, (M, B, S)."""
    z = NormalDist().inv_cdf(0.5 + 0.5 * share)
    is_inside = (prediction.mean - next_state).abs() <= z * prediction.variance.sqrt()
    return is_inside.to(next_state.dtype)


class _Linear(nn.Module):
    """A linear layer of each member, from (M, ..., in) to (M, ..., out)."""

    def __init__(
        self,
        num_members: int,
        size_in: int,
        size_out: int,
        scale: float,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        bound = scale / math.sqrt(size_in)
        uniform = torch.rand(num_members, size_in, size_out, generator=generator)
        self.weight = nn.Parameter((2.0 * uniform - 1.0) * bound)
        self.bias = nn.Parameter(torch.zeros(num_members, 1, size_out))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.baddbmm(self.bias, x.flatten(1, -2), self.weight)
        return flat.view(*x.shape[:-1], -1)
