"""harl_mapush.algorithms.hatrpo: summation order, since conjugate gradient amplifies rounding."""

import torch

from harl_mapush.algorithms.hatrpo import kl_hessian_product, objective_gradient
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg


def test_natural_gradient_rounds_as_upstream_does():
    torch.manual_seed(0)
    actor = Actor(NetworkCfg(hidden_sizes=(16, 8), use_layer_norm=True), 6, 3)
    flat = FlatAdam(actor, 1e-3, 1e-5, 0.0)
    rows = 160
    obs = torch.randn(rows, 6)
    actions = torch.randn(rows, 3) * 0.5
    old = torch.randn(rows, 3) * 0.1 - 1.0
    advantages = torch.randn(rows)
    factor = torch.rand(rows) + 0.5
    weights = (torch.arange(rows) % 7 > 0).float()
    laid_out = [x.unsqueeze(0) for x in (obs, actions, old, advantages, weights, factor)]
    batch = ActorBatch(*laid_out, hidden=None, masks=None)

    def new() -> torch.distributions.Normal:
        return torch.distributions.Normal(actor(obs), actor.std())

    def column(x: torch.Tensor) -> torch.Tensor:
        return x.unsqueeze(-1)

    ratio = torch.prod(torch.exp(new().log_prob(actions) - old), dim=-1, keepdim=True)
    loss = (ratio * column(factor) * column(advantages) * column(weights)).sum() / weights.sum()
    expected = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, flat.parameters)])
    objective, gradient = objective_gradient(actor, flat, batch)
    assert torch.equal(objective, loss.detach())
    assert torch.equal(gradient, expected)

    vector = torch.randn_like(gradient)
    mean = new().loc.double()
    std = new().scale.double()
    before = mean.detach()
    spread = std.detach()
    kl = (
        (
            0.5
            * ((spread / std) ** 2 + ((before - mean) / std) ** 2 - 1 - ((spread / std) ** 2).log())
        )
        .sum(1)
        .mean()
    )
    first = torch.cat(
        [part.reshape(-1) for part in torch.autograd.grad(kl, flat.parameters, create_graph=True)]
    )
    second = torch.autograd.grad((first * vector).sum(), flat.parameters)
    expected = torch.cat([part.reshape(-1) for part in second])
    assert torch.equal(kl_hessian_product(actor, flat, batch, vector), expected)
