"""harl_mapush.memory_plan: the total, fitted numbers, and a simulator's actual bytes."""

from __future__ import annotations

import re

import pytest
import torch

from harl_mapush import config, memory_plan, train
from harl_mapush import test as evaluate
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.evaluation import episodes
from harl_mapush.memory_plan import (
    GIB,
    MemoryPlan,
    check_memory,
    describe,
    plan_memory,
    plan_playing,
)
from harl_mapush.viewing import filming
from mqe.config import ConfigError
from tests.support.toy import ToyEnv

CPU = torch.device("cpu")
TOY = ToyEnv().spec
PLAN = MemoryPlan(
    "cuda:0",
    num_envs=8000,
    fixed=GIB,
    worlds=5 * GIB,
    learner=4 * GIB,
    free=6 * GIB,
    total=8 * GIB,
)


def make_cfg(**sections):
    return config.resolve({}, sections)[0]


def test_a_plan_is_the_sum_of_its_parts_in_one_line():
    assert PLAN.needed == 10 * GIB
    assert describe(PLAN) == (
        "Memory on cuda:0: 10.00 GiB planned (worlds 5.00, learner 4.00, fixed 1.00); 6.0 of 8.0 "
        "free."
    )
    assert describe(PLAN._replace(free=None, total=None)).endswith("fixed 1.00).")


def test_what_does_not_fit_names_the_numbers_that_would():
    # 6 GiB x 0.98 leave 4.88 beside the fixed 1: 8000 x 4.88 / 9 = 4337 worlds.
    with pytest.raises(ConfigError) as raised:
        check_memory(PLAN)
    assert str(raised.value) == (
        "env.num_envs=8000 takes 10.0 GiB, but cuda:0 has 6.0 GiB free for it; "
        "lower env.num_envs to 4096"
    )
    # A replay buffer does not shrink with the worlds: 5.88 - 5 leave 8000 x 0.88 / 5 = 1408 worlds.
    replaying = PLAN._replace(setting="algorithm.buffer_size")
    with pytest.raises(ConfigError, match="lower env.num_envs to 1024 or algorithm.buffer_size$"):
        check_memory(replaying)
    with pytest.raises(ConfigError, match="end other programs that use it"):
        check_memory(PLAN._replace(free=GIB // 2))


def test_worlds_that_do_not_fit_beside_a_learner_elsewhere_have_no_buffer_to_lower():
    worlds = MemoryPlan("cpu", 100, GIB, 2 * GIB, 0, 2 * GIB, 4 * GIB)
    with pytest.raises(ConfigError, match="2.0 GiB free for it; lower env.num_envs to 48$"):
        check_memory(worlds)


def plan_of(preset: str, **sections) -> MemoryPlan:
    cfg, _ = config.resolve(config.load_preset(preset), {"sim": {"device": "cpu"}, **sections})
    return plan_memory(cfg, "mujoco", CPU)


def test_the_number_in_the_error_fits_and_twice_the_number_does_not(monkeypatch):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (GIB, 2 * GIB))
    with pytest.raises(ConfigError) as raised:
        check_memory(plan_of("laptop", env={"num_envs": 100_000}))
    num_envs = int(str(raised.value).rpartition(" ")[2])
    check_memory(plan_of("laptop", env={"num_envs": num_envs}))
    with pytest.raises(ConfigError, match=f"lower env.num_envs to {num_envs}$"):
        check_memory(plan_of("laptop", env={"num_envs": 2 * num_envs}))


def test_a_replay_buffer_that_does_not_fit_is_named_alone(monkeypatch):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (2 * GIB, 64 * GIB))
    with pytest.raises(ConfigError, match=r"free for it; lower algorithm.buffer_size$"):
        check_memory(plan_of("laptop_hasac", algorithm={"buffer_size": 50_000_000}))
    check_memory(plan_of("laptop_hasac", algorithm={"buffer_size": 500_000}))


def test_what_fits_or_is_not_known_passes():
    for plan in (PLAN._replace(free=10 * GIB), PLAN._replace(free=None, total=None)):
        assert check_memory(plan) is None  # it would raise


