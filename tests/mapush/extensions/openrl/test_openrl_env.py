"""Our environments under OpenRL's contract, and OpenRL's trainer if ``OPENRL_PYTHON`` names a
Python with it.
"""

from __future__ import annotations

import os
import subprocess

import numpy as np
import pytest
import torch

from mapush.extensions.openrl import importing
from mapush.extensions.openrl.openrl_env import OpenRLEnv
from mqe.vec_env import TeamSpec, TimeStep
from tests.support.paths import ROOT

N = 4
A = 2


class _Env:
    """Four worlds with given endings: none, task, clock, broken."""

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


def test_a_rollouts_metrics_are_means_over_its_own_decisions(env) -> None:
    env.reset()
    for _ in range(3):
        env.step(np.zeros((N, A, 3)))
    metrics = {
        "average_step_reward": 1.5,
        "reward/near": 1.0,
        "reward/total": 1.5,
        "success_rate": 0.25,
        "num_episodes": 4.0,
    }
    assert env.batch_rewards(None) == metrics
    env.step(np.zeros((N, A, 3)))
    assert env.batch_rewards(None) == metrics


@pytest.mark.slow
def test_openrl_trains_unpatched_and_its_policy_comes_back(tmp_path) -> None:
    python = os.environ.get("OPENRL_PYTHON")
    if python is None:
        pytest.skip("OPENRL_PYTHON names no Python that has OpenRL")
    out = tmp_path / "cuboid"
    sizes = "--num_envs 4 --episode_length 10 --train_timesteps 80 --sim_device cpu".split()
    command = [python, "examples/openrl_training.py", *sizes, "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert importing.main(["openrl", str(out), "--out", str(tmp_path / "imported")]) == 0
    assert (tmp_path / "imported" / "checkpoints" / "80" / "actor_agent1.pt").is_file()
