"""HATRPO (Kuba et al. 2022): HAPPO's sequence with natural gradient steps inside a trust region."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harl_mapush.algorithms.entries import ALGORITHMS, AlgorithmEntry
from harl_mapush.algorithms.happo import Happo, HappoCfg
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.learning import losses
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.minibatches import ActorBatch, gather, num_rows, tiles
from harl_mapush.learning.optimizer import FlatAdam, views
from mqe.config import option

_CG_STEPS = 10
_CG_TOLERANCE = 1e-10  # squared residual at which conjugate gradient stops
_CG_DAMPING = 0.1


@dataclass(frozen=True)
class HatrpoCfg(HappoCfg):
    """HATRPO's settings.

    Its actors use neither learning_rate, entropy_coef nor num_minibatches.
    """

    name: str = option("hatrpo", "name of the learning algorithm")
    kl_threshold: float = option(
        0.01, "trust region: largest KL divergence of a step [nat]", min=1e-6, max=10.0
    )
    line_search_steps: int = option(10, "number of step sizes in the line search", min=1, max=1000)
    accept_ratio: float = option(
        0.5, "least ratio of actual to expected gain at which a step is accepted", min=1e-6, max=1.0
    )
    backtrack_coeff: float = option(
        0.8, "ratio of each step size to the previous one in the line search", min=1e-3, max=1.0
    )


class Hatrpo(Happo):
    """One full-batch step per agent, by conjugate gradient and a backtracking line search.

    The line search reads a result on the host after every step size, so an update waits for the
    device a few times.
    """

    cfg: HatrpoCfg
    is_capturable = False
    takes_mirror_loss = False

    def update_actor(self, agent: int, batch: ActorBatch) -> dict[str, Tensor]:
        actor = self.actors[agent]
        num_active = batch.weights.sum()
        self.ranks.sum_(num_active)
        if not bool(num_active):
            return _unmoved(actor)  # never alive: upstream draws no order for such an agent
        order = self.shuffle.rows(num_rows(batch), 1)
        if order is not None:
            batch = gather(batch, order)
        return trust_region_step(actor, self.optimizer(agent), batch, self.cfg)


def trust_region_step(
    actor: Actor, flat: FlatAdam, batch: ActorBatch, cfg: HatrpoCfg
) -> dict[str, Tensor]:
    """Step the actor in place, or leave the actor unchanged if no step size is accepted.

    Return metrics of the last step size as 0-dim tensors. Conjugate gradient amplifies rounding, so
    products and sums are in upstream HARL's order here.
    """
    if not cfg.use_policy_active_masks:
        batch = batch._replace(weights=torch.ones_like(batch.weights))
    start = flat.flat.clone()
    with torch.no_grad():
        mean_old = [actor.outputs(tile.obs, tile) for tile in tiles(batch)]
        std_old = actor.std()

    # Direction and full length of the natural gradient step.
    objective_old, gradient = objective_gradient(actor, flat, batch)
    metrics = _unmoved(actor)
    has_direction = float(gradient.abs().max()) > 0.0  # False also for NaN
    if not has_direction:
        return metrics
    step = _natural_step(
        lambda vector: kl_hessian_product(actor, flat, batch, vector), gradient, cfg.kl_threshold
    )

    # Backtracking line search.
    expected = (gradient * step).sum()
    share = 1.0
    for _ in range(cfg.line_search_steps):
        flat.flat.copy_(start + share * step)
        objective, kl, ratio = _evaluate(actor, flat.ranks, batch, mean_old, std_old)
        gain = objective - objective_old
        metrics["kl"] = kl.float()
        metrics["loss_improve"] = gain
        metrics["expected_improve"] = expected
        metrics["ratio"] = ratio
        accepted = (kl < cfg.kl_threshold) & (gain / expected > cfg.accept_ratio) & (gain > 0.0)
        if bool(accepted):
            break
        expected = expected * cfg.backtrack_coeff
        share *= cfg.backtrack_coeff
    else:
        flat.flat.copy_(start)
    return metrics | _spread(actor)


def _unmoved(actor: Actor) -> dict[str, Tensor]:
    """Return the metrics of an unchanged actor."""
    spread = _spread(actor)
    zero = torch.zeros_like(spread["std"])
    return {
        "kl": zero,
        "loss_improve": zero,
        "expected_improve": zero,
        "ratio": torch.ones_like(zero),
        **spread,
    }


def _spread(actor: Actor) -> dict[str, Tensor]:
    """Return the metrics of an actor's standard deviations."""
    std = actor.std().detach()
    return {"dist_entropy": losses.gaussian_entropy(std), "std": std.mean()}


