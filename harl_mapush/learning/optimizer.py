"""Adam over one flat tensor. A network's parameters are views into it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from harl_mapush.distributed.ranks import ALONE, Ranks
from mqe.resumable import Resumable

BETA_1 = 0.9
BETA_2 = 0.999
_CLIP_EPS = 1e-6  # as in torch.nn.utils.clip_grad_norm_
_STATE = ("exp_avg", "exp_avg_sq", "step_count", "learning_rate")


class FlatAdam(Resumable):
    """Adam (Kingma & Ba 2015) with gradient clipping, in a few operations per step.

    No method waits for the device: step count and learning rate are tensors, so a step can be
    captured. The network must stay on its device. Its ``load_state_dict`` writes into the same
    memory.
    """

    def __init__(
        self,
        network: nn.Module,
        learning_rate: float,
        eps: float,
        weight_decay: float,
        ranks: Ranks = ALONE,
        *,
        fuses: bool = False,
    ) -> None:
        """Make ``network``'s parameters views into one tensor. ``weight_decay`` is an L2 penalty.

        With ``fuses`` a step on a GPU is one operation with different rounding. Gradients are
        averaged over ``ranks`` if ``share`` is called before a step.
        """
        self.ranks = ranks
        named = list(network.named_parameters())
        self.names = [name for name, _ in named]
        self.parameters = [parameter for _, parameter in named]
        self.eps = eps
        self.weight_decay = weight_decay
        self.flat = flatten_parameters(self.parameters)
        self.grad = torch.zeros_like(self.flat)
        self.exp_avg = torch.zeros_like(self.flat)
        self.exp_avg_sq = torch.zeros_like(self.flat)
        self.is_fused = fuses and self.flat.is_cuda
        # The fused operation reads numbers of single precision.
        dtype = torch.float32 if self.is_fused else torch.float64
        self.step_count = torch.zeros((), device=self.flat.device, dtype=dtype)
        self.learning_rate = torch.full_like(self.step_count, learning_rate)

    def zero_grad(self) -> None:
        """Set the gradient to zero in place."""
        self.grad.zero_()

    def add_gradient(self, loss: Tensor) -> None:
        """Add the gradient of ``loss``. The loss must depend on every parameter."""
        gradients = torch.autograd.grad(loss, self.parameters)
        self.grad.add_(torch.cat([gradient.reshape(-1) for gradient in gradients]))

    def set_gradient(self, loss: Tensor) -> None:
        """Set the gradient to the gradient of ``loss``. The loss must depend on every parameter."""
        gradients = torch.autograd.grad(loss, self.parameters)
        torch.cat([gradient.reshape(-1) for gradient in gradients], out=self.grad)

    def share(self, weight: Tensor | None, *numbers: Tensor) -> tuple[Tensor, ...]:
        """Average the gradient and the scalars ``*numbers`` over all ranks. Return the averaged
        scalars.

        ``weight`` (0-dim) is the sum of this rank's row weights. Without it all ranks weigh
        equally.
        """
        return self.ranks.average_(self.grad, weight, *numbers)

    def step(self, max_grad_norm: float, enabled: Tensor | None = None) -> Tensor:
        """Clip the gradient's norm to ``max_grad_norm`` (0: no clipping) and step. Return the
        unclipped norm, 0-dim.

        If ``enabled`` (0-dim) is 0 instead of 1, neither parameters nor moments change.
        """
        norm = torch.linalg.vector_norm(self.grad)
        if max_grad_norm > 0.0:
            self.grad.mul_((max_grad_norm / (norm + _CLIP_EPS)).clamp(max=1.0))
        if self.is_fused:
            self._fused_step(enabled)
            return norm

        if self.weight_decay:
            self.grad.add_(self.flat, alpha=self.weight_decay)

        on: Tensor | float = 1.0 if enabled is None else enabled
        self.step_count.add_(on)
        count = self.step_count.clamp(min=1.0)
        self.exp_avg.add_((self.grad - self.exp_avg).mul_((1.0 - BETA_1) * on))
        self.exp_avg_sq.add_((self.grad * self.grad - self.exp_avg_sq).mul_((1.0 - BETA_2) * on))
        root = ((1.0 - BETA_2**count) ** 0.5).to(self.flat.dtype)
        step_size = (self.learning_rate / (1.0 - BETA_1**count) * on).to(self.flat.dtype)
        self.flat.sub_(self.exp_avg / ((self.exp_avg_sq.sqrt() / root).add_(self.eps)) * step_size)
        return norm

    def _fused_step(self, enabled: Tensor | None) -> None:
        """Step as ``step`` does, in one operation."""
        self.step_count.add_(1.0 if enabled is None else enabled)
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            [self.flat],
            [self.grad],
            [self.exp_avg],
            [self.exp_avg_sq],
            [],
            [self.step_count],
            lr=self.learning_rate,
            beta1=BETA_1,
            beta2=BETA_2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            found_inf=None if enabled is None else 1.0 - enabled,
        )

    def state_parts(self) -> dict[str, Tensor]:
        """Return moments, step count and learning rate."""
        return {name: getattr(self, name) for name in _STATE}


def flatten_parameters(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Make parameters views of one flat tensor, and return the tensor."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        parameter.data = view
    return flat


def views(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return a flat tensor as a list of tensors shaped like ``parameters``."""
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)]
