"""Actors and critics: MLP or MLP and GRU, with parameter names that HARL's networks share.

Rows are laid out (L, B, ...): L consecutive decisions of a chunk (1 without recurrence), B chunks.
R recurrent layers, H hidden size.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from harl_mapush.learning.layers import dense, is_known_by_result
from harl_mapush.learning.normalization import RunningNorm
from mqe.config import option
from mqe.controllers.gait import ACTIVATIONS

_WIDEST = 16_384  # a layer; two of them take 1 GiB
_LIKE = {"elu": "relu", "hardswish": "relu", "identity": "linear"}  # whose gain torch knows
INITIALIZATIONS = ("orthogonal_", "xavier_uniform_", "xavier_normal_")


@dataclass(frozen=True)
class NetworkCfg:
    """Shapes and starting points of actors and critic."""

    hidden_sizes: tuple[int, ...] = option((64, 64), "actor's layers", min=1, max=_WIDEST)
    critic_hidden_sizes: tuple[int, ...] = option((), "empty: as hidden_sizes", min=1, max=_WIDEST)
    activation: str = option("elu", "of the hidden layers", choices=tuple(ACTIVATIONS))
    normalize_obs: bool = option(
        False, "running mean and std of what the networks see, kept inside them"
    )
    use_feature_normalization: bool = option(False, "LayerNorm on the raw input (HARL)")
    use_layer_norm: bool = option(
        False, "LayerNorm after every hidden layer; always under algorithm.compat=harl"
    )
    initialization_method: str = option(
        "orthogonal_", "of the layers' weights", choices=INITIALIZATIONS
    )
    gain: float = option(0.01, "gain of the actor's output layer at the start", min=0.0)
    std_x_coef: float = option(
        1.0, "std = std_min + (std_y_coef - std_min) * sigmoid(log_std / std_x_coef)", above=0.0
    )
    std_y_coef: float = option(
        1.0, "bounds the standard deviation from above, see std_x_coef", above=0.0
    )
    std_min: float = option(0.0, "bounds the standard deviation from below", min=0.0)
    initial_std: float | None = option(
        None, "standard deviation at the start; null: log_std = std_x_coef", above=0.0
    )
    mean_bound: float | None = option(
        None,
        "mean actions stay within this, by tanh; null, always with compat=harl: free",
        above=0.0,
    )
    use_recurrent_policy: bool = option(False, "a GRU after the layers of actor and critic")
    num_recurrent_layers: int = option(1, "of the GRU", min=1, max=64)
    chunk_length: int = option(
        10, "decisions a recurrent training sequence; 0: the whole rollout", min=0
    )

    def __post_init__(self) -> None:
        """Refuse an empty network and standard deviations out of their own bounds."""
        if not self.hidden_sizes:
            raise ValueError("hidden_sizes must name at least one layer, for instance [64, 64]")
        if self.std_min >= self.std_y_coef:
            raise ValueError(
                f"std_min must be below std_y_coef ({self.std_y_coef}), not {self.std_min}"
            )
        if self.initial_std is not None and not self.std_min < self.initial_std < self.std_y_coef:
            raise ValueError(
                f"initial_std must lie between std_min and std_y_coef ({self.std_min}, "
                f"{self.std_y_coef}), "
                f"not {self.initial_std}"
            )


def harl_network(cfg: NetworkCfg) -> NetworkCfg:
    """Return the settings with the layers that HARL's networks always have and none that they
    never have.
    """
    return dataclasses.replace(
        cfg, use_layer_norm=True, normalize_obs=False, std_min=0.0, mean_bound=None
    )


class Body(nn.Module):
    """Input normalisation and hidden layers: rows (..., in_size) to features (...,
    hidden_sizes[-1]).
    """

    def __init__(self, cfg: NetworkCfg, in_size: int, hidden_sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.in_size = in_size
        if cfg.use_feature_normalization:
            self.feature_norm = nn.LayerNorm(in_size)
        layers: list[nn.Module] = []
        gain = _gain(cfg.activation)
        for size_in, size_out in zip((in_size, *hidden_sizes[:-1]), hidden_sizes, strict=True):
            linear = _linear(size_in, size_out, cfg.initialization_method, gain)
            norm = nn.LayerNorm(size_out) if cfg.use_layer_norm else nn.Identity()
            layers += [linear, ACTIVATIONS[cfg.activation](), norm]
        self.mlp = nn.ModuleDict({"fc": nn.Sequential(*layers)})
        self.use_feature_normalization = cfg.use_feature_normalization
        self.is_plain = not cfg.use_layer_norm and is_known_by_result(cfg.activation)
        self.activation = cfg.activation

    def forward(self, x: Tensor) -> Tensor:
        if self.use_feature_normalization:
            x = self.feature_norm(x)
        if not self.is_plain:
            return self.mlp["fc"](x)
        for linear in self.mlp["fc"][::3]:  # type: ignore[index]
            x = dense(x, linear.weight, linear.bias, self.activation)
        return x


class Recurrence(nn.Module):
    """A GRU whose hidden state is reset where an episode begins."""

    def __init__(self, cfg: NetworkCfg, size: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(size, size, num_layers=cfg.num_recurrent_layers)
        for name, parameter in self.rnn.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
            else:
                getattr(nn.init, cfg.initialization_method)(parameter)
        self.norm = nn.LayerNorm(size)

    def forward(self, x: Tensor, hidden: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """Run over x (L, B, H) from hidden (B, R, H), zeroed where masks (L, B) is 0.

        Return features (L, B, H) and the hidden state after every decision (L, B, R, H).
        """
        outputs = []
        after = []
        state = hidden.transpose(0, 1)
        # cuDNN wants its weights in a memory of its own, and has no second derivative for HATRPO.
        with torch.backends.cudnn.flags(enabled=False):
            for start, end in self._spans(masks):
                begun = (state * masks[start].view(1, -1, 1)).contiguous()
                output, state = self.rnn(x[start:end], begun)
                outputs.append(output)
                after.append(
                    output.unsqueeze(2) if end - start > 1 else state.transpose(0, 1).unsqueeze(0)
                )
        return self.norm(torch.cat(outputs)), torch.cat(after)

    def _spans(self, masks: Tensor) -> list[tuple[int, int]]:
        """Cut (L, B) before decisions that begin an episode: fewer, longer passes, as HARL makes
        them.

        On a GPU the cut would have to wait for the host, and a GRU of several layers returns its
        states once per pass only. In both cases every decision is a pass of its own.
        """
        length = masks.shape[0]
        cuts = range(length)
        if not masks.is_cuda and self.rnn.num_layers == 1:
            cuts = [
                0,
                *(t for t, begins in enumerate((masks == 0.0).any(1).tolist()) if begins and t > 0),
            ]
        return list(zip(cuts, (*cuts[1:], length), strict=True))


class GaussianHead(nn.Module):
    """Mean by a linear layer, standard deviation by a bounded parameter an action dimension."""

    def __init__(self, cfg: NetworkCfg, in_size: int, action_size: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((action_size,), _initial_log_std(cfg)))
        self.fc_mean = _linear(in_size, action_size, cfg.initialization_method, cfg.gain)
        self.std_x_coef = cfg.std_x_coef
        self.std_range = cfg.std_y_coef - cfg.std_min
        self.std_min = cfg.std_min
        self.mean_bound = cfg.mean_bound

    def forward(self, x: Tensor) -> Tensor:
        mean = self.fc_mean(x)
        if self.mean_bound is None:
            return mean
        return self.mean_bound * torch.tanh(mean / self.mean_bound)

    def std(self) -> Tensor:
        """(U,) standard deviations, between std_min and std_y_coef."""
        return self.std_min + torch.sigmoid(self.log_std / self.std_x_coef) * self.std_range


class Actor(nn.Module):
    """A Gaussian policy of one agent."""

    def __init__(self, cfg: NetworkCfg, obs_size: int, action_size: int) -> None:
        super().__init__()
        self.obs_size = obs_size
        self.action_size = action_size
        self.is_recurrent = cfg.use_recurrent_policy
        self.obs_norm = RunningNorm(obs_size) if cfg.normalize_obs else nn.Identity()
        self.base = Body(cfg, obs_size, cfg.hidden_sizes)
        if cfg.use_recurrent_policy:
            self.rnn = Recurrence(cfg, cfg.hidden_sizes[-1])
        self.act = nn.ModuleDict(
            {"action_out": GaussianHead(cfg, cfg.hidden_sizes[-1], action_size)}
        )
        self.hidden_shape = (cfg.num_recurrent_layers, cfg.hidden_sizes[-1])

    def forward(self, obs: Tensor) -> Tensor:
        """Return mean actions (..., U) for obs (..., O) of a policy without recurrence."""
        return self.act["action_out"](self.base(self.obs_norm(obs)))

    def unroll(
        self, obs: Tensor, hidden: Tensor | None, masks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return mean actions (L, B, U) for obs (L, B, O), and the hidden states after each, if
        recurrent.
        """
        if not self.is_recurrent:
            return self(obs), None
        assert hidden is not None
        assert masks is not None
        features, after = self.rnn(self.base(self.obs_norm(obs)), hidden, masks)
        return self.act["action_out"](features), after

    def std(self) -> Tensor:
        """(U,) standard deviations."""
        return self.act["action_out"].std()  # type: ignore[operator]


