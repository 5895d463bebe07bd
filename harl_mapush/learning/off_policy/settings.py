"""Settings that every off-policy algorithm has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.off_policy.formulas import HarlOffPolicyArithmetic, OffPolicyArithmetic
from harl_mapush.learning.on_policy.settings import CompatCfg
from harl_mapush.learning.world_model.world_model import EnsembleCfg
from mqe.config import option

MODELS = ("none", "ensemble")


@dataclass(frozen=True)
class OffPolicyCfg(CompatCfg):
    """Section ``algorithm``; an algorithm's own class adds its own settings and its name."""

    takes_collectors: ClassVar[bool] = True

    share_param: bool = option(False, "one actor for all agents")
    is_sequential: bool = option(
        True,
        "each agent learns beside the others' newest actions; false: beside those of the replay",
    )
    fixed_order: bool = option(False, "agents in their own order instead of a random one")
    team_reward: str = option(
        "mean", "what is learned; own: with task.state_type=FP", choices=("mean", "sum", "own")
    )
    buffer_size: int = option(
        1_000_000, "transitions in the replay, rounded up to rows", min=1, max=10**8
    )
    save_replay: bool = option(
        True, "with every checkpoint; without, a resumed run fills an empty one first"
    )
    warmup: int = option(
        10_000, "transitions before the first update, at random or by init_from's actors", min=0
    )
    batch_size: int = option(1024, "transitions per update", min=1, max=2**22)
    update_ratio: float = option(
        0.03, "updates per transition of one environment", above=0.0, max=1e4
    )
    n_step: int = option(3, "rewards summed before the critic's value", min=1, max=1000)
    gamma: float = option(0.99, "discount per decision", min=0.0, max=1.0)
    polyak: float = option(0.01, "share by which targets follow", min=0.0, max=1.0)
    policy_delay: int = option(1, "critic updates per actor update", min=1, max=1000)
    learning_rate: float = option(5e-4, "actors", above=0.0)
    critic_learning_rate: float = option(5e-4, "critics", above=0.0)
    use_linear_decay: bool = option(False, "learning rates fall to zero over the run")
    adam_eps: float = option(1e-8, "added to the denominator in Adam", above=0.0)
    weight_decay: float = option(0.0, "L2 penalty that Adam adds to the gradients", min=0.0)
    max_grad_norm: float = option(0.0, "0: gradients are not clipped", min=0.0)
    num_atoms: int = option(
        0, "of a categorical value, 101 for instance; 0: a number", min=0, max=1001
    )
    value_bound: float = option(5.0, "largest value of the atoms, and return", above=0.0)
    normalize_returns: bool = option(True, "scale rewards so that returns stay within value_bound")
    use_value_norm: bool = option(False, "compat=harl only; otherwise normalize_returns")
    use_huber_loss: bool = option(True, "of values that are numbers; false: squares")
    huber_delta: float = option(10.0, "where use_huber_loss turns from squares to lines", above=0.0)
    use_policy_active_masks: bool = option(True, "leave dead agents out of their losses")
    mirror: bool = option(
        False, "half of each batch's transitions are replaced by their mirror images; task's mirror"
    )
    model: str = option(
        "none", "of the worlds, learned beside the team; ensemble: one", choices=MODELS
    )
    ensemble: EnsembleCfg = option(EnsembleCfg, "the learned model, with model=ensemble")

    def __post_init__(self) -> None:
        """Raise ValueError for a categorical value without room."""
        if self.num_atoms == 1:
            raise ValueError(
                "num_atoms must be 0, for values that are numbers, or at least 2, not 1"
            )

    def arithmetic(self, ranks: Ranks = ALONE) -> OffPolicyArithmetic:
        """Return the arithmetic that ``compat`` means."""
        return self.choose(OffPolicyArithmetic, HarlOffPolicyArithmetic)(ranks)

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the network settings; HARL's off-policy networks have no normalisation."""
        return self.arithmetic().network(network)

    def for_acting(self) -> Self:
        """Return settings without a learned model."""
        return replace(self, model="none")

    def for_trial(self, num_rows: int) -> Self:
        """Return settings with which a first update moves every network."""
        return replace(
            self,
            warmup=0,
            buffer_size=min(self.buffer_size, 4 * num_rows),
            batch_size=min(self.batch_size, 4 * num_rows),
            update_ratio=max(self.update_ratio, (self.policy_delay + 1.0) / num_rows),
            ensemble=self.ensemble.for_trial(num_rows),
        )
