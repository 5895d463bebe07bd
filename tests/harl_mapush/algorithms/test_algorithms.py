from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import RunnerCfg
from harl_mapush.learning import losses
from harl_mapush.learning.formula_sets import ON_POLICY_FORMULAS
from harl_mapush.learning.on_policy.minibatches import CriticBatch, Shuffle, minibatches
from harl_mapush.learning.on_policy.rollout_storage import Storage
from harl_mapush.learning.on_policy.surrogate import adapt_learning_rate
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from harl_mapush.runner import Runner
from tests.support.hooks import Hooks
from tests.support.rounding import FEW_STEPS
from tests.support.toy import ToyEnv

# Formulas


def test_gaussian_log_prob_and_entropy_by_hand():
    log_prob = losses.gaussian_log_prob(
        torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor([2.0])
    )
    assert log_prob.item() == pytest.approx(-0.5 - math.log(2.0) - 0.5 * math.log(2.0 * math.pi))
    entropy = losses.gaussian_entropy(torch.tensor([2.0, 0.5]))
    assert entropy.item() == pytest.approx(1.0 + math.log(2.0 * math.pi))


def test_gaussian_kl_by_hand_and_has_a_direction():
    narrow = torch.tensor([1.0])
    wide = torch.tensor([2.0])
    zero = torch.tensor([0.0])
    one = torch.tensor([1.0])
    # KL(N(0, 1) || N(1, 2)) = ln 2 + (1 + 1) / 8 - 1 / 2
    assert losses.gaussian_kl(zero, narrow, one, wide).item() == pytest.approx(
        math.log(2.0) + 0.25 - 0.5
    )
    # KL(N(1, 2) || N(0, 1)) = -ln 2 + (4 + 1) / 2 - 1 / 2
    assert losses.gaussian_kl(one, wide, zero, narrow).item() == pytest.approx(-math.log(2.0) + 2.0)


def test_ratio_is_the_product_over_dimensions():
    log_probs = torch.tensor([math.log(2.0), math.log(3.0)])
    old = torch.zeros(2)
    for ratio in (losses.likelihood_ratio, losses.factor_ratio):
        assert ratio(log_probs, old).item() == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.5, 2.0, 2.4), (0.5, 2.0, 1.0), (1.5, -2.0, -3.0), (0.5, -2.0, -1.6)],
)
def test_clipped_surrogate_by_hand(ratio, advantage, expected):
    surrogate = losses.clipped_surrogate(torch.tensor(ratio), torch.tensor(advantage), 0.2)
    assert surrogate.item() == pytest.approx(expected)
    plain = make("haa2c", ToyEnv(4)).algorithm.surrogate
    assert plain(torch.tensor(ratio), torch.tensor(advantage)).item() == ratio * advantage


def test_value_error_has_its_half_and_huber_its_corner():
    errors = torch.tensor([1.0, -3.0, 5.0])
    assert losses.value_error(errors, None).tolist() == [0.5, 4.5, 12.5]
    assert losses.value_error(errors, 2.0).tolist() == [0.5, 4.0, 8.0]


def test_value_loss_takes_the_worse_of_clipped_and_not():
    values = torch.tensor([1.0])
    old = torch.tensor([0.0])
    targets = torch.tensor([1.0])
    assert losses.value_loss(values, old, targets, None, None).item() == 0.0
    assert losses.value_loss(values, old, targets, 0.2, None).item() == pytest.approx(0.5 * 0.8**2)


def test_learning_rate_adapts_to_the_divergence():
    for kl, factor in ((0.03, 1 / 1.5), (0.02, 1.0), (0.01, 1.0), (0.005, 1.0), (0.004, 1.5)):
        rate = torch.tensor(1e-3, dtype=torch.float64)
        adapt_learning_rate(rate, torch.tensor(kl), 0.01)
        assert float(rate) == pytest.approx(1e-3 * factor)


# Optimiser and minibatches


def fuse(adam: FlatAdam) -> None:
    """Make an optimiser on the CPU step as those on a GPU do."""
    adam.is_fused = True
    adam.step_count = adam.step_count.float()
    adam.learning_rate = adam.learning_rate.float()


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_flat_adam_is_torchs_adam(weight_decay, is_fused):
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    theirs = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    theirs.load_state_dict(ours.state_dict())
    flat = FlatAdam(ours, 0.01, 1e-5, weight_decay)
    if is_fused:
        fuse(flat)
    adam = torch.optim.Adam(theirs.parameters(), 0.01, eps=1e-5, weight_decay=weight_decay)
    for k in range(5):
        x = torch.randn(8, 3) * 3.0
        flat.zero_grad()
        flat.add_gradient((ours(x) ** 2).sum())
        norm = flat.step(2.0 if k % 2 else 0.0)
        adam.zero_grad()
        (theirs(x) ** 2).sum().backward()
        clipped = nn.utils.clip_grad_norm_(theirs.parameters(), 2.0 if k % 2 else math.inf)
        assert float(norm) == pytest.approx(float(clipped), rel=1e-5)
        adam.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=FEW_STEPS)


