"""A task of your own: every robot runs as fast as it can along x, in a lane of its own.

python -m harl_mapush.train --import own_task --task race --num_agents 3
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import mapush
from mqe.config import option
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.tasks.entry import EnvCfg, TaskEntry, TaskSetup
from mqe.tasks.episode_report import Report
from mqe.tasks.task import Outcome, TaskDefaults
from mqe.world.layout import Layout
from mqe.world.robots import Robots
from mqe.world.scene import STEP_DT, build_scene
from mqe.world.state import SceneState
from mqe.world.streams import Streams


@dataclass(frozen=True)
class RaceCfg:
    """The section ``task`` of a race."""

    name: str = option("race", "the task", choices=("race",))
    finish: float = option(4.0, "end of the lanes [m]", above=0.0)
    episode_length_s: float = option(10.0, "time limit [s]", above=0.0)


class RaceTask(TaskDefaults):
    """An agent observes its position in its lane and its heading, and commands a velocity."""

    decision_period = 5  # control steps of 0.02 s
    reward_names = ("speed",)
    metric_names = ("speed",)
    episode_metric_names = ("finished", "speed")

    def __init__(self, cfg: RaceCfg, num_envs: int, robots: Robots) -> None:
        self.cfg = cfg
        self._robots = robots
        self.num_agents = len(robots)
        self.obs_sizes = (4,) * len(robots)
        self.action_sizes = (3,) * len(robots)
        self.state_size = 4 * len(robots)
        self.max_episode_length = round(cfg.episode_length_s / STEP_DT)
        super().__init__(num_envs, robots.device)
        self._controller = GaitController(load_team_gait(None, robots), num_envs, robots)
        self._lanes = torch.arange(len(robots), device=robots.device) * 1.5

    def layout(self, episode: Tensor) -> Layout:
        """Stand at the start, side by side."""
        n = len(episode)
        a = self.num_agents
        pos = torch.stack((self._lanes * 0.0, self._lanes, self._lanes * 0.0 + 0.35), dim=1).expand(
            n, a, 3
        )
        quat = torch.tensor([1.0, 0.0, 0.0, 0.0], device=pos.device).expand(n, a, 4)
        still = pos.new_zeros(n, a, 6)
        joints = self._robots.joint_pos.expand(n, a, -1)
        return Layout(pos, quat, still, joints, pos[:, 0], quat[:, 0], pos[:, 0])

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes of ``mask``."""
        self._controller.begin(mask)

    def command(self, actions: Tensor) -> None:
        """Take actions (N, A, 3) as velocities of up to 0.5 m/s and rad/s."""
        self._controller.command(0.5 * actions)

    def targets(self, state: SceneState) -> Tensor:
        """Return the gait's joint targets."""
        return self._controller.targets(state)

    def evaluate(self, state: SceneState, prev: SceneState) -> Outcome:
        """Reward every robot for its speed along x; the first at the end of its lane ends the
        race.
        """
        speed = state.robot_linvel[..., 0]  # (N, A)
        finished = (state.robot_pos[..., 0] > self.cfg.finish).any(dim=1)
        return Outcome(
            0.1 * speed.unsqueeze(0), finished.unsqueeze(0), speed.mean(dim=1, keepdim=True)
        )

    def observe(self, state: SceneState, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return each robot's position and heading, and for the critic those of all."""
        across = state.robot_pos[..., 1] - self._lanes
        obs = torch.cat(
            (state.robot_pos[..., :1], across.unsqueeze(-1), state.robot_frame[..., 0, :]), dim=-1
        )
        return obs, obs.flatten(1)

    def episode_metrics(self, sums: Tensor, steps: Tensor, endings: Tensor) -> Tensor:
        """Return whether any robot finished, and the mean speed [m/s]."""
        return torch.cat((endings.t().float(), sums / steps.clamp(min=1).unsqueeze(1)), dim=1)


def make(cfg: RaceCfg, env: EnvCfg, device: torch.device, streams: Streams) -> TaskSetup:
    """Make one world's model, and the task over all of them."""
    scene = build_scene(env.num_agents or 2, None, actuators=env.actuators, robots=env.robots)
    return TaskSetup(scene, RaceTask(cfg, env.num_envs, Robots(scene.robots, device)), {})


REPORT = Report(
    rates=("finished",),
    headline=(("Finished", "finished_rate"),),
    compared=("finished_rate", "return"),
    outcomes={"finished": "finished"},
)
mapush.register_task("race", TaskEntry(RaceCfg, make, REPORT))
