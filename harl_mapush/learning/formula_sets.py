"""Variants of the learning formulas by name, the values of ``algorithm.compat``."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mqe.extensions import Registry


class FormulaSet(NamedTuple):
    """A variant of the formulas, and its required network settings."""

    make: Callable[..., Any]
    network: Mapping[str, Any] = MappingProxyType({})


# ``make`` takes the ranks, and returns ``on_policy.formulas.Formulas``.
ON_POLICY_FORMULAS: Registry[FormulaSet] = Registry("variant of the formulas")
# ``make`` takes the ranks, and returns ``off_policy.formulas.OffPolicyFormulas``.
OFF_POLICY_FORMULAS: Registry[FormulaSet] = Registry("variant of the formulas")
