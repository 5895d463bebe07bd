"""The base class of the on-policy algorithms: actors and a critic, with one update per rollout.

An algorithm is a subclass with its own ``update_actors``. T decisions, N environments, A agents, O
obs size, U action size, V values per environment, R recurrent layers, H hidden size.
"""

from abc import abstractmethod
from functools import partial
from typing import Any

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.algorithms.team import Team
from harl_mapush.learning import losses
from harl_mapush.learning.formula_sets import ON_POLICY_FORMULAS
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.on_policy.formulas import Formulas
from harl_mapush.learning.on_policy.minibatches import ActorBatch, Shuffle
from harl_mapush.learning.on_policy.rollout_storage import Storage, StorageShape
from harl_mapush.learning.on_policy.surrogate import adapt_learning_rate, add_policy_gradient
from harl_mapush.learning.on_policy.value_update import ValueLearner
from harl_mapush.learning.settings import OnPolicyCfg
from mqe.host_memory import check_room
from mqe.vec_env import EntityBlock


class OnPolicy(Team):
    """Actors and one critic learning from one rollout at a time."""

    cfg: OnPolicyCfg
    actors: list[Actor]
    formulas: Formulas
    actor_class = Actor
    formula_sets = ON_POLICY_FORMULAS
    takes_mirror_loss = True  # whether the actors' loss can have a mirror loss

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state_type, state_size = self.critic_input()
        self.state_shape: tuple[int, ...] = (state_size,)
        if self.state_type == "FP":
            self.state_shape = (self.num_agents, state_size)
        has_own_values = self.formulas.has_own_values(self.state_type, self.cfg.team_reward)
        self.num_values = self.num_agents if has_own_values else 1
        self.shuffle = Shuffle(self.generator, self.host_generator, self.ranks)
        self.value = ValueLearner(
            self.cfg,
            self.network,
            self.state_shape[-1],
            self.num_values if self.state_type == "EP" else 1,
            self.device,
            self.shuffle,
            self.formulas,
            self.critic_sets(),
        )
        self.critic = self.value.critic
        self.critic_optimizer = self.value.optimizer
        self.normalizer = self.value.normalizer  # unused with use_value_norm off

    def check_settings(self) -> None:
        """Raise ValueError if these actors or this task do not allow a mirror loss."""
        cfg = self.cfg
        reason = None
        if cfg.mirror_loss_coef == 0.0:
            return
        if not self.takes_mirror_loss:
            reason = f"{cfg.name} updates its actors without a loss that it could be added to"
        elif self.network.use_recurrent_policy:
            reason = "recurrent policies have no mirror loss"
        elif self.spec.symmetries.mirror is None:
            reason = "this task defines no mirror image of observations and actions"
        if reason is not None:
            raise ValueError(f"mirror_loss_coef must be 0, not {cfg.mirror_loss_coef}: {reason}")

    # Inputs of the critic

    def critic_input(self) -> tuple[str, int]:
        """Return the type of the critic's input, "EP" or "FP", and its size."""
        return self.spec.state_type, self.spec.state_size

    def critic_sets(self) -> tuple[EntityBlock, ...]:
        """Return the sets in the critic's input."""
        return self.spec.state_sets

    @staticmethod
    def critic_state(obs: Tensor, state: Tensor) -> Tensor:
        """Return the critic's input (N, *state_shape) from obs (N, A, O) and the state."""
        return state

    # Acting

    def make_experience(self, num_steps: int, num_envs: int) -> Storage:
        """Allocate a rollout.

        Raise ValueError if it has too few rows for the minibatches, ConfigError if it does not fit
        into the memory.
        """
        # On the device "meta", tensors take no memory.
        planned = vars(self._make_storage(num_steps, num_envs, torch.device("meta")))
        num_bytes = sum(field.nbytes for field in planned.values() if isinstance(field, Tensor))
        check_room(num_bytes, self.device, "env.num_envs", num_envs)
        return self._make_storage(num_steps, num_envs, self.device)

    @torch.no_grad()
    def act(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        """Decide for obs (N, A, O), given hidden states (A, N, R, H) with recurrence.

        ``hidden`` is None at the start of an episode.
        """
        if hidden is None and self.network.use_recurrent_policy:
            hidden_shape = self.actors[0].hidden_shape
            hidden = torch.zeros(self.num_agents, len(obs), *hidden_shape, device=self.device)
        inputs = (obs,) if hidden is None else (obs, hidden)
        return self.graphs(("act", obs.shape), self._decide, *inputs)

    def _decide(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        mean, after = self._means(obs, hidden)
        std = torch.stack([self.padded(actor.std()) for actor in self.actors])
        noise = self.ranks.draw(
            torch.randn, tuple(mean.shape), generator=self.generator, device=self.device
        )
        log_probs = losses.standard_log_prob(noise) - torch.log(std)
        if self.is_padded:
            log_probs = torch.where(std > 0.0, log_probs, 0.0)
        return Decision(mean + std * noise, log_probs, after)

    def _means(self, obs: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return mean actions (N, A, U), and the hidden states (A, N, R, H) of a recurrent team."""
        means = []
        after = []
        for i, actor in enumerate(self.actors):
            inputs = obs[:, i, : actor.obs_size].unsqueeze(0)
            if hidden is None:
                mean, state = actor.unroll(inputs, None, None)
            else:
                continues = torch.ones_like(inputs[..., 0])
                mean, state = actor.unroll(inputs, hidden[i], continues)
            means.append(self.padded(mean[0]))
            if state is not None:
                after.append(state[0])
        return torch.stack(means, dim=1), torch.stack(after) if after else None

    # Learning

    def update(self, experience: Storage, progress: float = 0.0) -> dict[str, Tensor]:
        """Learn from a full rollout. ``progress`` in [0, 1) is the run's completed fraction.

        Return metrics as 0-dim tensors on the device, named ``agent{i}/...`` and ``critic/...``.
        """
        self.set_progress(progress)
        self.compute_returns(experience)
        return self.learn(experience)

    def compute_returns(self, storage: Storage) -> None:
        """Compute values, returns and advantages of a full rollout."""

        def compute() -> None:
            self.value.compute_values(storage)
            self.value.compute_returns(storage)

        self.graphs("returns", compute, over=storage)

    def learn(self, storage: Storage) -> dict[str, Tensor]:
        """Update actors, then the critic."""
        metrics = {}
        for agent, agent_metrics in sorted(self.update_actors(storage).items()):
            for name, value in agent_metrics.items():
                metrics[f"agent{agent}/{name}"] = value
        for name, value in self.update_critic(storage).items():
            metrics[f"critic/{name}"] = value
        return metrics

    @abstractmethod
    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        """Update every actor. Return each agent's metrics."""

    def update_critic(self, storage: Storage) -> dict[str, Tensor]:
        """Update the critic. Return its metrics."""
        return self.graphs("critic", partial(self.value.update, storage), over=storage)

    # Parts of an algorithm's update_actors

    def advantages(self, storage: Storage) -> list[Tensor]:
        """Return every agent's normalised advantages (T, N)."""
        return self.formulas.advantages(storage, are_joint=self.joins_advantages)

    @property
    def joins_advantages(self) -> bool:
        """Whether the advantages of all agents are normalised together."""
        return self.formulas.joins_advantages(self.num_values)

    def surrogate(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Return the objective (L, B) of actions, from their probability ratios and advantages.

        L decisions of a training sequence, B sequences.
        """
        return losses.clipped_surrogate(ratio, advantages, self.cfg.clip_param)

    def update_policy(self, agent: int, batches: list[ActorBatch]) -> dict[str, Tensor]:
        """Maximise the surrogate objective in ``num_epochs`` epochs over batches.

        Agents sharing agent ``agent``'s actor bring one batch each. Return mean metrics as 0-dim
        tensors. The actor does not change if no row is active.
        """
        cfg = self.cfg
        actor = self.actors[agent]
        optimizer = self.optimizer(agent)
        mirror = self.spec.symmetries.mirror
        num_active = torch.stack([batch.weights.sum() for batch in batches]).sum()
        self.ranks.sum_(num_active)
        enabled = (num_active > 0.0).float()
        if not cfg.use_policy_active_masks:
            batches = [batch._replace(weights=torch.ones_like(batch.weights)) for batch in batches]

        names = ("policy_loss", "dist_entropy", "ratio", "kl", "actor_grad_norm")
        sums = [torch.zeros_like(enabled) for _ in names]
        for minibatch in self.formulas.minibatches(
            batches, cfg.num_epochs, cfg.num_minibatches, self.shuffle
        ):
            # Compute the gradient and average it over all ranks.
            optimizer.zero_grad()
            stats = add_policy_gradient(actor, optimizer, minibatch, self.surrogate, cfg, mirror)
            (kl,) = optimizer.share(minibatch.weights.sum(), stats.kl)

            # Step, and adapt the learning rate.
            norm = optimizer.step(cfg.max_grad_norm, enabled)
            if cfg.schedule == "adaptive":
                adapt_learning_rate(optimizer.learning_rate, kl, cfg.desired_kl)

            for total, value in zip(sums, (*stats, norm), strict=True):
                total += value * enabled

        num_updates = cfg.num_epochs * cfg.num_minibatches
        metrics = {name: total / num_updates for name, total in zip(names, sums, strict=True)}
        metrics["std"] = actor.std().detach().mean()
        metrics["learning_rate"] = optimizer.learning_rate.clone()
        return metrics

    # Saving

    def state_parts(self) -> dict[str, Any]:
        return super().state_parts() | {"optimizers": self.optimizers, "value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. A constant schedule's learning rates come from the settings.

        Schedule ``linear`` sets all rates before every update. Schedule ``adaptive`` resumes with
        the actors' saved rates.
        """
        super().load_state_dict(state)
        if self.cfg.schedule == "constant":
            for optimizer in self.optimizers:
                optimizer.learning_rate.fill_(self.cfg.learning_rate)
        if self.cfg.schedule != "linear":
            self.critic_optimizer.learning_rate.fill_(self.cfg.critic_learning_rate)

    # Helpers

    def _make_storage(self, num_steps: int, num_envs: int, device: torch.device) -> Storage:
        # Training rows: decisions, or chunks of them.
        is_recurrent = self.network.use_recurrent_policy
        rows = num_envs * num_steps
        if is_recurrent:
            length = self.network.chunk_length or num_steps
            if num_steps % length:
                raise ValueError(
                    f"num_steps ({num_steps}) must be a multiple of network.chunk_length ({length})"
                )
            rows = rows // length

        critic_num_minibatches = self.cfg.critic_num_minibatches or self.cfg.num_minibatches
        _check_minibatches("num_minibatches", self.cfg.num_minibatches, rows)
        num_views = self.num_agents if self.state_type == "FP" else 1
        _check_minibatches("critic_num_minibatches", critic_num_minibatches, rows * num_views)

        shape = StorageShape(
            num_steps=num_steps,
            num_envs=num_envs,
            num_agents=self.num_agents,
            obs_size=self.spec.obs_size,
            action_size=self.action_size,
            state_shape=self.state_shape,
            num_values=self.num_values,
            actor_hidden=self.actors[0].hidden_shape if is_recurrent else None,
            critic_hidden=self.critic.hidden_shape if is_recurrent else None,
            keeps_final_state=self.formulas.keeps_final_state,
            presence=self.spec.presence,
        )
        return Storage(shape, device, self.critic_state, self.team_rewards)


def _check_minibatches(name: str, number: int, rows: int) -> None:
    if number > rows:
        raise ValueError(
            f"{name} must be at most {rows}, the training rows of a rollout, not {number}"
        )
