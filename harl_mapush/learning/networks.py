"""Actors and critics: MLP or MLP and GRU, with HARL's parameter names.

Rows are laid out (L, B, ...): L consecutive decisions of a chunk (1 without recurrence), B chunks.
R recurrent layers, H hidden size, O obs size, S state size, U action size.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from harl_mapush.learning.settings import NetworkCfg
from mqe.controllers.network import ACTIVATIONS, Bound
from mqe.controllers.set_readers import SetReader
from mqe.vec_env import EntityBlock

# Activations without a gain in torch, and those whose gain is used for them.
_LIKE = {"elu": "relu", "hardswish": "relu", "identity": "linear"}


class _Network(nn.Module, ABC):
    """A reader of sets, hidden layers and, with recurrence, a GRU before a head."""

    def __init__(
        self,
        cfg: NetworkCfg,
        in_size: int,
        hidden_sizes: tuple[int, ...],
        sets: Sequence[EntityBlock],
    ) -> None:
        super().__init__()
        self.is_recurrent = cfg.use_recurrent_policy
        self.sets = SetReader(in_size, sets, cfg.set_width)
        self.base = Body(cfg, self.sets.out_size, hidden_sizes)
        if cfg.use_recurrent_policy:
            self.rnn = Recurrence(cfg, hidden_sizes[-1])
        self.hidden_shape = (cfg.num_recurrent_layers, hidden_sizes[-1])

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Return the outputs (..., out size) for features (..., H)."""

    def outputs(self, rows: Tensor, batch: Any) -> Tensor:
        """Return the outputs for rows (L, B, in size) in a training batch."""
        hidden = None if batch.hidden is None else batch.hidden[0]
        return self.unroll(rows, hidden, batch.masks)[0]

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs for rows (..., in size), without recurrence."""
        return self.head(self.base(self.sets(rows)))

    def unroll(
        self, rows: Tensor, hidden: Tensor | None, masks: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs for rows (L, B, in size), and the hidden states if recurrent.

        A hidden state (L, B, R, H) belongs to the time after its decision.
        """
        if not self.is_recurrent:
            return self(rows), None
        assert hidden is not None
        assert masks is not None
        features, after = self.rnn(self.base(self.sets(rows)), hidden, masks)
        return self.head(features), after


class Actor(_Network):
    """A Gaussian policy of one agent, from obs (..., O) to mean actions (..., U)."""

    def __init__(
        self, cfg: NetworkCfg, obs_size: int, action_size: int, sets: Sequence[EntityBlock] = ()
    ) -> None:
        """Build the networks. ``sets`` are an observation's sets."""
        super().__init__(cfg, obs_size, cfg.hidden_sizes, sets)
        self.obs_size = obs_size
        self.action_size = action_size
        head = GaussianHead(cfg, cfg.hidden_sizes[-1], action_size)
        self.act = nn.ModuleDict({"action_out": head})

    def head(self, features: Tensor) -> Tensor:
        return self.act["action_out"](features)

    def std(self) -> Tensor:
        """Return the standard deviations (U,)."""
        return self.act["action_out"].std()  # type: ignore[operator]

    def layers(self) -> list[nn.Module]:
        """Return the modules of a deterministic decision in their order."""
        recurrence = [self.rnn.rnn, self.rnn.norm] if self.is_recurrent else []
        return [self.sets, *self.base.layers(), *recurrence, *self.act["action_out"].layers()]  # type: ignore[operator]


class Critic(_Network):
    """The values (..., num_values) of states (..., S), in the value normaliser's units.

    A state has one value, or one per agent.
    """

    def __init__(
        self,
        cfg: NetworkCfg,
        state_size: int,
        num_values: int = 1,
        sets: Sequence[EntityBlock] = (),
    ) -> None:
        """Build the networks. ``sets`` are a state's sets."""
        hidden_sizes = cfg.critic_hidden_sizes or cfg.hidden_sizes
        super().__init__(cfg, state_size, hidden_sizes, sets)
        self.v_out = _linear(hidden_sizes[-1], num_values, cfg.initialization_method, 1.0)

    def head(self, features: Tensor) -> Tensor:
        return self.v_out(features)


class Body(nn.Module):
    """LayerNorm of the input and hidden layers, from rows (..., in_size) to features (..., H)."""

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
        self.is_plain = not cfg.use_layer_norm and cfg.activation in _ACTIVATIONS
        self.activation = cfg.activation

    def layers(self) -> list[nn.Module]:
        """Return the modules in their order."""
        norm = [self.feature_norm] if self.use_feature_normalization else []
        return [*norm, self.mlp["fc"]]

    def forward(self, x: Tensor) -> Tensor:
        if self.use_feature_normalization:
            x = self.feature_norm(x)
        if not self.is_plain:
            return self.mlp["fc"](x)
        for linear in self.mlp["fc"][::3]:  # type: ignore[index]
            x = dense(x, linear.weight, linear.bias, self.activation)
        return x


