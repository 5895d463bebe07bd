"""skrl's own trainer runs in our worlds, and infos have what its contract has no place for."""

from __future__ import annotations

import pytest
import torch

import mapush

pytest.importorskip("skrl")

N = 2
SETTINGS = {
    "sim.device": "cpu",
    "sim.num_threads": 1,
    "task.decision_period": 1,
    "task.episode_length_s": 0.1,
}


@pytest.fixture(scope="module")
def env():
    env = mapush.make("go1push_mid", client="skrl", num_envs=N, seed=1, settings=SETTINGS)
    yield env
    env.close()


def networks(env):
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    models = {}
    for name in env.possible_agents:
        spaces = {
            "observation_space": env.observation_space(name),
            "state_space": env.state_space(name),
            "action_space": env.action_space(name),
            "device": env.device,
        }
        layers = {"name": "net", "layers": [8], "activations": "elu"}
        models[name] = {
            "policy": gaussian_model(
                network=[{**layers, "input": "OBSERVATIONS"}], output="ACTIONS", **spaces
            ),
            "value": deterministic_model(
                network=[{**layers, "input": "STATES"}], output="ONE", **spaces
            ),
        }
    return models


def test_skrls_mappo_trains(env, tmp_path, monkeypatch) -> None:
    from skrl.memories.torch import RandomMemory
    from skrl.multi_agents.torch.mappo import MAPPO, MAPPO_CFG
    from skrl.trainers.torch import SequentialTrainer, SequentialTrainerCfg

    monkeypatch.chdir(tmp_path)
    names = env.possible_agents
    nothing = {name: {} for name in names}
    cfg = MAPPO_CFG(
        rollouts=4,
        learning_epochs=1,
        mini_batches=2,
        learning_rate_scheduler_kwargs=nothing,
        observation_preprocessor_kwargs=nothing,
        state_preprocessor_kwargs=nothing,
        value_preprocessor_kwargs=nothing,
    )
    cfg.experiment.write_interval = 0
    cfg.experiment.checkpoint_interval = 0
    models = networks(env)
    before = next(models["agent_0"]["policy"].parameters()).clone()
    agents = MAPPO(
        possible_agents=names,
        models=models,
        memories={name: RandomMemory(memory_size=4, num_envs=N) for name in names},
        cfg=cfg,
        observation_spaces=env.observation_spaces,
        state_spaces=env.state_spaces,
        action_spaces=env.action_spaces,
        device=env.device,
    )
    trainer = SequentialTrainerCfg(
        timesteps=9, headless=True, disable_progressbar=True, close_environment_at_exit=False
    )
    SequentialTrainer(cfg=trainer, env=env, agents=agents).train()
    assert not torch.equal(next(models["agent_0"]["policy"].parameters()), before)


def test_tensors_are_by_agent_and_infos_have_the_last_observations(env) -> None:
    observations, _ = env.reset()
    assert set(observations) == {"agent_0", "agent_1"}
    assert env.state()["agent_1"].shape == (N, 17)
    still = {name: torch.zeros(N, 3) for name in env.possible_agents}
    for _ in range(5):
        observations, rewards, terminated, truncated, infos = env.step(still)
    assert rewards["agent_0"].shape == terminated["agent_1"].shape == (N, 1)
    assert truncated["agent_0"].all()
    assert not infos["broken"].any()
    assert not torch.equal(infos["final_observations"]["agent_0"], observations["agent_0"])
    assert infos["final_states"]["agent_0"].shape == (N, 17)


def test_actions_that_do_not_fit_name_the_agent(env) -> None:
    env.reset()
    taken = {name: torch.zeros(N, 3) for name in env.possible_agents}
    with pytest.raises(ValueError, match="agent_1 has none"):
        env.step({"agent_0": taken["agent_0"]})
    with pytest.raises(ValueError, match=r"agent_1 must have the shape \(2, 3\).* not \(2, 4\)"):
        env.step({**taken, "agent_1": torch.zeros(N, 4)})
    with pytest.raises(TypeError, match="a dictionary by agent, not Tensor"):
        env.step(torch.zeros(N, 2, 3))
