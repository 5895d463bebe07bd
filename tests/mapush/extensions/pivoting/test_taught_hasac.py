"""HASAC with a teacher, and the script that is one."""

# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from harl_mapush import config
from harl_mapush.collectors.collector import Identity, build
from harl_mapush.learning.off_policy.replay_buffer import Batch
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runs import checkpoint, named_files
from harl_mapush.runs.policy import load_team
from mapush import cli
from mapush.extensions.pivoting import taught_hasac
from mapush.extensions.pivoting.pressing_script import PressingScript
from mapush.extensions.pivoting.taught_hasac import TaughtHasac, TaughtHasacCfg
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from tests.support.means import mean_actions
from tests.support.off_policy_toys import go
from tests.support.toy import ToyEnv


def worlds(num_envs: int = 2, num_agents: int = 2, **task: Any) -> MultiAgentEnv:
    over = {
        "env": {"num_envs": num_envs, "num_agents": num_agents},
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "task": {"decision_period": 5, "action_scale": [1.0, 1.0, 1.0]} | task,
    }
    cfg, _ = config.resolve({}, over)
    return make_env(cfg.env, cfg.sim, cfg.task, 7)


@pytest.fixture(scope="module")
def env() -> MultiAgentEnv:
    return worlds()


@pytest.fixture(scope="module")
def script(env: MultiAgentEnv) -> PressingScript:
    return PressingScript(env.task, env.task.obs_names(0), env.decision_period, env.device)


def seen(goal: tuple[float, float], places: list[tuple[float, float]]) -> Tensor:
    """Return observations (1, 2, 10) of robots at ``places`` [m] with the heading of the box."""
    rows = []
    for robot, other in (places, places[::-1]):
        at = tensor(robot)
        vectors = (tensor(goal) - at, -at, tensor((0.0, 1.0)), tensor(other) - at)
        rows.append(torch.cat((*vectors, tensor((0.0, 1.0)))))
    return torch.stack(rows).unsqueeze(0)


def test_robots_in_their_lanes_press_straight_ahead(script: PressingScript) -> None:
    obs = seen((3.0, 0.0), [(-0.9, 0.225), (-0.9, -0.225)])
    torch.testing.assert_close(script(obs), tensor([1.0, 0.0, 0.0]).expand(1, 2, 3))


def test_robots_shift_to_the_right_of_a_goal_on_the_left(script: PressingScript) -> None:
    """The lanes move by 0.1 m for 0.1 rad; a robot walks across at 2.5 times its distance."""
    goal = (3.0 * math.cos(0.1), 3.0 * math.sin(0.1))
    actions = script(seen(goal, [(-0.9, 0.225), (-0.9, -0.225)]))
    torch.testing.assert_close(actions[..., 1], torch.full((1, 2), -0.25), atol=1e-4, rtol=0.0)


def test_robots_keep_to_their_side_where_the_goal_is_between_two(script: PressingScript) -> None:
    angle = math.radians(50.0)
    actions = script(
        seen((3.0 * math.cos(angle), 3.0 * math.sin(angle)), [(-0.9, -0.025), (-0.9, -0.475)])
    )
    assert (actions[..., 0] > 0.9).all()


def test_a_robot_at_the_corner_walks_back_and_inwards(script: PressingScript) -> None:
    actions = script(seen((3.0, 0.0), [(-0.9, 0.65), (-0.9, -0.225)]))
    assert actions[0, 0, 0] < -0.4
    assert actions[0, 0, 1] < -0.5
    assert actions[0, 1, 0] == pytest.approx(1.0)


def test_robots_on_the_far_side_walk_round_it(script: PressingScript) -> None:
    actions = script(seen((3.0, 0.0), [(1.2, 0.6), (1.2, -0.6)]))
    assert actions[0, 0, 1] > 0.5
    assert actions[0, 1, 1] < -0.5