def test_the_parts_grow_as_they_should_and_no_random_number_is_drawn():
    before = torch.get_rng_state()
    small = plan_memory(make_cfg(env={"num_envs": 64}, runner={"num_steps": 8}), "mujoco", CPU)
    wide = plan_memory(make_cfg(env={"num_envs": 128}, runner={"num_steps": 8}), "mujoco", CPU)
    long = plan_memory(make_cfg(env={"num_envs": 64}, runner={"num_steps": 16}), "mujoco", CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert wide.fixed == small.fixed
    assert wide.worlds == 2 * small.worlds
    assert long.worlds == small.worlds
    assert wide.learner == pytest.approx(2 * small.learner, abs=1)
    assert long.learner == pytest.approx(2 * small.learner, rel=0.02)


def learner_of(num_envs: int = 16, **sections) -> int:
    """Bytes of a learner with two robots and the box."""
    sizes = {"env": {"num_envs": num_envs, "num_agents": 2}, "runner": {"num_steps": 64}}
    return plan_memory(config.resolve({}, sizes | sections)[0], "mujoco", CPU).learner


def test_an_update_takes_what_autograd_saves_of_the_widest_network() -> None:
    one_minibatch = {"algorithm": {"num_minibatches": 1}}
    wide, narrow = (
        learner_of(network={"hidden_sizes": sizes}, **one_minibatch) for sizes in ([512, 256], [64])
    )
    # Both results of dense layers are saved, and the wider one has a gradient with its product.
    more = 512 + 256 + 2 * 512 - (64 + 2 * 64)
    assert wide - narrow == pytest.approx(1.05 * 4 * 16 * 64 * more, rel=0.02)


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"network": {"use_recurrent_policy": True, "chunk_length": 8}}, {}),
        ({"network": {"use_layer_norm": True}}, {}),
        ({"algorithm": {"name": "mappo"}}, {"algorithm": {"name": "mappo", "share_param": False}}),
    ],
)
def test_what_keeps_more_for_its_gradients_takes_more(more, less) -> None:
    assert learner_of(**more) > learner_of(**less)


def test_on_a_cpu_only_a_tile_has_gradients() -> None:
    def update(num_envs: int) -> float:
        cfg, _ = config.resolve({}, {"algorithm": {"num_minibatches": 1}})
        team = make_algorithm(cfg.algorithm, cfg.network, TOY, CPU, 0)
        return team.plan_bytes(64, num_envs, "cpu").update

    assert update(64) == update(1024)  # one tile, 4,096 rows
    assert update(32) == pytest.approx(update(64) / 2)


def test_training_that_does_not_fit_ends_before_it_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (GIB, 2 * GIB))
    run = tmp_path / "run"
    arguments = [
        "--preset",
        "cuboid_happo",
        "--num_envs",
        "1000000",
        "--device",
        "cpu",
        "--out",
        str(run),
    ]
    assert train.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith("Memory on cpu: ")
    assert re.search(
        r"takes .* GiB, but cpu has 1.0 GiB free for it; lower env.num_envs to \d+", printed.err
    )
    assert len(printed.err.splitlines()) == 1
    assert not run.exists()


@pytest.mark.parametrize("mode", ["--mode calculator", "--mode viewer --record {folder}/film.mp4"])
def test_an_evaluation_that_does_not_fit_ends_before_it_begins(mode, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (GIB, 2 * GIB))
    for module in (filming, episodes):
        monkeypatch.setattr(module, "make_env", lambda *_: pytest.fail("worlds were made"))
    words = ["--checkpoint", "pretrained:cuboid", "--num_envs", "1000000", "--device", "cpu"]
    assert evaluate.main([*words, *mode.format(folder=tmp_path).split()]) == 2
    said = capsys.readouterr().err
    assert re.search(
        r"env.num_envs=1000000 takes .* GiB, but cpu has 1.0 GiB free for it; "
        r"lower env.num_envs to \d+\n$",
        said,
    )
    assert not any(tmp_path.iterdir())


def test_an_evaluation_that_does_not_fit_names_a_number_of_worlds(monkeypatch, capsys):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (GIB, 4 * GIB))
    monkeypatch.setattr(episodes, "play", lambda *_: pytest.fail("worlds were made"))
    words = ["--checkpoint", "pretrained:cuboid", "--num_episodes", "320000", "--device", "cpu"]
    assert evaluate.main(words) == 2
    said = capsys.readouterr().err
    assert re.search(r"but cpu has 1.0 GiB free for it; lower env.num_envs to \d+", said)


def test_to_play_takes_what_training_takes_without_learning() -> None:
    cfg = make_cfg(env={"num_envs": 64})
    playing = plan_playing(cfg, "mujoco", CPU)
    training = plan_memory(cfg, "mujoco", CPU)
    assert (playing.worlds, playing.learner) == (training.worlds, 0)
    assert playing.fixed < training.fixed < 1.1 * playing.fixed  # networks
