"""Conversion of upstream HARL's settings to this project's settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from mqe.config import ConfigError, build, load_yaml

KEYS = load_yaml(Path(__file__).with_name("keys.yaml"))
NETWORK_KEYS: dict[str, str] = KEYS["network"]
ALGORITHM_KEYS: dict[str, str] = KEYS["algorithm"]

_T = TypeVar("_T")


def network_cfg(harl: Mapping[str, Any]) -> NetworkCfg:
    """Convert HARL's settings to the network section. Raise ConfigError for unsupported values."""
    is_naive = _switch(harl, "use_naive_recurrent_policy")
    is_in_chunks = _switch(harl, "use_recurrent_policy")
    more: dict[str, Any] = {"use_recurrent_policy": is_in_chunks or is_naive}
    if is_naive and not is_in_chunks:
        more["chunk_length"] = 0  # one chunk for the whole rollout
    return _build(NetworkCfg, "network", NETWORK_KEYS, harl, more)


def algorithm_cfg(name: str, harl: Mapping[str, Any]) -> OnPolicyCfg:
    """Convert HARL's settings to the algorithm section, with compat=harl."""
    cls = ALGORITHMS[name].cfg
    assert issubclass(cls, OnPolicyCfg)
    is_linear = _switch(harl, "use_linear_lr_decay")
    more: dict[str, Any] = {"compat": "harl", "schedule": "linear" if is_linear else "constant"}
    if not _switch(harl, "use_max_grad_norm"):
        more["max_grad_norm"] = 0.0
    return _build(cls, "algorithm", _algorithm_keys(name), harl, more)


def learning_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Merge HARL's sections train, model and algo, each reduced to its own keys."""
    return {
        name: value
        for section in ("train", "model", "algo")
        for name, value in sections[section].items()
        if dotted(name) == f"{section}.{name}"
    }


def keys_of(name: str) -> set[str]:
    """Return the keys of networks and of the algorithm ``name`` that upstream reads, as in
    ``model.lr``.
    """
    return {dotted(theirs) for theirs in (*NETWORK_KEYS, *_algorithm_keys(name))}


def _algorithm_keys(name: str) -> dict[str, str]:
    """Return the keys of ``ALGORITHM_KEYS`` that upstream's algorithm ``name`` reads."""
    fields = ALGORITHMS[name].cfg.__dataclass_fields__
    unread = KEYS["unread"].get(name, ("a2c_epoch",))
    return {
        theirs: ours
        for theirs, ours in ALGORITHM_KEYS.items()
        if ours in fields and theirs not in unread
    }


def _build(
    cls: type[_T],
    where: str,
    keys: Mapping[str, str],
    harl: Mapping[str, Any],
    more: Mapping[str, Any],
) -> _T:
    """Build a section from HARL's values under ``keys``, HARL's names to ours, and from ``more``.

    Error messages name HARL's key and ours.
    """
    values = {ours: harl[theirs] for theirs, ours in keys.items() if theirs in harl}
    try:
        return build(cls, {**values, **more}, where)
    except ConfigError as error:
        for theirs, ours in keys.items():
            if str(error).startswith((f"{where}.{ours}:", f"{where}.{ours}[")):
                raise ConfigError(f"{dotted(theirs)}, here {error}") from None
        raise


def as_switch(value: Any, key: str) -> bool:
    """Return a HARL boolean. Raise ConfigError, with its ``key``, for any other value."""
    if not isinstance(value, bool):
        raise ConfigError(f"{key}: must be true or false, not {value!r}")
    return value


def as_count(value: Any, key: str) -> int:
    """Return a HARL count as an int. Raise ConfigError, with its ``key``, for other values."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or value != value // 1 or value < 1:
        raise ConfigError(f"{key}: must be a whole number, at least 1, not {value!r}")
    return int(value)


def _switch(harl: Mapping[str, Any], name: str) -> bool:
    return as_switch(harl[name], dotted(name))


def dotted(name: str) -> str:
    """Return HARL's key with its section in front. Upstream ignores it in other sections."""
    if name in KEYS["train"]:
        return f"train.{name}"
    if name in NETWORK_KEYS or name in KEYS["model"]:
        return f"model.{name}"
    return f"algo.{name}"