@pytest.mark.parametrize(
    ("place", "action"),
    [
        ((-0.9, -0.125), (1.0, 0.0, -0.14)),  # at the side: straight on, turning by 0.07 rad
        ((-1.4, -0.125), (math.cos(0.3) ** 2, -0.02, -1.0)),  # in the funnel: at 0.3 rad to it
        ((-0.9, -0.725), (-1.0, -0.15, -1.0)),  # beside it: back, its tail turning to the lane
    ],
)
def test_a_robot_on_wheels_drives_where_another_walks_aside(
    env: MultiAgentEnv, monkeypatch, place: tuple[float, float], action: tuple[float, float, float]
) -> None:
    wheels = SimpleNamespace(wheels=((0.2, 0.2, 0.0),), foot_radius=0.1)
    monkeypatch.setattr(env.task, "robots", (env.scene.robots[0], wheels))
    script = PressingScript(env.task, env.task.obs_names(0), env.decision_period, env.device)
    actions = script(seen((3.0, 0.0), [(-0.9, 0.225), place]))
    torch.testing.assert_close(actions[0, 1], tensor(action), atol=1e-4, rtol=0.0)
    torch.testing.assert_close(actions[0, 0], tensor([1.0, 0.0, 0.0]), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("name", ["mirror", "turn", "numbers"])
def test_its_actions_have_the_symmetries_of_the_task(
    env: MultiAgentEnv, script: PressingScript, name: str
) -> None:
    image = getattr(env.spec.symmetries, name)
    generator = torch.Generator().manual_seed(0)
    places = 3.0 * torch.rand(200, 3, 2, generator=generator) - 1.5
    rows = [seen((3.0 * x, 2.0 * y), [a, b]) for (x, y), a, b in places.tolist()]
    obs = torch.cat(rows)

    def shown(values: Tensor, part: Any) -> Tensor:
        return part(values).roll(-image.shift, dims=1)

    actions = script(obs)
    torch.testing.assert_close(
        script(shown(obs, image.obs)), shown(actions, image.action), atol=1e-4, rtol=0.0
    )


@pytest.mark.parametrize(
    "other",
    [{"object": "cylinder"}, {"num_agents": 3}, {"shapes": "held_out", "observation": "sets"}],
)
def test_it_refuses_other_objects_and_teams(other: dict[str, Any]) -> None:
    env = worlds(1, **other)
    with pytest.raises(ConfigError, match="two robots and a square box; say --object cuboid"):
        PressingScript(env.task, (), 5, "cpu")


def test_a_collectors_team_begins_with_the_scripts_actions(
    script: PressingScript, monkeypatch
) -> None:
    monkeypatch.setattr(taught_hasac, "_TEACHER_NOISE", 0.0)
    over = {
        "env": {"num_envs": 2, "num_agents": 2},
        "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
        "task": {"decision_period": 5, "action_scale": [1.0, 1.0, 1.0]},
        "algorithm": {"name": "hasac_taught"},
        "network": {"hidden_sizes": [8]},
    }
    cfg, _ = config.resolve({}, over)
    collector = build(cfg, Identity(0, 1))
    obs, _ = collector.env.reset()
    assert torch.equal(collector.team.act(obs).actions, script(obs))
    collector.close()


def taught(env: ToyEnv, action: float, **settings: Any) -> TaughtHasac:
    torch.manual_seed(0)
    spec = env.spec._replace(teacher=lambda obs: torch.full((*obs.shape[:2], 2), action))
    cfg = TaughtHasacCfg(
        warmup=64, batch_size=32, update_ratio=1 / 8, learning_rate=3e-3, **settings
    )
    return TaughtHasac(cfg, NetworkCfg((16,)), spec)


def test_a_teachers_actions_have_noise_while_a_team_warms_up() -> None:
    env = ToyEnv(500)
    obs, _ = env.reset()
    actions = taught(env, 0.1).act_untrained(obs)
    assert float(actions.mean()) == pytest.approx(0.1, abs=0.03)
    assert float(actions.std()) == pytest.approx(0.2, abs=0.02)


@pytest.mark.slow
def test_a_team_imitates_its_teacher_less_and_less() -> None:
    env = ToyEnv(8)
    team = taught(env, 0.6, teacher_weight=1e3)
    experience = team.make_experience(1, env.num_envs)
    obs, state = env.reset()
    experience.start(obs, state)
    env.seen = obs  # type: ignore[attr-defined]
    _, metrics = go(team, experience, env, 200)
    actions, _ = mean_actions(team, obs)
    torch.testing.assert_close(actions, torch.full_like(actions, 0.6), atol=0.15, rtol=0.0)
    assert metrics["agent0/imitation_loss"] > 0.0

    experience.num_new = 8
    assert team.update(experience, progress=1.0)["agent0/imitation_loss"] == 0.0


def test_a_trained_team_is_a_teacher() -> None:
    """`pretrained:any` observes sets, which another size of network reads as well."""
    velocities = ["own_velocity", "object_velocity"]
    env = worlds(2, observation="sets", shapes="held_out", more_observations=velocities)
    cfg = TaughtHasacCfg(teacher="pretrained:any")
    obs, _ = env.reset()
    spec = cfg.team_spec(env)
    assert spec.teacher is not None
    team = load_team(checkpoint.resolve("pretrained:any"), env)
    assert torch.equal(spec.teacher(obs), team(obs))
    student = TaughtHasac(cfg, NetworkCfg((16,)), spec)
    assert student.act_untrained(obs).shape == (2, 2, 3)


def test_robots_with_senses_have_a_teacher_with_exact_observations() -> None:
    env = worlds(
        2,
        observation="sets",
        replaced_observations={"others": "others_and_age"},
        senses={"name": "onboard"},
        more_state=["object_velocity"],
    )
    cfg = TaughtHasacCfg(teacher="pretrained:any")
    obs, state = env.reset()
    spec = cfg.team_spec(env)
    assert spec.teacher is not None
    assert spec.teacher_obs is not None
    exact = spec.teacher_obs(state.unsqueeze(1))
    assert exact.shape[2] != obs.shape[2]
    assert spec.teacher(exact).abs().max() > 0.0
    student = TaughtHasac(cfg, NetworkCfg((16,)), spec)
    assert student.act_untrained(obs).shape == (2, 2, 3)

    # Nobody has seen the object: nobody imitates. Then one robot has.
    shape = (2, 2, 3)
    ones = torch.ones(2, 2)
    critic = state.unsqueeze(1)
    batch = Batch(obs, critic, torch.zeros(shape), ones, ones, ones, obs, critic)
    assert float(student.further_losses(batch)["agent0/imitation_loss"].detach()) == 0.0
    seen = obs.clone()
    seen[0, 1, 3:5] = torch.tensor([1.0, 0.5])
    loss = student.further_losses(batch._replace(obs=seen))["agent0/imitation_loss"]
    error = (student.actors[0](seen) - spec.teacher(exact)).square().mean(dim=-1)
    torch.testing.assert_close(loss, 20.0 * error[0, 1])


def test_a_team_imitates_what_its_teacher_observes() -> None:
    env = ToyEnv(8)
    obs, state = env.reset()
    team = taught(env, 0.0, teacher_weight=1.0)
    team.spec = team.spec._replace(teacher=lambda seen: seen, teacher_obs=lambda state: state)
    values = torch.full((8, 2, 2), 0.5)
    active = torch.ones(8, 2)
    batch = Batch(obs, values, values, active, active, active, obs, values)
    actions, _ = mean_actions(team, obs)
    expected = (actions - 0.5).square().mean()
    torch.testing.assert_close(team.further_losses(batch)["agent0/imitation_loss"], expected)


def test_a_team_with_other_observations_is_no_teacher(env: MultiAgentEnv) -> None:
    with pytest.raises(ConfigError, match="algorithm.teacher: .*does not fit this task"):
        TaughtHasacCfg(teacher="pretrained:any").team_spec(env)


def test_a_team_with_a_memory_is_no_teacher(
    env: MultiAgentEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recurrent(folder: Any, env: Any) -> Any:
        team: Any = load_team(folder, env)
        team.is_recurrent = True
        return team

    monkeypatch.setattr("mapush.extensions.pivoting.taught_hasac.load_team", recurrent)
    with pytest.raises(ConfigError, match="algorithm.teacher: pretrained:cuboid is recurrent or"):
        TaughtHasacCfg(teacher="pretrained:cuboid").team_spec(env)


@pytest.mark.parametrize("name", ["team", "pretrained:any", ""])
def test_a_run_names_its_teacher_for_any_working_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cfg, _ = config.resolve({}, {"algorithm": {"name": "hasac_taught", "teacher": name}})
    expected = str(tmp_path / "team") if name == "team" else name
    assert named_files.absolute(cfg).algorithm.teacher == expected


def test_it_refuses_updates_one_after_another() -> None:
    with pytest.raises(ValueError, match="set algorithm.all_at_once=true"):
        taught(ToyEnv(2), 0.0, all_at_once=False)


def test_the_former_command_of_distillation_names_the_algorithm(capsys) -> None:
    assert cli.main(["distil", "pretrained:any", "taught"]) == 2
    assert "distil is now: mapush train --algo hasac_taught" in capsys.readouterr().err
