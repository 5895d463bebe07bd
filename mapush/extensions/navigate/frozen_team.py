"""A frozen team as a controller: it pushes the object to a sub-goal, with its own rate and gait."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mqe.controllers import Controller
from mqe.controllers.blocks import ActiveWorlds, Blocks
from mqe.world.state import SceneState


class TeamController:
    """A frozen team for pushing an object from one sub-goal to the next."""

    def __init__(
        self,
        policy: Callable[[Tensor], Tensor],
        observe: Callable[[SceneState, Tensor], Tensor],
        gait: Controller,
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
        self._policy = policy
        self._observe = observe
        self._gait = gait
        self.decision_period = decision_period
        self._action_scale = action_scale
        self._limit = limit
        self._subgoal = torch.zeros(num_envs, 2, device=action_scale.device)
        self._memory = self._subgoal.new_zeros(num_envs, *memory_shape)
        # Control steps since its last decision; equal in all worlds, whose episodes begin between
        # two decisions of whoever commands the team.
        self._age = 0

    def use_blocks(self, worlds: ActiveWorlds) -> None:
        """Run the networks over blocks of the active ``worlds``."""
        self._policy = Blocks(self._policy, worlds)
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
            return self._policy(obs).clamp(-1.0, 1.0)
        decided = self._policy(torch.cat((obs, self._memory), dim=-1))
        self._memory.copy_(decided[..., -size:])
        return decided[..., :-size].clamp(-1.0, 1.0)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory between control steps."""
        values = {"subgoal": self._subgoal.clone(), "age": torch.tensor(self._age)}
        if self._memory.shape[-1]:
            values["memory"] = self._memory.clone()
        gait = {f"gait.{name}": value for name, value in self._gait.state_dict().items()}
        return values | gait

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from ``state_dict``."""
        self._subgoal.copy_(state["subgoal"])
        self._age = int(state["age"])
        if self._memory.shape[-1]:
            self._memory.copy_(state["memory"])
        prefix = "gait."
        self._gait.load_state_dict(
            {
                name.removeprefix(prefix): value
                for name, value in state.items()
                if name.startswith(prefix)
            }
        )