class Critic(nn.Module):
    """Values of what the critic sees: one, or one an agent (num_values)."""

    def __init__(self, cfg: NetworkCfg, state_size: int, num_values: int = 1) -> None:
        super().__init__()
        hidden_sizes = cfg.critic_hidden_sizes or cfg.hidden_sizes
        self.is_recurrent = cfg.use_recurrent_policy
        self.obs_norm = RunningNorm(state_size) if cfg.normalize_obs else nn.Identity()
        self.base = Body(cfg, state_size, hidden_sizes)
        if cfg.use_recurrent_policy:
            self.rnn = Recurrence(cfg, hidden_sizes[-1])
        self.v_out = _linear(hidden_sizes[-1], num_values, cfg.initialization_method, 1.0)
        self.hidden_shape = (cfg.num_recurrent_layers, hidden_sizes[-1])

    def forward(self, state: Tensor) -> Tensor:
        """Return values (..., num_values), in the value normaliser's units, of a critic without
        recurrence.
        """
        return self.v_out(self.base(self.obs_norm(state)))

    def unroll(
        self, state: Tensor, hidden: Tensor | None, masks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return values (L, B, num_values) for state (L, B, S), and the hidden states after each,
        if recurrent.
        """
        if not self.is_recurrent:
            return self(state), None
        assert hidden is not None
        assert masks is not None
        features, after = self.rnn(self.base(self.obs_norm(state)), hidden, masks)
        return self.v_out(features), after


def _linear(size_in: int, size_out: int, method: str, gain: float) -> nn.Linear:
    linear = nn.Linear(size_in, size_out)
    getattr(nn.init, method)(linear.weight, gain=gain)
    nn.init.zeros_(linear.bias)
    return linear


def _gain(activation: str) -> float:
    return nn.init.calculate_gain(_LIKE.get(activation, activation))  # type: ignore[arg-type]


def _initial_log_std(cfg: NetworkCfg) -> float:
    if cfg.initial_std is None:
        return cfg.std_x_coef
    share = (cfg.initial_std - cfg.std_min) / (cfg.std_y_coef - cfg.std_min)
    return cfg.std_x_coef * math.log(share / (1.0 - share))
