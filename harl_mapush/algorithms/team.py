"""A team of actors: the common part of on-policy and off-policy algorithms.

N environments, A agents, U action size, V learned rewards per environment.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.formula_sets import FormulaSet
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.learning.update_graphs import Graphs
from mqe.extensions import Registry
from mqe.resumable import Resumable
from mqe.vec_env import TeamSpec

_Actor = TypeVar("_Actor")


class Team(Resumable):
    """Actors with optimisers, random numbers, and learning rates by a schedule.

    A subclass adds a critic with its optimiser and normaliser.
    """

    actor_class: ClassVar[Callable[..., Any]]
    formula_sets: ClassVar[Registry[FormulaSet]]
    fuses_adam: ClassVar[bool] = False  # whether a step of Adam on a GPU is one operation

    num_values: int  # V
    critic: Any
    critic_optimizer: FlatAdam
    normalizer: Any

    def __init__(
        self,
        cfg: Any,
        network: NetworkCfg,
        spec: TeamSpec,
        device: torch.device | str = "cpu",
        seed: int = 1,
        ranks: Ranks = ALONE,
    ) -> None:
        """Build networks and optimisers on ``device``.

        ``cfg`` is an instance of the algorithm's settings class. Networks are initialised on the
        CPU from torch's global generator. ``seed`` determines actions, batches, orders and
        shuffles. The team learns from the experience of all ``ranks``.
        """
        self.cfg = cfg
        self.network: NetworkCfg = cfg.built_network(network)
        self.spec = spec
        self.device = torch.device(device)
        self.ranks = ranks
        formulas = self.formula_sets.find(cfg.compat, "algorithm.compat")
        self.formulas = formulas.make(ranks)
        self.check_settings()

        self.num_agents = spec.num_agents
        self.action_size = spec.action_size
        self.is_padded = min(spec.action_sizes) < self.action_size

        self.host_generator = torch.Generator().manual_seed(seed)
        self.set_generator(torch.Generator(self.device).manual_seed(seed))

        make = partial(self.actor_class, self.network, sets=spec.obs_sets, **self.actor_options())
        actors = make_actors(make, spec, is_shared=cfg.share_param)
        self.actors = [actor.to(self.device) for actor in actors]
        rate = self.cfg.learning_rate
        self.optimizers = [self.make_optimizer(actor, rate) for actor in self.unique_actors]

    def check_settings(self) -> None:
        """Raise ValueError for contradicting settings."""
        return

    def actor_options(self) -> dict[str, Any]:
        """Return the keyword arguments of ``actor_class`` besides network settings and sizes."""
        return {}

    def make_optimizer(self, network: nn.Module, learning_rate: float) -> FlatAdam:
        """Return an optimiser of a network."""
        cfg = self.cfg
        return FlatAdam(
            network,
            learning_rate,
            cfg.adam_eps,
            cfg.weight_decay,
            self.ranks,
            fuses=self.fuses_adam,
        )

    def set_generator(self, generator: torch.Generator) -> None:
        """Draw from ``generator`` from now on, in graphs of its own."""
        self.generator = generator
        self.graphs = Graphs(self.device, generator)

    @property
    def unique_actors(self) -> list[Any]:
        """The actors without repetition: one if it is shared."""
        return self.actors[:1] if self.cfg.share_param else self.actors

    def optimizer(self, agent: int) -> FlatAdam:
        """Return the optimiser of agent ``agent``'s actor."""
        return self.optimizers[0 if self.cfg.share_param else agent]

    def team_rewards(self, rewards: Tensor) -> Tensor:
        """Convert the agents' rewards (N, A) to learned ones (N, V).

        If agents have their own rewards and the critic has one value, agent 0's rewards count, as
        in HARL.
        """
        if self.cfg.team_reward == "own":
            return rewards[:, : self.num_values]
        if self.cfg.team_reward == "mean":
            total = rewards.mean(1, keepdim=True)
        else:
            total = rewards.sum(1, keepdim=True)
        return total.expand(-1, self.num_values)

    def set_progress(self, progress: float) -> None:
        """Set the learning rates of schedule ``linear``, which fall to zero as ``progress`` rises
        from 0 to 1.
        """
        if self.cfg.schedule == "linear":
            share = 1.0 - progress
            for optimizer in self.optimizers:
                optimizer.learning_rate.fill_(self.cfg.learning_rate * share)
            self.critic_optimizer.learning_rate.fill_(self.cfg.critic_learning_rate * share)

    def padded(self, actions: Tensor) -> Tensor:
        """Pad an agent's actions (..., own U) with zeros to the team's largest size."""
        if not self.is_padded:
            return actions
        return pad(actions, (0, self.action_size - actions.shape[-1]))

    # Saving

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The modules of a checkpoint by file name."""
        networks: dict[str, nn.Module] = {}
        for i, actor in enumerate(self.actors):
            networks[f"actor_agent{i}"] = actor
        networks["critic_agent"] = self.critic
        networks["value_normalizer"] = self.normalizer
        return networks

    @property
    def weights(self) -> dict[str, Tensor]:
        """All trained weights as flat tensors by name."""
        weights = {f"agent{i}": optimizer.flat for i, optimizer in enumerate(self.optimizers)}
        weights["critic"] = self.critic_optimizer.flat
        return weights

    def state_parts(self) -> dict[str, Any]:
        """Return the parts of the state, without the experience."""
        return {
            "actors": self.unique_actors,
            "generator": self.generator,
            "host_generator": self.host_generator,
        }


def make_actors(
    make: Callable[[int, int], _Actor], spec: TeamSpec, *, is_shared: bool
) -> list[_Actor]:
    """Build one actor per agent by ``make(obs size, action size)``, or one shared by all.

    Raise ValueError if agents of different sizes would share an actor.
    """
    sizes = list(zip(spec.obs_sizes, spec.action_sizes, strict=True))
    if not is_shared:
        return [make(*size) for size in sizes]
    if len(set(sizes)) > 1:
        raise ValueError(
            f"share_param needs agents of equal sizes, not {sizes}; set algorithm.share_param=false"
        )
    return [make(*sizes[0])] * len(sizes)
