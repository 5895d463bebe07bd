"""The learned model of the worlds: what it predicts, what it is fitted to, and what becomes of its
predictions.
"""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.collectors.model_trainer import ModelTrainer
from harl_mapush.collectors.supervision.rate_limiter import FairLock, RateLimiter
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.learning.off_policy.replay_buffer import RingReplay
from harl_mapush.learning.settings import MODEL_ROUND, EnsembleCfg, NetworkCfg
from harl_mapush.learning.world_model.ensemble import (
    Ensemble,
    Prediction,
    disagreement,
    drawn,
    within_interval,
)
from harl_mapush.learning.world_model.world_model import HELD_OUT, WorldModel, health_line
from tests.support.planar_toy import PlanarToyEnv, ToyPlanar
from tests.support.toy import ToyEnv

SMALL = EnsembleCfg(
    members=3,
    hidden_size=16,
    batch_size=32,
    first_steps=8,
    steps=2.0,
    ramp=400,
    branches=8,
    interval=1,
    buffer_size=64,
    max_disagreement=100.0,
)


def make(name: str = "hasac", env: Any = None, cfg: EnsembleCfg = SMALL, **settings: Any) -> Any:
    torch.manual_seed(0)
    env = env or PlanarToyEnv(16, death_rate=0.05, failure_rate=0.02)
    entry = ALGORITHMS[name]
    sizes: dict[str, Any] = {
        "warmup": 64,
        "batch_size": 32,
        "buffer_size": 512,
        "update_ratio": 1 / 16,
    }
    settings = {"model": "ensemble", "ensemble": cfg} | sizes | settings
    team = entry.cls(entry.cfg(**settings), NetworkCfg((16,)), env.spec)
    assert isinstance(team, OffPolicy)
    experience = team.make_experience(1, env.num_envs)
    obs, state = env.reset()
    experience.start(obs, state)
    return team, experience, env, obs


def go(
    team: OffPolicy, experience: Any, env: ToyEnv, obs: Tensor, blocks: int
) -> tuple[Tensor, dict[str, Tensor]]:
    metrics = {}
    for _ in range(blocks):
        decision = team.act(obs)
        step = env.step(decision.actions)
        experience.add(0, obs, decision, step)
        obs = step.obs
        metrics = team.update(experience) or metrics
    return obs, metrics


def make_ensemble(num_robots: int = 3, num_kinds: int = 1, seed: int = 0) -> Ensemble:
    planar = ToyPlanar(num_robots, torch.zeros(num_robots, 2), num_kinds)
    return Ensemble(planar, 2, 4, 16, torch.Generator().manual_seed(seed))


# The networks


def test_robots_in_another_order_have_the_same_predictions_in_that_order():
    ensemble = make_ensemble().double()
    ensemble._kinds = ensemble._kinds.double()
    draw = torch.Generator().manual_seed(1)
    ensemble.update_norms(
        torch.randn(50, 7, generator=draw, dtype=torch.float64), torch.ones(50, dtype=torch.float64)
    )
    state = torch.randn(4, 5, 7, generator=draw, dtype=torch.float64)
    actions = torch.randn(4, 5, 3, 2, generator=draw, dtype=torch.float64)
    order = [2, 0, 1]
    turned = torch.cat(
        (state[..., :1], state[..., 1:].unflatten(-1, (3, 2))[..., order, :].flatten(-2)), dim=-1
    )
    expected = ensemble(state, actions)
    found = ensemble(turned, actions[:, :, order])
    for one, other in zip(expected, found, strict=True):
        world = one[..., :1]
        robots = one[..., 1:].unflatten(-1, (3, 2))
        torch.testing.assert_close(other[..., :1], world, rtol=0.0, atol=1e-14)
        torch.testing.assert_close(
            other[..., 1:], robots[..., order, :].flatten(-2), rtol=0.0, atol=1e-14
        )
    assert not torch.allclose(found.mean, expected.mean)


def test_robots_of_another_kind_are_told_apart():
    same = make_ensemble(2)
    mixed = make_ensemble(2, num_kinds=2)
    twins = torch.tensor([0.5, 1.0, 2.0, 1.0, 2.0]).expand(4, 1, 5)
    actions = torch.ones(4, 1, 2, 2)
    is_equal = [
        torch.equal(*e(twins, actions).mean[..., 1:].chunk(2, dim=-1)) for e in (same, mixed)
    ]
    assert is_equal == [True, False]


