"""Floats that networks hold in passes over rows, from which memory plans are made."""

from __future__ import annotations

from harl_mapush.learning.networks import NetworkCfg

GRU_KEPT = 9  # floats a unit of a GRU layer holds for every row until its backward pass
_GRU_PASSING = 11  # and what it computes in a pass without gradients


def passed_floats(
    network: NetworkCfg, sizes: tuple[int, ...], rows: float, at_once: float
) -> float:
    """Return what a pass without gradients holds: of rows at once a layer's input and output, of
    all a GRU's parts.
    """
    return _GRU_PASSING * gru_floats(network, sizes) * rows + 2.0 * max(sizes) * at_once


def gru_floats(network: NetworkCfg, sizes: tuple[int, ...]) -> int:
    """Return the size of the hidden state behind layers of ``sizes``; 0 without recurrence."""
    return network.num_recurrent_layers * sizes[-1] if network.use_recurrent_policy else 0


def graph_floats(sizes: tuple[int, ...], *, has_norm: bool) -> int:
    """Return what hidden layers of ``sizes`` hold of a row at the fullest moment of a pass with
    gradients.

    A layer keeps its result until its own turn backward, when the gradients of its result, of what
    its activation was given and of its input come on top. With normalisation it keeps what it
    computed before and after its activation and after that, and one layer's gradient comes on top.
    """
    if has_norm:
        return 3 * sum(sizes) + max(sizes)
    inputs = (0, *sizes)  # the first layer's needs no gradient
    return max(sum(sizes[: k + 1]) + 2 * size + inputs[k] for k, size in enumerate(sizes))