@pytest.mark.parametrize("is_fused", [False, True])
def test_flat_adam_changes_nothing_where_disabled(is_fused):
    network = nn.Linear(2, 1)
    adam = FlatAdam(network, 0.1, 1e-8, 0.0)
    if is_fused:
        fuse(adam)
    adam.add_gradient(network(torch.ones(1, 2)).sum())
    adam.step(0.0)
    before = {
        name: value.clone() for name, value in (adam.state_dict() | {"flat": adam.flat}).items()
    }
    adam.step(0.0, torch.tensor(0.0))
    assert all(
        torch.equal(value, before[name])
        for name, value in (adam.state_dict() | {"flat": adam.flat}).items()
    )


# Whole algorithms


def test_minibatches_share_every_batch_and_cover_it_in_a_fixed_order():
    rows = [torch.arange(6.0).view(1, 6, 1), torch.arange(10.0, 16.0).view(1, 6, 1)]
    batches = [CriticBatch(x, x, x, x, None, None) for x in rows]
    shuffle = Shuffle(torch.Generator().manual_seed(0), torch.Generator())
    fixed = [b.state.flatten().tolist() for b in minibatches(batches, 2, 3, shuffle)]
    assert [len(part) for part in fixed] == [4] * 6
    assert all(sum(value >= 10 for value in part) == 2 for part in fixed)
    assert sorted(sum(fixed[:3], [])) == [*range(6), *range(10, 16)]
    assert fixed[:3] == fixed[3:]


def make(
    name: str, env: ToyEnv, network: NetworkCfg | None = None, num_steps: int = 20, **settings
) -> Any:
    torch.manual_seed(0)
    entry = ALGORITHMS[name]
    algorithm = entry.cls(entry.cfg(**settings), network or NetworkCfg(), env.spec)
    return Runner(env, algorithm, RunnerCfg(num_steps=num_steps, num_env_steps=10**9))


def filled(runner: Any) -> Storage:
    runner.start()
    runner.collect()
    runner.algorithm.compute_returns(runner.experience)
    return runner.experience


LIVELY: dict[str, Any] = {"death_rate": 0.05, "failure_rate": 0.02}


ON_POLICY = [name for name, entry in ALGORITHMS.items() if issubclass(entry.cfg, OnPolicyCfg)]


@pytest.mark.usefixtures("few_conjugate_steps")
@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("compat", ON_POLICY_FORMULAS)
@pytest.mark.parametrize(("state_type", "use_recurrent_policy"), [("EP", False), ("FP", True)])
def test_every_algorithm_updates(name, compat, state_type, use_recurrent_policy):
    env = ToyEnv(8, 3, state_type, **LIVELY)
    network = NetworkCfg((16,), use_recurrent_policy=use_recurrent_policy, chunk_length=5)
    parts = {"num_epochs": 1, "num_minibatches": 2, "critic_num_minibatches": 2}
    runner = make(name, env, network, num_steps=10, compat=compat, **parts)
    before = [optimizer.flat.clone() for optimizer in runner.algorithm.optimizers]
    filled(runner)
    metrics = runner.algorithm.learn(runner.experience)
    assert {f"agent{i}/dist_entropy" for i in range(3)} | {"critic/value_loss"} <= set(metrics)
    assert all(torch.isfinite(value) and value.dim() == 0 for value in metrics.values())
    assert metrics["critic/critic_grad_norm"] % 1.0 > 0.0
    changed = [
        not torch.equal(o.flat, b) for o, b in zip(runner.algorithm.optimizers, before, strict=True)
    ]
    assert all(changed) or name == "hatrpo"  # whose line search may refuse


RATES = ("learning_rate", "critic_learning_rate")


