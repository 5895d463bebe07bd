"""The velocity task: rewards, starts, the mirror, and a gait's way from training to a policy."""

from __future__ import annotations

import math
import re
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import gymnasium
import pytest
import torch
import yaml

from harl_mapush import config, train
from harl_mapush.config import user_modules
from harl_mapush.learning.networks import Actor
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import make_team
from mapush import gymnasium_ids
from mapush.extensions.gait.features import pair_offset
from mapush.extensions.gait.gait_mirror import mirrored_action
from mapush.extensions.gait.rewards import REWARDS, excess_depth
from mapush.extensions.gait.settings import VelocityCfg
from mapush.extensions.gait.starts import start_poses
from mapush.extensions.gait.task import GET_UP_TIME, VelocityTask
from mqe.config import ConfigError
from mqe.controllers.frozen_policy import describe_policy
from mqe.controllers.gait import load_gait
from mqe.controllers.trot import GAIT_OBS_SIZE, GaitMemory, Trot, is_moving
from mqe.pretrained import pretrained_folder
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tensor_files import read_tensors
from mqe.viewer.player import Player
from mqe.world.collapse import REST_TIME
from mqe.world.robots import NUM_JOINTS, ROBOTS
from mqe.world.scene import STEP_DT, build_scene, read_state
from mqe.world.streams import Streams
from tests.support.operations import operations_of_a_decision
from tests.support.registries import restored_registries
from tests.support.scenes import DEFAULT_JOINT_POS, GO1, make_scene_state, team
from tests.support.tiny_runs import OF_ANY_ALGORITHM, TINY

CPU = torch.device("cpu")
SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)
# A copy that may be changed, as releases up to 0.2 wrote it.
UNDESCRIBED = shutil.ignore_patterns("manifest.json", "policy.yaml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A checkpoint of an untrained gait."""
    run = tmp_path_factory.mktemp("trained") / "run"
    words = ["--task", "go1_velocity", "--num_env_steps", "1", "--out", str(run)]
    assert train.main([*words, *TINY]) == 0
    return checkpoint.resolve(run)


@pytest.mark.parametrize("mean_bound", [None, 0.7])
def test_the_frozen_policy_is_the_actor_that_was_trained(tmp_path, mean_bound):
    """The controller's network and the checkpoint's actor give equal actions."""
    folder = tmp_path / "gait"
    shutil.copytree(pretrained_folder("go1_velocity"), folder, ignore=UNDESCRIBED)
    settings = checkpoint.read_config(folder)
    settings["network"]["mean_bound"] = mean_bound
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    cfg, _ = config.resolve(settings, {})
    env = make_env(EnvCfg(num_envs=5), SIM, VelocityCfg(), seed=0)
    obs = 3.0 * torch.randn(5, 1, GAIT_OBS_SIZE)
    actions = load_gait(str(folder), CPU)(obs)
    actor = Actor(cfg.network, GAIT_OBS_SIZE, 12)
    actor.load_state_dict(read_tensors(folder / "actor_agent0.pt"))
    torch.testing.assert_close(actions, actor(obs))
    torch.testing.assert_close(actions, make_team(folder, env)(obs))
    assert bool((actions.abs() <= 0.7).all()) == (mean_bound is not None)


def test_a_gait_with_a_memory_is_refused(tmp_path):
    folder = tmp_path / "gait"
    words = ["--task", "go1_velocity", "--device", "cpu", "--num_envs", "2", "--num_env_steps", "4"]
    words += ["--set", "network.use_recurrent_policy=true", "--set", "network.chunk_length=0"]
    words += ["--set", "runner.num_steps=2", "--set", "algorithm.num_minibatches=1"]
    assert train.main([*words, "--out", str(folder)]) == 0
    with pytest.raises(ConfigError, match="use_recurrent_policy; a gait has no memory"):
        load_gait(str(checkpoint.resolve(folder)), CPU)


def test_a_checkpoint_of_a_gait_has_a_description_and_one_without_is_still_read(trained, tmp_path):
    described = describe_policy(str(trained))
    assert described.command
    former = tmp_path / "former"
    shutil.copytree(trained, former, ignore=UNDESCRIBED)
    assert describe_policy(str(former)) == replace(described, command="unknown")


def spoil_gait(folder, how: str) -> None:
    actor = folder / "actor_agent0.pt"
    config = folder / "config.yaml"
    weights = torch.load(actor, weights_only=True)
    name = "act.action_out.fc_mean.weight"
    changed = {
        "nan": {**weights, name: torch.full_like(weights[name], torch.nan)},
        "shape": {**weights, name: weights[name][:, 1:].contiguous()},
        "double": {**weights, name: weights[name].double()},
        "missing": {key: value for key, value in weights.items() if key != name},
        "list": [1],
    }
    if how in changed:
        torch.save(changed[how], actor)
    else:
        config.write_text(re.sub("activation: .*", "activation: swish", config.read_text()))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "not finite"),
        ("shape", r"has shape .12, 127. .* needs .12, 128."),
        ("double", "type torch.float64, but its description needs .* torch.float32"),
        ("missing", "weights lack act.action_out.fc_mean.weight"),
        ("list", "damaged"),
        ("activation", "swish"),
    ],
)
def test_a_damaged_gait_of_a_former_release_is_refused(how: str, said: str, tmp_path):
    folder = tmp_path / "gait"
    shutil.copytree(pretrained_folder("go1_velocity"), folder, ignore=UNDESCRIBED)
    spoil_gait(folder, how)
    with pytest.raises(ConfigError, match=said):
        load_gait(str(folder), CPU)


