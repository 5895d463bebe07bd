"""Our environments behind OpenRL's contract, and its trainer where ``OPENRL_PYTHON`` names a
Python that has it.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from harl_mapush import config
from mapush.extensions.openrl import importing, openrl_files, run_openrl
from mapush.extensions.openrl.openrl_env import OpenRLEnv
from mqe.config import ConfigError, load_yaml
from mqe.vec_env import TeamSpec, TimeStep
from tests.support import mapush_files
from tests.support.paths import ROOT

N = 4
A = 2


class _Env:
    """Four worlds whose endings are given: none, by the task, by the clock, broken."""

    num_envs = N
    num_agents = A
    decision_period = 1
    device = torch.device("cpu")
    spec = TeamSpec((8, 8), (3, 3), 17, "EP")

    def __init__(self) -> None:
        self.given = torch.zeros(0)
        self._obs = torch.zeros(N, A, 8)

    def reset(self, *, staggered: bool = False):
        self.is_staggered = staggered
        return self._obs, torch.zeros(N, 5)

    def step(self, actions):
        self.given = actions
        self._obs += 1.0  # in place, as a captured step does
        terminated = torch.tensor([False, True, False, False])
        return TimeStep(
            self._obs,
            torch.zeros(N, 5),
            torch.tensor([[1.0, 2.0]]).expand(N, A),
            terminated.unsqueeze(1).expand(N, A),
            torch.tensor([False, False, True, False]),
            torch.tensor([True, True, True, False]),
            self._obs,
            torch.zeros(N, 5),
            {"reward/near": torch.tensor([[0.5, 1.5]]).expand(N, A)},
        )

    def statistics(self):
        return {"success_rate": 0.25, "num_episodes": 4.0}

    def grow_buffers(self):
        return None

    def close(self):
        self.is_closed = True


@pytest.fixture
def env() -> OpenRLEnv:
    return OpenRLEnv(_Env(), "go1push_mid")  # type: ignore[arg-type]


def test_arrays_have_the_shapes_and_types_of_openrls_contract(env) -> None:
    assert (env.parallel_env_num, env.agent_num, env.use_monitor) == (N, A, False)
    assert (env.observation_space.shape, env.action_space.shape) == ((8,), (3,))
    first = env.reset(seed=3)
    assert (first.shape, first.dtype, env.env.is_staggered) == ((N, A, 8), np.float32, True)
    obs, rewards, dones, infos = env.step(np.ones((N, A, 3)), {"buffer": None})
    assert (obs.shape, obs.dtype, rewards.shape, rewards.dtype) == (
        (N, A, 8),
        np.float32,
        (N, A, 1),
        np.float32,
    )
    assert rewards[0].tolist() == [[1.0], [2.0]]
    assert (dones.shape, dones.dtype) == ((N, A), np.bool_)
    assert isinstance(infos, list)
    assert (float(first.max()), float(obs.max())) == (0.0, 1.0)  # an array of its own each
    env.close()
    assert env.env.is_closed


def test_what_the_clock_ended_or_broke_is_a_bad_transition_and_what_the_task_ended_is_not(
    env,
) -> None:
    env.reset()
    _, _, dones, infos = env.step(np.zeros((N, A, 3)))
    assert dones[:, 0].tolist() == dones[:, 1].tolist() == [False, True, True, True]
    plain = [{key: value for key, value in i.items() if key != "final_obs"} for i in infos]
    assert plain == [{}, {}, {"bad_transition": [True, True]}, {"bad_transition": [True, True]}]
    assert ["final_obs" in info for info in infos] == [False, True, True, True]
    assert infos[1]["final_obs"].tolist() == [[1.0] * 8] * A
    masks = [
        [not ("bad_transition" in info and info["bad_transition"][agent]) for agent in range(A)]
        for info in infos
    ]
    # As its driver reads them.
    assert masks == [
        [True, True],
        [True, True],
        [False, False],
        [False, False],
    ]


def test_actions_count_half_as_in_mapushs_trainer(env) -> None:
    env.reset()
    env.step(np.full((N, A, 3), 1.5))
    assert (env.env.given == 0.75).all()


def test_a_rollouts_metrics_are_means_over_its_own_decisions() -> None:
    received = []
    env = OpenRLEnv(_Env(), "go1push_mid", received.append)  # type: ignore[arg-type]
    env.reset()
    for _ in range(3):
        env.step(np.zeros((N, A, 3)))
    wanted = {
        "average_step_reward": 1.5,
        "reward/near": 1.0,
        "reward/total": 1.5,
        "success_rate": 0.25,
        "num_episodes": 4.0,
    }
    assert env.batch_rewards(None) == wanted
    env.step(np.zeros((N, A, 3)))
    assert env.batch_rewards(None) == wanted
    assert received == [wanted, wanted]


def test_without_openrl_a_line_names_the_way_to_it(capsys, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "openrl", None)
    assert run_openrl.main(["--task", "go1push_mid"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "make openrl makes its environment" in said


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"]])
def test_mapushs_ppo_yaml_is_ours_if_there_is_no_such_file(tmp_path, capsys, form) -> None:
    ours = str(config.openrl_file())
    words = [word.format("./openrl_ws/cfgs/ppo.yaml") for word in ["--seed", "1", *form]]
    found = run_openrl._with_own_file(words)
    assert found == ["--seed", "1", *(word.format(ours) for word in form)]
    assert "Note: there is no ./openrl_ws/cfgs/ppo.yaml; instead " in capsys.readouterr().out
    (tmp_path / "ppo.yaml").write_text("lr: 0.1\n")
    for name in (tmp_path / "ppo.yaml", "elsewhere/other.yaml"):
        words = [word.format(name) for word in form]
        assert run_openrl._with_own_file(words) == words
    settings = load_yaml(config.openrl_file())
    assert {name: settings[name] for name in run_openrl.MAPUSH} == run_openrl.MAPUSH


def test_openrls_lines_count_env_steps_and_leave_out_what_is_unknown(tmp_path, capsys) -> None:
    progress = run_openrl._Progress(tmp_path, 80, decision_period=5)
    progress.log_info({"success_rate": math.nan, "ratio": np.float32(0.5)}, step=160)
    assert capsys.readouterr().out == "800 env steps: ratio 0.5\n"
    progress.add({"ratio": 0.5})
    assert json.loads((tmp_path / "progress.jsonl").read_text())["env_steps"] == 400


class _Agent:
    """Saves a policy as OpenRL's agent does."""

    def __init__(self, module) -> None:
        self._module = module

    def save(self, folder: str) -> None:
        mapush_files.save(Path(folder) / "module.pt", self._module)