@pytest.mark.parametrize(
    ("name", "settings", "network", "num_iterations"),
    [
        pytest.param("haa2c", {}, {}, 20, marks=pytest.mark.slow),
        pytest.param("mappo", {}, {}, 16, marks=pytest.mark.slow),
        pytest.param("mappo", {"share_param": False}, {}, 20, marks=pytest.mark.slow),
        pytest.param("ippo", {"team_reward": "own"}, {}, 20, marks=pytest.mark.slow),
        (
            "happo",
            {"schedule": "adaptive", **dict.fromkeys(RATES, 1e-2)},
            {"hidden_sizes": (32, 32)},
            16,
        ),
    ],
)
def test_algorithm_learns_the_toy(name, settings, network, num_iterations):
    usual = {"num_minibatches": 2, "entropy_coef": 0.0, **dict.fromkeys(RATES, 6e-3)}
    runner = make(name, ToyEnv(64), NetworkCfg(**network), **{**usual, **settings})
    rewards = []
    runner.progress.num_iterations = num_iterations
    runner.learn([Hooks(on_iteration=lambda report: rewards.append(report.metrics["reward/near"]))])
    assert rewards[0] < 0.0
    assert sum(rewards[-3:]) / 3 > 0.3  # 0.5 a control step is standing on the spot


def test_one_agent_alone():
    runner = make("happo", ToyEnv(8, 1), num_epochs=1)
    filled(runner)
    assert set(runner.algorithm.learn(runner.experience)) >= {
        "agent0/policy_loss",
        "critic/value_loss",
    }


def test_factor_is_the_product_of_the_ratios_before():
    runner = make("happo", ToyEnv(8, 3), fixed_order=True, learning_rate=1e-2)
    storage = filled(runner)
    runner.algorithm.update_actors(storage)
    factor = torch.ones_like(storage.factor[0])
    for agent, actor in enumerate(runner.algorithm.actors):
        assert torch.allclose(storage.factor[agent], factor, atol=1e-4)
        mean = actor(storage.obs[agent])
        now = losses.gaussian_log_prob(storage.actions[agent], mean, actor.std()).sum(-1).detach()
        factor = factor * torch.exp(now - storage.log_probs[agent].sum(-1))
    assert float((factor - 1.0).abs().max()) > 0.1


def test_shared_happo_weighs_what_the_network_did_before_each_turn():
    runner = make("happo", ToyEnv(8, 2), share_param=True, fixed_order=True, learning_rate=1e-2)
    storage = filled(runner)
    assert len(runner.algorithm.optimizers) == 1
    runner.algorithm.update_actors(storage)
    assert float((storage.factor[1] - 1.0).abs().max()) > 0.01


def test_time_outs_bootstrap_from_the_true_last_state():
    runner = make("happo", ToyEnv(32), gamma=0.9, use_value_norm=False)
    storage = filled(runner)
    t, n = (storage.bootstrapped[:-1] > 0).nonzero()[0].tolist()
    expected = storage.rewards[t, n] + 0.9 * runner.algorithm.critic(storage.final_state[t, n])  # type: ignore[index]
    assert storage.returns[t, n].item() == pytest.approx(expected.item(), abs=1e-5)
    assert not torch.allclose(storage.final_state[t, n], storage.state[t + 1, n])  # type: ignore[index]


def test_recurrent_values_of_last_states_use_the_hidden_state_of_their_episode():
    network = NetworkCfg((8,), use_recurrent_policy=True)
    runner = make("happo", ToyEnv(32), network, use_value_norm=False)
    storage = filled(runner)
    critic = runner.algorithm.critic
    t, n = (storage.bootstrapped[1:-1] > 0).nonzero()[0].tolist()
    t += 1
    state = storage.state[: t + 1, n : n + 1]
    episode = torch.cat([state, storage.final_state[t : t + 1, n : n + 1]])  # type: ignore[index]
    masks = torch.cat([storage.masks[: t + 1, n : n + 1], torch.ones(1, 1)])
    values, _ = critic.unroll(episode, storage.critic_hidden[0, n : n + 1], masks)  # type: ignore[index]
    assert values[-1].item() == pytest.approx(storage.final_values[t, n].item(), abs=1e-5)


def test_broken_steps_change_nothing_that_is_learned():
    outcomes = []
    for junk in (0.0, 1e3):
        env = ToyEnv(16, failure_rate=0.2)
        runner = make("happo", env, fixed_order=True, num_epochs=1)
        runner.start()
        runner.collect()
        broken = runner.experience.valid < 0.5
        assert bool(broken.any())
        runner.experience.rewards[broken] = junk
        runner.experience.actions[:, broken] = junk
        runner.algorithm.update(runner.experience)
        outcomes.append(
            torch.cat(
                [o.flat for o in (*runner.algorithm.optimizers, runner.algorithm.value.optimizer)]
            )
        )
    assert torch.equal(*outcomes)


