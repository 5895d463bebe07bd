"""From velocity commands to joint targets: frozen gaits, and wheels."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mqe.config import ConfigError
from mqe.controllers.blocks import ActiveWorlds, Blocks
from mqe.controllers.frozen_policy import describe_policy, joint_digest, read_policy
from mqe.controllers.network import Actor
from mqe.controllers.trot import GAIT_NAMES, GaitMemory, Trot, is_moving
from mqe.hub import HUB
from mqe.pretrained import PRETRAINED
from mqe.resumable import Resumable
from mqe.world.robots import NUM_JOINTS, RobotCfg, Robots
from mqe.world.state import SceneState


class GaitController(Resumable):
    """Turns velocity commands into joint targets, one control step at a time: with frozen gaits, or
    by the speeds of wheels.
    """

    def __init__(self, policy: Callable[[Tensor], Tensor], num_envs: int, robots: Robots) -> None:
        """Move ``robots`` of N worlds with ``policy``, observation (N, A, 59) to action (N, A,
        J).
        """
        self._policy = policy
        self._trot = Trot(robots)
        self._leads = wheel_leads(robots) if any(cfg.wheels for cfg in robots.cfgs) else None
        self._memory = GaitMemory(
            torch.zeros(num_envs, len(robots), GaitMemory.SIZE, device=robots.device)
        )
        self._command = torch.zeros(num_envs, len(robots), 3, device=robots.device)

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run the policy over blocks of the active ``worlds``."""
        self._policy = Blocks(self._policy, worlds)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes in ``mask`` (N,)."""
        self._command.masked_fill_(mask.view(-1, 1, 1), 0.0)
        self._memory.begin(mask)

    def command(self, velocity: Tensor) -> None:
        """Hold a command (N, A, 3) from now on: vx, vy [m/s] in the heading frame, yaw rate
        [rad/s].
        """
        self._command.copy_(velocity)

    @torch.no_grad()
    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the coming control step."""
        moving = is_moving(self._command)
        action = self._policy(self._trot.observe(state, self._command, moving, self._memory))
        targets = self._trot.act(self._memory, action, moving)
        if self._leads is not None:
            has_wheels = self._leads.flatten(1).any(dim=1, keepdim=True)  # (A, 1)
            leads = (self._leads * self._command.unsqueeze(-2)).sum(dim=-1)
            targets = torch.where(has_wheels, state.joint_pos + leads, targets)
        return targets

    def state_parts(self) -> dict[str, Tensor]:
        """Return the memory between control steps."""
        return {"command": self._command, "memory": self._memory.values}


def wheel_leads(robots: Robots) -> Tensor:
    """Return how far each wheel's target is ahead of the wheel, (A, J, 3) [rad], over the command.

    A command to the side turns the robot: the point a wheel's radius ahead of its middle goes
    there. A wheel's motor is a spring-damper about a target, as all motors are. A target ahead of
    the wheel by a speed times damping over stiffness makes it a damper about that speed.
    """
    leads = torch.zeros(len(robots), NUM_JOINTS, 3)
    for i, cfg in enumerate(robots.cfgs):
        for k, (x, y, _) in enumerate(cfg.wheels):
            # Wheels at x slip sideways as the robot turns. Their friction balances so.
            turn = -(y + x**2 / y)
            speeds = torch.tensor((1.0, turn / cfg.foot_radius, turn))
            leads[i, k] = speeds * cfg.damping / (cfg.stiffness * cfg.foot_radius)
    return leads.to(robots.device)


def from_anywhere(name: str) -> str:
    """Return a policy's name with an absolute path, valid in any working folder."""
    return name if name.startswith((PRETRAINED, HUB)) else str(Path(name).absolute())


def gait_names(gait: str | Sequence[str] | None, robots: Sequence[RobotCfg]) -> list[str]:
    """Return each robot's gait name, empty for a robot on wheels.

    ``gait`` is one name, one for each robot, or None for the robots' default gaits.
    """
    if gait is None:
        for cfg in robots:
            if not cfg.gait and cfg.legs:
                raise ConfigError(
                    f"task.gait: the robot {cfg.name} has no gait; train one "
                    "(docs/guides/robot.md), and name its checkpoint here or in the robot's file"
                )
        return [cfg.gait for cfg in robots]
    if isinstance(gait, str):
        return [gait if cfg.legs else "" for cfg in robots]
    return list(gait)