def test_every_number_is_normalised_by_itself():
    draw = torch.Generator().manual_seed(1)
    state, following = torch.randn(2, 4, 40, 7, generator=draw).unbind()
    actions = torch.randn(4, 40, 3, 2, generator=draw)
    weights = torch.ones(4, 40)
    unit = torch.tensor([1e3, *[0.1, 20.0] * 3])
    plain = make_ensemble()
    scaled = make_ensemble()
    plain.update_norms(state[0], torch.ones(40))
    scaled.update_norms(state[0] * unit + 3.0, torch.ones(40))
    loss = plain.loss(state, actions, following, weights)
    torch.testing.assert_close(
        scaled.loss(state * unit + 3.0, actions, following * unit + 3.0, weights), loss
    )
    one = plain(state, actions)
    other = scaled(state * unit + 3.0, actions)
    torch.testing.assert_close(other.mean, one.mean * unit + 3.0, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(other.variance, one.variance * unit.square(), rtol=1e-4, atol=1e-6)


def test_the_loss_is_the_likelihood_of_a_normal_distribution_of_the_rows_that_count():
    ensemble = make_ensemble()
    draw = torch.Generator().manual_seed(1)
    state, following = torch.randn(2, 4, 6, 7, generator=draw).unbind()
    actions = torch.randn(4, 6, 3, 2, generator=draw)
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0]).expand(4, 6)
    mean, variance = ensemble(state, actions)  # numbers are not scaled before anything was taken in
    terms = -torch.distributions.Normal(mean, variance.sqrt()).log_prob(following) - 0.5 * math.log(
        2.0 * math.pi
    )
    expected = terms[:, [0, 2, 3, 5]].mean(dim=(1, 2)).sum()
    torch.testing.assert_close(ensemble.loss(state, actions, following, weights), expected)


def test_disagreement_is_in_deviations_that_members_expect():
    # They differ by one to either side, and not at all.
    mean = torch.tensor([[1.0, 10.0], [3.0, 10.0]]).view(2, 1, 2)
    variance = torch.tensor([[0.25, 1.0], [0.75, 1.0]]).view(2, 1, 2)
    # Sqrt((1 / 0.5 + 0) / 2).
    assert disagreement(Prediction(mean, variance)).item() == pytest.approx(1.0)


def test_a_row_is_drawn_from_its_member():
    mean = torch.arange(12.0).view(3, 2, 2)
    variance = torch.full((3, 2, 2), 4.0)
    found = drawn(
        Prediction(mean, variance), torch.tensor([2, 0]), torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    )
    assert found.tolist() == [[8.0, 11.0], [0.0, 3.0]]


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_intervals_hold_their_share_of_what_is_drawn(share):
    draw = torch.Generator().manual_seed(0)
    prediction = Prediction(torch.zeros(1, 20_000, 1), torch.full((1, 20_000, 1), 9.0))
    found = within_interval(prediction, 3.0 * torch.randn(20_000, 1, generator=draw), share)
    assert found.mean().item() == pytest.approx(share, abs=0.01)


# Beside a team


@pytest.mark.parametrize("name", ["hasac", "hatd3", "masac", "matd3"])
def test_every_off_policy_algorithm_learns_beside_a_model(name):
    team, experience, env, obs = make(name)
    before = {key: flat.clone() for key, flat in team.weights.items()}
    _, metrics = go(team, experience, env, obs, 12)
    assert team.num_updates == 9
    assert {
        "critic/value_loss",
        "model/loss",
        "model/inside_90",
        "model/error_robot_x",
        "model/kept",
    } <= set(metrics)
    assert all(torch.isfinite(value) and value.dim() == 0 for value in metrics.values())
    assert [key for key, flat in team.weights.items() if torch.equal(flat, before[key])] == []


def test_a_model_becomes_better_than_standing_still_and_knows_how_good_it_is():
    cfg = EnsembleCfg(
        members=2, hidden_size=32, batch_size=64, first_steps=240, branches=8, learning_rate=1e-2
    )
    team, experience, env, obs = make(env=PlanarToyEnv(16), cfg=cfg, warmup=480, buffer_size=4096)
    go(team, experience, env, obs, 30)
    found = {name: value.item() for name, value in team.model.metrics.items()}
    assert found["model/error_ratio"] < 0.3
    assert 0.6 < found["model/inside_90"] <= 1.0
    # The toy's rewards are a matter of its state.
    assert found["model/reward_error"] == pytest.approx(0.0, abs=1e-6)


