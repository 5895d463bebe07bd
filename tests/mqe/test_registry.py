"""Every object and team size makes an environment for the shipped gait."""

from typing import cast

import pytest
import torch

from harl_mapush import config
from mqe import host_memory
from mqe.config import ConfigError
from mqe.registry import EnvCfg, SimCfg, make_env, resolve_sim, slow_choice
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks.push import PushCfg
from mqe.tasks.push.rewards import REWARDS
from mqe.world.objects import OBJECTS

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
NOTHING = dict.fromkeys(REWARDS, 0.0)


# Every object with a team, and one of them with each size of a team
QUICK = ("cuboid", "tblock", "cylinder", "beam")
TEAMS = [
    pytest.param(name, 2, marks=[] if name in QUICK else pytest.mark.slow)
    for name in sorted(OBJECTS)
]


@pytest.mark.parametrize(
    ("name", "num_agents"), [*TEAMS, ("tblock", 1), ("tblock", 3), ("tblock", 4)]
)
def test_teams_walk_around_every_object(name, num_agents):
    env = make_env(
        EnvCfg(num_envs=3, num_agents=num_agents),
        SIM,
        PushCfg(object=name, decision_period=5),
        seed=1,
    )
    obs, state = env.reset()
    assert obs.shape == (3, num_agents, 2 + 4 * num_agents)
    assert state.shape == (3, 3 + 7 * num_agents)
    start = env.state.robot_pos.clone()
    for _ in range(8):
        step = env.step(torch.ones(3, num_agents, 3))
    assert step.valid.all()
    assert not step.done.any()
    assert torch.isfinite(step.obs).all()
    # 0.8 s at 0.7 m/s, turning.
    assert float((env.state.robot_pos - start)[..., :2].norm(dim=-1).min()) > 0.1
    env.close()
    env.close()  # a second time does nothing


def test_an_action_that_is_no_number_breaks_its_world_for_one_decision():
    # Its gait remembers its last action.
    env = make_env(EnvCfg(num_envs=2, num_agents=2), SIM, PushCfg(), seed=1)
    env.reset()
    actions = torch.zeros(2, 2, 3)
    actions[1, 0, 2] = torch.nan
    assert env.step(actions).valid.tolist() == [True, False]
    assert env.step(torch.zeros(2, 2, 3)).valid.all()
    assert env.sim.data.ctrl.isfinite().all()
    env.close()


def test_the_goal_is_drawn_as_large_as_it_is():
    env = make_env(EnvCfg(num_envs=1), SIM, PushCfg(success_radius=0.6), seed=0)
    assert env.sim.model.site("goal").size[0] == 0.6
    env.close()


def test_the_team_is_the_objects_own_unless_set_otherwise():
    assert make_env(EnvCfg(num_envs=1), SIM, PushCfg(object="cylinder"), seed=1).num_agents == 3


@pytest.mark.parametrize(
    ("cfg", "said"),
    [
        (SimCfg(device="tpu"), "tpu.*cuda:K"),
        (SimCfg(device="cuda:99"), "cuda:99"),
        (SimCfg(name="mujoco", device="cuda:0"), "cuda"),
    ],
)
def test_a_device_that_is_not_there_is_refused(cfg, said):
    with pytest.raises(ConfigError, match=said):
        resolve_sim(cfg)


def test_a_gpu_that_stays_idle_without_the_extra_is_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert resolve_sim(SimCfg()) == ("mujoco", torch.device("cpu"))
    advice = slow_choice(SimCfg())
    assert advice is not None
    assert "pip install '.[gpu]'" in advice
    assert slow_choice(SimCfg(device="cpu")) is slow_choice(SimCfg(name="mujoco")) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert slow_choice(SimCfg()) is None
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert slow_choice(SimCfg()) is None


def test_a_gpus_simulator_on_a_cpu_is_reported():
    pytest.importorskip("mujoco_warp")
    advice = slow_choice(SimCfg(name="warp", device="cpu"))
    assert advice is not None
    assert "--sim auto" in advice
    with pytest.raises(ConfigError, match="^sim.device: no cuda:99 here .* set it to cpu or auto"):
        resolve_sim(SimCfg(name="warp", device="cuda:99"))


@pytest.mark.parametrize(
    ("env", "sim", "task", "said"),
    [
        (EnvCfg(num_envs=2, num_agents=0), SIM, {}, "env.num_agents: must be"),
        (EnvCfg(num_envs=2), SimCfg(name="mujocoo"), {}, "sim.name: .* did you mean mujoco"),
        (EnvCfg(num_envs=2), SIM, {"object": "ball"}, "task.object: .*allowed: cuboid"),
        (EnvCfg(num_envs=2), SIM, {"spawn": "seperated"}, "task.spawn: .* did you mean separated"),
        (EnvCfg(num_envs=2), SIM, {"state_type": "ep"}, "task.state_type: .* did you mean EP"),
        (EnvCfg(num_envs=2), SIM, {"action_scale": (5.0, 5.0, 5.0)}, "task.action_scale: must be"),
        (EnvCfg(num_envs=2), SIM, {"weights": NOTHING}, "task.weights: every reward term"),
    ],
)
def test_settings_that_were_made_by_hand_are_checked_as_those_that_are_read(env, sim, task, said):
    with pytest.raises(ConfigError, match=said):
        make_env(env, sim, PushCfg(**task), seed=0)


def test_the_friction_of_every_world_lies_in_the_objects_range():
    env = make_env(EnvCfg(num_envs=64), SIM, PushCfg(object="tblock"), seed=3)
    batch = cast(MujocoBatchSimulator, env.sim)._batch
    pair = torch.as_tensor(batch.expanded("pair_friction"))[:, 0, 0]
    assert 0.35 <= float(pair.min()) < 0.36  # (0.6 + 0.1) / 2
    assert 0.39 < float(pair.max()) <= 0.40  # (0.7 + 0.1) / 2
    env.close()


@pytest.mark.parametrize(
    "key",
    [
        "sim.num_threads",
        "task.episode_length_s",
        "network.num_recurrent_layers",
        "runner.num_steps",
    ],
)
def test_numbers_that_no_machine_can_serve_are_refused(key):
    section, name = key.split(".")
    with pytest.raises(ConfigError, match=rf"{key}: must be .*at most \d+(\.0)?, not 1000000000"):
        config.resolve({}, {section: {name: 10**9}})


def test_worlds_that_do_not_fit_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_memory, "host_memory", lambda: 1000)
    with pytest.raises(ConfigError, match="env.num_envs=7 takes .* GiB, but cpu has"):
        make_env(EnvCfg(num_envs=7), SimCfg("mujoco", "cpu"), PushCfg(), 1)
