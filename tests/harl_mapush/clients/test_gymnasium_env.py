"""One-agent worlds under Gymnasium's contract for vector environments."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

import mapush
from mqe.config import ConfigError
from mqe.registry import TASKS
from tests.support.paths import ROOT
from tests.support.registries import restored_registries
from tests.support.strolling import STROLL

pytest.importorskip("gymnasium")

N = 3
SETTINGS = {
    "env.num_agents": 1,
    "sim.device": "cpu",
    "sim.num_threads": 1,
    "task.episode_length_s": 0.2,
}


@pytest.fixture(scope="module", autouse=True)
def one_robot():
    """Register a task with one robot."""
    with restored_registries():
        TASKS.register("walking", STROLL)
        yield


def make(**options):
    return mapush.make(
        "walking", client="gymnasium", num_envs=N, seed=1, settings=SETTINGS, **options
    )


@pytest.fixture(scope="module")
def env():
    env = make(render_mode="rgb_array")
    yield env
    env.close()


def to_the_end(env):
    """Step until the first episode ends and return its last step."""
    for _ in range(20):
        step = env.step(np.zeros((N, 3), np.float32))
        if np.any(step[2] | step[3]):
            return step
    raise AssertionError("no episode ended")


def test_arrays_have_the_types_of_gymnasiums_contract(env) -> None:
    obs, infos = env.reset(seed=2)
    assert obs in env.observation_space
    assert infos == {}
    obs, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
    assert obs in env.observation_space
    assert (rewards.shape, rewards.dtype) == ((N,), np.float32)
    assert (terminated.dtype, truncated.dtype) == (np.bool_, np.bool_)
    assert infos["reward/ahead"].shape == (N,)
    assert env.render()[0].shape == (540, 960, 3)


def test_gymnasiums_own_wrappers_work() -> None:
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    env = RecordEpisodeStatistics(make())
    env.reset()
    *_, infos = to_the_end(env)
    assert infos["episode"]["l"][infos["_episode"]].max() == 10
    env.close()


def test_the_next_step_begins_the_next_episode() -> None:
    env = make(autoreset_mode="next_step")
    first, _ = env.reset(seed=3)
    action = np.ones((N, 3), np.float32)
    obs, rewards, terminated, truncated, infos = to_the_end(env)
    is_done = terminated | truncated
    assert is_done.any()
    assert (rewards[is_done] != 0.0).all()
    start, rewards, terminated, truncated, infos = env.step(action)
    assert not (terminated | truncated)[is_done].any()
    assert (rewards[is_done] == 0.0).all()
    assert (infos["reward/ahead"][is_done] == 0.0).all()
    assert not infos["broken"].any()
    # The trunk is as high as at every reset.
    assert np.array_equal(start[is_done, 0], first[is_done, 0])
    assert (start[is_done] != obs[is_done]).any(axis=1).all()
    later, rewards, *_ = env.step(action)
    assert (rewards[is_done] != 0.0).all()
    assert (later[is_done] != start[is_done]).any(axis=1).all()
    env.close()


def test_gymnasiums_normaliser_works() -> None:
    from gymnasium.wrappers.vector import NormalizeObservation

    env = NormalizeObservation(make(autoreset_mode="next_step"))
    env.reset(seed=1)
    for _ in range(15):
        obs, *_ = env.step(np.zeros((N, 3), np.float32))
    assert np.isfinite(obs).all()
    env.close()


def test_actions_and_seeds_that_cannot_be_are_errors(env) -> None:
    env.reset()
    with pytest.raises(ConfigError, match=r"seed: must be a whole number .* not \[1, 2, 3\]"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"must have the shape \(3, 3\) .* not \(3, 4\)"):
        env.step(np.zeros((N, 4)))


def test_results_stay_on_the_device() -> None:
    env = make(output="torch")
    env.reset()
    obs, _, terminated, truncated, infos = env.step(torch.zeros(N, 3))
    assert isinstance(obs, torch.Tensor)
    assert not (terminated | truncated | infos["_final_obs"]).any()
    assert infos["final_obs"].shape == (N, env.single_observation_space.shape[0])
    env.close()


@pytest.mark.parametrize(
    ("task", "options", "message"),
    [
        ("walking", {"autoreset_mode": "next"}, "autoreset_mode: unknown value"),
        ("walking", {"output": "jax"}, r"output: unknown value 'jax'.*numpy, torch"),
    ],
)
def test_a_choice_that_cannot_be_is_an_error(task, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        mapush.make(task, client="gymnasium", num_envs=1, settings={"sim.device": "cpu"}, **options)


PUSH = {"sim.device": "cpu", "sim.num_threads": 1, "task.object": "cuboid"}


def test_a_team_is_one_agent() -> None:
    ours = mapush.make("go1push_mid", num_envs=N, seed=1, settings=PUSH)
    env = mapush.make("go1push_mid", client="gymnasium", num_envs=N, seed=1, settings=PUSH)
    actions = np.linspace(-1.0, 1.0, N * 6, dtype=np.float32).reshape(N, 6)
    expected_obs, _ = ours.reset()
    obs, _ = env.reset()
    assert (obs == expected_obs.flatten(1).numpy()).all()
    expected = ours.step(torch.from_numpy(actions).view(N, 2, 3))
    obs, reward, terminated, _, infos = env.step(actions)
    assert (obs == expected.obs.flatten(1).numpy()).all()
    assert (reward == expected.reward.mean(dim=1).numpy()).all()
    assert terminated.tolist() == expected.terminated.all(dim=1).tolist()
    assert infos["reward/progress"].shape == (N, 2)
    ours.close()
    env.close()


def test_registered_names_make_worlds() -> None:
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    from mapush import gymnasium_ids

    assert set(gymnasium_ids.TASKS) <= set(gymnasium.registry)
    env = gymnasium.make("mapush/Push-v0", seed=1, settings=PUSH, render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset()
    assert env.render().shape == (540, 960, 3)
    env.close()
    worlds = gymnasium.make_vec("mapush/Push-v0", num_envs=N, seed=1, settings=PUSH)
    assert worlds.reset()[0].shape[0] == N
    worlds.close()


@pytest.mark.parametrize(
    "code",
    [
        "import gymnasium, mapush; name = 'mapush/Push-v0'",
        pytest.param(
            "import mapush, gymnasium, mapush.gymnasium_ids; name = 'mapush/Push-v0'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_import_registers_names_without_torch(code: str) -> None:
    check = "gymnasium.spec(name); import sys; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", f"{code}; {check}"], cwd=ROOT).returncode == 0