def gait_task(num_envs: int = 1) -> VelocityTask:
    return VelocityTask(VelocityCfg(), num_envs, team(1), Streams(0, num_envs, "cpu"))


def test_the_velocity_task_rewards_following_and_ends_at_a_fall():
    env = make_env(EnvCfg(num_envs=3), SIM, VelocityCfg(max_kick=0.0, max_force=0.0), seed=0)
    obs, critic_state = env.reset()
    assert obs.shape == (3, 1, GAIT_OBS_SIZE)
    assert critic_state.shape == (3, env.spec.state_size)
    env.sim.data.qpos[1, 3:7] = torch.tensor([0.7, 0.714, 0.0, 0.0])  # on its side
    step = env.step(torch.zeros(3, 1, 12))
    assert step.terminated[:, 0].tolist() == [False, True, False]
    assert step.info["reward/fall"][1] == pytest.approx(-10.0)
    assert (step.info["reward/alive"] == 0.5).all()


def test_the_shipped_gait_was_trained_for_the_default_task():
    settings = checkpoint.read_config(pretrained_folder("go1_velocity"))["task"]
    weights = {name: term.weight for name, term in REWARDS.items() if term.weight}
    assert settings.pop("weights") == weights
    # Constants of the commands now.
    assert (settings.pop("standing_share"), settings.pop("restless_share")) == (0.12, 0.15)
    default = asdict(VelocityCfg()) | {"max_command": [0.65] * 3, "floor_friction": [0.3, 0.8]}
    # But for the floor, of which training sees more.
    assert settings == {name: default[name] for name in settings}


def test_terms_of_the_velocity_task_by_hand():
    """Legs folded by 0.8 rad under their hips, feet 25 mm above the floor, motors still at the
    stance.
    """
    task = gait_task()
    task.command(torch.zeros(1, 1, 12))  # nothing is commanded: the targets are the stance
    task.steer((0.5, 0.0, 0.2))
    task.begin(torch.tensor([True]))
    joints = [0.0, 0.8, -1.6] * 4
    height = 0.025 + GO1.foot_radius + sum(GO1.link_lengths) * math.cos(0.8)
    state = make_scene_state(
        torch.tensor([[[0.0, 0.0, height]]]),
        joint_pos=torch.tensor(joints),
        joint_vel=torch.tensor(0.5),
        robot_linvel=torch.tensor([0.11, 0.0, 0.3]),
        robot_angvel_b=torch.tensor([0.0, 0.0, 0.005]),
    )
    outcome = task.evaluate(state, state)
    terms = dict(zip(task.names.rewards, outcome.rewards.flatten().tolist(), strict=True))
    # Errors are 0.39 m/s and 0.195 rad/s; the mean has come a twentieth of the way from 0 to the
    # velocity.
    assert terms["track_velocity"] == pytest.approx(1.5 * math.exp(-1.0), rel=1e-5)
    assert terms["track_yaw_rate"] == pytest.approx(0.5 * math.exp(-0.25), rel=1e-5)
    assert terms["track_mean_velocity"] == pytest.approx(4.0 * math.exp(-4.945), rel=1e-5)
    assert terms["track_mean_yaw_rate"] == pytest.approx(2.0 * math.exp(-1.9975), rel=1e-5)
    assert outcome.measures.tolist() == [pytest.approx([0.4945, 0.19975])]
    assert terms["feet"] == pytest.approx(4.0 * math.exp(-1.0), rel=1e-4)
    assert terms["height"] == pytest.approx(-300.0 * (height - 0.28) ** 2, rel=1e-4)
    assert terms["bounce"] == pytest.approx(-0.09)
    offsets = [angle - stance for angle, stance in zip(joints, DEFAULT_JOINT_POS, strict=True)]
    assert terms["hips"] == pytest.approx(
        -0.3 * sum(offset**2 for offset in offsets[::3]), rel=1e-5
    )
    torques = [-19.0 * offset - 0.8 * 0.5 for offset in offsets]
    assert terms["torque"] == pytest.approx(-2e-4 * sum(torque**2 for torque in torques), rel=1e-5)
    for name in ("tilt", "sway", "sink", "stance", "rest", "jerk", "action_rate", "fall"):
        assert terms[name] == 0.0, name


