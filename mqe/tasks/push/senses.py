"""Models of the robots' senses: each robot's knowledge of the scene, in place of the truth.

Extensions register models. ``task.senses`` holds a model's name and its settings. Rewards,
terminations, metrics and the critic read the true scene.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from mqe.config import ConfigError, build, unknown
from mqe.extensions import Registry
from mqe.world.state import SceneState

EXACT = "exact"  # the truth, without a model


class Senses(Protocol):
    """A model over N worlds. Nothing here waits for the device."""

    has_mirror: bool  # in a mirrored scene each robot has the mirrored knowledge

    def draw(self, episode: Tensor) -> None:
        """Draw the random properties for episode number ``episode`` (N,) int64 in every world."""
        ...

    def watch(self, scene: Any, prev: SceneState) -> None:
        """Update the memory after a control step from ``prev`` to the features ``scene``."""
        ...

    def known(self, scene: Any, memory: Tensor) -> Any:
        """Return features of W worlds as the robots know them, from true features ``scene`` and
        the model's observed memory (W, C).
        """
        ...

    def source(self, term: str) -> str | None:
        """Return the source of an observation term on a robot, None for exact components."""
        ...


class SensesEntry(NamedTuple):
    """One model by name."""

    cfg: type  # its settings, a frozen dataclass
    # Columns C of the observed memory for a team with A robots
    num_columns: Callable[[int], int]
    # Builds the model from its settings, the memory, the observed part (N, C), the constants, the
    # robots and the streams.
    make: Callable[..., Senses]


SENSES: Registry[SensesEntry] = Registry("model of the senses")


def chosen_senses(values: Mapping[str, Any]) -> tuple[SensesEntry, Any] | None:
    """Return the model named in the section ``task.senses``, and its checked settings.

    None: exact knowledge. Raises ConfigError for an unknown name or a wrong setting.
    """
    settings = {key: value for key, value in values.items() if key != "name"}
    name = values.get("name")
    if name == EXACT or not values:
        return None
    allowed = [EXACT, *SENSES]
    if name is None:
        raise ConfigError(
            f"task.senses: {', '.join(settings)} need the name of a model; say "
            f"task.senses.name=NAME (allowed: {', '.join(allowed)})"
        )
    if name not in allowed:
        message = unknown("model of the senses", name, allowed, is_open=True)
        raise ConfigError(f"task.senses.name: {message}")
    entry = SENSES[name]
    return entry, build(entry.cfg, settings, "task.senses")
