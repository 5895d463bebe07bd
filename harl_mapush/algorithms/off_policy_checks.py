"""Which settings of off-policy algorithms go together."""

from __future__ import annotations

from harl_mapush.algorithms.team import TeamSpec
from harl_mapush.distributed.ranks import Ranks
from harl_mapush.learning.networks import NetworkCfg
from harl_mapush.learning.off_policy.formulas import OffPolicyArithmetic
from harl_mapush.learning.off_policy.settings import OffPolicyCfg


def check_together(
    cfg: OffPolicyCfg,
    network: NetworkCfg,
    spec: TeamSpec,
    arithmetic: OffPolicyArithmetic,
    ranks: Ranks,
) -> None:
    """Raise ValueError for settings that do not go together."""
    if network.use_recurrent_policy:
        raise ValueError(
            f"{cfg.name} has no recurrent policies; set network.use_recurrent_policy=false"
        )
    if cfg.team_reward == "own" and spec.state_type == "EP" and not arithmetic.takes_first_reward:
        raise ValueError(
            "team_reward=own needs a critic state an agent; set task.state_type=FP, or "
            "team_reward=mean"
        )
    if cfg.warmup > cfg.buffer_size:
        raise ValueError(f"warmup ({cfg.warmup}) must fit into buffer_size ({cfg.buffer_size})")
    if cfg.num_atoms and not arithmetic.has_atoms:
        raise ValueError(
            f"num_atoms must be 0 under compat=harl, not {cfg.num_atoms}: upstream has no other"
        )
    if cfg.mirror:
        _check_mirror(spec, arithmetic)
    if cfg.model == "none":
        return
    if spec.planar is None:
        raise ValueError(
            f"model={cfg.model} needs a critic state in the plane, which this task has not, or "
            "not with these settings "
            "(the push task: task.observation=sincos, task.state_type=EP); set algorithm.model=none"
        )
    if not arithmetic.has_model:
        raise ValueError(
            f"model={cfg.model} is nothing that upstream has; set it to none, or compat=mapush"
        )
    if ranks.size > 1:
        raise ValueError(
            f"model={cfg.model} is fitted by one process, not by {ranks.size} ranks; set it to none"
        )


def _check_mirror(spec: TeamSpec, arithmetic: OffPolicyArithmetic) -> None:
    """Raise ValueError where transitions have no mirror image."""
    reason = None
    if not arithmetic.has_mirror:
        reason = "upstream has nothing like it under compat=harl"
    elif spec.mirror is None or spec.mirror.state is None:
        reason = (
            "this task names no mirror image of what agents and critics see, or not with these "
            "settings (the push "
            "task: task.observation=sincos)"
        )
    elif len(set(spec.obs_sizes)) > 1 or len(set(spec.action_sizes)) > 1:
        reason = (
            f"agents see and do different things (observations of {list(spec.obs_sizes)} numbers)"
        )
    if reason is not None:
        raise ValueError(f"mirror must be false: {reason}; set algorithm.mirror=false")
