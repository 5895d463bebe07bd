"""HATRPO (Kuba et al. 2022): HAPPO's sequence with natural gradient steps inside a trust region."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harl_mapush.algorithms import losses
from harl_mapush.algorithms.happo import Happo, HappoCfg
from harl_mapush.algorithms.minibatches import tiles
from harl_mapush.algorithms.optimizer import FlatAdam
from harl_mapush.algorithms.surrogate import policy_gradient
from harl_mapush.networks import Actor
from harl_mapush.storage import ActorBatch, gather, num_rows

_CG_STEPS = 10
_CG_TOLERANCE = 1e-10  # of the squared residual
_CG_DAMPING = 0.1


@dataclass(frozen=True)
class HatrpoCfg(HappoCfg):
    """HATRPO's settings; learning_rate, entropy_coef and num_minibatches are the critic's or unused."""

    name: str = "hatrpo"
    kl_threshold: float = field(default=0.01, metadata={"above": 0.0, "help": "[nat] trust region of a step"})
    line_search_steps: int = field(default=10, metadata={"min": 1})
    accept_ratio: float = field(default=0.5, metadata={"above": 0.0, "help": "least share of the promised gain"})
    backtrack_coeff: float = field(default=0.8, metadata={"above": 0.0, "max": 1.0})


class Hatrpo(Happo):
    """One full-batch step an agent: conjugate gradient on the KL Hessian, then a backtracking line search.

    The line search asks the host after every try, so an update waits for the device a few times.
    """

    cfg: HatrpoCfg
    is_capturable = False

    def improve_actor(self, agent: int, batch: ActorBatch) -> dict[str, Tensor]:
        order = self.shuffle.rows(num_rows(batch), 1)
        batch = batch if order is None else gather(batch, order)
        return trust_region_step(self.actors[agent], self.optimizer(agent), batch, self.cfg)


def trust_region_step(actor: Actor, flat: FlatAdam, batch: ActorBatch, cfg: HatrpoCfg) -> dict[str, Tensor]:
    """Step the actor in place, or leave it where no try is accepted; give the last try's metrics as 0-dim tensors."""
    if not cfg.use_policy_active_masks:
        batch = batch._replace(weights=torch.ones_like(batch.weights))
    start = flat.flat.clone()
    mean_old = [mean.detach() for mean in _means(actor, batch)]
    std_old = actor.std().detach()
    flat.zero_grad()
    told = policy_gradient(actor, flat, batch, None, 0.0, cfg.action_aggregation)
    gradient = -flat.grad
    objective_old = -told.policy_loss
    zero = torch.zeros_like(objective_old)
    metrics = {"kl": zero, "loss_improve": zero, "expected_improve": zero}
    if float(gradient.abs().max()) > 0.0:  # an agent inactive for the whole rollout stays as it is
        step = _natural_step(lambda vector: _kl_hessian(actor, flat, batch, vector), gradient, cfg.kl_threshold)
        promised = gradient @ step
        for k in range(cfg.line_search_steps):
            share = cfg.backtrack_coeff**k
            flat.flat.copy_(start + share * step)
            with torch.no_grad():
                objective, kl = _evaluate(actor, batch, mean_old, std_old, cfg.action_aggregation)
            gain, expected = objective - objective_old, promised * share
            metrics = {"kl": kl, "loss_improve": gain, "expected_improve": expected}
            accepted = (kl < cfg.kl_threshold) & (gain / expected > cfg.accept_ratio) & (gain > 0.0)
            if bool(accepted):
                break
        else:
            flat.flat.copy_(start)
    metrics.update(dist_entropy=losses.gaussian_entropy(actor.std().detach()), ratio=told.ratio)
    metrics["std"] = actor.std().detach().mean()
    return metrics


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve product(x) = target by at most 10 steps of conjugate gradient from 0 (Hestenes & Stiefel 1952)."""
    x = torch.zeros_like(target)
    residual = target.clone()
    direction = target.clone()
    size = residual @ residual
    for _ in range(_CG_STEPS):
        image = product(direction)
        alpha = size / (direction @ image)
        x = x + alpha * direction
        residual = residual - alpha * image
        new_size = residual @ residual
        if float(new_size) < _CG_TOLERANCE:
            break
        direction = residual + new_size / size * direction
        size = new_size
    return x


def _natural_step(hessian: Callable[[Tensor], Tensor], gradient: Tensor, kl_threshold: float) -> Tensor:
    """Give x sqrt(2 kl_threshold / x'(H + damping)x) with (H + damping) x = gradient."""

    def damped(vector: Tensor) -> Tensor:
        return hessian(vector) + _CG_DAMPING * vector

    x = conjugate_gradient(damped, gradient)
    half_curvature = 0.5 * (x * damped(x)).sum()
    return x * (1.0 / torch.sqrt(half_curvature / kl_threshold))


def _means(actor: Actor, batch: ActorBatch) -> list[Tensor]:
    with torch.no_grad():
        return [_forward(actor, tile) for tile in tiles(batch)]


def _forward(actor: Actor, tile: ActorBatch) -> Tensor:
    return actor.unroll(tile.obs, None if tile.hidden is None else tile.hidden[0], tile.masks)[0]


def _kl_hessian(actor: Actor, flat: FlatAdam, batch: ActorBatch, vector: Tensor) -> Tensor:
    """Multiply ``vector`` with the Hessian of the mean KL(old || new), new being old; dead agents count as well."""
    parts = flat.views(vector)
    rows = batch.weights.numel()
    product = torch.zeros_like(vector)
    for tile in tiles(batch):
        mean, std = _forward(actor, tile).double(), actor.std().double()
        kl = losses.gaussian_kl(mean.detach(), std.detach(), mean, std).sum() / rows
        first = torch.autograd.grad(kl, flat.parameters, create_graph=True)
        along = torch.stack([(g * v).sum() for g, v in zip(first, parts, strict=True)]).sum()
        second = torch.autograd.grad(along, flat.parameters)
        product += torch.cat([part.reshape(-1) for part in second])
    return product


def _evaluate(
    actor: Actor, batch: ActorBatch, mean_old: list[Tensor], std_old: Tensor, aggregation: str
) -> tuple[Tensor, Tensor]:
    """Give the surrogate objective and the mean KL(old || new) [nat] of the actor as it is now."""
    std = actor.std()
    objective = torch.zeros((), device=std.device)
    kl = torch.zeros((), device=std.device, dtype=torch.float64)
    for tile, old in zip(tiles(batch), mean_old, strict=True):
        mean = _forward(actor, tile)
        log_probs = losses.gaussian_log_prob(tile.actions, mean, std)
        ratio = losses.likelihood_ratio(log_probs, tile.log_probs, aggregation)
        objective += (tile.factor * (ratio * tile.advantages) * tile.weights).sum()
        kl += losses.gaussian_kl(old.double(), std_old.double(), mean.double(), std.double()).sum()
    return objective / batch.weights.sum().clamp(min=1.0), kl.float() / batch.weights.numel()
