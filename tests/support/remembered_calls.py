"""Pure calls of libraries that tests repeat thousands of times."""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import pickle
import sys
from typing import Any

import yaml

from tests.support.lazy_modules import after_import


def remember_versions() -> None:
    """Read the version of an installed package once. MuJoCo Warp asks for three per model."""
    importlib.metadata.version = functools.cache(importlib.metadata.version)


def remember_yaml() -> None:
    """Parse equal YAML once. A run reads the files of all suites, and its own several times."""
    load = yaml.load
    pickled = functools.lru_cache(1000)(lambda text, loader: pickle.dumps(load(text, loader)))

    def remembered(stream: Any, Loader: Any) -> Any:
        if not isinstance(stream, str):
            return load(stream, Loader)
        return pickle.loads(pickled(stream, Loader))

    yaml.load = remembered


def leave_out_the_compiler() -> None:
    """Let optimizers, decompositions, comparisons and tensordict do without torch's compiler and
    distributed tensors, which take seconds to import. Torch's decorators come before torch.
    """
    after_import("torch._compile", _decorate_nothing)
    import torch

    compiler: Any = torch.compiler
    compiler.allow_in_graph = compiler.assume_constant_result = lambda function: function
    comparison: Any = torch.testing._comparison
    comparison._HAS_DTENSOR = False
    adam: Any = torch.optim.Adam
    adam.step = torch.no_grad()(adam.step.__wrapped__)


def _decorate_nothing() -> None:
    decorators: Any = sys.modules["torch._compile"]
    decorators._disable_dynamo = lambda function=None, recursive=True: function or (lambda f: f)


def remember_start_poses() -> None:
    """Draw the table of a robot's first poses once. Every task of a gait has one of 4,096."""
    from mapush.extensions.gait import starts

    draw = starts.start_poses
    tables: dict[Any, Any] = {}

    def remembered(robots: Any, num_poses: int = starts.NUM_POSES) -> Any:
        key = (tuple(robots.cfgs), num_poses, robots.device)
        if key not in tables:
            tables[key] = draw(robots, num_poses)
        return tables[key]

    starts.start_poses = remembered


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


def remember_fitting_arrays() -> None:
    """Compare an array's type with that of a Warp kernel's argument once, and fill a kernel's
    struct at once. Such work takes a fifth of MuJoCo Warp's steps on a CPU.
    """
    from warp._src import context, types

    pack = context.pack_arg
    invoke = context.invoke
    fitting: dict[Any, Any] = {}  # holds the types, whose addresses are in its keys

    def remembered(
        kernel: Any, arg_type: Any, name: str, value: Any, device: Any, adjoint: bool = False
    ) -> Any:
        if type(value) is not types.array:
            return pack(kernel, arg_type, name, value, device, adjoint)
        key = (id(arg_type), value.dtype, value.ndim, adjoint)
        if key not in fitting:
            pack(kernel, arg_type, name, value, device, adjoint)
            fitting[key] = arg_type
        return value.__ctype__()

    def invoke_in_one_go(kernel: Any, hooks: Any, params: Any, adjoint: bool) -> None:
        structs = kernel._invoke_cache.get((tuple(map(type, params[1:])), adjoint))
        if structs is None or adjoint:
            invoke(kernel, hooks, params, adjoint)
        else:
            hooks.forward(ctypes.byref(params[0]), ctypes.byref(structs[0](*params[1:])))

    context.pack_arg = remembered
    context.invoke = invoke_in_one_go