def conjugate_gradient(product: Callable[[Tensor], Tensor], target: Tensor) -> Tensor:
    """Solve product(x) = target by at most 10 conjugate gradient steps from x = 0.

    Method: Hestenes & Stiefel (1952).
    """
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


def _natural_step(
    hessian: Callable[[Tensor], Tensor], gradient: Tensor, kl_threshold: float
) -> Tensor:
    """Return x sqrt(2 kl_threshold / x'(H + damping)x) with (H + damping) x = gradient."""

    def damped(vector: Tensor) -> Tensor:
        return hessian(vector) + _CG_DAMPING * vector

    x = conjugate_gradient(damped, gradient)
    half_curvature = 0.5 * (x * damped(x)).sum()
    return x * (1.0 / torch.sqrt(half_curvature / kl_threshold))


def objective_gradient(actor: Actor, flat: FlatAdam, batch: ActorBatch) -> tuple[Tensor, Tensor]:
    """Return the surrogate objective of the present actor, and its gradient as one flat tensor."""
    total = _total(batch, flat.ranks)
    objective = torch.zeros_like(total)
    gradient = torch.zeros_like(flat.flat)
    for tile in tiles(batch):
        ratio = _ratio(tile, actor.outputs(tile.obs, tile), actor.std())
        share = _gain(tile, ratio).sum() / total
        parts = torch.autograd.grad(share, flat.parameters)
        gradient += torch.cat([part.reshape(-1) for part in parts])
        objective += share.detach()
    flat.ranks.sum_(gradient, objective)
    return objective, gradient


@torch.no_grad()
def _evaluate(
    actor: Actor, ranks: Ranks, batch: ActorBatch, mean_old: list[Tensor], std_old: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return surrogate objective, mean KL(old || new) [nat, float64] and mean ratio."""
    std = actor.std()
    total = _total(batch, ranks)
    objective = torch.zeros_like(total)
    ratios = torch.zeros_like(total)
    kl = torch.zeros_like(total, dtype=torch.float64)
    for tile, old in zip(tiles(batch), mean_old, strict=True):
        mean = actor.outputs(tile.obs, tile)
        ratio = _ratio(tile, mean, std)
        objective += _gain(tile, ratio).sum() / total
        kl += losses.gaussian_kl(old.double(), std_old.double(), mean.double(), std.double()).sum()
        ratios += ratio.sum()
    ranks.sum_(objective, kl, ratios)
    rows = batch.weights.numel() * ranks.size
    return objective, kl / rows, ratios / rows


def kl_hessian_product(actor: Actor, flat: FlatAdam, batch: ActorBatch, vector: Tensor) -> Tensor:
    """Multiply ``vector`` by the Hessian of the mean KL(old || new) at the present actor.

    The mean is over dead agents' rows as well.
    """
    parts = views(vector, flat.parameters)
    rows = batch.weights.numel() * flat.ranks.size
    product = torch.zeros_like(vector)
    for tile in tiles(batch):
        # The order of these operations sets the rounding of the derivatives.
        mean = actor.outputs(tile.obs, tile).double()
        std = actor.std().expand_as(mean).double()
        kl = losses.gaussian_kl(mean.detach(), std.detach(), mean, std).sum() / rows
        first = torch.autograd.grad(kl, flat.parameters, create_graph=True)
        along = torch.stack([(g * v).sum() for g, v in zip(first, parts, strict=True)]).sum()
        second = torch.autograd.grad(along, flat.parameters)
        product += torch.cat([part.reshape(-1) for part in second])
    flat.ranks.sum_(product)
    return product


def _ratio(tile: ActorBatch, mean: Tensor, std: Tensor) -> Tensor:
    """Return every action's probability ratio.

    ``std`` (U,) is expanded to rows first, so its gradient is a sum over rows.
    """
    log_probs = losses.gaussian_log_prob(tile.actions, mean, std.expand_as(mean))
    return losses.factor_ratio(log_probs, tile.log_probs)


def _gain(tile: ActorBatch, ratio: Tensor) -> Tensor:
    """Return the surrogate of every row."""
    return ratio * tile.factor * tile.advantages * tile.weights


def _total(batch: ActorBatch, ranks: Ranks) -> Tensor:
    """Return the number of active rows on all ranks, at least 1."""
    total = batch.weights.sum()
    ranks.sum_(total)
    return total.clamp(min=1.0)


ALGORITHMS.register("hatrpo", AlgorithmEntry(HatrpoCfg, Hatrpo))
