"""harl_mapush.clients: HARL's environment contract, on scripted steps and on the push task
itself.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import tensor

from harl_mapush.clients import HarlEnv, MAPushEnv, flat_settings
from harl_mapush.clients.harl import harl_env, mapush_env
from harl_mapush.clients.harl.harl_env import to_host
from harl_mapush.clients.harl.harl_registration import UpstreamEnv
from mqe.config import ConfigError
from mqe.vec_env import TeamSpec, TimeStep
from mqe.world.objects import OBJECTS
from tests.support.pushing import make_env
from tests.support.rounding import FEW_STEPS


class Scripted:
    """Four environments with two agents (sizes 3 and 2) and one fixed step result."""

    num_envs = 4
    num_agents = 2
    spec = TeamSpec((3, 2), (2, 1), 5, "EP")
    decision_period = 5
    step_dt = 0.02
    device = torch.device("cpu")

    def __init__(self, **events) -> None:
        zeros = torch.zeros(4, dtype=torch.bool)
        self.obs = torch.arange(24.0).view(4, 2, 3)
        self.state = torch.arange(20.0).view(4, 5)
        reward = tensor([[1.0, 3.0]] * 4)
        self.answer = TimeStep(
            self.obs,
            self.state,
            reward,
            events.get("terminated", torch.zeros(4, 2, dtype=torch.bool)),
            events.get("truncated", zeros),
            events.get("valid", ~zeros),
            self.obs + 100.0,
            self.state + 100.0,
            {"reward/near": reward, "other": reward},
        )
        self.maintained = 0

    def reset(self):
        return self.obs, self.state

    def step(self, actions):
        self.actions = actions
        return self.answer

    def grow_buffers(self):
        self.maintained += 1
        return "buffers grew" if self.maintained == 2 else None

    def statistics(self):
        return {"num_episodes": 0}


def push(monkeypatch, cls=MAPushEnv, **settings) -> MAPushEnv:
    """A MAPushEnv with standing robots."""

    def standing(env, sim, task, seed):
        cfg = {field.name: getattr(task, field.name) for field in fields(task)}
        return make_env(env.num_envs, env.num_agents or OBJECTS[task.object].num_agents, **cfg)

    monkeypatch.setattr(mapush_env, "make_env", standing)
    return cls({"n_threads": 3, "device": "cpu", **settings})


# Scripted


def test_arrays_are_float32_and_the_state_is_every_agents() -> None:
    env = HarlEnv(Scripted())
    obs, states, available = env.reset()
    assert (obs.dtype, states.dtype, available) == (np.float32, np.float32, None)
    assert obs[1].tolist() == [[6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]
    assert states.shape == (4, 2, 5)
    assert states[2].tolist() == [[10.0, 11.0, 12.0, 13.0, 14.0]] * 2
    states[0] = 0.0  # HARL writes into copies of these
    assert env.reset()[1][0].tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 2


def test_what_was_given_out_does_not_change() -> None:
    scripted = Scripted()
    env = HarlEnv(scripted)
    obs = env.reset()[0]
    scripted.obs.zero_()
    assert obs[1, 0].tolist() == [6.0, 7.0, 8.0]


def test_terminations_time_outs_and_broken_worlds() -> None:
    terminated = tensor([[False, True], [True, True], [True, False], [False, False]])
    truncated = tensor([False, False, True, False])
    valid = tensor([True, True, True, False])
    env = HarlEnv(Scripted(terminated=terminated, truncated=truncated, valid=valid))
    env.reset()
    obs, states, rewards, dones, infos, available = env.step(np.zeros((4, 2, 2)))
    assert dones.tolist() == [[False, True], [True, True], [True, True], [True, True]]
    assert dones.dtype == np.bool_
    assert available is None
    assert infos[0] == {0: {}, 1: {}}  # one agent is dead, the episode goes on
    assert infos[1][0] is not infos[1][1]
    assert env.step(np.zeros((4, 2, 2)))[4][0] is not infos[0]
    assert [infos[i][a]["bad_transition"] for i in (1, 2, 3) for a in (0, 1)] == [False] * 2 + [
        True
    ] * 4
    assert ["broken" in infos[i][0] for i in (1, 2, 3)] == [False, False, True]
    assert infos[2][1]["original_obs"].tolist() == [[112.0, 113.0, 114.0], [115.0, 116.0, 117.0]]
    assert infos[2][0]["original_state"].tolist() == [[110.0, 111.0, 112.0, 113.0, 114.0]] * 2
    assert obs[2, 0].tolist() == [12.0, 13.0, 14.0]
    assert rewards.tolist() == [[[1.0], [3.0]]] * 4


def test_all_dead_at_the_time_limit_is_a_termination() -> None:
    ended = torch.ones(4, 2, dtype=torch.bool)
    *_, infos, _ = HarlEnv(
        Scripted(terminated=ended, truncated=torch.ones(4, dtype=torch.bool))
    ).step(np.ones((4, 2, 2)))
    assert [info[0]["bad_transition"] for info in infos] == [False] * 4


@pytest.mark.parametrize(
    ("choice", "expected"), [("own", [1.0, 3.0]), ("mean", [2.0, 2.0]), ("sum", [4.0, 4.0])]
)
def test_team_rewards(choice: str, expected: list[float]) -> None:
    rewards = HarlEnv(Scripted(), choice).step(np.zeros((4, 2, 2)))[2]
    assert rewards.shape == (4, 2, 1)
    assert rewards[0, :, 0].tolist() == expected


def test_team_rewards_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match="did you mean sum"):
        HarlEnv(Scripted(), "sun")


def test_every_agent_has_spaces_of_its_own_size() -> None:
    env = HarlEnv(Scripted())
    assert [space.shape for space in env.observation_space] == [(3,), (2,)]
    assert [space.shape for space in env.action_space] == [(2,), (1,)]
    assert [space.shape for space in env.share_observation_space] == [(5,), (5,)]
    assert env.action_space[0].high.tolist() == [1.0, 1.0]
    assert type(env.action_space[0]).__name__ == "Box"  # HARL goes by the name
    assert env.n_agents == 2


def test_actions_as_nested_lists() -> None:
    scripted = Scripted()
    HarlEnv(scripted).step([[[1, 0.5], [0, -1]]] * 4)
    assert scripted.actions.dtype == torch.float32
    assert scripted.actions.tolist() == [[[1.0, 0.5], [0.0, -1.0]]] * 4
    with pytest.raises(ValueError, match=r"actions must have shape \(4, 2, 2\).*not \(1, 2\)"):
        HarlEnv(scripted).step([[1, 0.5]])


def test_actions_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"\(4, 2, 2\)"):
        HarlEnv(Scripted()).step(np.zeros((4, 2, 3)))


def test_actions_of_any_number_type() -> None:
    env = HarlEnv(Scripted())
    env.step(np.full((4, 2, 2), 0.5).transpose(1, 0, 2).transpose(1, 0, 2))
    assert env.env.actions.dtype == torch.float32  # type: ignore[attr-defined]
    assert env.env.actions.unique().tolist() == [0.5]  # type: ignore[attr-defined]


def test_reward_terms_a_control_step() -> None:
    env = HarlEnv(Scripted())
    for _ in range(2):
        env.step(np.zeros((4, 2, 2)))
    # 2 / 5 steps.
    assert env.take_rewards() == {
        "reward/near": pytest.approx(0.4),
        "reward/total": pytest.approx(0.4),
    }
    assert env.take_rewards() == {}


def test_statistics_before_the_first_episode_are_not_numbers() -> None:
    figures = MAPushEnv({"n_threads": 1, "device": "cpu"}).get_statistics()
    assert {"success_rate", "collision_rate", "collaboration_degree", "episode_time_s"} < set(
        figures
    )
    assert figures.pop("num_episodes") == 0
    assert all(np.isnan(value) for value in figures.values())


def test_the_environment_may_grow_its_buffers(caplog) -> None:
    env = HarlEnv(Scripted())
    for _ in range(200):
        env.step(np.zeros((4, 2, 2)))
    assert env.env.maintained == 2  # type: ignore[attr-defined]
    assert [record.getMessage() for record in caplog.records] == ["buffers grew"]


# The push task


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("name", OBJECTS)
def test_conformance(name: str, state_type: str, monkeypatch) -> None:
    env = push(monkeypatch, object=name, state_type=state_type, episode_length_s=0.06)
    n = 3
    a = OBJECTS[name].num_agents
    obs, states, available = env.reset()
    assert (env.n_agents, env.state_type, available) == (a, state_type, None)
    for _ in range(2):
        obs, states, rewards, dones, infos, _ = env.step(
            np.random.default_rng(0).normal(size=(n, a, 3))
        )
        assert (obs.shape, states.shape) == ((n, a, 2 + 4 * a), (n, a, 3 + 7 * a))
        assert (rewards.shape, dones.shape, len(infos), len(infos[0])) == ((n, a, 1), (n, a), n, a)
        assert not dones.any()
        assert all(env.observation_space[i].contains(obs[0, i]) for i in range(a))
        assert all(env.share_observation_space[i].contains(states[0, i]) for i in range(a))
        assert np.array_equal(states[:, 0], states[:, 1]) == (state_type == "EP")
        assert np.array_equal(rewards[:, 0], rewards[:, 1]) == (state_type == "EP")
    before = obs
    obs, states, _, dones, infos, _ = env.step(np.zeros((n, a, 3), dtype=np.float32))
    assert dones.all()
    assert all(info["bad_transition"] for infos_of_one in infos for info in infos_of_one.values())
    assert np.abs(infos[0][0]["original_obs"] - before[0]).max() < 0.1  # a moment later
    assert np.abs(infos[0][0]["original_obs"] - obs[0]).max() > 0.1  # the next episode's first
    assert infos[0][0]["original_state"].shape == (a, 3 + 7 * a)
    assert env.get_statistics()["num_episodes"] == n
    assert env.get_statistics()["episode_time_s"] == pytest.approx(0.06)
    env.reset_statistics()
    assert env.get_statistics()["num_episodes"] == 0
    env.close()


def test_a_success_is_no_time_out(monkeypatch) -> None:
    env = push(monkeypatch, goal_distance=[1.5, 1.6], success_radius=1.0)
    env.reset()
    model = env.env.sim.model
    sim = env.env.sim
    start = model.jnt_qposadr[model.body("object").jntadr[0]]
    # The object lies on its goal.
    sim.data.qpos[0, start : start + 2] = sim.data.mocap_pos[0, 0, :2]
    *_, dones, infos, _ = env.step(np.zeros((3, 2, 3)))
    assert dones.tolist() == [[True, True], [False, False], [False, False]]
    assert infos[0][1]["bad_transition"] is False
    assert env.get_statistics()["success_rate"] == 1.0
    env.close()


def test_the_references_state_of_two_robots_has_17_numbers_in_one_frame(monkeypatch) -> None:
    env = push(monkeypatch, observation="reference")
    obs, states, _ = env.reset()
    assert (obs.shape, states.shape) == ((3, 2, 8), (3, 2, 17))
    scene = env.env.state
    expected = torch.cat(
        (scene.object_pos[0, :2], torch.remainder(scene.object_yaw[:1], 2 * torch.pi))
    )
    assert states[0, 0, :3] == pytest.approx(expected.numpy(), abs=FEW_STEPS)
    assert states[0, 0, 3:5] == pytest.approx(scene.goal_pos[0, :2].numpy())
    assert states[0, 0, 11:13] == pytest.approx(scene.robot_pos[0, 1, :2].numpy())
    env.close()


def test_a_dotted_key_reaches_as_deep_as_it_goes() -> None:
    assert flat_settings.parse_settings(
        {"task.weights.reach": 5, "weights": {"push": 0.0}, "env.num_envs": 2}
    ) == {
        "task": {"weights": {"reach": 5, "push": 0.0}},
        "env": {"num_envs": 2},
    }


def test_seed_and_close(monkeypatch) -> None:
    env = push(monkeypatch)
    seeds = []
    inner = mapush_env.make_env
    monkeypatch.setattr(mapush_env, "make_env", lambda *cfg: seeds.append(cfg[-1]) or inner(*cfg))
    env.seed(7)
    assert seeds == [7]
    assert env.reset()[0].shape == (3, 2, 10)
    env.seed(np.int64(8))  # type: ignore[arg-type]
    assert (seeds[-1], type(seeds[-1])) == (8, int)
    env.close()


def test_a_refused_seed_leaves_the_environment_as_it_was(monkeypatch) -> None:
    env = push(monkeypatch)
    env.reset()
    before = env.env
    for seed in (-3, 1.7, "x", 2**64, True):
        with pytest.raises(ConfigError, match="^seed: must be ") as refused:
            env.seed(seed)  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as constructor:
            MAPushEnv({"seed": seed})
        assert str(refused.value) == str(constructor.value)
    assert env.env is before
    assert env.step(np.zeros((3, 2, 3)))[0].shape == (3, 2, 10)
    env.close()


def test_actions_may_carry_a_gradient(monkeypatch) -> None:
    env = push(monkeypatch)
    env.reset()
    obs = env.step(torch.zeros(3, 2, 3, requires_grad=True))[0]
    assert obs.shape[:2] == (3, 2)
    env.close()


def test_keys_reach_their_settings() -> None:
    flat = {
        "n_threads": 3,
        "task": "go1push_mid",
        "object": "tblock",
        "num_agents": 2,
        "state_type": "FP",
    }
    flat |= {
        "device": "cpu",
        "seed": 4,
        "sim": None,
        "observation": "reference",
        "sim.num_threads": 1,
    }
    sections = flat_settings.parse_settings(flat)
    assert sections == {
        "env": {"num_envs": 3, "num_agents": 2},
        "task": {
            "name": "go1push_mid",
            "object": "tblock",
            "state_type": "FP",
            "observation": "reference",
        },
        "sim": {"device": "cpu", "num_threads": 1},
        "runner": {"seed": 4},
    }
    assert flat_settings.parse_settings({"num_agents": None, "env.num_agents": 3}) == {
        "env": {"num_agents": 3}
    }


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        *[
            ("n_thread", "n_threads"),
            ("num_agent", "num_agents"),
            ("divice", "device"),
            ("sed", "seed"),
        ],
        *[
            ("team_rewards", "team_reward"),
            ("sims", "sim"),
            ("objct", "object"),
            ("sim.num_thread", "sim.num_threads"),
        ],
    ],
)
def test_a_mistyped_key_is_led_to_the_nearest(wrong: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"^unknown key '{wrong}'; did you mean {meant}\? "):
        MAPushEnv({wrong: 1})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_threads": 0}, "^n_threads: must be at least 1"),
        ({"env.num_envs": 0}, r"^env\.num_envs: must be at least 1"),
        ({"seed": -1}, "^seed: must be at least 0"),
        ({"device": "cuda:99"}, "^device: no cuda:99 here"),
        ({"task": "go1push_md"}, "^task: unknown task 'go1push_md'; did you mean go1push_mid"),
        ({"task": "go1push_md", "n_thread": 2}, "^unknown key 'n_thread'; did you mean n_threads"),
        ({"task": "walking", "object": "cuboid"}, "^unknown key 'object'"),
        (
            {"weights": {"nothing": 1.0}},
            r"^weights: unknown reward 'nothing' \(allowed: \w+, ",
        ),
        ({"goal_distance": [0.0, 1.0]}, "^goal_distance: must be above 0"),
        ({"algorithm.gamma": 0.9}, r"^algorithm\.gamma: unknown section"),
        ({"n_threads": 2, "env.num_envs": 7}, r"^n_threads and env\.num_envs: two spellings"),
        ({"env.num_agents": 3, "num_agents": 2}, r"^env\.num_agents and num_agents: two spellings"),
        ({"object": "cuboid", "task.object": "cuboid"}, r"^object and task\.object: two spellings"),
        ({3: 4}, "^key 3: must be a string"),
        (None, "^settings: must be a dictionary of keys, not None"),
    ],
)
def test_settings_that_cannot_be_are_named_as_the_user_wrote_them(
    walking, settings, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        MAPushEnv(settings)


# As in MAPush's fork for HARL


def test_the_forks_settings_and_attributes_have_their_meaning(monkeypatch) -> None:
    env = push(monkeypatch, headless=True, record_video=False, episode_length_s=0.2)
    assert (env.num_envs, env.device, env.env_cfg.env.num_envs) == (3, torch.device("cpu"), 3)
    assert env.reset()[2] is None
    for _ in range(20):
        env.step(np.zeros((3, 2, 3)))
    assert list(env.episode_success) == [0.0] * 6
    assert list(env.episode_collision) == [0.0] * 6
    assert list(env.episode_lengths) == pytest.approx([0.2] * 6)
    # The degree of collaboration counts for successes alone.
    assert not env.episode_collaboration
    assert env.episode_success.maxlen == 1000
    # What it remembers comes with the results, and not in further transfers.
    transfers = []
    spy = lambda *tensors: transfers.append(len(tensors)) or to_host(*tensors)  # noqa: E731
    monkeypatch.setattr(harl_env, "to_host", spy)
    env.step(np.zeros((3, 2, 3)))
    assert transfers == [7 + 4]
    env.close()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"headless": False}, "^headless: no window is ever opened here"),
        ({"record_video": True}, "^record_video: .* say mapush play TEAM"),
    ],
)
def test_what_the_fork_had_and_a_training_here_has_not_is_named(wrong, said) -> None:
    with pytest.raises(ConfigError, match=said):
        MAPushEnv(wrong)


# Towards upstream


def test_upstream_gets_a_list_of_none_and_equal_spaces(monkeypatch) -> None:
    env = push(monkeypatch, UpstreamEnv)
    assert env.reset()[2] == [None] * 3
    assert env.step(np.zeros((3, 2, 3)))[5] == [None] * 3
    assert env.action_space[0] is not env.action_space[1]  # each is seeded for its agent
    env.close()


def test_upstream_reads_the_plain_state_type(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="state_type"):
        push(monkeypatch, UpstreamEnv, **{"task.state_type": "FP"})
