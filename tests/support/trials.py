"""Settings of algorithms for short trainings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

_Cfg = TypeVar("_Cfg", bound=Any)


def for_trial(cfg: _Cfg, num_rows: int) -> _Cfg:
    """Return settings whose first update has ``num_rows`` decisions, and changes every network."""
    names = {field.name for field in fields(cfg)}
    changes: dict[str, Any] = {}
    if "num_minibatches" in names:
        critic_num_minibatches = cfg.critic_num_minibatches or cfg.num_minibatches
        changes["num_minibatches"] = min(cfg.num_minibatches, num_rows)
        changes["critic_num_minibatches"] = min(critic_num_minibatches, num_rows)
    for name in {"buffer_size", "batch_size"} & names:
        changes[name] = min(getattr(cfg, name), 4 * num_rows)
    for name in {"warmup", "critic_warmup"} & names:
        changes[name] = 0
    if "update_ratio" in names:
        delay = getattr(cfg, "policy_delay", 0)
        changes["update_ratio"] = max(cfg.update_ratio, (delay + 1.0) / num_rows)
    return replace(cfg, **changes)
