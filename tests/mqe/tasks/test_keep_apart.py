"""A command limit keeps the team's robots apart."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, tensor

from harl_mapush.runs import init_from
from mapush.export.exported_networks import ExportedActor
from mqe.config import ConfigError
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg, PushTask
from mqe.tasks.push.keep_apart import BACK_OFF, CommandLimit, keep_apart, rate_of
from mqe.world.randomization import RandomizationCfg
from mqe.world.state import SceneState
from tests.support.pushing import make_state, make_task

AHEAD = tensor([[[0.5, 0.0, 0.3]]])
RATE = 5.0  # [1/s]


@pytest.mark.parametrize(
    "other, limited",
    [
        ((0.36, 0.0), (RATE * 0.06, 0.0)),  # ahead: as fast as the rest of the distance allows
        ((0.28, 0.0), (-RATE * 0.02, 0.0)),  # nearer than the distance: back off
        ((0.2, 0.0), (-BACK_OFF, 0.0)),  # much nearer: likewise, slowly
        ((0.0, 0.36), (0.5, 0.0)),  # at the side: walk past it
        ((-0.2, 0.0), (0.5, 0.0)),  # behind: walk away
        ((2.0, 0.0), (0.5, 0.0)),  # far away
    ],
)
def test_a_robot_approaches_no_faster_than_it_can_stop(other, limited) -> None:
    others = tensor([[[other]]])
    command = keep_apart(AHEAD, others, None, 0.3, RATE)
    torch.testing.assert_close(command, tensor([[[*limited, 0.3]]]))
    nobody = torch.zeros(1, 1, 1, dtype=torch.bool)
    assert torch.equal(keep_apart(AHEAD, others, nobody, 0.3, RATE), AHEAD)


def test_a_robot_goes_round_one_that_is_in_its_way() -> None:
    ahead_and_left = tensor([0.4, 0.3, 0.0])
    command = keep_apart(ahead_and_left, tensor([[0.3, 0.0]]), None, 0.3, RATE)
    torch.testing.assert_close(command, tensor([0.0, 0.3, 0.0]))


def test_limits_hold_in_a_crowd_where_nobody_is_too_near_and_no_command_gets_larger() -> None:
    torch.manual_seed(0)
    others = 0.8 * torch.randn(4000, 7, 2)
    others *= (0.3 / others.norm(dim=-1, keepdim=True)).clamp(min=1.0)  # nobody is too near
    velocity = 0.7 * torch.randn(4000, 3)
    is_there = torch.rand(4000, 7) < 0.8
    command = keep_apart(velocity, others, is_there, 0.3, RATE)
    gap = others.norm(dim=-1)
    approach = (others / gap.unsqueeze(-1) * command[:, None, :2]).sum(dim=-1)
    excess = approach - RATE * (gap - 0.3).clamp(min=0.0)
    worst = excess.masked_fill(~is_there, 0.0).amax(dim=1)
    assert float(worst.quantile(0.99)) < 0.02
    speed = velocity[:, :2].norm(dim=1)
    limited = command[:, :2].norm(dim=1)
    assert bool((limited <= speed + 1e-5).all())
    assert float((limited > 0.5 * speed).float().mean()) > 0.5
    assert torch.equal(command[:, 2], velocity[:, 2])

    # Neither the order of the others nor left and right matter.
    order = torch.randperm(7)
    again = keep_apart(velocity, others[:, order], is_there[:, order], 0.3, RATE)
    torch.testing.assert_close(again, command, rtol=0.0, atol=1e-5)
    mirror = tensor([1.0, -1.0, -1.0])
    mirrored = keep_apart(velocity * mirror, others * mirror[:2], is_there, 0.3, RATE)
    torch.testing.assert_close(mirrored, command * mirror, rtol=0.0, atol=1e-5)


def test_a_robot_that_is_told_to_stand_stands_between_any_others() -> None:
    near = tensor([[0.25, 0.0], [0.0, 0.1]])
    assert torch.equal(keep_apart(torch.zeros(3), near, None, 0.3, RATE), torch.zeros(3))


def test_a_robot_in_the_middle_of_two_goes_to_neither() -> None:
    turning = tensor([0.0, 0.0, 0.1])
    between = tensor([[0.25, 0.0], [-0.25, 0.0]])
    torch.testing.assert_close(keep_apart(turning, between, None, 0.3, RATE), turning)


def test_long_decisions_limit_earlier() -> None:
    assert [rate_of(period) for period in (1, 5, 10, 50)] == [5.0, 5.0, 2.5, 0.5]


def test_a_robot_without_others_walks_as_it_is_told() -> None:
    assert torch.equal(keep_apart(AHEAD, torch.zeros(1, 1, 0, 2), None, 0.3, RATE), AHEAD)


def limited(task: PushTask, state: SceneState, actions: Tensor) -> Tensor:
    """Return the velocity commands for ``actions`` at what the robots observe."""
    obs, _ = task.observe(state, task.memory)
    task.command(task.limit(actions, obs))
    return task._controller.velocity  # type: ignore[attr-defined]


@pytest.mark.parametrize(("period", "rate"), [(5, 5.0), (20, 1.25)])
def test_every_robot_limits_its_own_command_in_its_own_frame(period: int, rate: float) -> None:
    task = make_task(keep_apart=0.4, action_scale=(0.5, 0.5, 0.5), decision_period=period)
    # Robot 0 looks along y at robot 1, which looks back.
    half_pi = 0.5 * torch.pi
    state = make_state([[1.0, 1.0], [1.0, 1.46]], [half_pi, -half_pi], [4.0, 4.0], 0.0, [6.0, 4.0])
    held = limited(task, state, tensor([[[1.0, 0.0, 0.2], [0.0, 1.0, 0.0]]]))
    torch.testing.assert_close(held, tensor([[[rate * 0.06, 0.0, 0.1], [0.0, 0.5, 0.0]]]))


def test_robots_that_take_no_part_or_are_not_observed_are_not_heeded() -> None:
    task = make_task(keep_apart=0.4, observation="sets")
    state = make_state([[1.0, 1.0], [1.4, 1.0]], [0.0, 0.0], [4.0, 4.0], 0.0, [6.0, 4.0])
    ahead = tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]])
    assert float(limited(task, state, ahead)[0, 0, 0]) == pytest.approx(0.0, abs=1e-5)
    assert task._roster is not None
    for seen in (task._roster.takes_part[0, 1], task._roster.observes[0, 0, 1]):
        seen.zero_()
        assert float(limited(task, state, ahead)[0, 0, 0]) == 0.5
        seen.fill_(1.0)


class Constant(torch.nn.Module):
    """An actor that always takes one action."""

    memory_size = 0

    def __init__(self, action: Tensor) -> None:
        super().__init__()
        self.action = action

    def forward(self, obs: Tensor) -> Tensor:
        return self.action.expand(len(obs), -1)


@pytest.mark.parametrize("observation", ["sincos", "sets"])
def test_environment_and_exported_actor_limit_by_the_same_noisy_places(observation: str) -> None:
    # Episodes of three decisions: the fourth follows from the first observation of the next one.
    cfg = PushCfg(
        keep_apart=1.2,
        decision_period=5,
        spawn="separated",
        observation=observation,
        episode_length_s=0.3,
    )
    noisy = RandomizationCfg(observation_noise=0.05)
    worlds = EnvCfg(num_envs=4, num_agents=3, randomize=noisy)
    env = make_env(worlds, SimCfg("mujoco", "cpu", 1), cfg, 0)
    action = tensor([1.0, 0.6, -0.3])
    limit = CommandLimit(env.task.obs_names(0), 1.2, 5)
    actor = ExportedActor(Constant(action), cfg.action_scale, limit)
    obs, _ = env.reset()
    was_limited = False
    for _ in range(8):
        (command,) = actor(obs.flatten(0, 1))
        step = env.step(action.expand(4, 3, 3))
        obs = step.obs
        if bool(step.truncated.any()):
            continue  # the next episode has no command yet
        held = env.task.state_dict()["controller"]["command"].flatten(0, 1)
        torch.testing.assert_close(held, command)
        was_limited |= bool(((command - 0.5 * action).abs() > 0.05).any())
    assert was_limited
    env.close()


def test_robots_that_do_not_observe_each_other_cannot_keep_apart() -> None:
    with pytest.raises(ConfigError, match="keep_apart=.* needs observations of other robots"):
        CommandLimit(("goal_x", "goal_y", "object_x", "object_y"), 0.3, 5)


def test_who_takes_a_team_over_takes_its_limit() -> None:
    base, notices = init_from.apply({"runner": {"init_from": "pretrained:any"}}, {})
    assert base["task"]["keep_apart"] == 0.3
    assert "task.keep_apart=0.3" in notices[0]


@pytest.mark.parametrize(
    "apart, keeps", [(0.6, True), pytest.param(0.0, False, marks=pytest.mark.slow)]
)
def test_robots_that_walk_at_each_other_stop_in_time(apart: float, keeps: bool) -> None:
    task = PushCfg(keep_apart=apart, decision_period=5, spawn="separated")
    env = make_env(EnvCfg(num_envs=2), SimCfg("mujoco", "cpu", 1), task, 0)
    env.reset()
    nearest = torch.full((2,), torch.inf)
    for _ in range(32):
        pos = env.state.robot_pos[..., :2]
        way = pos.flip(1) - pos
        frame = env.state.robot_frame
        way_b = (frame @ way.unsqueeze(-1)).squeeze(-1)
        way_b = way_b / way_b.norm(dim=-1, keepdim=True)
        step = env.step(torch.cat((way_b, torch.zeros(2, 2, 1)), dim=-1))
        if bool((step.terminated | step.truncated).any()):
            nearest.fill_(0.0)
            break
        nearest = torch.minimum(nearest, way.norm(dim=-1)[:, 0])
    env.close()
    assert bool((nearest > 0.45).all()) == keeps
