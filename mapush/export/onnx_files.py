"""ONNX files: write a network, run the file, and compare the two."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mqe.config import ConfigError, import_extra

TOLERANCE = 1e-5  # of every output against torch
_OPSET = 17


class Exported(NamedTuple):
    """One network to export, with example inputs and the names of inputs and outputs."""

    network: nn.Module
    inputs: dict[str, Tensor]  # examples, in the order of its arguments
    outputs: tuple[str, ...]
    contract: Mapping[str, Any] = MappingProxyType({})  # description of inputs and outputs


def check_packages() -> None:
    """Raise ConfigError if a package for exports is not installed."""
    for name in ("onnx", "onnxruntime"):
        import_extra(name, "export", "an export")


def write(exported: Exported, path: Path, is_batch: bool = True) -> None:
    """Write one network, with a free number of rows or the example's."""
    names = (*exported.inputs, *exported.outputs) if is_batch else ()
    axes = {name: {0: "batch"} for name in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # about fixed shapes: all but the batch are fixed
        torch.onnx.export(
            exported.network,
            tuple(exported.inputs.values()),
            str(path),
            dynamo=False,
            opset_version=_OPSET,
            input_names=list(exported.inputs),
            output_names=list(exported.outputs),
            dynamic_axes=axes,
        )


def session(path: Path) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    """Return a function from named inputs to outputs, computed by ONNX Runtime."""
    runtime = import_extra("onnxruntime", "export", "an export")
    opened = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        feed = {name: values.numpy() for name, values in inputs.items()}
        return [torch.from_numpy(values) for values in opened.run(None, feed)]

    return run


@torch.no_grad()
def largest_difference(exported: Exported, path: Path) -> float:
    """Return the largest difference between a file's outputs and the network's, for all rows and
    for one alone.
    """
    run = session(path)
    worst = 0.0
    for rows in (slice(None), slice(3, 4)):
        inputs = {name: values[rows].contiguous() for name, values in exported.inputs.items()}
        expected = exported.network(*inputs.values())
        worst = max(
            worst, *(float((a - b).abs().max()) for a, b in zip(expected, run(inputs), strict=True))
        )
    return worst


def check(worst: Mapping[str, float]) -> None:
    """Raise ConfigError for the first network too different from torch."""
    for name, error in worst.items():
        if not error <= TOLERANCE:
            raise ConfigError(
                f"{name}: outputs differ by up to {error:.1e} from torch's, more than {TOLERANCE}; "
                "nothing was exported"
            )
