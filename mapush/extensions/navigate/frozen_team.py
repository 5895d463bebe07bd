"""A frozen team as a controller: it pushes the object to a sub-goal, with its own rate and gait."""

from collections.abc import Callable

import torch
from torch import Tensor

from harl_mapush.config.layers import without_former_keys
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError, build
from mqe.controllers.blocks import ActiveWorlds, Blocks
from mqe.controllers.frozen_policy import Policy, PolicyDescription
from mqe.controllers.gait import GaitController, load_team_gait
from mqe.resumable import Resumable
from mqe.tasks.push.features import PushConstants, SceneFeatures
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.settings import PushCfg
from mqe.tasks.term_settings import observed_names
from mqe.tasks.terms import ObservationTerms, Worlds
from mqe.world.robots import Robots
from mqe.world.state import SceneState


class TeamController(Resumable):
    """A frozen team for pushing an object from one sub-goal to the next."""

    def __init__(
        self,
        policy: Callable[[Tensor], Tensor],
        observe: Callable[[SceneState, Tensor], Tensor],
        gait: GaitController,
        decision_period: int,
        action_scale: Tensor,
        num_envs: int,
        memory_shape: tuple[int, int] = (1, 0),
        limit: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        """Move the robots in N worlds.

        ``policy`` maps observations (N, A, O) to actions (N, A, 3), every ``decision_period``
        control steps. Its memory, with ``memory_shape`` (A, M), follows the observations and the
        actions. ``observe`` makes observations from the scene with a sub-goal (N, 2) in place of
        the goal. An action times ``action_scale`` (3,) is a velocity command. ``limit`` restricts
        the command by the observations. ``gait`` follows the restricted command.
        """
        self.policy = policy
        self._observe = observe
        self._gait = gait
        self.decision_period = decision_period
        self._action_scale = action_scale
        self._limit = limit
        self._subgoal = torch.zeros(num_envs, 2, device=action_scale.device)
        self._memory = self._subgoal.new_zeros(num_envs, *memory_shape)
        # Control steps since the last decision; equal in all worlds, whose episodes begin between
        # two decisions of the leader.
        self._age = 0

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run the networks over blocks of the active ``worlds``."""
        self.policy = Blocks(self.policy, worlds)
        self._gait.use_blocks(worlds)

    def begin(self, mask: Tensor) -> None:
        """Forget the old episodes in ``mask`` (N,)."""
        self._gait.begin(mask)
        self._memory.masked_fill_(mask.view(-1, 1, 1), 0.0)

    def command(self, subgoal: Tensor) -> None:
        """Hold a sub-goal (N, 2) [m], world frame, from now on. The team decides at once."""
        self._subgoal.copy_(subgoal)
        self._age = 0

    @torch.no_grad()
    def targets(self, state: SceneState) -> Tensor:
        """Return joint targets (N, A, J) [rad] for the coming control step."""
        if self._age % self.decision_period == 0:
            obs = self._observe(state, self._subgoal)
            velocity = self._decide(obs) * self._action_scale
            if self._limit is not None:
                velocity = self._limit(obs, velocity)
            self._gait.command(velocity)
        self._age += 1
        return self._gait.targets(state)

    def _decide(self, obs: Tensor) -> Tensor:
        """Return the actions (N, A, 3) for ``obs`` (N, A, O), and update the memory."""
        size = self._memory.shape[-1]
        if size == 0:
            return self.policy(obs).clamp(-1.0, 1.0)
        decided = self.policy(torch.cat((obs, self._memory), dim=-1))
        self._memory.copy_(decided[..., -size:])
        return decided[..., :-size].clamp(-1.0, 1.0)

    def state_parts(self) -> dict[str, Tensor]:
        """Return the memory between control steps."""
        parts = {f"gait.{name}": part for name, part in self._gait.state_parts().items()}
        if self._memory.shape[-1]:
            parts["memory"] = self._memory
        return parts | {"subgoal": self._subgoal}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory, and the decision's age."""
        return super().state_dict() | {"age": torch.tensor(self._age)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a ``state_dict``."""
        super().load_state_dict(state)
        self._age = int(state["age"])


def settings_of(cfg: NavigateCfg, team: PolicyDescription) -> PushCfg:
    """Return the task settings of a team."""
    learned = team.task.get("name", PushCfg.name)
    if learned != PushCfg.name:
        raise ConfigError(
            f"task.team: '{cfg.team}' learned {learned}, and a team that pushes is needed; name "
            f"one that learned {PushCfg.name}"
        )
    settings = without_former_keys("task", team.task, learned)
    return build(PushCfg, settings, f"task.team: '{cfg.team}': task")


def make_team(
    policy: Policy, constants: PushConstants, robots: Robots, num_envs: int
) -> TeamController:
    """Return the team in N worlds. ``constants`` are those of its own task."""
    device = robots.device
    cfg = constants.cfg
    num_robots = policy.description.num_robots
    terms = _observations(cfg, constants, num_robots, device)

    def observe(state: SceneState, subgoal: Tensor) -> Tensor:
        return terms(SceneFeatures(state.with_goal(subgoal), constants))

    limit = None
    if cfg.keep_apart > 0.0 and num_robots > 1:
        names = terms.number_names([f"robot{k}" for k in range(1, num_robots)])
        limit = CommandLimit(names, cfg.keep_apart, cfg.decision_period).to(device)
    network = policy.network(device, "task.team")
    return TeamController(
        network,
        observe,
        GaitController(load_team_gait(cfg.gait, robots), num_envs, robots),
        cfg.decision_period,
        torch.tensor(cfg.action_scale, device=device),
        num_envs,
        (num_robots, network.memory_size),
        limit,
    )


def _observations(
    cfg: PushCfg, constants: PushConstants, num_robots: int, device: torch.device
) -> ObservationTerms:
    """Return the observation terms of the team."""
    worlds = Worlds(1, num_robots, device, cfg)
    empty = SceneFeatures(SceneState.zeros(1, num_robots, True, device), constants)
    names = observed_names(cfg.default_observations, cfg)
    return ObservationTerms({name: OBSERVATIONS[name] for name in names}, worlds, empty)
