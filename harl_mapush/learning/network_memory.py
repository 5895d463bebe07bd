"""Memory of passes through networks, in floats, for memory plans."""

from __future__ import annotations

import torch
from torch import Tensor

from harl_mapush.learning.settings import NetworkCfg
from mqe.controllers.set_readers import SetReader

# Floats per row and unit of a GRU layer: saved until the backward pass, and computed in a pass
# without gradients.
_GRU_KEPT = 9
_GRU_PASSING = 11
_NUM_TRIED = 64  # rows, so many that what does not grow with them hardly counts
_BYTES_A_FLOAT = 4


def passed_floats(
    network: NetworkCfg, sizes: tuple[int, ...], rows: float, at_once: float
) -> float:
    """Return the floats for a pass without gradients over ``rows``, ``at_once`` rows at a time.

    Each simultaneous row needs a layer's input and output, and all rows a GRU's parts.
    """
    return _GRU_PASSING * gru_floats(network, sizes) * rows + 2.0 * max(sizes) * at_once


def trained_floats(network: NetworkCfg, sizes: tuple[int, ...], input_size: int) -> int:
    """Return the floats of a row with ``input_size`` components in a pass with gradients."""
    layers = graph_floats(sizes, has_norm=network.use_layer_norm)
    return layers + _GRU_KEPT * gru_floats(network, sizes) + input_size


def reader_floats(reader: SetReader) -> float:
    """Return the floats per row for a set reader's pass with gradients.

    The count is measured: autograd's saved tensors, and the largest gradient with its product.
    """
    saved: dict[int, float] = {}
    weights = {weight.untyped_storage().data_ptr() for weight in reader.parameters()}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes() / _BYTES_A_FLOAT / _NUM_TRIED
        return value

    device = next(iter(reader.parameters()), torch.empty(0)).device
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        reader(torch.zeros(_NUM_TRIED, reader.in_size, device=device))
    return sum(saved.values()) + 2.0 * max(saved.values(), default=0.0)


def gru_floats(network: NetworkCfg, sizes: tuple[int, ...]) -> int:
    """Return the hidden state's size behind layers of ``sizes``, 0 without recurrence."""
    return network.num_recurrent_layers * sizes[-1] if network.use_recurrent_policy else 0


def graph_floats(sizes: tuple[int, ...], *, has_norm: bool) -> int:
    """Return the peak floats per row for hidden layers of ``sizes`` with gradients.

    A layer keeps its result until its own backward pass. Then the gradients of its result, its
    activation's input and its own input are added. With normalisation the layer keeps the values
    before and after its activation and after the normalisation, and one layer's gradient is added.
    """
    if has_norm:
        return 3 * sum(sizes) + max(sizes)
    inputs = (0, *sizes)  # the first layer's input needs no gradient
    return max(sum(sizes[: k + 1]) + 2 * size + inputs[k] for k, size in enumerate(sizes))
