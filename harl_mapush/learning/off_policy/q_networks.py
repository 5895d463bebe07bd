"""Actors, critics and target networks for off-policy algorithms, with HARL's parameter names.

B rows, G critic views, A agents, O obs size, S state size, U action size.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from harl_mapush.learning.off_policy.td import squashed_sample
from harl_mapush.learning.optimizer import FlatAdam, flatten_parameters
from harl_mapush.learning.settings import NetworkCfg
from mqe.controllers.network import ACTIVATIONS
from mqe.controllers.set_readers import SetReader, entities_of
from mqe.vec_env import EntityBlock


class Mlp(nn.Module):
    """Linear layers with activations. The last layer has another activation, or none."""

    def __init__(self, cfg: NetworkCfg, sizes: Sequence[int], last: str | None) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for k, (size_in, size_out) in enumerate(zip(sizes, sizes[1:], strict=False)):
            is_last = k == len(sizes) - 2
            name = last if is_last else cfg.activation
            layers.append(nn.Linear(size_in, size_out))
            if cfg.use_layer_norm and not (is_last and last is None):
                layers.append(nn.LayerNorm(size_out))
            layers.append(nn.Identity() if name is None else ACTIVATIONS[name]())
        self.mlp = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)


class SquashedActor(nn.Module):
    """A tanh-squashed Gaussian policy with state-dependent standard deviation."""

    def __init__(
        self,
        cfg: NetworkCfg,
        obs_size: int,
        action_size: int,
        bound_log_std: Callable[[Tensor], Tensor],
        last_activation: str,
        sets: Sequence[EntityBlock] = (),
    ) -> None:
        """Build the networks. ``bound_log_std`` bounds log std before tanh.

        ``sets`` are an observation's sets.
        """
        super().__init__()
        self.obs_size = obs_size
        self.action_size = action_size
        self.bound_log_std = bound_log_std
        self.sets = SetReader(obs_size, sets, cfg.set_width)
        self.net = Mlp(cfg, (self.sets.out_size, *cfg.hidden_sizes), last_activation)
        self.mu_layer = nn.Linear(cfg.hidden_sizes[-1], action_size)
        self.log_std_layer = nn.Linear(cfg.hidden_sizes[-1], action_size)

    def forward(self, obs: Tensor) -> Tensor:
        """Return actions without noise (..., U) for obs (..., O)."""
        return torch.tanh(self.mu_layer(self.net(self.sets(obs))))

    def layers(self) -> list[nn.Module]:
        """Return the modules of a decision without noise in their order."""
        return [self.sets, self.net.mlp, self.mu_layer, nn.Tanh()]

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions (..., U) and their log probabilities (...,) for obs (..., O).

        ``noise`` (..., U) is standard normal.
        """
        features = self.net(self.sets(obs))
        log_std = self.bound_log_std(self.log_std_layer(features))
        return squashed_sample(self.mu_layer(features), log_std, noise)


class Critic(nn.Module):
    """The value of a state and all agents' actions."""

    def __init__(self, cfg: NetworkCfg, in_size: int, sets: Sequence[EntityBlock]) -> None:
        super().__init__()
        self.sets = SetReader(in_size, sets, cfg.set_width)
        sizes = (self.sets.out_size, *(cfg.critic_hidden_sizes or cfg.hidden_sizes), 1)
        self.mlp = Mlp(cfg, sizes, None)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.sets(x)).squeeze(-1)


class TwinCritic(nn.Module):
    """Two critics of the same inputs."""

    def __init__(
        self,
        cfg: NetworkCfg,
        state_size: int,
        action_sizes: Sequence[int],
        sets: Sequence[EntityBlock],
    ) -> None:
        """Build both critics of states, with these ``sets``, and agents' actions."""
        super().__init__()
        self.num_agents = len(action_sizes)
        self.sets = tuple(sets)
        in_size = state_size + sum(action_sizes)
        in_sets: tuple[EntityBlock, ...] = ()
        if sets:
            in_size, in_sets = _with_actions(state_size, self.sets, action_sizes)
        self.critic = Critic(cfg, in_size, in_sets)
        self.critic2 = Critic(cfg, in_size, in_sets)

    def forward(self, state: Tensor, actions: Tensor, *, only_first: bool = False) -> Tensor:
        """Return both critics' values (2, B, G) for state (B, G, S) and actions (B, A U).

        With ``only_first`` the result is the first critic's alone: (1, B, G).
        """
        if self.sets:
            x = self._joined(state, actions)
        else:
            joint = actions.unsqueeze(1).expand(-1, state.shape[1], -1)
            x = torch.cat([state, joint], dim=-1)
        if only_first:
            return self.critic(x).unsqueeze(0)
        return torch.stack([self.critic(x), self.critic2(x)])

    def _joined(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return states (B, G, ...) with each robot's action inserted in its entity."""
        parts = []
        end = 0
        for block in self.sets:
            parts.append(state[..., end : block.start])
            entities = entities_of(state, block)
            end = block.end
            if block.are_robots:
                by_robot = actions.view(len(actions), 1, self.num_agents, -1)
                by_robot = by_robot.expand(-1, state.shape[1], -1, -1)
                room = block.num_entities - self.num_agents
                entities = torch.cat((entities, pad(by_robot, (0, 0, 0, room))), dim=-1)
            parts.append(entities.flatten(-2))
        parts.append(state[..., end:])
        return torch.cat(parts, dim=-1)


def _with_actions(
    state_size: int, sets: Sequence[EntityBlock], action_sizes: Sequence[int]
) -> tuple[int, tuple[EntityBlock, ...]]:
    """Return size and sets of states with each robot's action inserted."""
    (action_size,) = set(action_sizes)
    moved = []
    further = 0
    for block in sets:
        block = block._replace(start=block.start + further)
        if block.are_robots:
            block = block._replace(size=block.size + action_size)
            further += action_size * block.num_entities
        moved.append(block)
    return state_size + further, tuple(moved)


def targets_of(
    networks: Sequence[Any], optimizers: Sequence[FlatAdam]
) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """Copy networks as target networks. Return the copies, and pairs of flat weights.

    A pair has a copy's weights and the followed optimiser's weights.
    """
    copies = [target_of(network) for network in networks]
    pairs = []
    for copy, optimizer in zip(copies, optimizers, strict=True):
        weights = flatten_parameters(list(copy.parameters()))
        pairs.append((weights, optimizer.flat))
    return copies, pairs


def target_of(network: Any) -> Any:
    """Copy a network."""
    return deepcopy(network).requires_grad_(False)
