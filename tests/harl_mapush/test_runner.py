from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from harl_mapush import train
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config import RunnerCfg
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.process import seed_everything
from harl_mapush.progress import IterationReport
from harl_mapush.runner import Runner, _Clock
from harl_mapush.trainer import BrokenWorldsError, NonFiniteError
from tests.support.hooks import Hooks
from tests.support.rounding import FEW_STEPS
from tests.support.tiny_runs import TINY
from tests.support.toy import ToyEnv

EVENTS: dict[str, Any] = {"death_rate": 0.05, "failure_rate": 0.02}


def make(
    num_env_steps: int = 3 * 10 * 8 * 2, checkpoint_interval: int = 10**7, **network
) -> Runner:
    seed_everything(3)
    env = ToyEnv(8, **EVENTS)
    entry = ALGORITHMS["happo"]
    cfg = entry.cfg(num_epochs=2, num_minibatches=2, schedule="linear")
    algorithm = entry.cls(cfg, NetworkCfg((8,), **network), env.spec, seed=3)
    return Runner(env, algorithm, RunnerCfg(3, num_env_steps, 10, checkpoint_interval))


def test_env_steps_count_control_steps_and_round_up():
    reports = []
    # An iteration is 10 decisions x 8 environments x 2 control steps.
    runner = make(num_env_steps=161)
    runner.learn([Hooks(on_iteration=reports.append)])
    assert [(r.iteration, r.num_iterations, r.env_steps, r.num_env_steps) for r in reports] == [
        (1, 2, 160, 320),
        (2, 2, 320, 320),
    ]
    assert all(r.collect_s > 0.0 and r.update_s > 0.0 for r in reports)
    assert make(num_env_steps=1).progress.num_iterations == 1


@pytest.mark.parametrize("staggered", [True, False])
def test_worlds_start_as_the_settings_say(staggered: bool) -> None:
    runner = make()
    runner.cfg = dataclasses.replace(runner.cfg, staggered_start=staggered)
    resets = []
    reset = runner.env.reset

    def spy(**how):
        resets.append(how)
        return reset(**how)

    runner.env.reset = spy  # type: ignore[method-assign]
    runner.start()
    runner.start()  # it has begun
    assert resets == [{"staggered": staggered}]


def test_reward_terms_are_means_per_control_step_of_valid_worlds():
    runner = make()
    runner.start()
    rewards = []
    valid = []
    step = runner.env.step

    def spy(actions):
        outcome = step(actions)
        rewards.append(outcome.reward)
        valid.append(outcome.valid)
        return outcome

    runner.env.step = spy  # type: ignore[method-assign]
    reports = []
    runner.progress.num_iterations = 1
    runner.learn([Hooks(on_iteration=reports.append)])
    valid_rewards = torch.stack(rewards)[torch.stack(valid)]
    assert reports[0].metrics["reward/near"] == pytest.approx(
        float(valid_rewards.mean()) / 2, abs=FEW_STEPS
    )
    assert reports[0].metrics["reward/total"] == reports[0].metrics["reward/near"]


@pytest.mark.parametrize(
    ("settings", "network", "said"),
    [
        (
            {"num_minibatches": 81},
            {},
            "num_minibatches must be at most 80, the training rows of a rollout, not 81",
        ),
        ({"critic_num_minibatches": 81}, {}, "critic_num_minibatches must be at most 80"),
        ({"num_minibatches": 9}, {"use_recurrent_policy": True, "chunk_length": 10}, "at most 8"),
        ({"num_minibatches": 9}, {"use_recurrent_policy": True, "chunk_length": 0}, "at most 8"),
    ],
)
def test_minibatches_without_a_row_are_refused(settings, network, said):
    env = ToyEnv(8)
    entry = ALGORITHMS["happo"]
    algorithm = entry.cls(entry.cfg(**settings), NetworkCfg((8,), **network), env.spec)
    with pytest.raises(ValueError, match=said):
        Runner(env, algorithm, RunnerCfg(1, 1, 10))


def test_as_many_minibatches_as_rows_are_trained_on():
    env = ToyEnv(4, state_type="FP")
    entry = ALGORITHMS["mappo"]
    # 2 decisions x 4 environments (x 2 agents).
    cfg = entry.cfg(num_minibatches=8, critic_num_minibatches=16)
    runner = Runner(env, entry.cls(cfg, NetworkCfg((8,)), env.spec), RunnerCfg(1, 1, 2))
    runner.learn()
    one_more = entry.cls(
        dataclasses.replace(cfg, critic_num_minibatches=17), NetworkCfg((8,)), env.spec
    )
    with pytest.raises(ValueError, match="at most 16"):
        Runner(env, one_more, RunnerCfg(1, 1, 2))


def test_one_world_and_one_decision_are_enough():
    env = ToyEnv(1)
    algorithm = ALGORITHMS["happo"].cls(
        ALGORITHMS["happo"].cfg(num_minibatches=1), NetworkCfg((8,)), env.spec
    )
    runner = Runner(env, algorithm, RunnerCfg(3, 4, 1))
    runner.learn()  # a spread of one number is no number
    assert runner.progress.iteration == runner.progress.num_iterations == 2