def test_share_and_horizon_rise_in_stages():
    team, experience, env, obs = make(cfg=SMALL)
    model = team.model
    assert [model.stage(n) for n in (0, 100)] == [0, 0]  # nothing is predicted yet
    assert model.num_predicted(32, 100) == 0
    go(team, experience, env, obs, 5)
    at = [0, 6, 7, 13, 19, 100]  # updates of 16 transitions; stages end every 100
    assert [model.stage(n) for n in at] == [1, 1, 2, 3, 4, 4]
    assert [model.num_predicted(32, n) for n in at] == [4, 4, 8, 12, 16, 16]
    assert [model.horizon(n) for n in at] == [1, 1, 1, 2, 3, 3]


def test_batches_are_mixed_at_the_stated_ratio():
    team, experience, env, obs = make(cfg=SMALL)
    go(team, experience, env, obs, 12)
    team.model.replay.rewards.fill_(1e6)
    batches: list[Any] = []
    team.learn = lambda batch: batches.append(batch) or {}
    team.num_updates = 100
    team.model.roll_out = lambda *_: None
    team.learn_from(experience.replay)
    assert len(batches[0].returns) == 32
    assert int((batches[0].returns > 1e5).sum()) == 16


class Doubtful(Ensemble):
    """Moves every robot by 1 to the right; members differ where robots are right of 1.5."""

    def forward(self, state: Tensor, actions: Tensor) -> Prediction:
        mean = state + torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0])
        doubt = torch.arange(3.0).view(3, 1, 1) * 1e3 * (state[..., 1:2] > 1.5)
        return Prediction(mean + doubt, torch.full_like(mean, 1e-12))


def test_a_rollout_is_cut_where_the_members_disagree():
    team, experience, env, obs = make(cfg=SMALL)
    go(team, experience, env, obs, 6)
    model = team.model
    model.ensemble.__class__ = Doubtful
    model.replay = RingReplay(model.replay.shape, 1, 0.9, team.generator, team.device)
    model.horizon = lambda num_updates: 3
    starts = torch.tensor([-0.6, 0.6, 1.8, 0.9, -3.0, 0.7, 5.0, -0.9])
    index = torch.arange(8)
    experience.replay.here[0, :8, 7] = (
        starts  # the first robot's place in the state, after two observations and time
    )
    experience.replay.draw = lambda *_: index
    model.roll_out(experience.replay, team.explore, 0)
    valid = model.replay.flags[:3] & 4 != 0
    # Decisions until it stands right of 1.5: x, x + 1, x + 2.
    assert valid.sum(0).tolist() == [
        3,
        1,
        0,
        1,
        3,
        1,
        0,
        3,
    ]
    assert (valid[:-1] >= valid[1:]).all()
    assert (model.replay.flags[2] & 2 != 0).all()
    assert not (model.replay.flags[:2] & 2 != 0).any()
    assert model.metrics["model/kept"].item() == pytest.approx(valid.sum().item() / 24)


def test_the_decision_that_members_agree_on_most_is_always_kept():
    team, experience, env, obs = make(cfg=SMALL)
    go(team, experience, env, obs, 5)
    object.__setattr__(team.model.cfg, "max_disagreement", 1e-9)
    before = team.model.replay.num_added[0]
    team.model.roll_out(experience.replay, team.explore, 0)
    row = before % team.model.replay.shape.num_rows
    assert int((team.model.replay.flags[row] & 4 != 0).sum()) == 1


def test_held_out_worlds_measure_and_do_not_teach():
    fitted = []
    for junk in (0.0, 50.0):
        team, experience, env, obs = make(warmup=10_000, buffer_size=10_000)
        go(team, experience, env, obs, 10)
        replay = experience.replay
        replay.there[:, HELD_OUT - 1 :: HELD_OUT] += junk
        replay.here[:, HELD_OUT - 1 :: HELD_OUT, 6:11] *= 1.0 + junk  # the state
        rows = team.model.draw(replay)
        assert rows.is_held_out[:512].float().mean().item() > 0.9  # the others broke
        team.model.train_round(rows)
        fitted.append(
            (
                team.model.optimizer.flat.clone(),
                team.model._round_metrics["model/error_robot_x"].item(),
            )
        )
    assert torch.equal(fitted[0][0], fitted[1][0])
    assert fitted[1][1] > 10.0 > fitted[0][1]


