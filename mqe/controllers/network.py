"""A policy's frozen networks: layers declared as data, with tensors of any learner.

A declaration lists a layer's kind, its tensors' name and its sizes, for instance ``["linear",
"hidden.0", 59, 256]`` with the tensors ``hidden.0.weight`` and ``hidden.0.bias``. Layers follow one
another. A GRU has a memory. Letters: N worlds, A robots, B rows, O observation size, U action size,
M memory size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mqe.config import reason_of
from mqe.controllers.set_readers import SetReader
from mqe.vec_env import EntityBlock

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "leaky_relu": nn.LeakyReLU,
    "hardswish": nn.Hardswish,
    "identity": nn.Identity,
}
_LARGEST = 100_000  # largest observation
_MOST_GRU_LAYERS = 64
_POOLED = "deep_set"  # how sets are read, in a declaration


class Bound(nn.Module):
    """A smooth bound: ``limit`` times the hyperbolic tangent of ``x / limit``."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        if not 0.0 < limit < math.inf:
            raise ValueError(f"{limit!r} is no bound")
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """Return the bounded values."""
        return self.limit * torch.tanh(x / self.limit)


class _Kind(NamedTuple):
    """One kind of layer."""

    cls: type[nn.Module]
    arguments: Callable[[Any], list[Any]]  # of a module, as its declaration has them
    make: Callable[..., nn.Module]
    has_tensors: bool = True


def _make_sets(reader: str, size: int, width: int, blocks: list[Any]) -> SetReader:
    if reader != _POOLED:
        raise ValueError(f"unknown reader of sets {reader!r}")
    return SetReader(size, [EntityBlock(str(kind), *numbers) for kind, *numbers in blocks], width)


def _make_gru(input_size: int, hidden_size: int, num_layers: int) -> nn.GRU:
    if num_layers > _MOST_GRU_LAYERS:
        raise ValueError(f"a GRU has at most {_MOST_GRU_LAYERS} layers, not {num_layers}")
    return nn.GRU(input_size, hidden_size, num_layers)


def _set_arguments(reader: Any) -> list[Any]:
    return [_POOLED, reader.in_size, reader.width, [list(block) for block in reader.blocks]]


_KINDS: dict[str, _Kind] = {
    "linear": _Kind(nn.Linear, lambda module: [module.in_features, module.out_features], nn.Linear),
    "layer_norm": _Kind(nn.LayerNorm, lambda module: list(module.normalized_shape), nn.LayerNorm),
    "gru": _Kind(
        nn.GRU, lambda module: [module.input_size, module.hidden_size, module.num_layers], _make_gru
    ),
    "sets": _Kind(SetReader, _set_arguments, _make_sets),
    "bound": _Kind(Bound, lambda module: [module.limit], Bound, False),
} | {name: _Kind(cls, lambda module: [], cls, False) for name, cls in ACTIVATIONS.items()}


