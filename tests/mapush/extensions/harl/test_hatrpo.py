"""HATRPO: order of sums, since conjugate gradient amplifies rounding, and the line search."""

import pytest
import torch

from harl_mapush.config import RunnerCfg
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.minibatches import ActorBatch
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runner import Runner
from mapush.extensions.harl import hatrpo
from mapush.extensions.harl.hatrpo import (
    Hatrpo,
    HatrpoCfg,
    conjugate_gradient,
    kl_hessian_product,
    objective_gradient,
)
from mqe.vec_env import Image, Symmetries, TeamImage, TeamSpec
from tests.support.hooks import Hooks
from tests.support.toy import ToyEnv


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


def make(num_envs: int, **settings) -> Runner:
    torch.manual_seed(0)
    env = ToyEnv(num_envs)
    algorithm = Hatrpo(HatrpoCfg(**settings), NetworkCfg(), env.spec)
    return Runner(env, algorithm, RunnerCfg(num_steps=20, num_env_steps=10**9))


def filled(runner: Runner) -> Storage:
    runner.start()
    runner.collect()
    runner.algorithm.compute_returns(runner.experience)
    return runner.experience


def test_conjugate_gradient_solves_a_linear_system():
    torch.manual_seed(0)
    root = torch.randn(6, 6, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(6)
    target = torch.randn(6, dtype=torch.float64)
    x = conjugate_gradient(lambda vector: matrix @ vector, target)
    # The matrix lengthens every vector, so the residual bounds the error.
    assert float((x - torch.linalg.solve(matrix, target)).norm()) < hatrpo._CG_TOLERANCE**0.5


def test_line_search_shrinks_by_the_coefficient_and_gives_up():
    runner = make(
        16,
        fixed_order=True,
        kl_threshold=0.01,
        line_search_steps=3,
        accept_ratio=1e6,
    )
    storage = filled(runner)
    before = runner.algorithm.optimizers[0].flat.clone()
    metrics = runner.algorithm.update_actors(storage)
    assert torch.equal(runner.algorithm.optimizers[0].flat, before)  # nothing accepted: as it was
    last = float(metrics[0]["expected_improve"])
    runner = make(
        16,
        fixed_order=True,
        kl_threshold=0.01,
        line_search_steps=1,
        accept_ratio=1e6,
    )
    first = float(runner.algorithm.update_actors(filled(runner))[0]["expected_improve"])
    assert last == pytest.approx(first * 0.8**2, rel=1e-4)
    assert first > 0.0


@pytest.mark.slow
def test_it_learns_the_toy():
    runner = make(64, kl_threshold=0.03, critic_learning_rate=6e-3, num_minibatches=2)
    rewards = []
    runner.progress.num_iterations = 16
    runner.learn([Hooks(on_iteration=lambda report: rewards.append(report.metrics["reward/near"]))])
    assert rewards[0] < 0.0
    assert sum(rewards[-3:]) / 3 > 0.3  # 0.5 a control step is standing on the spot


def test_it_has_no_mirror_loss():
    cpu = torch.device("cpu")
    mirror = TeamImage(Image.same(3, cpu), Image.same(2, cpu))
    spec = TeamSpec((3, 3), (2, 2), 4, "EP", Symmetries(mirror))
    with pytest.raises(ValueError, match="hatrpo updates its actors without a loss"):
        Hatrpo(HatrpoCfg(mirror_loss_coef=0.5), NetworkCfg(), spec)