def test_a_network_that_cannot_come_back_is_refused_before_the_training() -> None:
    worlds = {"env": {"num_agents": 2}, "task": {"name": "go1push_mid"}}
    run_openrl._check_return(_Agent(mapush_files.module(obs_size=10, layer_n=2)), worlds)
    recurrent = mapush_files.module()
    recurrent.models["policy"].rnn = torch.nn.Linear(16, 16)
    with pytest.raises(ConfigError) as error:
        run_openrl._check_return(_Agent(recurrent), worlds)
    said = str(error.value)
    assert said.startswith("mapush could not take over what OpenRL would train (not a network")
    assert "(rnn.bias)" in said
    assert "without recurrence" in said


def test_mapushs_scripts_name_no_checkpoint_by_none(tmp_path) -> None:
    assert run_openrl._checkpoint("/somewhere/None") is None
    assert run_openrl._checkpoint(None) is None
    with pytest.raises(ConfigError, match="cannot be read"):
        run_openrl._checkpoint(str(tmp_path / "module.pt"))


@pytest.mark.parametrize("on_cpu", [False, True])
def test_a_checkpoint_goes_into_openrls_networks(tmp_path, on_cpu: bool) -> None:
    saved = mapush_files.module(on_cpu=on_cpu)
    module = mapush_files.module(on_cpu=True)
    for parameter in (*module.models["policy"].parameters(), *module.models["critic"].parameters()):
        parameter.data.zero_()
    run_openrl._load(
        module.models, openrl_files.read(mapush_files.save(tmp_path / "module.pt", saved))
    )
    for name in ("policy", "critic"):
        wanted = dict(saved.models[name].named_parameters())
        for key, value in module.models[name].named_parameters():
            if "value_normalizer" not in key:
                assert torch.equal(value, wanted[key]), key
    assert float(module.models["critic"].value_normalizer.running_mean) == -50.0


@pytest.mark.slow
def test_openrl_trains_unpatched_and_its_policy_comes_back(tmp_path) -> None:
    python = os.environ.get("OPENRL_PYTHON")
    if python is None:
        pytest.skip("OPENRL_PYTHON names no Python that has OpenRL; make openrl makes one")
    out = tmp_path / "cuboid"
    command = [
        python,
        "-m",
        "mapush.extensions.openrl.run_openrl",
        "--num_envs",
        "4",
        "--episode_length",
        "10",
    ]
    command += ["--train_timesteps", "80", "--set", "sim.num_threads=1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in (out / "progress.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [40, 80]
    assert importing.main(["openrl", str(out), "--out", str(tmp_path / "imported")]) == 0
    assert (tmp_path / "imported" / "checkpoints" / "80" / "actor_agent1.pt").is_file()
