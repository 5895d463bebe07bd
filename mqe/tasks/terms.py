"""Terms: observations of robots and critic, rewards, terminations, metrics.

A term is declared once, with its name, help and unit. It is a function of a task's features, or a
class, built once for N worlds and then called like a function. A class with memory from one control
step to the next inherits from ``Memory``. The lists in this module call all terms of one kind in
order and join the results. Every other fact about a term (name, size, weight, noise, mirror image,
saved tensors) is found by its name and never by its position.

Terms share computations through the features: each quantity is computed once, on first use.
Letters: N environments, A agents, O and S sizes of observation and state, K rewards, E
terminations, M measures, F metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.extensions import Registry
from mqe.notices import note
from mqe.resumable import Resumable, restore
from mqe.vec_env import EntityBlock, Image
from mqe.world.scene import STEP_DT
from mqe.world.state import over

_T = TypeVar("_T", bound="Term")
# Numbers given as they are, or by the settings of the task.
Signs = tuple[float, ...] | Callable[[Any], tuple[float, ...] | None] | None
# The order and signs of a term's numbers in the image of a scene; None if they are unknown.
_Places = tuple[Sequence[int], Sequence[float]] | None
# The term of an observation that is 1 for an agent that takes part, and 0 for others.
PRESENT = "present"


class Worlds(NamedTuple):
    """The worlds for a term's class."""

    num_envs: int
    num_agents: int
    device: torch.device | str = "cpu"
    cfg: Any = None  # the section ``task`` of the settings


