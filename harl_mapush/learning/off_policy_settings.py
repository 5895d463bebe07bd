"""Settings that every off-policy algorithm has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.off_policy_arithmetic import HarlOffPolicyArithmetic, OffPolicyArithmetic
from harl_mapush.learning.settings import CompatCfg
from harl_mapush.ranks import ALONE, Ranks


@dataclass(frozen=True)
class OffPolicyCfg(CompatCfg):
    """Section ``algorithm``; an algorithm's own class adds its own settings and its name."""

    share_param: bool = field(default=False, metadata={"help": "one actor for all agents"})
    is_sequential: bool = field(
        default=True,
        metadata={"help": "each agent learns beside the others' newest actions; false: beside those of the replay"},
    )
    fixed_order: bool = field(default=False, metadata={"help": "agents in their own order instead of a random one"})
    team_reward: str = field(
        default="mean",
        metadata={"choices": ("mean", "sum", "own"), "help": "what is learned; own: with task.state_type=FP"},
    )
    buffer_size: int = field(
        default=1_000_000, metadata={"min": 1, "max": 10**8, "help": "transitions in the replay, rounded up to rows"}
    )
    save_replay: bool = field(
        default=True, metadata={"help": "with every checkpoint; without, a resumed run fills an empty one first"}
    )
    warmup: int = field(default=10_000, metadata={"min": 0, "help": "transitions before the first update, at random"})
    batch_size: int = field(default=1024, metadata={"min": 1, "max": 2**22, "help": "transitions an update"})
    update_ratio: float = field(
        default=0.03, metadata={"above": 0.0, "max": 1e4, "help": "updates a transition of one environment"}
    )
    n_step: int = field(default=3, metadata={"min": 1, "max": 1000, "help": "rewards summed before the critic's value"})
    gamma: float = field(default=0.99, metadata={"min": 0.0, "max": 1.0, "help": "discount a decision"})
    polyak: float = field(default=0.01, metadata={"min": 0.0, "max": 1.0, "help": "share by which targets follow"})
    policy_delay: int = field(default=1, metadata={"min": 1, "max": 1000, "help": "critic updates an actor update"})
    learning_rate: float = field(default=5e-4, metadata={"above": 0.0, "help": "actors"})
    critic_learning_rate: float = field(default=5e-4, metadata={"above": 0.0})
    use_linear_decay: bool = field(default=False, metadata={"help": "learning rates fall to zero over the run"})
    adam_eps: float = field(default=1e-8, metadata={"above": 0.0})
    weight_decay: float = field(default=0.0, metadata={"min": 0.0})
    max_grad_norm: float = field(default=0.0, metadata={"min": 0.0, "help": "0: gradients are not clipped"})
    num_atoms: int = field(
        default=0, metadata={"min": 0, "max": 1001, "help": "of a categorical value, 101 for instance; 0: a number"}
    )
    value_bound: float = field(default=5.0, metadata={"above": 0.0, "help": "largest value of the atoms, and return"})
    normalize_returns: bool = field(
        default=True, metadata={"help": "scale rewards so that returns stay within value_bound"}
    )
    use_value_norm: bool = field(default=False, metadata={"help": "compat=harl only; otherwise normalize_returns"})
    use_huber_loss: bool = field(default=True, metadata={"help": "of values that are numbers; false: squares"})
    huber_delta: float = field(default=10.0, metadata={"above": 0.0})
    use_policy_active_masks: bool = field(default=True, metadata={"help": "leave dead agents out of their losses"})

    def __post_init__(self) -> None:
        """Refuse a categorical value that has no room."""
        if self.num_atoms == 1:
            raise ValueError("num_atoms must be 0, for values that are numbers, or at least 2, not 1")

    def arithmetic(self, ranks: Ranks = ALONE) -> OffPolicyArithmetic:
        """Return the arithmetic that ``compat`` means."""
        return self.choose(OffPolicyArithmetic, HarlOffPolicyArithmetic)(ranks)

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the network settings; HARL's off-policy networks have no normalisation."""
        return self.arithmetic().network(network)

    def for_trial(self, num_rows: int) -> Self:
        """Return settings with which a first update moves every network."""
        return replace(
            self,
            warmup=0,
            buffer_size=min(self.buffer_size, 4 * num_rows),
            batch_size=min(self.batch_size, 4 * num_rows),
            update_ratio=max(self.update_ratio, (self.policy_delay + 1.0) / num_rows),
        )
