"""Low level, task ``go1_velocity``: a robot learns a trot for velocity commands, and to stand on
zero.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from mapush.extensions.gait.default_terms import velocity_terms
from mapush.extensions.gait.features import (
    Actuation,
    SceneFeatures,
    StepFeatures,
    VelocityConstants,
    VelocityMemory,
)
from mapush.extensions.gait.random_events import RandomEvents
from mapush.extensions.gait.settings import VelocityCfg
from mapush.extensions.gait.starts import start_poses
from mqe.controllers.trot import is_moving
from mqe.tasks.task import Disturbance, TaskFeatures, TermTask
from mqe.tasks.terms import Memory, Worlds
from mqe.vec_env import Symmetries
from mqe.world.collapse import CollapseTimers
from mqe.world.geometry import quat_from_rpy
from mqe.world.layout import Layout
from mqe.world.robots import NUM_JOINTS, Robots
from mqe.world.state import SceneState, overwrite
from mqe.world.streams import Streams

# [s] at the start of an episode in which lying or kneeling does not count: some start so.
GET_UP_TIME = 2.0


class VelocityTask(TermTask):
    """The training of a gait: one agent with an action for each of J joints, 50 decisions a
    second.
    """

    num_agents = 1
    action_sizes: tuple[int, ...] = (NUM_JOINTS,)

    def __init__(self, cfg: VelocityCfg, num_envs: int, robots: Robots, streams: Streams) -> None:
        """Train a gait for one robot in each of ``num_envs`` worlds."""
        device = robots.device
        self.cfg = cfg
        self.max_episode_length = cfg.num_steps
        self.constants = VelocityConstants(cfg, robots)

        worlds = Worlds(num_envs, 1, device, cfg)
        memory = Memory(worlds)
        shown_size = VelocityMemory.LOADED_SIZE if cfg.max_load > 0.0 else VelocityMemory.SIZE
        shown = memory.remember("shown", shown_size, start=None)
        self._shown = VelocityMemory.of(shown)
        self._episode = memory.remember("episode", start=None, dtype=torch.int64)
        timers = memory.remember("collapse", 1, CollapseTimers.SIZE, start=-GET_UP_TIME)
        self._collapse = CollapseTimers(timers, robots)

        empty = SceneState.zeros(1, 1, False, device)
        terms = velocity_terms(cfg, worlds, self.scene_features(empty, shown[:1]))
        super().__init__(terms, worlds, memory, shown)
        self.symmetries = Symmetries(self.mirror_image(self.constants.mirror))
        self._random_events = RandomEvents(cfg, streams, self._episode)
        self._first_command = torch.zeros(num_envs, 1, 3, device=device)
        nothing = torch.zeros(num_envs, 1, NUM_JOINTS, device=device)
        self._actuation = Actuation(targets=nothing, change=nothing, jerk=nothing)
        self._steered: Tensor | None = None
        self._poses = torch.cat(start_poses(robots), dim=1)

    def layout(self, episode: Tensor) -> Layout:
        """Return initial layouts: standing, dropped or lying robots with any heading."""
        pose, self._first_command = self._random_events.start(episode)
        drawn = self._poses[(pose * len(self._poses)).to(torch.int64)]
        turned, pos, velocity, joints = drawn.split((3, 3, 6, NUM_JOINTS), dim=1)
        quat = quat_from_rpy(turned)
        nowhere = self.constants.zeros[0, :, :3].expand(len(quat), -1)
        return Layout(
            robot_pos=pos.unsqueeze(1),
            robot_quat=quat.unsqueeze(1),
            robot_vel=velocity.unsqueeze(1),
            joint_pos=joints.unsqueeze(1),
            object_pos=nowhere,
            object_quat=quat,
            goal_pos=nowhere,
        )

    def begin(self, mask: Tensor) -> None:
        """Reset the memory in the worlds ``mask``. They begin new episodes."""
        super().begin(mask)
        self._episode += mask
        for part in (self._shown.passing, self._shown.resisting):
            part.masked_fill_(mask.unsqueeze(1), 0.0)
        overwrite(self._shown.command, mask, self._first_command)
        self._apply_steering()

    def command(self, actions: Tensor) -> None:
        """Take a decision: joint actions (N, 1, J), clipped to [-1, 1]."""
        gait = self._shown.gait
        change = actions - gait.action
        jerk = change - (gait.action - gait.older_action)
        targets = self.constants.trot.act(gait, actions, is_moving(self._shown.command))
        self._actuation = Actuation(targets, change, jerk)

    def targets(self, state: SceneState) -> Tensor:
        """Return the last action's joint targets (N, 1, J) [rad]."""
        return self._actuation.targets

    @property
    def features(self) -> TaskFeatures:
        """Kicks and forces on the trunk, and steering."""
        return super().features._replace(disturb=self.disturb, steer=self.steer)

    def disturb(self, step: Tensor) -> Disturbance:
        """Kick the trunk about every two seconds, lean on it for about one second in four, and
        resist its way ahead with half of the commands.
        """
        event = self._random_events.step(self._episode, step)
        is_new_command = event.is_new_command & (step > 0)
        command = event.command
        if self._shown.has_load:
            ahead = torch.cat((command[..., :1].abs(), command[..., 1:]), dim=-1)
            command = torch.where(event.load > 0.0, ahead, command)
        overwrite(self._shown.command, is_new_command, command)
        overwrite(self._shown.force, event.is_new_force, event.force)
        self._apply_steering()
        still = self.constants.zeros[..., :3]
        kick = torch.where(event.is_kicked.view(-1, 1, 1), event.kick, still)
        force = self._shown.force
        if self._shown.has_load:
            overwrite(self._shown.load, is_new_command, event.load)
            drag = self._shown.load * self._shown.drag
            force = torch.cat((force[..., :2] + drag, force[..., 2:]), dim=-1)
        return Disturbance(kick, force)

    def scene_features(self, state: SceneState, memory: Tensor) -> SceneFeatures:
        """Return features for policy and critic in any W worlds."""
        return SceneFeatures(state, VelocityMemory.of(memory), self.constants)

    def step_features(self, state: SceneState, prev: SceneState) -> StepFeatures:
        """Return the features for the control step from ``prev`` to ``state``."""
        return StepFeatures(
            state, prev, self._shown, self.constants, self._actuation, self._collapse
        )

    def steer(self, command: Sequence[float] | None) -> None:
        """Follow ``command``, vx, vy [m/s] and yaw rate [rad/s], instead of drawn ones. None ends
        this.
        """
        if command is None:
            self._steered = None
        else:
            self._steered = torch.tensor(command, device=self.memory.device)

    def _apply_steering(self) -> None:
        if self._steered is not None:
            self._shown.command.copy_(self._steered.expand_as(self._shown.command))