class Recurrence(nn.Module):
    """A GRU with hidden states reset at the first decision of an episode."""

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
        # The optimiser's flat weights exclude cuDNN, which needs its own memory for them; it also
        # lacks the second derivative for HATRPO.
        with torch.backends.cudnn.flags(enabled=False):
            for start, end in self._spans(masks):
                masked = (state * masks[start].view(1, -1, 1)).contiguous()
                output, state = self.rnn(x[start:end], masked)
                outputs.append(output)
                if end - start > 1:
                    after.append(output.unsqueeze(2))
                else:
                    after.append(state.transpose(0, 1).unsqueeze(0))
        return self.norm(torch.cat(outputs)), torch.cat(after)

    def _spans(self, masks: Tensor) -> list[tuple[int, int]]:
        """Cut masks (L, B) before every first decision of an episode, into pairs (start, end).

        As in HARL, this gives fewer and longer passes. On a GPU the cut would have to wait for the
        host, and a GRU of several layers returns its states once per pass only. In both cases every
        decision is a pass of its own.
        """
        length = masks.shape[0]
        if masks.is_cuda or self.rnn.num_layers > 1:
            starts = list(range(length))
        else:
            is_first = (masks == 0.0).any(1).tolist()
            starts = [0, *(t for t in range(1, length) if is_first[t])]
        return list(zip(starts, (*starts[1:], length), strict=True))


class GaussianHead(nn.Module):
    """A linear layer for the mean, and a bounded parameter for each dimension's deviation."""

    def __init__(self, cfg: NetworkCfg, in_size: int, action_size: int) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.full((action_size,), _initial_log_std(cfg)))
        self.fc_mean = _linear(in_size, action_size, cfg.initialization_method, cfg.gain)
        self.std_x_coef = cfg.std_x_coef
        self.std_range = cfg.std_y_coef - cfg.std_min
        self.std_min = cfg.std_min
        self.bound = [] if cfg.mean_bound is None else [Bound(cfg.mean_bound)]

    def layers(self) -> list[nn.Module]:
        """Return the modules of the mean in their order."""
        return [self.fc_mean, *self.bound]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers():
            x = layer(x)
        return x

    def std(self) -> Tensor:
        """Return the standard deviations (U,), between std_min and std_y_coef."""
        return self.std_min + torch.sigmoid(self.log_std / self.std_x_coef) * self.std_range


# Initial weights


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


# Hidden layers whose gradients read and write as little memory as possible

_aten = torch.ops.aten


class _Activation(NamedTuple):
    """An in-place function, and its gradient from its result and the result's gradient."""

    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


# Activations of ``dense``. Their gradient follows from their result.
_ACTIVATIONS = {
    "relu": _Activation(torch.relu_, lambda grad, y: _aten.threshold_backward(grad, y, 0.0)),
    "tanh": _Activation(torch.tanh_, lambda grad, y: _aten.tanh_backward(grad, y)),
    "elu": _Activation(
        functional.elu_, lambda grad, y: _aten.elu_backward(grad, 1.0, 1.0, 1.0, True, y)
    ),
}


def dense(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return activation(x W' + b) (..., H) of rows x (..., I).

    This equals a linear layer and its activation, with derivatives of every order. But only the
    result is kept for the gradient, and the gradient of the bias is a product with a vector. On a
    GPU this takes a fifth less time than sums over rows.
    """
    rows = x.reshape(-1, x.shape[-1])
    return _Dense.apply(rows, weight, bias, activation).view(*x.shape[:-1], len(bias))  # type: ignore[no-untyped-call]


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
        y = _ACTIVATIONS[activation].apply(torch.addmm(bias, x, weight.t()))
        ctx.save_for_backward(x, weight, y)
        ctx.activation = activation
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, weight, y = ctx.saved_tensors
        inner = _ACTIVATIONS[ctx.activation].backward(grads[0], y)
        # The order of these operations sets the rounding of a second derivative.
        grad_bias = torch.mv(inner.t(), inner.new_ones(len(inner)))
        grad_x = inner @ weight if ctx.needs_input_grad[0] else None
        grad_weight = inner.t() @ x
        return grad_x, grad_weight, grad_bias, None
