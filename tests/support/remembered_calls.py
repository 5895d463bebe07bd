"""Pure calls of libraries that tests repeat thousands of times."""

from __future__ import annotations

import functools
import importlib.metadata
from typing import Any

import torch


def remember_versions() -> None:
    """Read the version of an installed package once. MuJoCo Warp asks for three per model."""
    importlib.metadata.version = functools.cache(importlib.metadata.version)


def leave_out_the_compiler() -> None:
    """Let optimizers and TensorDict do without torch's compiler, which takes seconds to import."""
    for method in vars(torch.optim.Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain
    torch.compiler.allow_in_graph = lambda function: function


def remember_sums_of_integers() -> None:
    """Call Warp's functions of integers from Python once for equal arguments."""
    from warp._src import context

    call = context.Function.__call__
    results: dict[Any, Any] = {}

    def remembered(function: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs or not all(type(arg) is int for arg in args):
            return call(function, *args, **kwargs)
        key = (function, args)
        if key not in results:
            results[key] = call(function, *args)
        return results[key]

    context.Function.__call__ = remembered