def test_a_resumed_team_and_model_continue_to_the_last_bit():
    def state_of(team: Any) -> Tensor:
        return torch.cat([*team.weights.values(), team.model.replay.here.flatten()])

    team, experience, env, obs = make()
    obs, _ = go(team, experience, env, obs, 8)
    saved = deepcopy((team.state_dict(), experience.state_dict(), env.state_dict()))
    _, expected = go(team, experience, env, obs, 5)
    other, again, env, _ = make()
    other.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    obs, state = env.load_state_dict(saved[2])
    again.start(obs, state)
    _, found = go(other, again, env, obs, 5)
    assert torch.equal(state_of(team), state_of(other))
    assert {name: value.item() for name, value in expected.items()} == {
        n: value.item() for n, value in found.items()
    }


def test_a_thread_fits_while_rollouts_use_what_it_published_last():
    team, experience, env, obs = make(warmup=10_000, buffer_size=10_000)
    go(team, experience, env, obs, 10)
    model: WorldModel = team.model
    lock = FairLock()
    limiter = RateLimiter(team, experience, 1.0, 16, 1)
    object.__setattr__(team.cfg, "warmup", 64)
    model_trainer = ModelTrainer(model, limiter, lock)
    before = model.acting.own.weight.clone()
    with lock.taken():
        model.num_owed = 3.0 * MODEL_ROUND
    model_trainer.start()
    for _ in range(2000):
        if model.num_steps == 3 * MODEL_ROUND:
            break
        model_trainer._is_ending.wait(0.005)
    model_trainer.end(5.0)
    assert (model_trainer.error, model.num_steps, model.num_owed) == (None, 3 * MODEL_ROUND, 0.0)
    assert torch.equal(model.acting.own.weight, model.ensemble.own.weight)
    assert model.acting.own.weight is not model.ensemble.own.weight
    assert not torch.equal(model.acting.own.weight, before)
    model.num_owed = 2.0 * MODEL_ROUND
    model.advance(experience.replay, team.explore, 0)
    assert model.num_steps == 3 * MODEL_ROUND  # the learner leaves it to the thread


def test_an_error_of_the_thread_is_kept():
    team, experience, env, obs = make()
    go(team, experience, env, obs, 5)
    model_trainer = ModelTrainer(team.model, RateLimiter(team, experience, 1.0, 16, 1), FairLock())
    team.model.is_due = lambda: 1 / 0
    model_trainer.start()
    model_trainer.join(5.0)
    assert isinstance(model_trainer.error, ZeroDivisionError)


def test_the_health_line_reports_how_good_the_model_is():
    metrics = {"error_ratio": 0.613, "inside_90": 0.884, "reward_error": 0.0213}
    line = "[Model] error 0.61 of standing still | 90 % interval holds 88 % | reward off by 0.021"
    assert (
        health_line({f"model/{name}": value for name, value in metrics.items()})
        == f"{line} | no rollouts yet"
    )
    metrics |= {"steps": 1240.0, "horizon": 2.0, "share": 0.25, "kept": 0.97}
    assert health_line({f"model/{name}": value for name, value in metrics.items()}) == (
        f"{line} | steps 1,240 | horizon 2 | share 0.25 | kept 97 %"
    )
    assert health_line({"critic/value": 1.0}) is None


def test_what_a_model_cannot_work_with_is_an_error_of_one_line():
    with pytest.raises(
        ValueError,
        match=r"^model=ensemble needs a critic state in the plane, .*algorithm.model=none$",
    ):
        make(env=ToyEnv(16))
    with pytest.raises(
        ValueError,
        match=r"^model=ensemble is measured on one world in 8, .*env.num_envs to at least 8",
    ):
        make(env=PlanarToyEnv(7))
    with pytest.raises(
        ValueError, match=r"^model=ensemble does not exist upstream; set it to none, or compat"
    ):
        make(compat="harl")
    cfg = ALGORITHMS["hasac"].cfg(model="ensemble")  # type: ignore[call-arg]
    spec = PlanarToyEnv().spec  # type: ignore[call-arg]
    with pytest.raises(
        ValueError,
        match=r"^model=ensemble is trained by one process, not by 2 ranks; set it to none$",
    ):
        ALGORITHMS["hasac"].cls(cfg, NetworkCfg((8,)), spec, ranks=Ranks(size=2))