def gait_digest(names: Sequence[str]) -> str:
    """Return a SHA-256 over the weights of gaits. A gait retrained under its old name has another
    digest.
    """
    return joint_digest(
        [describe_policy(name, "task.gait").digest for name in dict.fromkeys(names) if name]
    )


def load_team_gait(gait: str | Sequence[str] | None, robots: Robots) -> Callable[[Tensor], Tensor]:
    """Load a team's gait policy, observations (N, A, 59) to actions (N, A, J).

    ``gait`` is one name for all robots, or one for each. None takes each robot's default gait.
    Raises ConfigError for an unfit gait.
    """
    names = gait_names(gait, robots.cfgs)
    if len(names) != len(robots):
        raise ConfigError(
            f"task.gait: {names} are {len(names)} gaits for {len(robots)} robots; name one gait "
            "for all robots, or one each"
        )
    pairs = list(zip(names, robots.cfgs, strict=True))
    gaits = []
    for name, cfg in dict.fromkeys(pairs):
        members = [i for i, pair in enumerate(pairs) if pair == (name, cfg)]
        if cfg.legs:
            places = torch.tensor(members, device=robots.device)
            gaits.append((load_gait(name, robots.device, cfg), places))
    return gaits[0][0] if len(gaits) == len(set(pairs)) == 1 else MixedGait(gaits)


class GaitNetwork(nn.Module):
    """A frozen gait, from observations (..., 59) to mean joint actions (..., J)."""

    def __init__(self, actor: Actor) -> None:
        """Take a policy's network."""
        super().__init__()
        self._actor = actor
        for layer in actor.layers:
            if isinstance(layer, nn.Linear):
                # Weights in the product's reading order
                layer.weight.data = layer.weight.data.t().contiguous().t()

    def forward(self, obs: Tensor) -> Tensor:
        """Return the mean action (..., J)."""
        return self._actor(obs.flatten(0, -2)).unflatten(0, obs.shape[:-1])


def load_gait(name: str, device: torch.device, robot: RobotCfg | None = None) -> GaitNetwork:
    """Load a gait from a folder or ``pretrained:NAME``.

    Raises ConfigError for a policy without a gait's observations, and for a gait of a robot other
    than ``robot``.
    """
    policy = read_policy(name, "task.gait")
    description = policy.description
    if robot is not None and description.robot != robot.name:
        raise ConfigError(
            f"task.gait: '{name}' is the gait of a {description.robot}, not of a {robot.name}; "
            f"leave task.gait out, or name a gait trained with env.robots={robot.name}"
        )
    if description.observation_names != list(GAIT_NAMES):
        raise ConfigError(
            f"task.gait: '{name}' observes {', '.join(description.observations)}, unlike a gait "
            "of this version; train the gait anew, or name pretrained:NAME"
        )
    network = policy.network(device, "task.gait")
    if network.memory_size:
        raise ConfigError(
            f"task.gait: '{name}' was trained with network.use_recurrent_policy; a gait has no "
            "memory; name a gait without recurrence"
        )
    actor = network.actor(0)
    if (actor.in_size, actor.out_size) != (len(GAIT_NAMES), NUM_JOINTS):
        raise ConfigError(
            f"task.gait: '{name}' has {actor.in_size} inputs and {actor.out_size} actions, but a "
            f"gait has {len(GAIT_NAMES)} and {NUM_JOINTS}; name another gait"
        )
    return GaitNetwork(actor)


class MixedGait:
    """Gaits, each for certain robots in every team. Other robots' actions are zero."""

    def __init__(self, gaits: Sequence[tuple[GaitNetwork, Tensor]]) -> None:
        """Take gaits, each with the indices of its robots."""
        self._gaits = gaits

    def __call__(self, obs: Tensor) -> Tensor:
        """Return mean actions (N, A, J) for observations (N, A, 59)."""
        actions = obs.new_zeros(*obs.shape[:2], NUM_JOINTS)
        for gait, robots in self._gaits:
            actions[:, robots] = gait(obs[:, robots])
        return actions
