"""The storage of one rollout on the device, agent-major.

T decisions, N environments, A agents, V values per environment (1, or A if each agent has its own),
R recurrent layers, H hidden size.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from harl_mapush.learning.collected import Decision
from mqe.resumable import Resumable
from mqe.vec_env import TimeStep


class StorageShape(NamedTuple):
    """Rollout sizes. Hidden shapes are (R, H), or None without recurrence."""

    num_steps: int
    num_envs: int
    num_agents: int
    obs_size: int
    action_size: int
    state_shape: tuple[int, ...]  # (S,), or (A, S) if every agent has a state of its own
    num_values: int
    actor_hidden: tuple[int, int] | None = None
    critic_hidden: tuple[int, int] | None = None
    keeps_final_state: bool = True
    # The number of an observation that is 1 if the agent takes part; None: all always do.
    presence: int | None = None

    @property
    def num_views(self) -> int:
        """Number of states per environment: 1, or A."""
        return self.state_shape[0] if len(self.state_shape) == 2 else 1


class Storage(Resumable):
    """One rollout's tensors. Decision t is at index t, its next state at t + 1."""

    def __init__(
        self,
        shape: StorageShape,
        device: torch.device | str,
        critic_state: Callable[[Tensor, Tensor], Tensor] = lambda obs, state: state,
        learned_rewards: Callable[[Tensor], Tensor] = lambda rewards: rewards,
    ) -> None:
        """Allocate a rollout.

        ``critic_state`` selects the critic's input (N, *state_shape) from obs (N, A, O) and the
        environment's state. ``learned_rewards`` converts the agents' rewards (N, A) to learned ones
        (N, V).
        """
        self.shape = shape
        self._critic_state = critic_state
        self._learned_rewards = learned_rewards
        steps = shape.num_steps
        envs = shape.num_envs
        agents = shape.num_agents

        def zeros(*size: int) -> Tensor:
            return torch.zeros(size, device=device)

        def ones(*size: int) -> Tensor:
            return torch.ones(size, device=device)

        # Decisions
        self.obs = zeros(agents, steps, envs, shape.obs_size)
        self.actions = zeros(agents, steps, envs, shape.action_size)
        self.log_probs = zeros(agents, steps, envs, shape.action_size)  # per action dimension

        # HAPPO's factor, the product of the ratios of the agents updated before: that of each
        # agent's last update, and that of the next update.
        self.factor = ones(agents, steps, envs)
        self.next_factor = ones(steps, envs)

        # States
        self.state = zeros(steps + 1, envs, *shape.state_shape)
        self.final_state = None
        if shape.keeps_final_state:
            self.final_state = zeros(steps, envs, *shape.state_shape)

        # Rewards and terminations
        self.rewards = zeros(steps, envs, shape.num_values)
        self.terminated = torch.zeros(steps, envs, agents, dtype=torch.bool, device=device)
        self.truncated = zeros(steps, envs)  # 1: ended by the time limit
        self.valid = ones(steps, envs)  # 0: the simulation broke, so the step is left out
        self.masks = ones(steps + 1, envs)  # 0 at t + 1: the episode ended at decision t
        self.active = ones(agents, steps + 1, envs)  # 0: dead since an earlier decision, or away
        # 1: ended by the time limit alone, and the simulation did not break.
        self.bootstrapped = zeros(steps, envs)

        # Values in the critic's units, returns and advantages in reward units
        self.values = zeros(steps + 1, envs, shape.num_values)
        self.final_values = zeros(steps, envs, shape.num_values)
        self.returns = zeros(steps, envs, shape.num_values)
        self.advantages = zeros(steps, envs, shape.num_values)

        # Hidden states
        self.actor_hidden = None
        if shape.actor_hidden is not None:
            self.actor_hidden = zeros(agents, steps + 1, envs, *shape.actor_hidden)
        self.critic_hidden = None
        if shape.critic_hidden is not None:
            self.critic_hidden = zeros(steps + 1, envs * shape.num_views, *shape.critic_hidden)

    def begin(self) -> None:
        """Begin a rollout: copy state, masks and hidden states from the last one's end."""
        for tensor in self._carried().values():
            tensor[0] = tensor[-1]

    def start(self, obs: Tensor, state: Tensor) -> None:
        """Store the state before the first decision."""
        self.state[-1] = self._critic_state(obs, state)

    def hidden(self, t: int) -> Tensor | None:
        """Return the actors' hidden states (A, N, R, H) for decision ``t``, if recurrent."""
        return None if self.actor_hidden is None else self.actor_hidden[:, t]

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        """Store decision ``t``, taken on obs (N, A, O), and its result.

        ``finish`` must follow the last decision.
        """
        assert decision.log_probs is not None
        self.obs[:, t] = obs.transpose(0, 1)
        self.actions[:, t] = decision.actions.transpose(0, 1)
        self.log_probs[:, t] = decision.log_probs.transpose(0, 1)
        self.rewards[t] = self._learned_rewards(step.reward)
        self.state[t + 1] = self._critic_state(step.obs, step.state)
        if self.final_state is not None:
            self.final_state[t] = self._critic_state(step.final_obs, step.final_state)
        self.terminated[t] = step.terminated
        self.truncated[t] = step.truncated
        self.valid[t] = step.valid
        if self.actor_hidden is not None:
            assert decision.hidden is not None
            self.actor_hidden[:, t + 1] = decision.hidden
            self.actor_hidden[:, t + 1].masked_fill_(step.done.view(1, -1, 1, 1), 0.0)

    def finish(self) -> None:
        """Derive the masks of the whole rollout from its terminations."""
        ended = self.terminated.all(dim=-1)
        is_valid = self.valid > 0.0
        timed_out = self.truncated > 0.0
        done = ended | timed_out | ~is_valid
        self.masks[1:] = ~done
        self.bootstrapped.copy_(timed_out & ~ended & is_valid)
        self.active[:, 1:] = (~self.terminated | done.unsqueeze(-1)).permute(2, 0, 1)
        if self.shape.presence is not None:
            self.active[:, :-1] *= self.obs[..., self.shape.presence]

    def weights(self, agent: int) -> Tensor:
        """Return weights (T, N): 1 if the agent was alive and the simulation did not break."""
        return self.active[agent, :-1] * self.valid

    def state_parts(self) -> dict[str, Tensor]:
        """Return this rollout's last tensors, with which the next one begins."""
        return {name: tensor[-1] for name, tensor in self._carried().items()}

    def _carried(self) -> dict[str, Tensor]:
        """Return views (T+1, ...) of the tensors that continue in the next rollout, by name."""
        carried = {"state": self.state, "masks": self.masks, "active": self.active.transpose(0, 1)}
        if self.actor_hidden is not None:
            carried["actor_hidden"] = self.actor_hidden.transpose(0, 1)
        if self.critic_hidden is not None:
            carried["critic_hidden"] = self.critic_hidden
        return carried
