"""Mirror loss for actors: hand-computed values and its effect."""

from functools import partial
from typing import Any

import pytest
import torch

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning import losses
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.on_policy.surrogate import add_policy_gradient
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from mqe.vec_env import Image, Symmetries, TeamImage, TeamSpec
from tests.support.rounding import FEW_STEPS

CPU = torch.device("cpu")
CLIPPED = partial(losses.clipped_surrogate, clip_param=0.2)
MIRROR = TeamImage(Image.of((0, 1, 2), (1.0, -1.0, -1.0), CPU), Image.of((1, 0), (1.0, 1.0), CPU))


def make_batch(rows: int = 64) -> ActorBatch:
    obs = torch.randn(rows, 3)
    actions = torch.randn(rows, 2)
    laid_out = [
        obs,
        actions,
        torch.full((rows, 2), -1.0),
        torch.randn(rows),
        torch.ones(rows),
        torch.ones(rows),
    ]
    return ActorBatch(*(x.unsqueeze(0) for x in laid_out), hidden=None, masks=None)


def settings(entropy_coef: float, mirror_loss_coef: float) -> OnPolicyCfg:
    return OnPolicyCfg(entropy_coef=entropy_coef, mirror_loss_coef=mirror_loss_coef)


def test_the_loss_is_the_squared_distance_to_the_mirror_image():
    torch.manual_seed(0)
    actor = Actor(NetworkCfg(hidden_sizes=(8,), gain=1.0), 3, 2)
    optimizer = FlatAdam(actor, 1e-3, 1e-5, 0.0)
    batch = make_batch()
    gradients = []
    for coef in (0.0, 0.5):
        optimizer.zero_grad()
        stats = add_policy_gradient(actor, optimizer, batch, CLIPPED, settings(0.01, coef), MIRROR)
        gradients.append((optimizer.grad.clone(), stats.policy_loss))
    obs = batch.obs[0]
    mirrored = actor(obs * torch.tensor([1.0, -1.0, -1.0]))
    by_hand = (
        (mirrored[:, 0] - actor(obs)[:, 1]) ** 2 + (mirrored[:, 1] - actor(obs)[:, 0]) ** 2
    ).mean()
    expected = torch.autograd.grad(0.5 * by_hand, optimizer.parameters, allow_unused=True)
    flat = [
        torch.zeros_like(p) if g is None else g
        for p, g in zip(optimizer.parameters, expected, strict=True)
    ]
    more = gradients[1][0] - gradients[0][0]
    torch.testing.assert_close(
        more, torch.cat([g.reshape(-1) for g in flat]), atol=FEW_STEPS, rtol=1e-4
    )
    assert torch.equal(gradients[0][1], gradients[1][1])  # the policy loss is reported without it
    # The divergence is that of rows, whose actions' probabilities multiply.
    log_probs = losses.gaussian_log_prob(batch.actions, actor(batch.obs), actor.std())
    log_ratio = (log_probs - batch.log_probs).sum(-1)
    torch.testing.assert_close(stats.kl, (log_ratio.exp() - 1.0 - log_ratio).mean())


def test_steps_on_it_make_a_policy_symmetric():
    torch.manual_seed(0)
    actor = Actor(NetworkCfg(hidden_sizes=(16,), gain=1.0), 3, 2)
    optimizer = FlatAdam(actor, 2e-2, 1e-5, 0.0)
    batch = make_batch()
    batch = batch._replace(advantages=0.0 * batch.advantages)

    @torch.no_grad()
    def asymmetry() -> float:
        see, act, *_ = MIRROR
        return float((actor(see(batch.obs)) - act(actor(batch.obs))).square().mean())

    before = asymmetry()
    for _ in range(100):
        optimizer.zero_grad()
        add_policy_gradient(actor, optimizer, batch, CLIPPED, settings(0.0, 1.0), MIRROR)
        optimizer.step(0.0, torch.ones(()))
    assert asymmetry() < 0.02 * before


@pytest.mark.parametrize(
    "name, network, mirror, complaint",
    [
        ("happo", {}, None, "defines no mirror image"),
        ("happo", {"use_recurrent_policy": True}, MIRROR, "recurrent policies have no mirror loss"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(name, network, mirror, complaint):
    entry: Any = ALGORITHMS[name]
    spec = TeamSpec((3, 3), (2, 2), 4, "EP", Symmetries(mirror))
    with pytest.raises(ValueError, match=f"mirror_loss_coef must be 0, not 0.5: .*{complaint}"):
        entry.cls(entry.cfg(mirror_loss_coef=0.5), NetworkCfg(**network), spec)
