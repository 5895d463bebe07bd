"""What off-policy algorithms collect: every decision goes into the replay at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.learning.off_policy.replay_buffer import RingReplay, Transition
from mqe.vec_env import TimeStep


class ReplayExperience:
    """Turns decisions and what came of them into transitions of a replay."""

    def __init__(
        self,
        replay: RingReplay,
        device: torch.device,
        learned_rewards: Callable[[Tensor], Tensor],
        update_norms: Callable[[Transition, Tensor], None],
        *,
        is_saved: bool,
    ) -> None:
        """Fill ``replay``, which is saved with the run if ``is_saved``.

        ``learned_rewards`` turns rewards (N, A) into those that are learned (N, G);
        ``update_norms`` is called with every transition and the discounted returns (N, G) so far,
        which it updates.
        """
        self.replay = replay
        self.is_saved = is_saved
        self._learned_rewards = learned_rewards
        self._update_norms = update_norms
        shape = replay.shape
        envs = shape.num_envs * shape.num_rings
        agents = shape.num_agents
        views = shape.num_views
        self._state = torch.zeros(envs, views, shape.state_size, device=device)
        self._active = torch.ones(envs, agents, dtype=torch.bool, device=device)
        self._discounted = torch.zeros(envs, views, device=device)
        self.num_new = 0  # transitions since the last update

    def start(self, obs: Tensor, state: Tensor) -> None:
        """Take the state that the first decision follows."""
        self._state.copy_(state.view_as(self._state))

    def begin(self) -> None:
        """Begin a block, which needs no storage of its own."""

    def hidden(self, t: int) -> Tensor | None:
        """Return None: policies are not recurrent."""
        return None

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        """Store one decision, taken on obs (N, A, O), and what came of it; a time-out with its
        true last state.
        """
        done = step.done
        transition = Transition(
            obs=obs,
            state=self._state,
            actions=decision.actions,
            active=self._active,
            rewards=self._learned_rewards(step.reward),
            next_obs=step.final_obs,
            next_state=step.final_state.view_as(self._state),
            terminated=step.terminated.all(dim=1),
            done=done,
            valid=step.valid,
        )
        self.store(transition)
        self._state.copy_(step.state.view_as(self._state))
        self._active = ~step.terminated | done.unsqueeze(1)

    def store(self, transition: Transition, ring: int = 0) -> None:
        """Store one decision of every environment of one of the replay's rings."""
        envs = self.replay.shape.num_envs
        self.replay.add(transition, ring)
        self._update_norms(transition, self._discounted[ring * envs : (ring + 1) * envs])
        self.num_new += envs

    def cut(self, ring: int) -> None:
        """End the episodes of one of the replay's rings: its environments start anew."""
        envs = self.replay.shape.num_envs
        self.replay.cut(ring)
        self._discounted[ring * envs : (ring + 1) * envs] = 0.0

    def finish(self) -> None:
        """End a block."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; the replay where it is saved with the run."""
        state: dict[str, Any] = {
            "active": self._active.clone(),
            "discounted": self._discounted.clone(),
        }
        return state | ({"replay": self.replay.state_dict()} if self.is_saved else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; ``start`` follows. A replay that was not saved starts empty."""
        self._active.copy_(state["active"])
        self._discounted.copy_(state["discounted"])
        if "replay" in state:
            self.replay.load_state_dict(state["replay"])
