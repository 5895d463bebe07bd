"""Settings that every on-policy algorithm has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeVar

from harl_mapush.algorithms.algorithm import AlgorithmCfg
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.on_policy.formulas import Arithmetic
from harl_mapush.learning.on_policy.harl_formulas import HarlArithmetic, RoundedHarlArithmetic
from mqe.config import option

_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class CompatCfg(AlgorithmCfg):
    """Settings of an algorithm that has our own arithmetic and upstream HARL's."""

    compat: str = option(
        "mapush",
        "our own choices, or upstream HARL's to the last digit",
        choices=("mapush", "harl"),
    )

    def choose(self, ours: _Choice, harls: _Choice) -> _Choice:
        """Return what ``compat`` means."""
        return ours if self.compat == "mapush" else harls


@dataclass(frozen=True)
class OnPolicyCfg(CompatCfg):
    """Section ``algorithm``; an algorithm's own class adds its own settings and its name."""

    share_param: bool = option(False, "one actor for all agents")
    team_reward: str = option(
        "mean",
        "what an agent is trained on; own under compat=harl with EP states: agent 0's",
        choices=("mean", "sum", "own"),
    )
    num_epochs: int = option(5, "passes over the rollout, actors", min=1, max=1000)
    critic_num_epochs: int | None = option(None, "null: as num_epochs", min=1, max=1000)
    num_minibatches: int = option(4, "parts of the rollout per pass, actors", min=1)
    critic_num_minibatches: int | None = option(None, "null: as num_minibatches", min=1)
    learning_rate: float = option(1e-3, "actors", above=0.0)
    critic_learning_rate: float = option(1e-3, "critic", above=0.0)
    agent_learning_rates: tuple[float, ...] = option(
        (), "one per agent, instead of learning_rate", above=0.0
    )
    schedule: str = option(
        "constant",
        "adaptive: actors keep near desired_kl",
        choices=("constant", "linear", "adaptive"),
    )
    desired_kl: float = option(0.01, "[nat] per minibatch, schedule adaptive", above=0.0)
    adam_eps: float = option(1e-5, "added to the denominator in Adam", above=0.0)
    weight_decay: float = option(0.0, "L2 penalty that Adam adds to the gradients", min=0.0)
    max_grad_norm: float = option(1.0, "0: gradients are not clipped", min=0.0)
    clip_param: float = option(0.2, "of the ratio, and of the value", above=0.0)
    entropy_coef: float = option(0.01, "weight of the entropy bonus in the actors' loss", min=0.0)
    symmetry_coef: float = option(
        0.0,
        "of the squared difference to the mirror image's mirrored action; task's mirror",
        min=0.0,
    )
    value_loss_coef: float = option(1.0, "weight of the critic's loss", min=0.0)
    use_clipped_value_loss: bool = option(
        False, "clip values to within clip_param of those of the rollout"
    )
    use_huber_loss: bool = option(True, "of values, with huber_delta; false: squares")
    huber_delta: float = option(10.0, "in the value normaliser's units", above=0.0)
    gamma: float = option(0.99, "discount per decision", min=0.0, max=1.0)
    lam: float = option(0.95, "of GAE, per decision", min=0.0, max=1.0)
    use_gae: bool = option(True, "returns by GAE with lam; false: the discounted rewards")
    use_proper_time_limits: bool = option(
        True, "compat=harl only; compat=mapush always bootstraps a time-out"
    )
    use_value_norm: bool = option(
        True, "the critic predicts returns normalised by their running mean and std"
    )
    value_norm_beta: float | None = option(
        None, "forgetting factor an update; null: 0.95, compat=harl 0.99999", min=0.0, max=1.0
    )
    use_policy_active_masks: bool = option(True, "leave dead agents out of their losses")
    action_aggregation: str = option(
        "prod", "of the ratios of an action's dimensions", choices=("prod", "mean")
    )

    def arithmetic(self, device_type: str, ranks: Ranks = ALONE) -> Arithmetic:
        """Return the arithmetic that ``compat`` means on devices of this type; one process alone
        rounds as HARL's.
        """
        is_rounded = device_type == "cpu" and ranks.size == 1
        return self.choose(Arithmetic, RoundedHarlArithmetic if is_rounded else HarlArithmetic)(
            ranks
        )

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the network settings as they are, or as HARL's networks always are."""
        return self.arithmetic("cpu").network(network)

    def for_trial(self, num_rows: int) -> Self:
        """Return the settings with no more minibatches than rows."""
        critic = min(self.critic_num_minibatches or self.num_minibatches, num_rows)
        return replace(
            self, num_minibatches=min(self.num_minibatches, num_rows), critic_num_minibatches=critic
        )
