"""What the off-policy algorithms share: a team of actors, twin critics of all actions, updates from
a replay buffer.

An algorithm is this class with its own actors, targets and actor loss. B rows of a batch, G critic
views (1, or A where states are FP), K outputs of a critic (1, or the atoms of a categorical value).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from harl_mapush.algorithms.algorithm import Decision, LearnerBytes
from harl_mapush.algorithms.off_policy_checks import check_together
from harl_mapush.algorithms.team import TeamSpec
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.normalization import ReturnNorm, RunningNorm
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.q_networks import TwinCritic
from harl_mapush.learning.off_policy.replay_buffer import (
    Batch,
    ReplayShape,
    RingReplay,
    Transition,
    half_mirrored,
    replay_shape,
)
from harl_mapush.learning.off_policy.settings import OffPolicyCfg
from harl_mapush.learning.off_policy.target_networks import targets_of
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.update_graphs import Graphs
from harl_mapush.learning.world_model.world_model import check_worlds, make_model

_FLOAT = 4  # bytes


class OffPolicy(ABC):
    """A team that acts, and learns from a replay buffer."""

    follows_first_critic = False  # whether actors learn from the first critic alone

    def __init__(
        self,
        cfg: Any,
        network: NetworkCfg,
        spec: TeamSpec,
        device: torch.device | str = "cpu",
        seed: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        """Build networks (initialised on the CPU from torch's global generator) and optimisers on
        ``device``.

        ``cfg`` is the algorithm's own settings class; actions, batches and orders are drawn from
        ``seed``. Each of ``ranks`` has a replay of its own worlds' transitions, and draws its share
        of every batch from it.
        """
        self.cfg: OffPolicyCfg = cfg
        self.network = cfg.built_network(network)
        self.spec = spec
        self.device = torch.device(device)
        self.ranks = ranks
        self.arithmetic = self.cfg.arithmetic(ranks)
        self.num_agents = spec.num_agents
        self.num_views = self.num_agents if spec.state_type == "FP" else 1
        self.action_size = max(spec.action_sizes)
        check_together(cfg, network, spec, self.arithmetic, ranks)
        self.actors = [actor.to(self.device) for actor in self._make_actors()]
        size = max(cfg.num_atoms, 1)
        self.critic = TwinCritic(self.network, spec.state_size, sum(spec.action_sizes), size).to(
            self.device
        )
        self.rates = [cfg.learning_rate] * len(self.unique_actors)
        make_adam = partial(FlatAdam, eps=cfg.adam_eps, weight_decay=cfg.weight_decay, ranks=ranks)
        self.optimizers = [
            make_adam(actor, rate)
            for actor, rate in zip(self.unique_actors, self.rates, strict=True)
        ]
        self.critic_optimizer = make_adam(self.critic, cfg.critic_learning_rate)
        (self.target_critic,), self.targets = targets_of([self.critic], [self.critic_optimizer])
        self.normalizer = self.arithmetic.normalizer(cfg).to(self.device)
        self.support = td.atoms(cfg.value_bound, size, self.device) if cfg.num_atoms else None
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.host_generator = torch.Generator().manual_seed(seed)
        self.graphs = Graphs(self.device, self.generator)
        self.world_share: tuple[int, int] | None = (
            None  # first world and their number, where others have some as well
        )
        self.num_updates = 0
        self.num_owed = 0.0  # updates that the settings ask for, and that wait for a whole one
        self.model = None
        self.mirror = spec.mirror if cfg.mirror else None
        if cfg.model == "ensemble" and spec.planar is not None:
            sizes = self.replay_shape(1)
            self.model = make_model(
                cfg, spec.planar, sizes, self.team_rewards, self.generator, seed
            )

    @property
    def unique_actors(self) -> list[Any]:
        """Actors without repetition: one if shared."""
        return self.actors[:1] if self.cfg.share_param else self.actors

    # The contract

    def make_experience(self, num_steps: int, num_envs: int) -> ReplayExperience:
        """Allocate the replay."""
        return self.make_rings(num_envs, 1)

    def make_rings(self, num_envs: int, num_rings: int) -> ReplayExperience:
        """Allocate a replay for ``num_rings`` processes that collect, each in its share of the
        environments.
        """
        shape = self.replay_shape(num_envs, num_rings)
        cfg = self.cfg
        if self.model is not None:
            check_worlds(shape.num_envs)
        replay = RingReplay(shape, cfg.n_step, cfg.gamma, self.generator, self.device, self.ranks)
        return ReplayExperience(
            replay, self.device, self.team_rewards, self.update_norms, is_saved=cfg.save_replay
        )

    @torch.no_grad()
    def act(
        self, obs: Tensor, hidden: Tensor | None = None, *, deterministic: bool = False
    ) -> Decision:
        """Decide for obs (N, A, O): with exploration, or ``deterministic``; an untrained team
        warms up at random.
        """
        is_random = not self.spec.is_trained and not self.num_updates
        kind = "act" if deterministic else "warm up" if is_random else "explore"
        decide = {"act": self._act, "explore": self.explore, "warm up": self._act_at_random}[kind]
        return Decision(self.graphs((kind, obs.shape), decide, obs), None, None)

    def update(self, experience: ReplayExperience, progress: float = 0.0) -> dict[str, Tensor]:
        """Update ``update_ratio`` times per transition of the last block, once ``warmup``
        transitions are stored.

        Return the last update's metrics.
        """
        if len(experience.replay) * self.ranks.size < max(self.cfg.warmup, 1):
            experience.num_new = 0
            return {}
        self.set_progress(progress)
        self.num_owed += self.cfg.update_ratio * experience.num_new * self.ranks.size
        experience.num_new = 0
        num_due = int(self.num_owed)
        metrics = {}
        self.num_owed -= num_due
        for _ in range(num_due):
            metrics = metrics | self.learn_from(experience.replay)
        return metrics

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The modules of a checkpoint by file name."""
        actors = {f"actor_agent{i}": actor for i, actor in enumerate(self.actors)}
        return actors | {"critic_agent": self.critic, "value_normalizer": self.normalizer}

    @property
    def weights(self) -> dict[str, Tensor]:
        """All that is trained as flat tensors by name."""
        actors = {f"agent{i}": optimizer.flat for i, optimizer in enumerate(self.optimizers)}
        model = {} if self.model is None else {"model": self.model.optimizer.flat}
        return actors | {"critic": self.critic_optimizer.flat} | model

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-exact resume needs but the experience."""
        model = {} if self.model is None else {"model": self.model.state_dict()}
        return model | {
            "actors": [actor.state_dict() for actor in self.unique_actors],
            "critic": self.critic.state_dict(),
            "normalizer": self.normalizer.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._all_optimizers()],
            "targets": [target.clone() for target, _ in self.targets],
            "generator": self.generator.get_state(),
            "host_generator": self.host_generator.get_state(),
            "num_updates": self.num_updates,
            "num_owed": self.num_owed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; learning rates are those of the settings."""
        for actor, saved in zip(self.unique_actors, state["actors"], strict=True):
            actor.load_state_dict(saved)
        self.critic.load_state_dict(state["critic"])
        self.normalizer.load_state_dict(state["normalizer"])
        for optimizer, saved in zip(self._all_optimizers(), state["optimizers"], strict=True):
            rate = optimizer.learning_rate.clone()
            optimizer.load_state_dict(saved)
            optimizer.learning_rate.copy_(rate)
        for (target, _), saved in zip(self.targets, state["targets"], strict=True):
            target.copy_(saved)
        self.generator.set_state(state["generator"].cpu())
        self.host_generator.set_state(state["host_generator"].cpu())
        self.num_updates = state["num_updates"]
        self.num_owed = state["num_owed"]
        if self.model is not None:
            self.model.load_state_dict(state["model"])

    def plan_bytes(self, num_steps: int, num_envs: int, device_type: str) -> LearnerBytes:
        """Return the bytes of the replay, and of one update: its batch, and what gradients need of
        two critics.
        """
        cfg = self.cfg
        sizes = self.network.critic_hidden_sizes or self.network.hidden_sizes
        shape = self.replay_shape(num_envs)
        row = shape.nbytes / shape.num_transitions
        # Of a layer, at the fullest moment of its gradients.
        kept = 4 if self.network.use_layer_norm else 3
        widths = 2 * self.num_views * (kept * sum(sizes) + 6 * max(cfg.num_atoms, 1)) + kept * sum(
            self.network.hidden_sizes
        )
        update = self._batch_size * (3 * row + widths * _FLOAT)
        kept = shape.nbytes
        if self.model is not None:
            update = update + self.model.plan_bytes(row)
            kept = kept + self.model.replay.shape.nbytes
        return LearnerBytes(kept, round(update))

    # What differs between algorithms

    @abstractmethod
    def _make_actors(self) -> list[Any]:
        """Build one actor an agent, or the same for all, on the CPU."""

    @abstractmethod
    def explore(self, obs: Tensor) -> Tensor:
        """Return actions (N, A, U) that explore."""

    @abstractmethod
    def next_decisions(self, obs: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return what the team will do on the next obs (B, A, O), (B, sum of U), and its entropy
        bonus (B,).
        """

    @abstractmethod
    def decide(self, agent: int, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return actions (B, U) of one agent for obs (B, A, O), and their log probabilities (B,)
        where it has any.
        """

    @abstractmethod
    def actor_loss(
        self, agent: int, values: Tensor, log_probs: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        """Return the loss of one actor from the critics' values (2 or 1, B, G) of its actions and
        the team's.
        """

    def after_actors(self, log_probs: Sequence[Tensor | None], batch: Batch) -> dict[str, Tensor]:
        """Update what depends on the log probabilities (B,) of every agent's actions; return
        metrics.
        """
        return {}

    # Learning

    def learn_from(self, replay: RingReplay) -> dict[str, Tensor]:
        """Take one step with a batch that is drawn from a replay, and from the model's where there
        is a model.
        """
        size = self._batch_size
        image = self.mirror
        if self.model is None:
            return self.learn(
                self.graphs(
                    "sample", lambda: half_mirrored(replay.sample(size), image), over=replay
                )
            )
        metrics = self.model.advance(replay, self.explore, self.num_updates)
        number = self.model.num_predicted(size, self.num_updates)
        mix = partial(self.model.mixed, replay, size - number, number)
        return metrics | self.learn(
            self.graphs(("sample", number), lambda: half_mirrored(mix(), image), over=replay)
        )

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """Take one step with the critics, and every ``policy_delay``-th time with the actors and
        targets.
        """
        # The networks were loaded after their copies were made.
        if self.spec.is_trained and not self.num_updates:
            for target, source in self.targets:
                target.copy_(source)
        self.num_updates += 1
        improves_actors = self.num_updates % self.cfg.policy_delay == 0
        order = self.draw_order() if improves_actors else ()
        work = partial(self._learn, order)
        return self.graphs(("update", order), work, *batch)

    def _learn(self, order: tuple[int, ...], *parts: Tensor) -> dict[str, Tensor]:
        batch = Batch(*parts)
        metrics = self._improve_critic(batch)
        if order:
            metrics |= self._update_actors(batch, order)
            for target, source in self.targets:
                td.move_towards(target, source, self.cfg.polyak)
        return metrics

    def _improve_critic(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            next_actions, bonus = self.next_decisions(batch.next_obs)
            outputs = self.target_critic(batch.next_state, next_actions)
            target = self._target(batch, outputs, bonus)
        outputs = self.critic(batch.state, self._joint(batch.actions.unbind(1)))
        weights = batch.active if self.num_views > 1 and self.cfg.use_policy_active_masks else None
        if self.support is not None:
            errors = td.cross_entropy(outputs, target)
        else:
            errors = td.huber(
                outputs.squeeze(-1) - target,
                self.cfg.huber_delta if self.cfg.use_huber_loss else None,
            )
        loss = td.weighted_mean(errors[0], weights) + td.weighted_mean(errors[1], weights)
        norm = _step(self.critic_optimizer, loss, self.cfg.max_grad_norm, weights)
        values = self.values(outputs.detach())
        return {
            "critic/value_loss": loss.detach(),
            "critic/value": values.mean(),
            "critic/critic_grad_norm": norm,
        }

    def _target(self, batch: Batch, outputs: Tensor, bonus: Tensor | float) -> Tensor:
        """Return what the critics learn: values (B, G), or their distributions (B, G, K)."""
        values = self.values(outputs)
        if isinstance(bonus, Tensor):
            bonus = bonus.unsqueeze(-1)
        if self.support is None:
            lower = values.amin(0)
            return self.arithmetic.target(
                batch.returns, batch.discount, lower, bonus, self.normalizer, self.cfg
            )
        returns = self.arithmetic.scaled(batch.returns, self.normalizer, self.cfg)
        chances = torch.softmax(outputs, -1)
        lower = torch.where((values[0] < values[1]).unsqueeze(-1), chances[0], chances[1])
        discount = batch.discount.unsqueeze(-1).expand_as(returns)
        return td.project(lower, returns + discount * bonus, discount, self.support)

    def _update_actors(self, batch: Batch, order: Sequence[int]) -> dict[str, Tensor]:
        """Update the actors one after another; each sees the others' newest actions, or those of
        the replay.
        """
        cfg = self.cfg
        metrics = {}
        with torch.no_grad():
            if cfg.is_sequential:
                actions = [self.decide(i, batch.obs)[0] for i in range(self.num_agents)]
            else:
                actions = []
        log_probs: list[Tensor | None] = [None] * self.num_agents
        for turn, agent in enumerate(order):
            mine, log_probs[agent] = self.decide(agent, batch.obs)
            others = actions if cfg.is_sequential else list(self._own(batch.actions))
            joint = torch.cat([*others[:agent], mine, *others[agent + 1 :]], dim=-1)
            values = self.values(
                self.critic(batch.state, joint, only_first=self.follows_first_critic)
            )
            weights = batch.active[:, agent] if cfg.use_policy_active_masks else None
            loss = self.actor_loss(agent, values, log_probs[agent], weights)
            norm = _step(
                self.optimizers[0 if cfg.share_param else agent], loss, cfg.max_grad_norm, weights
            )
            metrics |= {
                f"agent{agent}/policy_loss": loss.detach(),
                f"agent{agent}/actor_grad_norm": norm,
            }
            if cfg.is_sequential and turn < self.num_agents - 1:
                with torch.no_grad():
                    actions[agent] = self.decide(agent, batch.obs)[0]
        return metrics | self.after_actors(log_probs, batch)

    def values(self, outputs: Tensor) -> Tensor:
        """Return values (..., G) from a critic's outputs (..., G, K)."""
        if self.support is None:
            return outputs.squeeze(-1)
        return (torch.softmax(outputs, -1) * self.support).sum(-1)

    def set_progress(self, progress: float) -> None:
        """Set learning rates that fall from the full rate to zero at the end of the run, where the
        settings say so.
        """
        if self.cfg.use_linear_decay:
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                optimizer.learning_rate.fill_(rate * (1.0 - progress))
            self.critic_optimizer.learning_rate.fill_(
                self.cfg.critic_learning_rate * (1.0 - progress)
            )

    # What is drawn

    def noise(self, *size: int) -> Tensor:
        """Draw standard normal numbers."""
        return self.ranks.draw(torch.randn, size, generator=self.generator, device=self.device)

    def draw_order(self) -> tuple[int, ...]:
        """Draw the order in which agents are updated; their own order where it has no effect."""
        if self.cfg.fixed_order or not self.cfg.is_sequential:
            return tuple(range(self.num_agents))
        return tuple(torch.randperm(self.num_agents, generator=self.host_generator).tolist())

    # What is taken in

    def team_rewards(self, rewards: Tensor) -> Tensor:
        """Turn the agents' rewards (N, A) into those that are learned (N, G); HARL's with one view
        are agent 0's.
        """
        if self.cfg.team_reward == "own":
            return rewards[:, : self.num_views]
        if self.cfg.team_reward == "mean":
            total = rewards.mean(1, keepdim=True)
        else:
            total = rewards.sum(1, keepdim=True)
        return total.expand(-1, self.num_views)

    def update_norms(self, transition: Transition, discounted: Tensor) -> None:
        """Update running normalisations by one decision, and the discounted returns so far, (N,
        G), in place.
        """
        valid = transition.valid.to(discounted.dtype)
        for agent, actor in enumerate(self.actors):
            if isinstance(actor.obs_norm, RunningNorm):
                seen = transition.obs[:, agent, : actor.obs_size]
                actor.obs_norm.update(seen, valid * transition.active[:, agent], self.ranks)
        if isinstance(self.critic.state_norm, RunningNorm):
            weights = valid.unsqueeze(1).expand(-1, self.num_views)
            self.critic.state_norm.update(transition.state, weights, self.ranks)
        if isinstance(self.normalizer, ReturnNorm):
            discounted.mul_(self.cfg.gamma).add_(transition.rewards * valid.unsqueeze(1))
            self.normalizer.update(
                discounted.unsqueeze(-1), valid.unsqueeze(1).expand_as(discounted), self.ranks
            )
            discounted.masked_fill_((transition.done | ~transition.valid).unsqueeze(1), 0.0)

    # Acting

    def _act(self, obs: Tensor) -> Tensor:
        return self.stacked([actor(self.own_obs(i, obs)) for i, actor in enumerate(self.actors)])

    def _act_at_random(self, obs: Tensor) -> Tensor:
        shape = (*obs.shape[:2], self.action_size)
        uniform = (
            2.0 * self.ranks.draw(torch.rand, shape, generator=self.generator, device=self.device)
            - 1.0
        )
        return self.stacked(self._own(uniform))

    def own_obs(self, agent: int, obs: Tensor) -> Tensor:
        """Return one agent's own part of obs (B, A, O)."""
        return obs[:, agent, : self.spec.obs_sizes[agent]]

    def stacked(self, actions: Sequence[Tensor]) -> Tensor:
        """Stack the agents' actions (N, A, U), padded with zeros to the team's largest size."""
        return torch.stack([pad(x, (0, self.action_size - x.shape[-1])) for x in actions], dim=1)

    def _own(self, actions: Tensor) -> list[Tensor]:
        return [actions[:, i, :size] for i, size in enumerate(self.spec.action_sizes)]

    def _joint(self, actions: Sequence[Tensor]) -> Tensor:
        return torch.cat(
            [x[..., :size] for x, size in zip(actions, self.spec.action_sizes, strict=True)], dim=-1
        )

    @property
    def _batch_size(self) -> int:
        """Return how many transitions of a batch are this rank's."""
        return math.ceil(self.cfg.batch_size / self.ranks.size)

    def _all_optimizers(self) -> list[FlatAdam]:
        return [*self.optimizers, self.critic_optimizer]

    def replay_shape(self, num_envs: int, num_rings: int = 1) -> ReplayShape:
        """Return the sizes of the replay of ``num_envs`` environments, shared out over rings."""
        return replay_shape(
            math.ceil(self.cfg.buffer_size / self.ranks.size),
            num_envs // num_rings,
            num_rings=num_rings,
            num_agents=self.num_agents,
            obs_size=max(self.spec.obs_sizes),
            action_size=self.action_size,
            num_views=self.num_views,
            state_size=self.spec.state_size,
        )


def _step(
    optimizer: FlatAdam, loss: Tensor, max_grad_norm: float, weights: Tensor | None = None
) -> Tensor:
    """Take a step along the mean loss of rows with ``weights``, of all where they are None; return
    the norm.
    """
    optimizer.zero_grad()
    optimizer.add_gradient(loss)
    optimizer.share(None if weights is None else weights.sum())
    return optimizer.step(max_grad_norm)
