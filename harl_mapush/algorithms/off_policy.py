"""Base class for off-policy algorithms: a team of actors, and twin critics for joint actions.

Both learn from a replay buffer. A subclass adds its own actors, targets and actor loss. N
environments, A agents, O obs size, U action size, B batch rows, G critic views (1, or A for FP
states).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy, deepcopy
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.algorithms.team import Team
from harl_mapush.learning.formula_sets import OFF_POLICY_FORMULAS
from harl_mapush.learning.off_policy import td
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.formulas import OffPolicyFormulas
from harl_mapush.learning.off_policy.q_networks import TwinCritic, target_of, targets_of
from harl_mapush.learning.off_policy.replay_buffer import (
    Batch,
    ReplayShape,
    RingReplay,
    Transition,
    replay_shape,
)
from harl_mapush.learning.off_policy.side_stream import SideStream
from harl_mapush.learning.off_policy.symmetric_batches import Images
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import OffPolicyCfg
from mqe.host_memory import check_room
from mqe.resumable import restore, states
from mqe.vec_env import TeamSpec

_DRAWN_TOGETHER = 8  # batches of an iteration, in one pass over the replay buffer


class OffPolicy(Team):
    """A team learning from a replay buffer.

    Every rank has a replay buffer with its own worlds' transitions, and draws an equal part of
    every batch.
    """

    cfg: OffPolicyCfg
    formulas: OffPolicyFormulas
    formula_sets = OFF_POLICY_FORMULAS
    fuses_adam = True
    critic_class = TwinCritic
    replay_class = RingReplay
    follows_first_critic = False  # whether actors learn from the first critic only

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        cfg = self.cfg
        spec = self.spec
        self.num_views = self.num_agents if spec.state_type == "FP" else 1
        self.num_values = self.num_views
        # The first of this process's worlds and the number of all; None if it has all of them.
        self.world_share: tuple[int, int] | None = None

        # Critics
        sizes = (spec.state_size, spec.action_sizes, spec.state_sets)
        self.critic = self.critic_class(self.network, *sizes).to(self.device)
        self.critic_optimizer = self.make_optimizer(self.critic, cfg.critic_learning_rate)
        (self.target_critic,), self.targets = targets_of([self.critic], [self.critic_optimizer])

        # Values
        self.normalizer = self.formulas.normalizer().to(self.device)
        self.learned_normalizer = self.normalizer  # that of the critics' targets

        # The schedule of updates
        self.num_updates = 0
        self.num_owed = 0.0  # updates that are due, whole ones and a fraction

        # Updates beside the collecting
        self.side: SideStream | None = None
        self._collecting: Self | None = None  # this team with older weights
        self._batches: list[Batch] = []  # of the updates that may be under way
        self._side_metrics: dict[str, Tensor] = {}
        if cfg.beside_collecting and self.ranks.size == 1:
            self.side = SideStream(self.device)
            self.learned_normalizer = deepcopy(self.normalizer)

        # Images of transitions
        self._images: Images | None = None
        if cfg.symmetries:
            symmetries = [getattr(spec.symmetries, name) for name in cfg.symmetries]
            self._images = Images(symmetries, spec, self.num_views, self.device)

    def check_settings(self) -> None:
        """Raise ValueError for contradicting settings."""
        cfg = self.cfg
        spec = self.spec
        formulas = self.formulas
        if self.network.use_recurrent_policy:
            raise ValueError(
                f"{cfg.name} has no recurrent policies; set network.use_recurrent_policy=false"
            )
        if cfg.team_reward == "own" and spec.state_type == "EP" and not formulas.takes_first_reward:
            raise ValueError(
                "team_reward=own needs a state for each agent; set task.state_type=FP, or "
                "team_reward=mean"
            )
        if cfg.warmup > cfg.buffer_size:
            raise ValueError(
                f"warmup ({cfg.warmup}) must fit into buffer_size ({cfg.buffer_size}); "
                "lower algorithm.warmup"
            )
        if cfg.all_at_once and not (cfg.share_param and cfg.is_sequential):
            raise ValueError(
                "all_at_once is an update of one actor by all agents' new actions; set "
                "algorithm.share_param=true and algorithm.is_sequential=true"
            )
        if cfg.beside_collecting and not formulas.fits_beside:
            raise ValueError(
                "beside_collecting must be false under compat=harl; set "
                "algorithm.beside_collecting=false"
            )
        if cfg.symmetries:
            _check_symmetries(cfg.symmetries, spec, formulas)
        if self.follows_first_critic:
            self.cfg = formulas.deterministic(cfg)

    @property
    def target_moves(self) -> list[tuple[Tensor, Tensor]]:
        """Targets and their sources, once for every move of an update."""
        return self.targets

    # Differences between algorithms

    @abstractmethod
    def explore(self, obs: Tensor) -> Tensor:
        """Return actions (N, A, U) with exploration, for obs (N, A, O)."""

    @abstractmethod
    def next_decisions(self, obs: Tensor) -> tuple[Tensor, Tensor | float]:
        """Return the team's actions (B, sum of U) for next obs (B, A, O), and a bonus (B,).

        The bonus is the critics' entropy bonus, or 0.
        """

    @abstractmethod
    def decide(self, agent: int, obs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return one agent's actions (B, U) for obs (B, A, O), and their log probabilities (B,).

        The latter are None if actions are deterministic.
        """

    def decide_all(self, obs: Tensor) -> tuple[list[Tensor], list[Any]]:
        """Return every agent's actions (B, U), and log probabilities (B,) or None."""
        decisions = [self.decide(i, obs) for i in range(self.num_agents)]
        actions, log_probs = zip(*decisions, strict=True)
        return list(actions), list(log_probs)

    @abstractmethod
    def actor_loss(
        self, agent: int, values: Tensor, log_probs: Tensor | None, weights: Tensor | None
    ) -> Tensor:
        """Return one actor's loss, given the critics' values (2 or 1, B, G) of joint actions."""

    def critic_loss(self, loss: Tensor, batch: Batch) -> Tensor:
        """Return the critics' loss, given the part of their values."""
        return loss

    def further_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return further parts of a shared actor's loss by name, with all_at_once."""
        return {}

    def after_actors(self, log_probs: Sequence[Tensor | None], batch: Batch) -> dict[str, Tensor]:
        """Update parameters by every agent's log probabilities (B,). Return metrics."""
        return {}

    # Acting

    @torch.no_grad()
    def act(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        """Decide for obs (N, A, O), with exploration.

        An untrained team acts at random until its first update.
        """
        team = self
        if self.spec.is_trained or self.num_updates:
            key = "explore"
            if self.side is not None:
                team = self._collecting = self._collecting or self._copy_for_collecting()
            decide = team.explore
        else:
            key = "warm up"
            decide = self.act_untrained
        return Decision(team.graphs((key, obs.shape), decide, obs), None, None)

    def act_untrained(self, obs: Tensor) -> Tensor:
        """Return random actions (N, A, U)."""
        shape = (*obs.shape[:2], self.action_size)
        uniform = self.ranks.draw(torch.rand, shape, generator=self.generator, device=self.device)
        return self.stacked(self._own(2.0 * uniform - 1.0))

    # Collecting

    def make_experience(self, num_steps: int, num_envs: int) -> ReplayExperience:
        """Allocate the replay buffer."""
        return self.make_rings(num_envs, 1)

    def make_rings(self, num_envs: int, num_rings: int) -> ReplayExperience:
        """Allocate a replay buffer for ``num_rings`` processes sharing the environments.

        Raise ConfigError if it does not fit into the memory.
        """
        cfg = self.cfg
        shape = self.replay_shape(num_envs, num_rings)
        check_room(shape.nbytes, self.device, "algorithm.buffer_size", cfg.buffer_size)
        replay = self.replay_class(
            shape, cfg.n_step, cfg.gamma, self.generator, self.device, self.ranks
        )
        return ReplayExperience(
            replay, self.device, self.team_rewards, self.update_norm, is_saved=cfg.save_replay
        )

    def replay_shape(self, num_envs: int, num_rings: int = 1) -> ReplayShape:
        """Return the replay buffer's sizes for ``num_envs`` environments in rings."""
        return replay_shape(
            math.ceil(self.cfg.buffer_size / self.ranks.size),
            num_envs // num_rings,
            num_rings=num_rings,
            num_agents=self.num_agents,
            obs_size=self.spec.obs_size,
            action_size=self.action_size,
            num_views=self.num_views,
            state_size=self.spec.state_size,
            ends_apart=self.formulas.ends_apart and self.num_views > 1,
        )

    def update_norm(self, transition: Transition, discounted: Tensor) -> None:
        """Update the normaliser of rewards by one decision.

        ``discounted`` (N, G) are the discounted returns so far, updated in place.
        """
        self.formulas.update_norm(self.normalizer, transition, discounted, self.cfg.gamma)

    # Learning

    def update(self, experience: ReplayExperience, progress: float = 0.0) -> dict[str, Tensor]:
        """Update ``update_ratio`` times per transition of the last block.

        Updates begin once ``warmup`` transitions are stored. Return the last update's metrics.
        """
        num_new = experience.num_new
        experience.num_new = 0
        if len(experience.replay) * self.ranks.size < max(self.cfg.warmup, 1):
            return {}

        self.num_owed += self.cfg.update_ratio * num_new * self.ranks.size
        num_due = int(self.num_owed)
        self.num_owed -= num_due
        if self.side is not None:
            return self._update_beside(self.side, experience.replay, num_due, progress)

        self.set_progress(progress)
        metrics = {}
        while num_due:
            count = min(num_due, _DRAWN_TOGETHER)
            for batch in self.draw(experience.replay, count):
                metrics |= self.learn(batch)
            num_due -= count
        return metrics

    # Updates beside the collecting

    def _update_beside(
        self, side: SideStream, replay: RingReplay, num_due: int, progress: float
    ) -> dict[str, Tensor]:
        """Start ``num_due`` updates in parallel. Return the previous updates' metrics.

        All batches are drawn first, since collecting adds to the replay buffer.
        """
        side.join()
        self.set_progress(progress)
        self._collecting = self._collecting or self._copy_for_collecting()
        for actor, optimizer in zip(self._collecting.unique_actors, self.optimizers, strict=True):
            parameters = list(actor.parameters())
            for parameter, newest in zip(parameters, optimizer.parameters, strict=True):
                parameter.copy_(newest.detach())
        pairs = zip(self.learned_normalizer.buffers(), self.normalizer.buffers(), strict=True)
        for learned, newest in pairs:
            learned.copy_(newest)
        self._batches = self.draw(replay, num_due) if num_due else []

        def learn() -> dict[str, Tensor]:
            metrics = {}
            for batch in self._batches:
                metrics |= self.learn(batch)
            return metrics

        metrics = self._side_metrics
        self._side_metrics = side.run(learn)
        return metrics

    def _copy_for_collecting(self) -> Self:
        """Return this team with actors, a generator and graphs of its own."""
        team = copy(self)
        copies = [target_of(actor) for actor in self.unique_actors]
        team.actors = copies * self.num_agents if self.cfg.share_param else copies
        generator = torch.Generator(self.device)
        generator.set_state(self.generator.get_state())
        team.set_generator(generator.manual_seed(generator.initial_seed() + 1))
        return team

    def _join(self) -> None:
        """Make the current stream wait for the parallel updates."""
        if self.side is not None:
            self.side.join()

    def draw(self, replay: RingReplay, count: int) -> list[Batch]:
        """Draw ``count`` batches of a replay buffer in one pass."""
        size = math.ceil(self.cfg.batch_size / self.ranks.size)  # this rank's part of a batch

        def sample() -> Batch:
            batch = replay.sample(count * size)
            return batch if self._images is None else self._images(batch)

        drawn = self.graphs(("sample", count), sample, over=replay)
        parts = [part.split(size) for part in drawn]
        return [Batch(*fields) for fields in zip(*parts, strict=True)]

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """Take one step of the critics, and of the rest if it is due.

        Targets and actors move every ``policy_delay``-th time, actors after ``critic_warmup``
        steps.
        """
        # Trained networks may have been loaded after the target networks were made.
        if self.spec.is_trained and not self.num_updates:
            for target, source in self.targets:
                target.copy_(source)

        self.num_updates += 1
        moves_targets = self.num_updates % self.cfg.policy_delay == 0
        updates_actors = moves_targets and self.num_updates > self.cfg.critic_warmup
        order = self.draw_order() if updates_actors else ()
        learn = partial(self._learn, order, moves_targets)
        return self.graphs(("update", order, moves_targets), learn, *batch)

    def _learn(
        self, order: tuple[int, ...], moves_targets: bool, *parts: Tensor
    ) -> dict[str, Tensor]:
        batch = Batch(*parts)
        if self.spec.presence is not None:
            batch = batch._replace(active=batch.active * batch.obs[..., self.spec.presence])
        metrics = self._update_critic(batch)
        if order:
            metrics |= self._update_actors(batch, order)
        if moves_targets:
            for target, source in self.target_moves:
                td.move_towards(target, source, self.cfg.polyak)
        return metrics

    def _update_critic(self, batch: Batch) -> dict[str, Tensor]:
        cfg = self.cfg
        with torch.no_grad():
            next_actions, bonus = self.next_decisions(batch.next_obs)
            next_values = self.target_critic(batch.next_state, next_actions)
            target = self._target(batch, next_values, bonus)
        values = self.critic(batch.state, torch.cat(self._own(batch.actions), dim=-1))

        # Errors of both critics.
        weights = None
        second_share = 1.0
        if self.num_views > 1 and cfg.use_policy_active_masks:
            weights = self.formulas.critic_weights(batch.active)
            second_share = self.formulas.second_critic_share(cfg, batch.active)
        errors = td.huber(values - target, cfg.huber_delta if cfg.use_huber_loss else None)
        loss = td.weighted_mean(errors[0], weights)
        loss = loss + second_share * td.weighted_mean(errors[1], weights)

        whole = self.critic_loss(loss, batch)
        norm = _step(self.critic_optimizer, whole, cfg.max_grad_norm, weights)
        return {
            "critic/value_loss": loss.detach(),
            "critic/value": values.detach().mean(),
            "critic/critic_grad_norm": norm,
        }

    def _target(self, batch: Batch, values: Tensor, bonus: Tensor | float) -> Tensor:
        """Return the critics' targets (B, G) from the target critics' ``values`` (2, B, G)."""
        if isinstance(bonus, Tensor):
            bonus = bonus.unsqueeze(-1)
        return self.formulas.target(
            batch.returns, batch.discount, values.amin(0), bonus, self.learned_normalizer, self.cfg
        )

    def _update_actors(self, batch: Batch, order: Sequence[int]) -> dict[str, Tensor]:
        """Update the actors one after another, or a shared one for all agents at once.

        The critics value each actor's actions together with the others' newest actions, or with
        those of the replay buffer if updates are not sequential.
        """
        cfg = self.cfg
        if cfg.all_at_once:
            return self._update_shared_actor(batch)
        metrics = {}
        newest: list[Tensor] = []
        if cfg.is_sequential:
            with torch.no_grad():
                newest, _ = self.decide_all(batch.obs)

        log_probs: list[Tensor | None] = [None] * self.num_agents
        for turn, agent in enumerate(order):
            # Value of this agent's actions together with the others'.
            agent_actions, log_probs[agent] = self.decide(agent, batch.obs)
            others = newest if cfg.is_sequential else self._own(batch.actions)
            joint = torch.cat([*others[:agent], agent_actions, *others[agent + 1 :]], dim=-1)
            values = self.critic(batch.state, joint, only_first=self.follows_first_critic)

            weights = batch.active[:, agent] if cfg.use_policy_active_masks else None
            loss = self.actor_loss(agent, values, log_probs[agent], weights)
            norm = _step(self.optimizer(agent), loss, cfg.max_grad_norm, weights)
            metrics[f"agent{agent}/policy_loss"] = loss.detach()
            metrics[f"agent{agent}/actor_grad_norm"] = norm

            # The next agents are updated with this agent's new actions.
            if cfg.is_sequential and turn < self.num_agents - 1:
                with torch.no_grad():
                    newest[agent] = self.decide(agent, batch.obs)[0]
        return metrics | self.after_actors(log_probs, batch)

    def _update_shared_actor(self, batch: Batch) -> dict[str, Tensor]:
        """Update the shared actor once, with the value of all agents' new actions."""
        cfg = self.cfg
        actions, log_probs = self.decide_all(batch.obs)
        joint = torch.cat(actions, dim=-1)
        values = self.critic(batch.state, joint, only_first=self.follows_first_critic)

        # The agents' losses share the value between them.
        values = values / self.num_agents
        weights = batch.active if cfg.use_policy_active_masks else None
        losses = []
        for agent in range(self.num_agents):
            agent_weights = None if weights is None else weights[:, agent]
            losses.append(self.actor_loss(agent, values, log_probs[agent], agent_weights))
        loss = torch.stack(losses).sum()
        metrics = {"agent0/policy_loss": loss.detach()}
        for name, term in self.further_losses(batch).items():
            metrics[name] = term.detach()
            loss = loss + term
        metrics["agent0/actor_grad_norm"] = _step(
            self.optimizers[0], loss, cfg.max_grad_norm, weights
        )
        return metrics | self.after_actors(log_probs, batch)

    # Random numbers

    def noise(self, *size: int) -> Tensor:
        """Draw standard normal noise with the shape ``size``."""
        return self.ranks.draw(torch.randn, size, generator=self.generator, device=self.device)

    def draw_order(self) -> tuple[int, ...]:
        """Draw the order of the actors' updates. Return the agents' own order if it has no
        effect.
        """
        cfg = self.cfg
        if cfg.fixed_order or cfg.all_at_once or not cfg.is_sequential:
            return tuple(range(self.num_agents))
        return tuple(torch.randperm(self.num_agents, generator=self.host_generator).tolist())

    # Parts of a team's tensors

    def own_obs(self, agent: int, obs: Tensor) -> Tensor:
        """Return one agent's own part of obs (B, A, O)."""
        return obs[:, agent, : self.spec.obs_sizes[agent]]

    def stacked(self, actions: Sequence[Tensor]) -> Tensor:
        """Stack the agents' actions (N, A, U), padded with zeros to the team's largest size."""
        return torch.stack([self.padded(x) for x in actions], dim=1)

    def _own(self, actions: Tensor) -> list[Tensor]:
        """Return every agent's actions (N, own U) from the team's (N, A, U)."""
        return [actions[:, i, :size] for i, size in enumerate(self.spec.action_sizes)]

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume, without the experience."""
        self._join()
        state = super().state_dict()
        if self._collecting is not None:
            state["collecting"] = states(_acting(self._collecting))
        return state | {"num_updates": self.num_updates, "num_owed": self.num_owed}

    def state_parts(self) -> dict[str, Any]:
        return super().state_parts() | {
            "critic": self.critic,
            "normalizer": self.normalizer,
            "optimizers": self._all_optimizers(),
            "targets": [target for target, _ in self.targets],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``. Learning rates come from the settings."""
        rates = [optimizer.learning_rate.clone() for optimizer in self._all_optimizers()]
        super().load_state_dict(state)
        for optimizer, rate in zip(self._all_optimizers(), rates, strict=True):
            optimizer.learning_rate.copy_(rate)
        self.num_updates = state["num_updates"]
        self.num_owed = state["num_owed"]
        if self.side is not None and "collecting" in state:
            self._collecting = self._copy_for_collecting()
            restore(_acting(self._collecting), state["collecting"])

    def _all_optimizers(self) -> list[FlatAdam]:
        return [*self.optimizers, self.critic_optimizer]


def _acting(team: Team) -> dict[str, Any]:
    """Return the parts of a team that act."""
    return {"actors": team.unique_actors, "generator": team.generator}


def _step(
    optimizer: FlatAdam, loss: Tensor, max_grad_norm: float, weights: Tensor | None = None
) -> Tensor:
    """Take a step along a loss's gradient. Return its norm.

    The loss is a mean over rows with ``weights``, over all rows if they are None.
    """
    optimizer.set_gradient(loss)
    optimizer.share(None if weights is None else weights.sum())
    return optimizer.step(max_grad_norm)


def _check_symmetries(names: Sequence[str], spec: TeamSpec, formulas: OffPolicyFormulas) -> None:
    """Raise ValueError if transitions have no images by one of the symmetries ``names``, or for a
    repeated name.
    """
    reason = None
    available = []
    for name, image in spec.symmetries._asdict().items():
        if image is not None and image.state is not None:
            available.append(name)
    if not formulas.has_symmetries:
        available = []
        reason = "upstream has no images of transitions under compat=harl"
    elif not set(names) <= set(available):
        unknown = next(name for name in names if name not in available)
        reason = (
            f"this task defines no image of observations and states for {unknown}, or not with "
            "these settings (the push task needs task.observation=sincos or sets, and your own "
            "terms need mirror_signs)"
        )
    elif len(set(spec.obs_sizes)) > 1 or len(set(spec.action_sizes)) > 1:
        available = []
        reason = (
            f"agents differ in their observations (sizes {list(spec.obs_sizes)}) or actions "
            f"(sizes {list(spec.action_sizes)})"
        )
    elif len(set(names)) < len(names):
        reason = "one is named twice"
    if reason is not None:
        left = dict.fromkeys(name for name in names if name in available)
        raise ValueError(
            f"symmetries must not be [{', '.join(names)}]: {reason}; "
            f"set algorithm.symmetries=[{','.join(left)}]"
        )
