"""Under compat=harl, a CPU update rounds like torch's own distributions and Adam, as in
upstream.
"""

from functools import partial

import pytest
import torch

from harl_mapush.learning import losses
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.on_policy.surrogate import add_policy_gradient
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from mapush.extensions.harl.on_policy_formulas import RoundedAdam, RoundedHarlFormulas

ROWS = 160


@pytest.mark.parametrize(
    ("aggregation", "clip_param"), [("prod", 0.2), ("mean", 0.2), ("prod", None)]
)
def test_policy_gradient(aggregation, clip_param):
    torch.manual_seed(0)
    actor = Actor(NetworkCfg(hidden_sizes=(16, 8), use_layer_norm=True), 6, 3)
    optimizer = RoundedAdam(actor, 1e-3, 1e-5, 0.0)
    obs = torch.randn(ROWS, 6)
    actions = torch.randn(ROWS, 3) * 0.5
    old = torch.randn(ROWS, 3) * 0.1 - 1.0
    advantages = torch.randn(ROWS)
    factor = torch.rand(ROWS) + 0.5
    weights = (torch.arange(ROWS) % 7 > 0).float()

    policy = torch.distributions.Normal(actor(obs), actor.std())
    ratio = getattr(torch, aggregation)(torch.exp(policy.log_prob(actions) - old), dim=-1)
    surrogate = ratio * advantages
    if clip_param is not None:
        surrogate = torch.min(
            surrogate, torch.clamp(ratio, 1.0 - clip_param, 1.0 + clip_param) * advantages
        )
    loss = (-(factor * surrogate) * weights).sum() / weights.sum()
    entropy = (policy.entropy().sum(-1) * weights).sum() / weights.sum()
    gradients = torch.autograd.grad(loss - 0.01 * entropy, optimizer.parameters)

    laid_out = [x.unsqueeze(0) for x in (obs, actions, old, advantages, weights, factor)]
    batch = ActorBatch(*laid_out, hidden=None, masks=None)
    cfg = OnPolicyCfg(entropy_coef=0.01, action_aggregation=aggregation)
    if clip_param is None:
        objective = torch.mul
    else:
        objective = partial(losses.clipped_surrogate, clip_param=clip_param)
    stats = add_policy_gradient(actor, optimizer, batch, objective, cfg, RoundedHarlFormulas())
    assert torch.equal(optimizer.grad, torch.cat([gradient.reshape(-1) for gradient in gradients]))
    assert torch.equal(stats.policy_loss, loss.detach())
    assert torch.equal(stats.entropy, entropy.detach())


@pytest.mark.parametrize(("max_grad_norm", "weight_decay"), [(10.0, 0.0), (0.5, 1e-3), (0.0, 0.0)])
def test_adam(max_grad_norm, weight_decay):
    torch.manual_seed(0)
    ours, theirs = (
        torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        for _ in "ab"
    )
    theirs.load_state_dict(ours.state_dict())
    flat = RoundedAdam(ours, 5e-4, 1e-5, weight_decay)
    adam = torch.optim.Adam(theirs.parameters(), lr=5e-4, eps=1e-5, weight_decay=weight_decay)
    for _ in range(5):
        x = torch.randn(30, 7)
        flat.zero_grad()
        flat.add_gradient((ours(x) ** 2).mean())
        flat.step(max_grad_norm)
        adam.zero_grad()
        (theirs(x) ** 2).mean().backward()
        if max_grad_norm > 0.0:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        adam.step()
        assert all(
            torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)
        )


def test_a_step_that_is_off_changes_nothing():
    torch.manual_seed(0)
    flat = RoundedAdam(torch.nn.Linear(3, 2), 5e-4, 1e-5, 0.0)
    flat.grad.fill_(1.0)
    before = {name: value.clone() for name, value in flat.state_dict().items()} | {
        "flat": flat.flat.clone()
    }
    assert float(flat.step(10.0, torch.zeros(()))) == pytest.approx(8.0**0.5)
    after = flat.state_dict() | {"flat": flat.flat}
    assert all(torch.equal(before[name], after[name]) for name in before)