def test_checkpoints_at_every_crossing_and_at_the_end():
    saved: list[int] = []
    runner = make(num_env_steps=5 * 160, checkpoint_interval=320)
    runner.learn([Hooks(on_checkpoint=saved.append)])
    assert saved == [320, 640, 800]


class Stop(Exception):  # noqa: N818, not an error
    """The user has seen enough."""


def stop_after_two(report: IterationReport) -> None:
    if report.iteration == 2:
        raise Stop


@pytest.mark.parametrize("use_recurrent_policy", [False, True])
def test_a_resumed_run_equals_one_that_never_stopped(use_recurrent_policy, tmp_path):
    through = make(4 * 160, use_recurrent_policy=use_recurrent_policy)
    through.learn()
    first = make(4 * 160, use_recurrent_policy=use_recurrent_policy)
    with pytest.raises(Stop):
        first.learn([Hooks(on_iteration=stop_after_two)])
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = make(4 * 160, use_recurrent_policy=use_recurrent_policy)
    torch.rand(5)  # whatever torch's own generator does
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    second.learn()
    for a, b in zip(through.algorithm.optimizers, second.algorithm.optimizers, strict=True):
        assert torch.equal(a.flat, b.flat)
        assert torch.equal(a.exp_avg_sq, b.exp_avg_sq)
    assert torch.equal(
        through.algorithm.value.optimizer.flat, second.algorithm.value.optimizer.flat
    )


def test_two_runs_of_one_seed_are_equal():
    runs = [make(), make()]
    for runner in runs:
        runner.learn()
    assert torch.equal(runs[0].algorithm.optimizers[1].flat, runs[1].algorithm.optimizers[1].flat)


def test_a_loss_that_is_not_finite_stops_the_run_by_name():
    runner = make()
    step = runner.env.step

    def poisoned(actions):
        outcome = step(actions)
        return outcome._replace(
            reward=outcome.reward * float("inf"), valid=torch.ones_like(outcome.valid)
        )

    runner.env.step = poisoned  # type: ignore[method-assign]
    words = (
        r"reward/total is (inf|nan) \(and \d+ more: .*agent0/policy_loss.*\) after 160 env steps"
    )
    with pytest.raises(NonFiniteError, match=words):
        runner.learn()
    assert runner.progress.iteration == 0


def test_what_the_environment_repaired_is_reported():
    runner = make()
    notes: list[str | None] = []
    runner.env.grow_buffers = lambda: "buffers grew"  # type: ignore[method-assign]
    runner.learn([Hooks(on_iteration=lambda report: notes.append(report.note))])
    assert [note and note.rpartition("; ")[2] for note in notes] == ["buffers grew"] * 3


def breaking(*counts: int) -> Runner:
    """A runner with ``counts`` broken transitions in each rollout (8 worlds x 10 decisions)."""
    runner = make(160 * len(counts))
    step = runner.env.step
    valid = iter(torch.cat([torch.arange(80) >= count for count in counts]).split(8))
    runner.env.step = lambda actions: step(actions)._replace(valid=next(valid))  # type: ignore[method-assign]
    return runner


def test_broken_transitions_are_counted_and_reported():
    runner = breaking(0, 20, 0, 20)
    reports = []
    runner.learn([Hooks(on_iteration=reports.append)])
    assert [report.metrics["rollout/num_broken"] for report in reports] == [0, 20, 0, 20]
    line = "the simulation broke in 20 of 80 transitions, which are left out"
    assert [report.note for report in reports] == [None, line, None, line]


def test_a_simulation_that_keeps_breaking_stops_the_run():
    breaking(8, 8, 9, 8, 80).learn()  # at most a tenth, or not twice running
    runner = breaking(9, 9, 0)
    with pytest.raises(
        BrokenWorldsError, match="in 9 of 80 transitions.*as in the rollout before.*10%"
    ):
        runner.learn()
    assert runner.progress.iteration == 2


def test_a_run_whose_worlds_all_break_says_how_to_continue(
    gait, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr("mqe.world.broken_worlds.SPEED_LIMIT", 0.0)
    run = tmp_path / "run"
    size = ("--set", "runner.checkpoint_interval=1", "--num_env_steps", "4096")
    assert train.main([*TINY, *size, "--set", f"task.gait={gait}", "--out", str(run)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{train.PROGRAM}: the simulation broke in 16 of 16 transitions")
    assert said.endswith(f"resume from its last checkpoint with: {train.PROGRAM} --resume {run}\n")


def test_the_precision_of_matrix_products_is_that_of_a_training_while_it_trains() -> None:
    runner = make()
    seen = []
    before = torch.get_float32_matmul_precision()
    runner.learn([Hooks(on_iteration=lambda _: seen.append(torch.get_float32_matmul_precision()))])
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_laps_are_taken_on_the_devices_own_stream(monkeypatch) -> None:
    """With stand-ins for a second GPU: torch records an event on the current device's stream
    unless it is told.
    """
    recorded = []

    class Event:
        def __init__(self, device, enable_timing):
            assert enable_timing

        def record(self, stream):
            recorded.append(stream)

    monkeypatch.setattr(torch, "Event", Event)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: ("stream of", device))
    device = torch.device("cuda", 1)
    _Clock(device).lap()
    assert recorded == [("stream of", device)] * 2