def test_before_its_first_step_a_policy_is_the_one_that_collected():
    runner = make("happo", ToyEnv(8, 2), num_epochs=1, num_minibatches=1)
    metrics = runner.algorithm.learn(filled(runner))
    for agent in range(2):
        assert float(metrics[f"agent{agent}/ratio"]) == pytest.approx(1.0, abs=1e-5)
        assert float(metrics[f"agent{agent}/kl"]) == pytest.approx(0.0, abs=FEW_STEPS)


def test_an_agent_dead_all_along_is_left_alone():
    runner = make("happo", ToyEnv(8, 2), num_epochs=1)
    storage = filled(runner)
    runner.algorithm.learn(storage)  # moments that would move it
    storage.active[1] = 0.0
    before = runner.algorithm.optimizers[1].flat.clone()
    metrics = runner.algorithm.learn(storage)
    assert torch.equal(runner.algorithm.optimizers[1].flat, before)
    assert float(metrics["agent1/policy_loss"]) == 0.0


def test_tiles_add_up_to_the_whole_gradient(monkeypatch):
    flats = []
    for rows in (7, 10**6):
        monkeypatch.setattr("harl_mapush.learning.on_policy.minibatches.CPU_TILE_ROWS", rows)
        runner = make("happo", ToyEnv(16, **LIVELY), fixed_order=True, num_epochs=1)
        runner.algorithm.learn(filled(runner))
        flats.append(runner.algorithm.optimizers[0].exp_avg)
    assert torch.allclose(*flats, atol=1e-7)


def test_unequal_agents_share_a_team_but_not_an_actor():
    env = ToyEnv(8, 2, obs_sizes=(3, 2), action_sizes=(2, 1))
    runner = make("ippo", env, num_epochs=1)
    storage = filled(runner)
    assert float(storage.actions[1, ..., 1].abs().max()) == 0.0
    assert float(storage.log_probs[1, ..., 1].abs().max()) == 0.0
    assert runner.algorithm.actors[1].std().shape == (1,)
    runner.algorithm.learn(storage)
    with pytest.raises(ValueError, match="share_param"):
        make("mappo", env)


def test_team_rewards():
    rewards = torch.tensor([[1.0, 3.0]])
    for choice, expected in (("mean", [[2.0]]), ("sum", [[4.0]]), ("own", [[1.0, 3.0]])):
        assert (
            make("happo", ToyEnv(4), team_reward=choice).algorithm.team_rewards(rewards).tolist()
            == expected
        )
    assert make("ippo", ToyEnv(4)).algorithm.team_rewards(rewards).tolist() == [[2.0, 2.0]]


def test_the_linear_schedule():
    algorithm = make("happo", ToyEnv(4), learning_rate=1e-3, schedule="linear").algorithm
    algorithm.set_progress(0.25)
    assert [float(o.learning_rate) for o in algorithm.optimizers] == pytest.approx([7.5e-4, 7.5e-4])


def test_log_probabilities_are_those_of_the_actions():
    env = ToyEnv(4, 2, action_sizes=(2, 1))
    algorithm = make("happo", env).algorithm
    obs = torch.randn(4, 2, 3)
    decision = algorithm.act(obs)
    for i, actor in enumerate(algorithm.actors):
        size = actor.action_size
        expected = losses.gaussian_log_prob(
            decision.actions[:, i, :size], actor(obs[:, i]), actor.std()
        )
        assert torch.allclose(decision.log_probs[:, i, :size], expected, atol=1e-5)


def test_the_value_normaliser_tracks_without_moving_values():
    runner = make("happo", ToyEnv(16), critic_learning_rate=1e-12, learning_rate=1e-12)
    storage = filled(runner)
    first = storage.values.clone()
    runner.algorithm.learn(storage)
    runner.algorithm.value.compute_values(storage)
    # Fresh units mean nothing: the network stays as it was.
    assert torch.allclose(storage.values, first, atol=1e-5)
    before = runner.algorithm.value.denormalize(storage.values).clone()
    storage.returns.add_(50.0)
    runner.algorithm.learn(storage)
    runner.algorithm.value.compute_values(storage)
    assert torch.allclose(runner.algorithm.value.denormalize(storage.values), before, atol=1e-3)
    assert float(runner.algorithm.normalizer.mean_std()[0]) > 20.0


def test_rollout_must_fit_the_training_sequences():
    network = NetworkCfg((8,), use_recurrent_policy=True, chunk_length=7)
    with pytest.raises(ValueError, match="chunk_length"):
        make("happo", ToyEnv(4), network)
