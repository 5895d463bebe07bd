"""What the on-policy algorithms share: a team that acts, a critic, one update a rollout.

An algorithm is this class with its own ``update_actors``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from harl_mapush.algorithms.algorithm import Decision, LearnerBytes
from harl_mapush.algorithms.team import TeamSpec, make_actors
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning import losses
from harl_mapush.learning.network_memory import GRU_KEPT, graph_floats, gru_floats, passed_floats
from harl_mapush.learning.networks import Actor, Critic, NetworkCfg
from harl_mapush.learning.normalization import RunningNorm, ValueNorm
from harl_mapush.learning.on_policy.minibatches import CPU_TILE_ROWS, ActorBatch, Shuffle
from harl_mapush.learning.on_policy.rollout_storage import Storage, StorageShape
from harl_mapush.learning.on_policy.settings import OnPolicyCfg
from harl_mapush.learning.on_policy.surrogate import update_policy
from harl_mapush.learning.on_policy.value_update import ValueLearner
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.update_graphs import Graphs


class OnPolicy(ABC):
    """A team of actors and one critic that learn from one rollout at a time."""

    takes_symmetry = True  # whether the actors' loss has a place for symmetry_coef

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

        ``cfg`` is the algorithm's own settings class; actions, orders and shuffles are drawn from
        ``seed``. It learns from the rollouts of all ``ranks``.
        """
        self.cfg: OnPolicyCfg = cfg
        self.network = cfg.built_network(network)
        self.spec = spec
        self.device = torch.device(device)
        self.num_agents = spec.num_agents
        self.ranks = ranks
        self.arithmetic = self.cfg.arithmetic(self.device.type, ranks)
        self.state_type, state_size = self.critic_input()
        if self.state_type == "EP":
            self.state_shape = (state_size,)
        else:
            self.state_shape = (self.num_agents, state_size)
        has_own = self.arithmetic.has_own_values(self.state_type, cfg.team_reward)
        self.num_values = self.num_agents if has_own else 1
        self.action_size = max(spec.action_sizes)
        self.is_padded = min(spec.action_sizes) < self.action_size
        actors = make_actors(partial(Actor, self.network), spec, is_shared=cfg.share_param)
        self.actors: list[Actor] = [actor.to(self.device) for actor in actors]
        if cfg.symmetry_coef > 0.0:
            _check_symmetry(cfg, self.network, spec, is_possible=self.takes_symmetry)
        rates = cfg.agent_learning_rates or (cfg.learning_rate,) * self.num_agents
        if len(rates) != self.num_agents:
            raise ValueError(
                f"agent_learning_rates must have {self.num_agents} values, one an agent, not "
                f"{len(rates)}"
            )
        if cfg.share_param and len(set(rates)) > 1:
            raise ValueError(
                f"agent_learning_rates {list(rates)} differ, but one actor has one: set "
                "share_param=false"
            )
        self.rates = list(rates[: len(self.unique_actors)])
        self.optimizers = [
            self.arithmetic.optimizer(actor, rate, cfg)
            for actor, rate in zip(self.unique_actors, self.rates, strict=True)
        ]
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.replay = Graphs(self.device, self.generator)
        self.shuffle = Shuffle(self.generator, torch.Generator().manual_seed(seed), ranks)
        num_outputs = self.num_values if self.state_type == "EP" else 1
        self.value = ValueLearner(
            cfg, self.network, state_size, num_outputs, self.device, self.shuffle, self.arithmetic
        )

    @property
    def unique_actors(self) -> list[Actor]:
        """Actors without repetition: one if shared."""
        return self.actors[:1] if self.cfg.share_param else self.actors

    @property
    def graphs_at_once(self) -> int:
        """How many agents' rows an update holds at once, with all that gradients need; for the
        memory plan.
        """
        return 1

    @property
    def critic(self) -> Critic:
        """The critic."""
        return self.value.critic

    @property
    def value_normalizer(self) -> ValueNorm:
        """The value normaliser; it exists, unused, with use_value_norm off as well."""
        return self.value.normalizer

    def optimizer(self, agent: int) -> FlatAdam:
        """Return the optimiser of agent ``agent``'s actor."""
        return self.optimizers[0 if self.cfg.share_param else agent]

    # What the critic sees and the team is rewarded with

    def critic_input(self) -> tuple[str, int]:
        """Return which kind of state the critic sees, "EP" or "FP", and its size."""
        return self.spec.state_type, self.spec.state_size

    @staticmethod
    def critic_state(obs: Tensor, state: Tensor) -> Tensor:
        """Pick what the critic sees (N, *state_shape) from obs (N, A, O) and the environment's
        state.
        """
        return state

    @property
    def team_rewards(self) -> Callable[[Tensor], Tensor]:
        """What turns the agents' rewards (N, A) into those that are learned (N, V).

        If rewards are the agents' own and its critic gives one value, HARL learns agent 0's.
        """
        return partial(_team_rewards, choice=self.cfg.team_reward, num_values=self.num_values)

    # Acting

    def make_experience(self, num_steps: int, num_envs: int) -> Storage:
        """Allocate a rollout; raise ValueError where it cannot be cut as the settings say."""
        return self._storage(num_steps, num_envs, self.device)

    def _storage(self, num_steps: int, num_envs: int, device: torch.device) -> Storage:
        recurrent = self.network.use_recurrent_policy
        length = self.network.chunk_length or num_steps
        if recurrent and num_steps % length:
            raise ValueError(
                f"num_steps ({num_steps}) must be a multiple of network.chunk_length ({length})"
            )
        rows = num_envs * num_steps // (length if recurrent else 1)
        views = self.num_agents if self.state_type == "FP" else 1
        num_minibatches = self.cfg.num_minibatches
        _check_minibatches("num_minibatches", num_minibatches, rows)
        _check_minibatches(
            "critic_num_minibatches",
            self.cfg.critic_num_minibatches or num_minibatches,
            rows * views,
        )
        shape = StorageShape(
            num_steps,
            num_envs,
            self.num_agents,
            max(self.spec.obs_sizes),
            self.action_size,
            self.state_shape,
            self.num_values,
            self.actors[0].hidden_shape if recurrent else None,
            self.critic.hidden_shape if recurrent else None,
            keeps_final_state=self.arithmetic.keeps_final_state,
        )
        return Storage(shape, device, self.critic_state, self.team_rewards)

    @torch.no_grad()
    def act(
        self, obs: Tensor, hidden: Tensor | None = None, *, deterministic: bool = False
    ) -> Decision:
        """Decide for obs (N, A, O); a recurrent team takes hidden (A, N, R, H), None at the start
        of an episode.
        """
        if hidden is None and self.network.use_recurrent_policy:
            hidden = torch.zeros(
                self.num_agents, len(obs), *self.actors[0].hidden_shape, device=self.device
            )
        inputs = (obs,) if hidden is None else (obs, hidden)
        decide = self._decide_mean if deterministic else self._decide
        return self.replay(("act", deterministic, obs.shape), decide, *inputs)

    def _decide(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        mean, after = self._means(obs, hidden)
        std = torch.stack([self._padded(actor.std()) for actor in self.actors])
        noise = self.ranks.draw(
            torch.randn, tuple(mean.shape), generator=self.generator, device=self.device
        )
        log_probs = losses.standard_log_prob(noise) - torch.log(std)
        if self.is_padded:
            log_probs = torch.where(std > 0.0, log_probs, 0.0)
        return Decision(mean + std * noise, log_probs, after)

    def _decide_mean(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        mean, after = self._means(obs, hidden)
        return Decision(mean, None, after)

    def _means(self, obs: Tensor, hidden: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return every agent's mean action (N, A, U), and hidden states (A, N, R, H) of a
        recurrent team.
        """
        means = []
        after = []
        for i, actor in enumerate(self.actors):
            inputs = obs[:, i, : actor.obs_size].unsqueeze(0)
            if hidden is None:
                mean, state = actor.unroll(inputs, None, None)
            else:
                mean, state = actor.unroll(inputs, hidden[i], torch.ones_like(inputs[..., 0]))
            means.append(self._padded(mean[0]))
            if state is not None:
                after.append(state[0])
        return torch.stack(means, dim=1), torch.stack(after) if after else None

    # Learning

    def update(self, experience: Storage, progress: float = 0.0) -> dict[str, Tensor]:
        """Learn from a full rollout; ``progress`` in [0, 1) is the share of the run already done.

        Return metrics as 0-dim tensors on the device, named ``agent{i}/...`` and ``critic/...``.
        """
        self.set_progress(progress)
        self.compute_returns(experience)
        return self.learn(experience)

    def compute_returns(self, storage: Storage) -> None:
        """Fill in values, returns and advantages of a full rollout."""

        def compute() -> None:
            self.value.compute_values(storage)
            self.value.compute_returns(storage)

        self.replay("returns", compute, over=storage)

    def set_progress(self, progress: float) -> None:
        """Set the learning rates of schedule ``linear``, which fall from the full rate to zero at
        the end.
        """
        if self.cfg.schedule == "linear":
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                optimizer.learning_rate.fill_(rate * (1.0 - progress))
            self.value.optimizer.learning_rate.fill_(
                self.cfg.critic_learning_rate * (1.0 - progress)
            )

    def learn(self, storage: Storage) -> dict[str, Tensor]:
        """Update actors, then critic, then the running normalisation of what they see."""
        metrics = {
            f"agent{agent}/{name}": value
            for agent, own in sorted(self.update_actors(storage).items())
            for name, value in own.items()
        }
        metrics.update(
            {f"critic/{name}": value for name, value in self.update_critic(storage).items()}
        )
        return metrics

    def update_critic(self, storage: Storage) -> dict[str, Tensor]:
        """Update the critic, then the running normalisation of what all networks see; return the
        critic's metrics.
        """

        def update() -> dict[str, Tensor]:
            metrics = self.value.update(storage)
            self._update_obs_norms(storage)
            return metrics

        return self.replay("critic", update, over=storage)

    @abstractmethod
    def update_actors(self, storage: Storage) -> dict[int, dict[str, Tensor]]:
        """Update every actor; return the metrics of each agent."""

    def advantages(self, storage: Storage) -> list[Tensor]:
        """Return every agent's normalised advantages (T, N)."""
        return self.arithmetic.advantages(storage, are_joint=self.joins_advantages)

    @property
    def joins_advantages(self) -> bool:
        """Whether the advantages of all agents are normalised together."""
        return self.arithmetic.joins_advantages(self.num_values)

    def update_policy(
        self, agent: int, batches: list[ActorBatch], clip_param: float | None
    ) -> dict[str, Tensor]:
        """Update agent ``agent``'s actor on batches, all agents' where it is shared; return its
        metrics.

        Ratios are not clipped where ``clip_param`` is None.
        """
        actor = self.actors[agent]
        optimizer = self.optimizer(agent)
        return update_policy(
            actor,
            optimizer,
            batches,
            self.cfg,
            clip_param,
            self.shuffle,
            self.arithmetic,
            self.spec.mirror,
        )

    def chunk_length(self, storage: Storage) -> int | None:
        """Return how many consecutive decisions a training sequence has; None without
        recurrence.
        """
        return self.value.chunk_length(storage)

    # Saving and planning

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The modules of a checkpoint by file name; the value normaliser exists, unused, without
        use_value_norm too.
        """
        actors: dict[str, nn.Module] = {
            f"actor_agent{i}": actor for i, actor in enumerate(self.actors)
        }
        return actors | {"critic_agent": self.critic, "value_normalizer": self.value_normalizer}

    @property
    def weights(self) -> dict[str, Tensor]:
        """Every network's parameters, flat."""
        actors = {f"agent{i}": optimizer.flat for i, optimizer in enumerate(self.optimizers)}
        return actors | {"critic": self.value.optimizer.flat}

    def state_dict(self) -> dict[str, Any]:
        """Return everything that learning needs to resume."""
        return {
            "actors": [actor.state_dict() for actor in self.unique_actors],
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "value": self.value.state_dict(),
            "generator": self.generator.get_state(),
            "host_generator": self.shuffle.host_generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; a constant schedule's learning rates are those of the settings.

        ``linear`` sets all of them before every update; ``adaptive`` resumes with the actors' saved
        ones.
        """
        for actor, saved in zip(self.unique_actors, state["actors"], strict=True):
            actor.load_state_dict(saved)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.value.load_state_dict(state["value"])
        self.generator.set_state(state["generator"].cpu())
        self.shuffle.host_generator.set_state(state["host_generator"].cpu())
        if self.cfg.schedule == "constant":
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                optimizer.learning_rate.fill_(rate)
        if self.cfg.schedule != "linear":
            self.value.optimizer.learning_rate.fill_(self.cfg.critic_learning_rate)

    def plan_bytes(self, num_steps: int, num_envs: int, device_type: str) -> LearnerBytes:
        """Return what a rollout and an update take on a device of this type."""
        storage = self._storage(num_steps, num_envs, torch.device("meta"))
        tensors = [value for value in vars(storage).values() if isinstance(value, Tensor)]
        update = 4.0 * self._update_floats(num_steps * num_envs, on_cpu=device_type == "cpu")
        return LearnerBytes(sum(tensor.nbytes for tensor in tensors), update)

    def _update_floats(self, rows: int, *, on_cpu: bool) -> float:
        """Return the floats that an update holds at its fullest, with ``rows`` of the rollout."""
        cfg = self.cfg
        network = self.network
        actor_sizes = network.hidden_sizes
        critic_sizes = network.critic_hidden_sizes or actor_sizes
        views = self.num_agents if len(self.state_shape) == 2 else 1

        def cut(count: float) -> float:
            return min(count, CPU_TILE_ROWS) if on_cpu else count

        def graph(sizes: tuple[int, ...]) -> int:
            return graph_floats(sizes, has_norm=network.use_layer_norm)

        def trained(
            sizes: tuple[int, ...], input_size: int, num_minibatches: int, count: float
        ) -> float:
            shuffled = count * input_size if num_minibatches > 1 else 0.0
            a_row = graph(sizes) + GRU_KEPT * gru_floats(network, sizes) + input_size
            return shuffled + a_row * cut(count / num_minibatches)

        obs_size = max(self.spec.obs_sizes)
        seen_by_actor = obs_size + 3 * self.action_size + 3
        if cfg.symmetry_coef > 0.0:  # the pass over mirrored observations
            seen_by_actor += obs_size + graph(actor_sizes)
        seen_by_critic = self.state_shape[-1] + 3 * self.num_values
        return max(
            trained(actor_sizes, seen_by_actor, cfg.num_minibatches, rows * self.graphs_at_once),
            trained(
                critic_sizes,
                seen_by_critic,
                cfg.critic_num_minibatches or cfg.num_minibatches,
                rows * views,
            ),
            passed_floats(network, actor_sizes, rows, cut(rows)),
            passed_floats(network, critic_sizes, rows * views, cut(rows * views)),
        )

    def _padded(self, x: Tensor) -> Tensor:
        """Fill x (..., an agent's action size) with zeros to the team's largest."""
        return pad(x, (0, self.action_size - x.shape[-1])) if self.is_padded else x

    @torch.no_grad()
    def _update_obs_norms(self, storage: Storage) -> None:
        for agent, actor in enumerate(self.actors):
            if isinstance(actor.obs_norm, RunningNorm):
                actor.obs_norm.update(
                    storage.obs[agent][..., : actor.obs_size], storage.weights(agent), self.ranks
                )
        self.value.update_obs_norm(storage)


def _team_rewards(rewards: Tensor, *, choice: str, num_values: int) -> Tensor:
    if choice == "own":
        return rewards[:, :num_values]
    total = rewards.mean(1, keepdim=True) if choice == "mean" else rewards.sum(1, keepdim=True)
    return total.expand(-1, num_values)


def _check_symmetry(
    cfg: OnPolicyCfg, network: NetworkCfg, spec: TeamSpec, *, is_possible: bool
) -> None:
    """Raise ValueError if symmetry_coef cannot be used with these actors or this task."""
    reason = None
    if not is_possible:
        reason = f"{cfg.name} takes its steps without a loss of its own"
    elif network.use_recurrent_policy:
        reason = "recurrent policies are not mirrored"
    elif spec.mirror is None:
        reason = "this task names no mirror image of what an agent sees and does"
    if reason is not None:
        raise ValueError(f"symmetry_coef must be 0, not {cfg.symmetry_coef}: {reason}")


def _check_minibatches(name: str, number: int, rows: int) -> None:
    if number > rows:
        raise ValueError(
            f"{name} must be at most {rows}, the training rows of a rollout, not {number}"
        )