def test_episodes_of_the_velocity_task_start_in_poses_from_all_over_the_table():
    task = gait_task(64)
    table = start_poses(team(1)).joint_pos
    joints = task.layout(torch.zeros(64, dtype=torch.int64)).joint_pos
    rows = (table == joints).all(dim=-1).nonzero()[:, 1]
    assert len(rows) == 64
    assert len(rows.unique()) > 60
    assert int(rows.min()) < 0.1 * len(table)
    assert int(rows.max()) > 0.9 * len(table)


def test_feet_cost_where_they_trail_their_hips_and_where_they_sink_in():
    forward = torch.tensor([[0.06, -0.02, -0.10, 0.04]])  # FL, FR, RL, RR
    assert pair_offset(forward)[0].tolist() == pytest.approx([0.02, -0.03])
    clearance = torch.tensor([[0.05, -0.001, -0.005, -0.010]])
    assert excess_depth(clearance).tolist() == pytest.approx([0.002 + 0.007])


@pytest.mark.slow
def test_a_gait_that_stays_down_ends_but_one_that_starts_down_has_time_to_get_up():
    """Robot 0 stays up at first, robot 1 starts down."""
    env = make_env(EnvCfg(num_envs=2), SIM, VelocityCfg(max_kick=0.0, max_force=0.0), seed=0)
    env.reset()
    steps_down = torch.zeros(2)
    has_ended = torch.zeros(2, dtype=torch.bool)
    for k in range(300):
        env.sim.data.qpos[:, 2] = 0.35
        env.sim.data.qpos[:, 3:7] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        env.sim.data.qpos[:, 7:] = torch.tensor(DEFAULT_JOINT_POS)
        env.sim.data.qvel[:] = 0.0
        is_down = torch.tensor([k > GET_UP_TIME / STEP_DT, True])
        env.sim.data.qpos[is_down, 2] = 0.06  # the trunk rests
        steps_down += is_down & ~has_ended
        has_ended |= env.step(torch.zeros(2, 1, 12)).terminated[:, 0]
        if bool(has_ended.all()):
            break
    expected = [REST_TIME, GET_UP_TIME + REST_TIME]
    assert (steps_down * STEP_DT).tolist() == pytest.approx(expected, abs=0.03)
    env.close()


def test_the_mirror_swaps_left_and_right_and_undoes_itself():
    image = gait_task().symmetries.mirror
    assert image is not None
    see = image.obs
    act = image.action
    obs = torch.randn(5, GAIT_OBS_SIZE)
    action = torch.randn(5, 12)
    assert torch.equal(see(see(obs)), obs)
    assert torch.equal(act(act(action)), action)
    # A robot that rolls and goes to the left is one that rolls and goes to the right in the mirror.
    names = {
        "gravity": 0,
        "turning": 3,
        "command": 6,
        "joints": 9,
        "velocities": 21,
        "actions": 33,
        "clock": 57,
    }
    mirrored = see(torch.arange(1.0, GAIT_OBS_SIZE + 1)).tolist()
    assert mirrored[: names["joints"]] == [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0, -9.0]
    # FR's joints, then FL's, hips negated.
    assert mirrored[9:15] == [
        -13.0,
        14.0,
        15.0,
        -10.0,
        11.0,
        12.0,
    ]
    assert mirrored[names["clock"] :] == [-58.0, -59.0]


def test_mirrored_states_give_mirrored_observations():
    """In a scene reflected in the plane y = 0, the gait's observation is the mirrored original."""
    scene = build_scene(1, None)
    env = make_env(EnvCfg(num_envs=2), SIM, VelocityCfg(), seed=0)
    env.reset()
    pose = torch.tensor([0.0, 0.0, 0.3, 0.97, 0.13, 0.11, 0.17], dtype=torch.float64)
    pose[3:] /= pose[3:].norm()
    joints = torch.rand(12).double() - 0.5
    velocity = torch.randn(18).double()
    act = mirrored_action(CPU)
    flip = torch.tensor([1.0, -1.0, 1.0]).double()
    env.sim.data.qpos[0] = torch.cat((pose, joints))
    env.sim.data.qvel[0] = velocity
    env.sim.data.qpos[1, :3] = pose[:3] * flip
    env.sim.data.qpos[1, 3:7] = pose[3:] * torch.tensor([1.0, -1.0, 1.0, -1.0])
    env.sim.data.qpos[1, 7:] = act(joints)
    env.sim.data.qvel[1, 6:] = act(velocity[6:])
    env.sim.data.qvel[1, :3] = velocity[:3] * flip
    env.sim.data.qvel[1, 3:6] = velocity[3:6] * -flip
    state = read_state(env.sim, scene)
    command = torch.tensor([[[0.3, 0.2, -0.1]], [[0.3, -0.2, 0.1]]])
    memory = GaitMemory(torch.zeros(2, 1, GaitMemory.SIZE))
    memory.phase[1] = 0.5
    obs = Trot(team(1)).observe(state, command, is_moving(command), memory)
    image = gait_task().symmetries.mirror
    assert image is not None
    torch.testing.assert_close(image.obs(obs[0]), obs[1], atol=1e-5, rtol=0.0)