class Memory(Resumable):
    """Named tensors (N, ...) kept from one control step to the next.

    They are changed in place only, for captured CUDA graphs.
    """

    def __init__(self, worlds: Worlds) -> None:
        """Remember nothing of ``worlds`` yet."""
        self._worlds = worlds
        self._tensors: dict[str, Tensor] = {}
        self._starts: dict[str, float] = {}

    def remember(
        self, name: str, *shape: int, start: float | None = 0.0, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return a new tensor (N, *shape) with the value ``start`` at the beginning of an episode.

        With ``start=None`` the tensor begins with zeros, and new episodes do not reset it.
        """
        size = (self._worlds.num_envs, *shape)
        tensor = torch.empty(size, dtype=dtype, device=self._worlds.device)
        return self.keep(name, tensor, start)

    def keep(self, name: str, tensor: Tensor, start: float | None = 0.0) -> Tensor:
        """Remember ``tensor`` (N, ...) as ``remember`` does, and return it. A view into a larger
        tensor is allowed.
        """
        tensor.fill_(start or 0.0)
        self._tensors[name] = tensor
        if start is not None:
            self._starts[name] = start
        return tensor

    def reset(self, mask: Tensor) -> None:
        """Forget the old episodes in ``mask`` (N,)."""
        for name, start in self._starts.items():
            tensor = self._tensors[name]
            tensor.masked_fill_(over(mask, tensor), start)

    def state_parts(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return self._tensors

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore a ``state_dict``. Tensors missing in an older state begin anew, with a note."""
        missing = [name for name in self._tensors if name not in state]
        if missing:
            note(f"the saved state is older and lacks {', '.join(missing)}, which begin anew")
        restore({name: self._tensors[name] for name in self._tensors if name in state}, state)


@dataclass(frozen=True)
class Term:
    """Declaration of a term: meaning, unit, and a class or a function of the features."""

    help: str  # a noun phrase that stands alone
    function: Callable[..., Any]
    unit: str = "1"

    def build(self, worlds: Worlds) -> Callable[[Any], Tensor]:
        """Return the function for ``worlds``, or an object if it is a class."""
        return self.function(worlds) if isinstance(self.function, type) else self.function


@dataclass(frozen=True)
class ObservationTerm(Term):
    """A part of an agent's observation, (N, A, ...), or of the critic's state.

    A term ``over`` entities is (N, A, entities, ...) in an observation and (N, entities, ...) in a
    state: ``numbers`` (names of components), signs, index and noise then belong to one entity. With
    ``is_set`` order has no meaning, and an entity's first component is 1 if the entity is present.
    All components of an absent entity are 0.
    """

    # The names of its numbers; by default the name of the term and a number from 0.
    numbers: tuple[str, ...] | None = None
    # Mirror image (left and right swapped): the sign of each number, and the index of its source
    # (None: the number itself). Without signs the term has no mirror image.
    mirror_signs: Signs = None
    mirror_index: tuple[int, ...] | None = None
    noise: float | tuple[float, ...] = 1.0  # times ``env.randomize.observation_noise``
    # What the entities are: "teammates" (observation), "robots" (state), or other things in a set.
    over: str | None = None
    is_set: bool = False
    # Index of each entity's source in the mirror image, given the settings; None: itself.
    mirror_entities: Callable[[Any], Sequence[int] | None] = lambda cfg: None
    # Image with the object at its next heading of equal appearance: the order and signs of all
    # numbers, given the settings and their count. None: unknown; the mirror is then the term's only
    # symmetry.
    turn: Callable[[Any, int], _Places] = lambda cfg, size: None


@dataclass(frozen=True)
class RewardTerm(Term):
    """An unweighted reward of every control step: (N,) for all robots, or (N, A)."""

    weight: float = 0.0  # unless a preset or the user sets another
    # Whether the object's turn to a heading of equal appearance leaves the reward unchanged.
    is_same_turned: bool = True


@dataclass(frozen=True)
class TerminationTerm(Term):
    """A condition (N,) bool for an episode's end."""

    is_failure: bool = True


@dataclass(frozen=True)
class MeasureTerm(Term):
    """A value or mask at every control step, summed over the episode: (N,), or (N, A)."""

    per_robot: bool = False


@dataclass(frozen=True)
class MetricTerm(Term):
    """A value for a whole episode, (N,) or (N, A), from ``EpisodeFeatures``.

    NaN: the metric does not count for this episode.
    """

    per_robot: bool = False
    # Required measures in addition to the task's own.
    measures: Mapping[str, MeasureTerm] = field(default_factory=dict)


def _registry(kind: str) -> Any:
    return field(default_factory=lambda: Registry(kind))


@dataclass(frozen=True)
class TermRegistry:
    """A task's terms by kind and name, empty until their modules add them."""

    observations: Registry[ObservationTerm] = _registry("observation")
    state: Registry[ObservationTerm] = _registry("term of the state")
    rewards: Registry[RewardTerm] = _registry("reward")
    terminations: Registry[TerminationTerm] = _registry("termination")
    measures: Registry[MeasureTerm] = _registry("measure")
    metrics: Registry[MetricTerm] = _registry("metric")


class TermList(Generic[_T]):
    """Terms of one kind, built for N worlds, in their order."""

    shapes: tuple[str, ...]  # allowed for a value

    def __init__(self, terms: Mapping[str, _T], worlds: Worlds) -> None:
        """Build ``terms`` for ``worlds``."""
        self.terms = dict(terms)
        self.worlds = worlds
        self.functions = {name: term.build(worlds) for name, term in terms.items()}
        self._is_checked = False  # whether the values have been seen to have their shapes

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the terms."""
        return tuple(self.terms)

    @property
    def memories(self) -> dict[str, Memory]:
        """The terms with memory, by name."""
        return {
            name: function
            for name, function in self.functions.items()
            if isinstance(function, Memory)
        }

    def values(self, features: Any) -> list[Tensor]:
        """Return every term's value.

        The first call raises ConfigError for a value with a wrong shape.
        """
        values = [function(features) for function in self.functions.values()]
        if not self._is_checked:
            for name, value in zip(self.functions, values, strict=True):
                self._check_shape(name, value)
            self._is_checked = True
        return values

    def shapes_of(self, term: _T) -> tuple[str, ...]:
        """Return the allowed shapes of a term's value."""
        return self.shapes

    def _check_shape(self, name: str, value: Any) -> None:
        num_agents = self.worlds.num_agents
        allowed = self.shapes_of(self.terms[name])
        if isinstance(value, Tensor):
            if any(_has_shape(value, shape, num_agents) for shape in allowed):
                return
            description = f"shape {tuple(value.shape)}"
        else:
            description = f"{value!r:.40}"
        shapes = " or ".join(f"({shape})" for shape in allowed)
        raise ConfigError(
            f"{name}: the term must return a tensor {shapes} of N worlds and A = {num_agents} "
            f"agents, not {description}"
        )


def _has_shape(value: Tensor, shape: str, num_agents: int) -> bool:
    """Return whether a tensor has a shape such as ``N,``, ``N, A`` or ``N, ...``, with one
    dimension or more.
    """
    letters = shape.split(", ")
    if "A" in letters and (value.dim() < 2 or value.shape[1] != num_agents):
        return False
    if letters[-1] == "...":
        return value.dim() >= len(letters)
    return value.dim() == len(letters)


class ObservationTerms(TermList[ObservationTerm]):
    """Terms in an agent's observation."""

    shapes = ("N, A, ...",)

    def __init__(
        self, terms: Mapping[str, ObservationTerm], worlds: Worlds, empty_scene: Any
    ) -> None:
        """Build ``terms``, with sizes from one world's features ``empty_scene``."""
        super().__init__(terms, worlds)
        for name in self.memories:
            raise ConfigError(
                f"{name}: observation and state terms cannot have memory, since any worlds may "
                "be observed; register a class without mqe.tasks.terms.Memory"
            )
        device = worlds.device
        values = zip(self.terms.items(), self.values(empty_scene), strict=True)
        self._layout = [_Part(name, term, self.one(value)) for (name, term), value in values]
        self.size = self(empty_scene).shape[-1]
        noise = [number for part in self._layout for number in part.noise()]
        self.noise_scale = torch.tensor(noise, device=device)  # (O,)

    def __call__(self, features: Any) -> Tensor:
        """Return the observations (N, A, O)."""
        return _cat([value.flatten(2) for value in self.values(features)], dim=-1)

    @staticmethod
    def one(value: Tensor) -> Tensor:
        """Return a term's components (...) for one agent in the first world, of (N, A, ...)."""
        return value[0, 0]

    def split(self, joined: Tensor) -> dict[str, Tensor]:
        """Return every term's components (..., *shape) by name, given ``joined`` ones (..., O)."""
        columns = joined.split([part.num_numbers for part in self._layout], dim=-1)
        parts = zip(self.names, self._layout, columns, strict=True)
        return {name: values.unflatten(-1, part.shape) for name, part, values in parts}

    def number_names(self, entities: Sequence[str]) -> tuple[str, ...]:
        """Return all components' names. ``entities`` are names for terms over robots."""
        return tuple(name for part in self._layout for name in part.number_names(entities))

    def describe(self, entities: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return names, unit and meaning for every term's components. ``entities`` name the robots
        for terms over robots.
        """
        return {
            name: {"names": part.number_names(entities), "unit": term.unit, "meaning": term.help}
            for (name, term), part in zip(self.terms.items(), self._layout, strict=True)
        }

    @property
    def blocks(self) -> tuple[EntityBlock, ...]:
        """The sets among the terms, with their positions in the observation."""
        blocks = []
        start = 0
        for part in self._layout:
            block = part.block(start)
            if block is not None:
                blocks.append(block)
            start += part.num_numbers
        return tuple(blocks)

    @property
    def presence(self) -> int | None:
        """Index of the presence component, None without one. Its value is 1 for a participating
        agent.
        """
        if PRESENT not in self.terms:
            return None
        before = self.names.index(PRESENT)
        return sum(part.num_numbers for part in self._layout[:before])

    @cached_property
    def mirror(self) -> Image | None:
        """Image with left and right swapped. None: a term has no mirror image."""
        return self._image(lambda part: part.mirror(self.worlds.cfg))

    @cached_property
    def turn(self) -> Image | None:
        """Image with the object at its next symmetric heading. None: a term has no known image."""
        return self._image(lambda part: part.turn(self.worlds.cfg))

    def _image(self, places: Callable[[_Part], _Places]) -> Image | None:
        """Return the image of all parts, None if a part has none.

        ``places`` returns a part's indices and signs.
        """
        index: list[int] = []
        signs: list[float] = []
        for part in self._layout:
            image = places(part)
            if image is None:
                return None
            start = len(index)
            index += [start + index_of_number for index_of_number in image[0]]
            signs += image[1]
        return Image.of(index, signs, torch.device(self.worlds.device))


class StateTerms(ObservationTerms):
    """Terms in the critic's state: one for each environment (EP) or for each agent (FP)."""

    shapes = ("N, ...",)

    def __init__(
        self,
        terms: Mapping[str, ObservationTerm],
        worlds: Worlds,
        empty_scene: Any,
        order: Tensor | None = None,
    ) -> None:
        """Build ``terms``. ``order`` (A, A) int64 lists the robots in each agent's state (FP)."""
        self._order = order
        super().__init__(terms, worlds, empty_scene)

    @staticmethod
    def one(value: Tensor) -> Tensor:
        """Return a term's components (...) in the first world, of (N, ...)."""
        return value[0]

    def with_numbers_of(self, shift: int) -> Image:
        """Return the image with robot i as robot i + ``shift`` modulo the team.

        Each agent's own state lists the robots from the agent on, and stays as it is.
        """
        if self._order is not None:
            shift = 0
        image = self._image(lambda part: part.shifted(shift, self.worlds.num_agents))
        assert image is not None
        return image

    def __call__(self, features: Any) -> Tensor:
        """Return the states, (N, S), or (N, A, S) with an order."""
        parts = []
        for term, value in zip(self.terms.values(), self.values(features), strict=True):
            if self._order is None:
                parts.append(value.flatten(1))
            elif term.over is None or term.is_set:
                parts.append(value.flatten(1).unsqueeze(1).expand(-1, len(self._order), -1))
            else:
                parts.append(value[:, self._order].flatten(2))
        return _cat(parts, dim=-1)


class _Part:
    """A term's position in an observation or state, and its components for each of its entities."""

    def __init__(self, name: str, term: ObservationTerm, numbers: Tensor) -> None:
        """Read the size from one world's ``numbers``. Entities are their first dimension."""
        self._name = name
        self._term = term
        self.shape = numbers.shape
        if term.over is None:
            numbers = numbers.unsqueeze(0)
        self._num_entities = len(numbers)
        self._size = math.prod(numbers.shape[1:])

    @property
    def num_numbers(self) -> int:
        """Return the count of components over all entities."""
        return self._size * self._num_entities

    def block(self, start: int) -> EntityBlock | None:
        """Return the place of entities from index ``start`` on, None if the term has none."""
        if not self._term.is_set:
            return None
        assert self._term.over is not None
        return EntityBlock(self._term.over, start, self._num_entities, self._size)

    def noise(self) -> list[float]:
        """Return every component's noise scale."""
        noise = self._term.noise
        if not isinstance(noise, tuple):
            noise = (float(noise),) * self._size
        return list(noise) * self._num_entities

    def number_names(self, entities: Sequence[str]) -> list[str]:
        """Return all components' names."""
        numbers = self._term.numbers
        if self._term.over is not None:
            assert numbers is not None
            if self._term.is_set or self._term.over != "teammates":
                entities = [f"{self._term.over}{k}" for k in range(self._num_entities)]
            return [f"{entity}_{number}" for entity in entities for number in numbers]
        if numbers is None:
            return [f"{self._name}_{k}" for k in range(self._size)]
        return list(numbers)

    def mirror(self, cfg: Any) -> tuple[list[int], list[float]] | None:
        """Return index and signs of the mirror image, counted from the term's first component."""
        signs = self._term.mirror_signs
        if callable(signs):
            signs = signs(cfg)
        if signs is None:
            return None
        if len(signs) != self._size:
            raise ConfigError(
                f"{self._name}: mirror_signs has {len(signs)} signs, and the term {self._size} "
                "per entity; correct mirror_signs in the term's registration"
            )
        index = self._term.mirror_index or range(self._size)
        entities = self._term.mirror_entities(cfg) or range(self._num_entities)
        return self._spread(entities, index, signs)

    def turn(self, cfg: Any) -> _Places:
        """Return index and signs of the image with a turned object."""
        return self._term.turn(cfg, self.num_numbers)

    def shifted(self, shift: int, num_agents: int) -> tuple[list[int], list[float]]:
        """Return index and signs for the image with robot i as robot i + ``shift``."""
        entities = list(range(self._num_entities))
        if self._term.over == "robots":
            entities[:num_agents] = [(k + shift) % num_agents for k in range(num_agents)]
        return self._spread(entities, range(self._size), (1.0,) * self._size)

    def _spread(
        self, entities: Sequence[int], index: Sequence[int], signs: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Return index and signs of all entities, given those of one."""
        places = [entity * self._size + number for entity in entities for number in index]
        return places, list(signs) * self._num_entities


class RewardTerms(TermList[RewardTerm]):
    """Weighted rewards in a control step."""

    shapes = ("N,", "N, A")

    def __init__(
        self, terms: Mapping[str, RewardTerm], weights: Mapping[str, float], worlds: Worlds
    ) -> None:
        """Build the terms named by ``weights``, in their order."""
        super().__init__({name: terms[name] for name in weights}, worlds)
        self.weights = dict(weights)
        values = list(weights.values())
        self._weights = torch.tensor(values, device=worlds.device).view(-1, 1, 1)

    def __call__(self, features: Any) -> Tensor:
        """Return the weighted rewards (K, N, A)."""
        rows = []
        for value in self.values(features):
            if value.dim() == 1:
                value = value.unsqueeze(1).expand(-1, self.worlds.num_agents)
            rows.append(value)
        return self._weights * torch.stack(rows)


class Terminated:
    """Conditions for an episode's end, by name."""

    def __init__(self, rows: Tensor, terms: TerminationTerms) -> None:
        """Name the ``rows`` (E, N) bool of ``terms``."""
        self.rows = rows
        self._terms = terms

    def __getitem__(self, name: str) -> Tensor:
        """Return one condition (N,)."""
        return self.rows[self._terms.names.index(name)]

    @cached_property
    def is_failure(self) -> Tensor:
        """(N,) bool: at least one condition in force is a failure."""
        return self.rows[self._terms.num_others :].any(dim=0)


class TerminationTerms(TermList[TerminationTerm]):
    """Conditions for an episode's end, failures last."""

    shapes = ("N,",)

    def __init__(self, terms: Mapping[str, TerminationTerm], worlds: Worlds) -> None:
        """Build ``terms``."""
        others = {name: term for name, term in terms.items() if not term.is_failure}
        failures = {name: term for name, term in terms.items() if term.is_failure}
        super().__init__(others | failures, worlds)
        self.num_others = len(others)

    def __call__(self, features: Any) -> Terminated:
        """Return the conditions (E, N) bool after a control step."""
        values = self.values(features)
        rows = values[0].unsqueeze(0) if len(values) == 1 else torch.stack(values)
        return Terminated(rows, self)


class ColumnTerms(TermList[MeasureTerm | MetricTerm]):
    """Measures (N, M) at a control step, or metrics (N, F) of finished episodes: one column each,
    or one column for each robot.
    """

    def __init__(
        self, terms: Mapping[str, MeasureTerm] | Mapping[str, MetricTerm], worlds: Worlds
    ) -> None:
        """Build ``terms``."""
        super().__init__(terms, worlds)
        columns: list[str] = []
        self._places: dict[str, int | slice] = {}
        for name, term in terms.items():
            start = len(columns)
            if term.per_robot:
                columns += [f"{name}_agent{i}" for i in range(worlds.num_agents)]
                self._places[name] = slice(start, len(columns))
            else:
                columns.append(name)
                self._places[name] = start
        self.columns = tuple(columns)

    def shapes_of(self, term: MeasureTerm | MetricTerm) -> tuple[str, ...]:
        """Return a value's shape, with fixed columns."""
        return ("N, A",) if term.per_robot else ("N,",)

    def __call__(self, features: Any) -> Tensor:
        """Return the values (N, columns)."""
        if not self.columns:
            return torch.zeros(self.worlds.num_envs, 0, device=self.worlds.device)
        return join_columns(self.values(features))

    def column(self, name: str, values: Tensor) -> Tensor:
        """Return a term's part of ``values`` (N, columns), (N,) or (N, A)."""
        return values[:, self._places[name]]


@dataclass(frozen=True)
class OfEpisode:
    """A metric: a measure's mean or sum over an episode, or 1 after any positive value."""

    measure: str
    how: Literal["mean", "sum", "happened"] = "mean"  # the method of EpisodeFeatures

    def __call__(self, episodes: EpisodeFeatures) -> Tensor:
        """Return the metric (N,) or (N, A)."""
        return getattr(episodes, self.how)(self.measure)


class EpisodeFeatures:
    """Inputs for metrics about finished episodes."""

    def __init__(
        self, sums: Tensor, steps: Tensor, terminated: Terminated, measures: ColumnTerms
    ) -> None:
        """Take the measures' sums (N, M), the lengths (N,) in control steps, and the
        terminations.
        """
        self.steps = steps
        self.terminated = terminated
        self.measures = measures
        self._sums = sums

    def sum(self, measure: str) -> Tensor:
        """Return a measure's sum, (N,) or (N, A)."""
        return self.measures.column(measure, self._sums)

    def mean(self, measure: str) -> Tensor:
        """Return a measure's mean over each episode's control steps, (N,) or (N, A)."""
        return self.measures.column(measure, self.means)

    def happened(self, measure: str) -> Tensor:
        """Return whether a measure was above zero at some control step, (N,) or (N, A) bool."""
        return self.measures.column(measure, self._happened)

    @cached_property
    def means(self) -> Tensor:
        """(N, M) all measures' means over the control steps."""
        return self._sums / self.steps.clamp(min=1).unsqueeze(1)

    @cached_property
    def _happened(self) -> Tensor:
        return self._sums > 0.0

    @cached_property
    def time(self) -> Tensor:
        """(N,) [s] length of the episode."""
        return self.steps * STEP_DT


class TaskTerms(NamedTuple):
    """A task's lists of terms."""

    observations: ObservationTerms
    state: StateTerms
    rewards: RewardTerms
    terminations: TerminationTerms
    measures: ColumnTerms
    metrics: ColumnTerms

    def memories(self) -> dict[str, Memory]:
        """Return the terms with memory, by kind and name."""
        return {
            f"{kind}.{name}": memory
            for kind, terms in self._asdict().items()
            for name, memory in terms.memories.items()
        }


def join_columns(values: Iterable[Tensor]) -> Tensor:
    """Join values and masks, (N,) or (N, columns) each, as float columns.

    Neighbouring masks are converted together, because every operation costs a GPU the same.
    """
    columns = [value.unsqueeze(1) if value.dim() == 1 else value for value in values]
    parts: list[Tensor] = []
    for is_mask, group in groupby(columns, lambda column: column.dtype == torch.bool):
        if is_mask:
            parts.append(_cat(list(group), dim=1).float())
        else:
            parts += group
    return _cat(parts, dim=1)


def _cat(parts: list[Tensor], dim: int) -> Tensor:
    """Concatenate tensors. Return a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)