class Actor(nn.Module):
    """One robot's network, from observation and memory (B, O + M) to action and memory (B, U + M).

    B rows, O observation size, U action size, M memory size. Without a GRU M is 0, and several
    leading dimensions may replace B.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """Chain ``layers``. Raises ValueError for unequal sizes of adjacent layers, and for a
        second GRU.
        """
        super().__init__()
        self.layers = nn.ModuleList(layers)
        grus = [layer for layer in layers if isinstance(layer, nn.GRU)]
        if len(grus) > 1:
            raise ValueError("a network has at most one GRU")
        self._memory_shape = (grus[0].num_layers, grus[0].hidden_size) if grus else (0, 0)
        self.memory_size = self._memory_shape[0] * self._memory_shape[1]
        self.in_size = _in_size(layers)
        self.out_size = _out_size(layers)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the action, followed by the memory after the action."""
        if not self.memory_size:
            for layer in self.layers:
                rows = layer(rows)
            return rows
        x, memory = rows.split([self.in_size, self.memory_size], dim=-1)
        for layer in self.layers:
            if isinstance(layer, nn.GRU):
                x, memory = self._recur(layer, x, memory)
            else:
                x = layer(x)
        return torch.cat((x, memory), dim=-1)

    def _recur(self, gru: nn.GRU, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Run the GRU for one decision. Return its output (B, H), H its hidden size, and the memory
        (B, M).
        """
        # The layout of the memory is (layer, hidden unit).
        hidden = memory.reshape(-1, *self._memory_shape).transpose(0, 1).contiguous()
        with torch.backends.cudnn.flags(enabled=False):  # as in training
            output, after = gru(x.unsqueeze(0), hidden)
        return output[0], after.transpose(0, 1).flatten(1)


class TeamNetwork(nn.Module):
    """A team's frozen actors, one for all robots or one each."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        super().__init__()
        self.actors = nn.ModuleList(actors)
        self.memory_size = max(actor.memory_size for actor in actors)

    def forward(self, rows: Tensor) -> Tensor:
        """Return actions and memories (N, A, U + M) for observations and memories (N, A, O + M).

        Zeros pad smaller observations and actions to the largest. As in training, every robot has
        its own matrix product, for equal bits.
        """
        num_obs = rows.shape[-1] - self.memory_size
        largest = max(actor.out_size for actor in self.actors)  # type: ignore[type-var]
        decided = []
        for robot in range(rows.shape[1]):
            actor = self.actor(robot)
            robot_rows = rows[:, robot, : actor.in_size]
            if self.memory_size:
                robot_rows = torch.cat((robot_rows, rows[:, robot, num_obs:]), dim=-1)
            action = actor(robot_rows)
            if actor.out_size < largest:
                padding = action.new_zeros(len(action), largest - actor.out_size)
                parts = (action[:, : actor.out_size], padding, action[:, actor.out_size :])
                action = torch.cat(parts, dim=-1)
            decided.append(action)
        return torch.stack(decided, dim=1)

    def actor(self, robot: int) -> Actor:
        """Return one robot's network."""
        return self.actors[robot if len(self.actors) > 1 else 0]  # type: ignore[return-value]


def layers_of(actor: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a learner's actor, or None.

    Actors declare their layers by a method ``layers``. Sequences and single layers need none.
    """
    if isinstance(actor, nn.Sequential):
        parts = [layers_of(part) for part in actor]
        if any(part is None for part in parts):
            return None
        return [layer for part in parts if part is not None for layer in part]
    declared: Any = getattr(actor, "layers", None)
    if callable(declared):
        layers: Any = declared()
        return layers_of(nn.Sequential(*layers))
    if type(actor) is nn.Identity or (isinstance(actor, SetReader) and not actor.blocks):
        return []
    return None if _kind_of(actor) is None else [actor]


def declare(actor: nn.Module) -> list[list[Any]] | None:
    """Return declarations for a learner's actor, or None without declared layers."""
    layers = layers_of(actor)
    if layers is None:
        return None
    names = {module: name for name, module in actor.named_modules()}
    declarations: list[list[Any]] = []
    for layer in layers:
        kind = _kind_of(layer)
        assert kind is not None
        arguments = _KINDS[kind].arguments(layer)
        if _KINDS[kind].has_tensors:
            arguments = [names[layer], *arguments]
        declarations.append([kind, *arguments])
    return declarations


def build_network(
    actors: Sequence[Sequence[Sequence[Any]]], tensors: Sequence[Mapping[str, Tensor]]
) -> TeamNetwork:
    """Build the declared ``actors``, one for all ``tensors`` or one each.

    Raises ValueError for an unknown declaration, and for tensors with other names, shapes or number
    types.
    """
    built = []
    for k, stored in enumerate(tensors):
        built.append(_build_actor(actors[k if len(actors) > 1 else 0], stored))
    return TeamNetwork(built).requires_grad_(False)


def _build_actor(declarations: Sequence[Sequence[Any]], tensors: Mapping[str, Tensor]) -> Actor:
    if not isinstance(declarations, (list, tuple)):
        raise ValueError(f"an actor has a list of layers, not {declarations!r:.80}")
    # On the device "meta", a declaration of any size takes no memory.
    with torch.device("meta"):
        actor = Actor([_build_layer(declaration) for declaration in declarations])
    if not 0 < actor.in_size <= _LARGEST:
        raise ValueError(f"an observation has 1 to {_LARGEST} numbers, not {actor.in_size!r:.20}")
    for layer, declaration in zip(actor.layers, declarations, strict=True):
        if _KINDS[declaration[0]].has_tensors:
            _fill(layer, declaration[1], tensors)
    try:
        with torch.no_grad():  # on "meta" it would import torch's compiler
            actor(torch.zeros(1, actor.in_size + actor.memory_size))
    except (RuntimeError, IndexError) as error:
        raise ValueError(f"the sizes of its layers differ ({reason_of(error)[:100]})") from None
    return actor


def _fill(layer: nn.Module, name: str, tensors: Mapping[str, Tensor]) -> None:
    """Set a layer's tensors ``name.*``. Raises ValueError for missing or unfit ones."""
    values = {}
    for key, expected in layer.state_dict().items():
        value = tensors.get(f"{name}.{key}")
        if value is None:
            raise ValueError(f"its weights lack {name}.{key}")
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise ValueError(
                f"{name}.{key} has shape {tuple(value.shape)} and type {value.dtype}, but its "
                f"description needs {tuple(expected.shape)} and {expected.dtype}"
            )
        values[key] = value
    layer.load_state_dict(values, assign=True)


def _build_layer(layer: Sequence[Any]) -> nn.Module:
    """Build a module from its declaration. Raises ValueError for an invalid one."""
    if not isinstance(layer, (list, tuple)) or not layer or layer[0] not in list(_KINDS):
        raise ValueError(f"unknown layer {layer!r:.80}; there are {', '.join(_KINDS)}")
    name, *arguments = layer
    kind = _KINDS[name]
    try:
        return kind.make(*arguments[kind.has_tensors :])  # after the name of the tensors
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"layer {name}: {reason_of(error)[:100]}") from None


def _kind_of(layer: nn.Module) -> str | None:
    for name, kind in _KINDS.items():
        if isinstance(layer, kind.cls):
            return name
    return None


def _in_size(layers: Sequence[nn.Module]) -> int:
    """Return a network's input size."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            return layer.in_features
        if isinstance(layer, nn.LayerNorm):
            return layer.normalized_shape[0]
        if isinstance(layer, SetReader):
            return layer.in_size
        if isinstance(layer, nn.GRU):
            return layer.input_size
    raise ValueError("a network has at least one layer with weights")


def _out_size(layers: Sequence[nn.Module]) -> int:
    """Return a network's output size, without its memory."""
    for layer in reversed(layers):
        if isinstance(layer, nn.Linear):
            return layer.out_features
    raise ValueError("a network has at least one linear layer")
