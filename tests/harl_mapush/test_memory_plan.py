"""harl_mapush.memory_plan: the total, fitted numbers, and a simulator's actual bytes."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from harl_mapush import config, memory_plan, train
from harl_mapush import test as evaluate
from harl_mapush.evaluation import episodes
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.memory_plan import (
    GIB,
    MemoryPlan,
    check_memory,
    describe,
    plan_memory,
    plan_playing,
    share_among,
)
from harl_mapush.viewing import filming
from mqe.config import ConfigError

CPU = torch.device("cpu")
PLAN = MemoryPlan(
    "cuda:0",
    num_envs=8000,
    num_steps=40,
    fixed=GIB,
    simulator=4 * GIB,
    environment=GIB,
    rollout=2 * GIB,
    update=2 * GIB,
    free=6 * GIB,
    total=8 * GIB,
)


def make_cfg(**sections):
    return config.resolve({"task": {"name": "go1_velocity"}}, sections)[0]


def test_a_plan_is_the_sum_of_its_parts_in_one_line():
    assert PLAN.needed == 10 * GIB
    assert describe(PLAN) == (
        "Memory on cuda:0: 10.00 GiB planned (simulator 4.00, environment 1.00, rollout 2.00, "
        "update 2.00, "
        "fixed 1.00); 6.0 of 8.0 free."
    )
    assert describe(PLAN._replace(free=None, total=None)).endswith("fixed 1.00).")


def test_what_does_not_fit_names_the_numbers_that_would():
    # 6 GiB x 0.98 leave 4.88 beside the fixed 1: 8000 x 4.88 / 9 = 4337 worlds. The rollout's 4
    # would have to become less than nothing.
    with pytest.raises(ConfigError) as raised:
        check_memory(PLAN)
    assert str(raised.value) == (
        "env.num_envs=8000 with runner.num_steps=40 takes 10.0 GiB, but cuda:0 has 6.0 GiB free; "
        "lower env.num_envs to 4096"
    )
    # 9 GiB x 0.98 leave 8.82 - 6 = 2.82 for the rollout and the update: 40 x 2.82 / 4 = 28.2
    # decisions.
    with pytest.raises(ConfigError, match=r"lower env.num_envs to 6144 or runner.num_steps to 28$"):
        check_memory(PLAN._replace(free=9 * GIB))
    with pytest.raises(ConfigError, match="end other programs that use it"):
        check_memory(PLAN._replace(free=GIB // 2))


def test_worlds_that_do_not_fit_beside_a_learner_elsewhere_have_no_rows_to_lower():
    # As plan_learner leaves them.
    worlds = MemoryPlan("cpu", 100, 8, GIB, 2 * GIB, 0, 0, 0, 2 * GIB, 4 * GIB)
    with pytest.raises(ConfigError, match=re.escape("has 2.0 GiB free; lower env.num_envs to 48")):
        check_memory(worlds)


def test_workers_share_what_is_free():
    alone = MemoryPlan("cpu", 320, 0, GIB // 2, GIB, GIB // 2, 0, 0, 6 * GIB, 8 * GIB)  # 2 GiB
    assert check_memory(share_among(alone, 3)) is None
    # 6 GiB x 0.98 leave 1.47 - 0.5 for the worlds of each of four: 320 x 0.97 / 1.5 = 206 of them;
    # 5.88 / 2 = 2.9.
    with pytest.raises(ConfigError) as raised:
        check_memory(share_among(alone, 4))
    assert str(raised.value) == (
        "env.num_envs=320 takes 2.0 GiB in each of 4 workers, but cpu has 6.0 GiB free; "
        "lower env.num_envs to 192 or --workers to 2"
    )
    with pytest.raises(ConfigError, match=r"; lower --workers to 2$"):
        check_memory(share_among(alone, 12))
    # On a GPU each worker has a context of its own, and this process keeps the one in which it
    # asked.
    with pytest.raises(
        ConfigError, match=r"cuda:0 has 5.5 GiB free; lower env.num_envs to 256 or --workers to 2$"
    ):
        check_memory(share_among(alone._replace(device="cuda:0"), 3))


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
    for part in ("simulator", "environment", "update", "rollout"):
        assert getattr(wide, part) == pytest.approx(2 * getattr(small, part), abs=1)
    assert (long.simulator, long.environment) == (small.simulator, small.environment)
    assert long.update == pytest.approx(2 * small.update, abs=1)
    # By hand: 59 obs, 12 actions and log probabilities each, factor, active; state and final state
    # 73 each; 9 scalars.
    assert long.rollout - small.rollout == pytest.approx(
        1.05 * 4 * 64 * 8 * (59 + 24 + 2 + 146 + 9), rel=0.02
    )


def floats_kept(network: NetworkCfg, obs_size: int = 10) -> float:
    """Return autograd's saved floats per row, for an actor's pass over 64 chunks with 8
    decisions.
    """
    actor = Actor(network, obs_size, 3)
    rows = 8 * 64
    weights = {weight.untyped_storage().data_ptr() for weight in actor.parameters()}
    saved: dict[int, Tensor] = {}

    def keep(value: Tensor) -> Tensor:
        if value.numel() >= rows and value.untyped_storage().data_ptr() not in weights:
            saved[value.untyped_storage().data_ptr()] = value
        return value

    hidden = torch.zeros(64, *actor.hidden_shape) if network.use_recurrent_policy else None
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        actor.unroll(torch.randn(8, 64, obs_size), hidden, torch.ones(8, 64))
    return sum(value.untyped_storage().nbytes() for value in saved.values()) / 4 / rows


# Gradients come on top of what is kept: of a dense layer's result, inside it and of its input; or
# of one result.
@pytest.mark.parametrize(
    ("more", "gradients"),
    [
        ({}, 96 + 96 + 64),
        ({"use_recurrent_policy": True}, 96 + 96 + 64),
        ({"use_layer_norm": True}, 96),
    ],
)
def test_the_update_holds_what_autograd_keeps(more, gradients):
    network = {"hidden_sizes": [64, 96], "chunk_length": 8, **more}
    sizes = {"network": network, "algorithm": {"num_minibatches": 1}, "runner": {"num_steps": 8}}
    plan = plan_memory(make_cfg(env={"num_envs": 64}, **sizes), "mujoco", CPU)
    a_row = plan.update / 1.05 / 4 / (64 * 8)
    loss = 3 * 12 + 3  # actions, log probabilities, their differences; advantage, weight, factor
    assert a_row - gradients - loss == pytest.approx(
        floats_kept(NetworkCfg(**network), 59), rel=0.05
    )


def update_of(num_envs: int = 16, num_steps: int = 8, **sections) -> float:
    """Floats in an update with two robots and the box."""
    sizes = {"env": {"num_envs": num_envs, "num_agents": 2}, "runner": {"num_steps": num_steps}}
    return plan_memory(config.resolve({}, sizes | sections)[0], "mujoco", CPU).update / 1.05 / 4


def test_a_gru_keeps_nine_floats_a_unit_and_computes_eleven():
    mlp = {"hidden_sizes": [64, 16]}
    gru = {"hidden_sizes": [64, 16], "use_recurrent_policy": True, "chunk_length": 8}
    whole, parts = ({"algorithm": {"num_minibatches": number}} for number in (1, 16))
    num_floats = update_of(network=gru, **whole) - update_of(network=mlp, **whole)
    assert num_floats == pytest.approx(9 * 16 * 16 * 8, abs=1)
    assert floats_kept(NetworkCfg(**gru)) - floats_kept(NetworkCfg(**mlp)) == pytest.approx(
        9 * 16, rel=0.05
    )
    # Its pass over the whole rollout outweighs a sixteenth with gradients.
    wide = {
        **gru,
        "hidden_sizes": [256],
    }
    assert update_of(network=wide, **parts) == pytest.approx((11 * 256 + 2 * 256) * 16 * 8, abs=1)


def test_the_fullest_moment_is_where_a_wide_layer_meets_a_wider_one():
    def rows_of(*sizes: int) -> float:
        return update_of(network={"hidden_sizes": sizes}, algorithm={"num_minibatches": 1}) / (
            16 * 8
        )

    more = [rows_of(512, 256, 128) - rows_of(64), rows_of(64, 512) - rows_of(64)]
    narrow = 64 + 2 * 64
    assert more == pytest.approx(
        [512 + 256 + 2 * 256 + 512 - narrow, 64 + 512 + 2 * 512 + 64 - narrow], abs=0.1
    )


def test_a_second_derivative_holds_three_graphs():
    one, three = (
        update_of(algorithm={"name": name, "num_minibatches": 1}) for name in ("happo", "hatrpo")
    )
    assert three == pytest.approx(3 * one, abs=3)


def test_on_a_cpu_only_a_tile_has_gradients():
    def update(num_envs: int) -> int:
        sizes = {
            "algorithm": {"num_minibatches": 1},
            "runner": {"num_steps": 64},
            "env": {"num_envs": num_envs},
        }
        return plan_memory(make_cfg(**sizes), "mujoco", CPU).update

    assert update(64) == update(1024)  # one tile, 4,096 rows
    assert update(32) == pytest.approx(update(64) / 2, abs=1)


def test_shared_actors_learn_from_all_rows_at_once():
    separate, shared = (
        update_of(algorithm={"name": "mappo", "share_param": shares}) for shares in (False, True)
    )
    assert shared > 1.5 * separate


def test_training_that_does_not_fit_ends_before_it_begins(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (GIB, 2 * GIB))
    run = tmp_path / "run"
    arguments = [
        "--preset",
        "go1_velocity",
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
        r"takes .* GiB, but cpu has 1.0 GiB free; lower env.num_envs to \d+", printed.err
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
        r"env.num_envs=1000000 takes .* GiB, but cpu has 1.0 GiB free; "
        r"lower env.num_envs to \d+\n$",
        said,
    )
    assert not any(tmp_path.iterdir())


def test_an_evaluation_whose_workers_do_not_fit_reports_how_many_would(monkeypatch, capsys):
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (2 * GIB, 4 * GIB))
    monkeypatch.setattr(episodes, "run_jobs", lambda *_: pytest.fail("workers were started"))
    words = [
        "--checkpoint",
        "pretrained:cuboid",
        "--num_episodes",
        "3200",
        "--device",
        "cpu",
        "--workers",
        "64",
    ]
    assert evaluate.main(words) == 2
    said = capsys.readouterr().err
    assert re.search(
        r"env.num_envs=64 takes 0.. GiB in each of 50 workers, but cpu has 2.0 GiB free; lower --w",
        said,
    )


def test_to_play_takes_what_training_takes_without_learning():
    cfg = make_cfg(env={"num_envs": 64})
    playing = plan_playing(cfg, "mujoco", CPU)
    training = plan_memory(cfg, "mujoco", CPU)
    assert (playing.rollout, playing.update, playing.num_steps) == (0, 0, 0)
    assert playing.simulator == training.simulator
    decision = 1.05 * 2 * max(cfg.network.hidden_sizes)
    num_floats = 101 * 40 * 4  # last states, of worlds that may break
    assert playing.environment - training.environment == pytest.approx(
        64 * (4 * decision - num_floats), abs=1
    )
    gru = make_cfg(
        env={"num_envs": 64},
        network={"use_recurrent_policy": True, "hidden_sizes": [64, 32], "chunk_length": 0},
    )
    decision = 1.05 * (2 * 64 + 11 * 32) + 2 * 32
    more = plan_playing(gru, "mujoco", CPU).environment - training.environment
    assert more == pytest.approx(64 * (4 * decision - num_floats), abs=1)
    assert playing.fixed < training.fixed < 1.1 * playing.fixed  # networks


def test_a_simulator_takes_what_was_foreseen():
    pytest.importorskip("mujoco_warp", reason="the GPU simulator is an extra")
    import warp as wp
    from warp._src import context

    from mqe.sim.mujoco_warp import MujocoWarpSimulator
    from mqe.sim.warp_memory import memory_use
    from mqe.world.scene import build_scene

    model = build_scene(1, None).model
    num_envs = 100
    foreseen = memory_use(model)
    with wp.ScopedMemoryTracker("test", print=False) as tracker:
        tracker.clear()
        sim = MujocoWarpSimulator(model, num_envs, CPU)
        state = context.runtime.core.wp_alloc_tracker_get_current_bytes()
        sim.step(1)
        peak = context.runtime.core.wp_alloc_tracker_get_peak_bytes()
        sim.close()
    assert state == pytest.approx(foreseen.fixed + num_envs * foreseen.state, rel=0.02)
    assert peak == pytest.approx(foreseen.total(num_envs), rel=0.02)
