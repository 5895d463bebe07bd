"""Settings that every on-policy algorithm has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from harl_mapush.algorithm import AlgorithmCfg
from harl_mapush.learning.arithmetic import Arithmetic
from harl_mapush.learning.harl_arithmetic import HarlArithmetic, RoundedHarlArithmetic
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.ranks import ALONE, Ranks

_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class CompatCfg(AlgorithmCfg):
    """Settings of an algorithm that has our own arithmetic and upstream HARL's."""

    compat: str = field(
        default="mapush",
        metadata={"choices": ("mapush", "harl"), "help": "our own choices, or upstream HARL's to the last digit"},
    )

    def choose(self, ours: _Choice, harls: _Choice) -> _Choice:
        """Return what ``compat`` means."""
        return ours if self.compat == "mapush" else harls


@dataclass(frozen=True)
class OnPolicyCfg(CompatCfg):
    """Section ``algorithm``; an algorithm's own class adds its own settings and its name."""

    share_param: bool = field(default=False, metadata={"help": "one actor for all agents"})
    team_reward: str = field(
        default="mean",
        metadata={
            "choices": ("mean", "sum", "own"),
            "help": "what an agent is trained on; own under compat=harl with EP states: agent 0's",
        },
    )
    num_epochs: int = field(default=5, metadata={"min": 1, "max": 1000, "help": "passes over the rollout, actors"})
    critic_num_epochs: int | None = field(default=None, metadata={"min": 1, "max": 1000, "help": "null: as num_epochs"})
    num_minibatches: int = field(default=4, metadata={"min": 1, "help": "parts of the rollout a pass, actors"})
    critic_num_minibatches: int | None = field(default=None, metadata={"min": 1, "help": "null: as num_minibatches"})
    learning_rate: float = field(default=1e-3, metadata={"above": 0.0, "help": "actors"})
    critic_learning_rate: float = field(default=1e-3, metadata={"above": 0.0})
    agent_learning_rates: tuple[float, ...] = field(
        default=(), metadata={"above": 0.0, "help": "one an agent, instead of learning_rate"}
    )
    schedule: str = field(
        default="constant",
        metadata={"choices": ("constant", "linear", "adaptive"), "help": "adaptive: actors keep near desired_kl"},
    )
    desired_kl: float = field(default=0.01, metadata={"above": 0.0, "help": "[nat] a minibatch, schedule adaptive"})
    adam_eps: float = field(default=1e-5, metadata={"above": 0.0})
    weight_decay: float = field(default=0.0, metadata={"min": 0.0})
    max_grad_norm: float = field(default=1.0, metadata={"min": 0.0, "help": "0: gradients are not clipped"})
    clip_param: float = field(default=0.2, metadata={"above": 0.0, "help": "of the ratio, and of the value"})
    entropy_coef: float = field(default=0.01, metadata={"min": 0.0})
    symmetry_coef: float = field(
        default=0.0,
        metadata={"min": 0.0, "help": "of the squared difference to the mirror image's mirrored action; task's mirror"},
    )
    value_loss_coef: float = field(default=1.0, metadata={"min": 0.0})
    use_clipped_value_loss: bool = False
    use_huber_loss: bool = True
    huber_delta: float = field(default=10.0, metadata={"above": 0.0, "help": "in the value normaliser's units"})
    gamma: float = field(default=0.99, metadata={"min": 0.0, "max": 1.0, "help": "discount a decision"})
    lam: float = field(default=0.95, metadata={"min": 0.0, "max": 1.0, "help": "of GAE, a decision"})
    use_gae: bool = True
    use_proper_time_limits: bool = field(
        default=True, metadata={"help": "compat=harl only; compat=mapush always bootstraps a time-out"}
    )
    use_value_norm: bool = True
    value_norm_beta: float | None = field(
        default=None,
        metadata={"min": 0.0, "max": 1.0, "help": "forgetting factor an update; null: 0.95, compat=harl 0.99999"},
    )
    use_policy_active_masks: bool = field(default=True, metadata={"help": "leave dead agents out of their losses"})
    action_aggregation: str = field(
        default="prod", metadata={"choices": ("prod", "mean"), "help": "of the ratios of an action's dimensions"}
    )

    def arithmetic(self, device_type: str, ranks: Ranks = ALONE) -> Arithmetic:
        """Return the arithmetic that ``compat`` means on devices of this type; one process alone rounds as HARL's."""
        is_rounded = device_type == "cpu" and ranks.size == 1
        return self.choose(Arithmetic, RoundedHarlArithmetic if is_rounded else HarlArithmetic)(ranks)

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the network settings as they are, or as HARL's networks always are."""
        return self.arithmetic("cpu").network(network)

    def for_trial(self, num_rows: int) -> Self:
        """Return the settings with no more minibatches than rows."""
        critic = min(self.critic_num_minibatches or self.num_minibatches, num_rows)
        return replace(self, num_minibatches=min(self.num_minibatches, num_rows), critic_num_minibatches=critic)
