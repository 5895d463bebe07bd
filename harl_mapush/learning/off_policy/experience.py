"""The experience of off-policy algorithms: decisions go into the replay buffer at once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harl_mapush.learning.collected import Decision, Experience
from harl_mapush.learning.off_policy.replay_buffer import RingReplay, Transition
from mqe.resumable import Resumable, states
from mqe.vec_env import TimeStep


class ReplayExperience(Resumable, Experience):
    """Turns decisions and their results into transitions of a replay buffer."""

    def __init__(
        self,
        replay: RingReplay,
        device: torch.device,
        learned_rewards: Callable[[Tensor], Tensor],
        update_norm: Callable[[Transition, Tensor], None],
        *,
        is_saved: bool,
    ) -> None:
        """Fill ``replay``, saved with the run if ``is_saved``.

        ``learned_rewards`` converts the agents' rewards (N, A) to learned ones (N, G).
        ``update_norm`` receives every transition and the discounted returns (N, G) so far, and
        updates them in place.
        """
        self.replay = replay
        self.is_saved = is_saved
        self.num_new = 0  # transitions since the last update
        self._learned_rewards = learned_rewards
        self._update_norm = update_norm

        shape = replay.shape
        envs = shape.num_envs * shape.num_rings
        self._state = torch.zeros(envs, shape.num_views, shape.state_size, device=device)
        self._active = torch.ones(envs, shape.num_agents, dtype=torch.bool, device=device)
        self._discounted = torch.zeros(envs, shape.num_views, device=device)

    def start(self, obs: Tensor, state: Tensor) -> None:
        """Store the state before the first decision."""
        self._state.copy_(state.view_as(self._state))

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        """Store one decision, taken on obs (N, A, O), and its result.

        A time-out's next state is the last state before the reset.
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
            terminated=step.terminated,
            done=done,
            valid=step.valid,
        )
        self.store(transition)
        self._state.copy_(step.state.view_as(self._state))
        self._active = ~step.terminated | done.unsqueeze(1)

    def store(self, transition: Transition, ring: int = 0) -> None:
        """Store one decision for every environment in a ring."""
        envs = self.replay.shape.num_envs
        self.replay.add(transition, ring)
        discounted = self._discounted[ring * envs : (ring + 1) * envs]
        self._update_norm(transition, discounted)
        self.num_new += envs

    def cut(self, ring: int) -> None:
        """End all episodes in a ring, since its environments start new ones."""
        envs = self.replay.shape.num_envs
        self.replay.cut(ring)
        self._discounted[ring * envs : (ring + 1) * envs] = 0.0

    def state_parts(self) -> dict[str, Any]:
        """Return the last decision's sums and marks."""
        return {"active": self._active, "discounted": self._discounted}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a resumed run, with the replay buffer if it ``is_saved``."""
        replay = {"replay": self.replay} if self.is_saved else {}
        return states(self.state_parts() | replay)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. ``start`` must follow.

        An unsaved replay buffer starts empty.
        """
        super().load_state_dict(state)
        if "replay" in state:
            self.replay.load_state_dict(state["replay"])
