"""TorchRL's own checker, further checks, and BenchMARL's task if installed."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import mapush
from harl_mapush import config
from harl_mapush.clients.entries import CLIENTS
from harl_mapush.clients.worlds import Worlds
from mqe.config import ConfigError
from tests.support.client_episodes import (
    NUM_STEPS,
    Actions,
    Case,
    Played,
    check_decisions,
    play_reference,
)
from tests.support.lazy_modules import needs
from tests.support.paths import ROOT
from tests.support.placed import PlacedEnv

pytestmark = [needs("torchrl"), pytest.mark.slow]  # Its import takes four seconds.

N = 2
SETTINGS = {
    "sim.device": "cpu",
    "sim.num_threads": 1,
    "task.decision_period": 1,
    "task.episode_length_s": 0.1,
}


def make(**settings):
    return mapush.make(
        "go1push_mid", client="torchrl", num_envs=N, seed=1, settings=SETTINGS | settings
    )


@pytest.fixture(scope="module")
def env():
    env = make()
    yield env
    env.close()


@pytest.mark.parametrize("state_type", ["EP", "FP"])
def test_torchrls_checker_passes(state_type) -> None:
    from torchrl.envs import check_env_specs

    env = make(**{"task.state_type": state_type})
    check_env_specs(env, break_when_any_done="both", seed=3)
    keys = set(env.observation_spec.keys(True, True))
    assert (("agents", "state") in keys) == (state_type == "FP")
    assert env.group_map == {"agents": ["agent_0", "agent_1"]}
    env.close()


def test_next_has_the_last_observation_and_the_root_the_first_of_the_next_episode(env) -> None:
    rollout = env.rollout(6, break_when_any_done=False)
    assert rollout["next", "truncated"][:, 4].all()
    last = rollout["next", "agents", "observation"][:, 4]
    first = rollout["agents", "observation"][:, 5]
    assert torch.isfinite(last).all()
    assert not torch.equal(last, first)


def test_a_reset_amid_an_episode_begins_the_next_in_chosen_worlds(env) -> None:
    start = env.reset()
    step = env.rand_step(start)["next"]
    chosen = step.clone().set("_reset", torch.tensor([[True], [False]]))
    again = env.reset(chosen)
    assert not torch.equal(again["state"][0], step["state"][0])
    assert torch.equal(again["state"][1], step["state"][1])


def test_a_seed_repeats_the_episodes(env) -> None:
    first = [env.set_seed(5), env.reset()["state"]]
    env.rand_step(env.reset())
    second = [env.set_seed(5), env.reset()["state"]]
    assert torch.equal(first[1], second[1])


def test_a_reset_after_a_reset_draws_another_start(env) -> None:
    starts = [env.reset()["agents", "observation"].numpy().tobytes() for _ in range(4)]
    assert len(set(starts)) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grup": "all"}, r"grup: torchrl .*\(allowed: device\)"),
        ({"device": "gpu"}, "device: the worlds are on .*, not gpu"),
    ],
)
def test_a_mistake_in_an_option_is_an_error(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        mapush.make(client="torchrl", **options)


def test_another_device_is_an_error() -> None:
    with pytest.raises(ConfigError, match="device: the worlds are on cpu, not meta"):
        mapush.make(client="torchrl", num_envs=N, settings=SETTINGS, device="meta")


def test_benchmarls_task_passes_torchrls_checker_and_trains(tmp_path, monkeypatch) -> None:
    """BenchMARL 1.5 needs TorchRL below 0.12, and so an environment of its own."""
    benchmarl = pytest.importorskip("benchmarl")
    from benchmarl.algorithms import MappoConfig
    from benchmarl.experiment import Experiment, ExperimentConfig
    from benchmarl.models.mlp import MlpConfig

    assert benchmarl is not None
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    importlib.import_module("benchmarl_task")
    task = mapush.make("go1push_mid", client="benchmarl", settings=SETTINGS)
    cfg = ExperimentConfig.get_from_yaml()
    cfg.loggers = []
    cfg.create_json = False
    cfg.save_folder = str(tmp_path)
    cfg.render = False
    cfg.max_n_frames = 40
    cfg.on_policy_collected_frames_per_batch = 40
    cfg.on_policy_n_envs_per_worker = 4
    cfg.on_policy_minibatch_size = 20
    cfg.on_policy_n_minibatch_iters = 1
    cfg.evaluation_interval = 40
    cfg.evaluation_episodes = 2
    experiment = Experiment(
        task=task,
        algorithm_config=MappoConfig.get_from_yaml(),
        model_config=MlpConfig.get_from_yaml(),
        critic_model_config=MlpConfig.get_from_yaml(),
        seed=0,
        config=cfg,
    )
    experiment.run()
    assert experiment.total_frames == 40


def play_torchrl(env: Any, actions: Actions, played: Played) -> None:
    left = iter(actions)

    def act(tensordict: Any) -> Any:
        return tensordict.set(("agents", "action"), torch.from_numpy(next(left)))

    rollout = env.rollout(NUM_STEPS, act, break_when_any_done=False).transpose(0, 1)["next"]
    played.rewards[:] = rollout["agents", "reward"][..., 0]
    played.terminated[:] = rollout["terminated"]
    played.truncated[:] = rollout["truncated"][..., 0]
    is_done = rollout["done"][..., 0]
    played.last_obs[is_done] = rollout["agents", "observation"][is_done]


def test_decisions_are_those_of_our_own_environment() -> None:
    case = Case(play_torchrl)
    check_decisions("torchrl", case, *play_reference(case))


def test_tensors_stay_on_the_device() -> None:
    """Torch's device ``meta`` has no numbers, so a copy to the host raises."""

    class PlacedWorlds(Worlds):
        def build(self, seed: int | None = None) -> Any:
            return PlacedEnv(8, 2, "cpu")

    # TorchRL compares the bounds of actions on the host when it makes its specs.
    env = CLIENTS["torchrl"](PlacedWorlds(config.resolve({}, {})[0]))
    env.client.env = PlacedEnv(8, 2, "meta")
    env._device = torch.device("meta")
    tensordict = env._reset()
    tensordict.set(("agents", "action"), torch.zeros(8, 2, 3, device="meta"))
    following = env._step(tensordict)
    values = [*tensordict.values(True, True), *following.values(True, True)]
    assert len(values) == 11
    assert {value.device.type for value in values} == {"meta"}