def test_a_gait_is_driven_by_hand() -> None:
    env = make_env(EnvCfg(num_envs=1), SIM, VelocityCfg(), seed=1)
    player = Player(env, {"zero": lambda: lambda _: torch.zeros(1, 1, NUM_JOINTS)}, None, 1)
    player.controls.command = (0.3, -0.2, 0.1)
    seen = []

    def show(data) -> bool:
        seen.append(env.task._shown.command[0, 0].tolist())
        return len(seen) < 5

    player.run(show)
    env.close()
    assert player.steer is not None
    assert seen[1:] == [pytest.approx([0.3, -0.2, 0.1])] * 4


@pytest.mark.parametrize("name", ROBOTS)
def test_the_velocity_task_trains_every_robot(name: str) -> None:
    env = make_env(EnvCfg(num_envs=4, robots=name), SIM, VelocityCfg(), seed=0)
    env.reset()
    step = env.step(torch.zeros(4, 1, NUM_JOINTS))
    assert step.valid.all()
    assert step.reward.isfinite().all()
    env.close()


def test_a_robot_of_ones_own_is_trained(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(user_modules, "IMPORTED", [])
    Path("own_robot.py").write_text(
        "import dataclasses\nimport mapush\nfrom mqe.world.robots import ROBOTS\n"
        "mapush.register_robot('heavy', dataclasses.replace(ROBOTS['go2'], stiffness=30.0))\n"
    )
    words = ["--import", "own_robot", "--task", "go1_velocity", "--set", "env.robots=heavy"]
    sizes = ["--num_env_steps", "16", "--device", "cpu", *TINY]
    with restored_registries():
        assert train.main([*words, *sizes, "--out", "run"]) == 0
    sys.modules.pop("own_robot", None)
    assert checkpoint.read_config(checkpoint.resolve("run"))["env"]["robots"] == "heavy"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"episode_length_s": 1e-9}, r"task\.episode_length_s: must be at least 0\.02"),
        ({"floor_friction": (2.0, 1.0)}, r"\[2\.0, 1\.0\] must be a range in ascending order"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VelocityCfg(**wrong)


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (EnvCfg(1, num_agents=2), r"num_agents.*2"),
        (EnvCfg(2, robots=("go1", "go2")), "2 robots for a team of 1"),
    ],
)
def test_a_gait_is_learned_by_one_robot(env: EnvCfg, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_env(env, SIM, VelocityCfg(), seed=1)


def test_a_decision_is_few_operations() -> None:
    env = make_env(EnvCfg(4), SIM, VelocityCfg(), seed=0)
    assert 0.8 * 460 < operations_of_a_decision(env) <= 460


def test_gymnasium_knows_the_task() -> None:
    assert "mapush/Velocity-v0" in gymnasium_ids.TASKS
    settings = {"sim.device": "cpu", "sim.num_threads": 1, "task.episode_length_s": 0.2}
    worlds = gymnasium.make_vec("mapush/Velocity-v0", num_envs=3, seed=1, settings=settings)
    assert worlds.reset()[0].shape == (3, GAIT_OBS_SIZE)
    worlds.close()


def test_presets_and_worlds_are_told_in_words() -> None:
    summary = config.preset_summaries()["go1_velocity"]
    assert summary == "The gait of a Go1: one robot follows velocity commands"
    cfg = evaluation_worlds.settings(checkpoint.resolve("pretrained:go1_velocity"), {})
    assert evaluation_worlds.in_words(cfg, None) == "worlds: 1 robot\n"


def test_a_team_does_not_start_from_a_gait(tmp_path, capsys) -> None:
    words = [*OF_ANY_ALGORITHM, "--init_from", "pretrained:go1_velocity"]
    assert train.main([*words, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert (
        "pretrained:go1_velocity is a policy of go1_velocity, and this run trains go1push_mid; "
        "start from a checkpoint of go1push_mid, or use this gait for the robots: "
        "--set task.gait=pretrained:go1_velocity"
    ) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
