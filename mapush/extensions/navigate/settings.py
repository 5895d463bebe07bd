"""Settings for the navigation task, its reward presets and its observation forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mapush.extensions.navigate.incentives import check_failing, check_waiting
from mapush.extensions.navigate.maps.families import FAMILIES
from mapush.extensions.navigate.maps.files import SUFFIXES
from mapush.extensions.navigate.planners.entries import PLANNERS
from mqe.config import ConfigError, check_values, option, unknown
from mqe.extensions import Registry
from mqe.tasks.term_settings import TermCfg, chosen_weights
from mqe.tasks.terms import TermRegistry
from mqe.world.geometry import axes_along, length
from mqe.world.scene import STEP_DT

NUM_OBSERVED_OBSTACLES = 6  # the nearest ones
# The terms of the task. The modules of observations, rewards and so on add them.
NAVIGATE_TERMS = TermRegistry()
_ON_A_MAP = ("planned_distance", "cost_to_go", "goal", "object", "robots", "obstacles")
# By value of ``task.observation``: the terms of the agent, and of the critic, who knows the map.
OBSERVED: Registry[tuple[tuple[str, ...], tuple[str, ...]]] = Registry(
    "form of observations",
    {
        "default": (_ON_A_MAP, _ON_A_MAP),
        "rays": (("planned_distance", "goal", "object", "robots", "rays"), _ON_A_MAP),
    },
)
# Weights that differ from the terms' own.
PRESETS: Registry[Mapping[str, float]] = Registry("reward preset", {"default": {}})
# Scripts in place of the frozen team, made of the names of an observation's numbers, the object's
# reach [m], the number of robots and the device. None: the frozen team.
MidLevel = Callable[[Sequence[str], float, int, torch.device], Callable[[Tensor], Tensor]]
MID_LEVELS: Registry[MidLevel | None] = Registry("mid level", {"team": None})


def shifted(
    action: Tensor, planned: Tensor, position: Tensor, cfg: NavigateCfg, arena: tuple[float, float]
) -> Tensor:
    """Return the ``planned`` sub-goals (N, 2) [m], shifted along and across the line to them from
    the objects at ``position`` (N, 2).
    """
    to_planned = planned - position
    ahead = to_planned / length(to_planned).clamp(min=1e-6).unsqueeze(-1)
    shift = (action.unsqueeze(-1) * axes_along(ahead)).sum(dim=1)
    return planned + cfg.residual_scale * shift


ACTIONS: Registry[Callable[..., Tensor]] = Registry("meaning of actions", {"shift": shifted})


@dataclass(frozen=True)
class NavigateCfg(TermCfg):
    """The navigation task: the team, its maps, the planner, rewards and the episodes' end."""

    name: str = option("go1push_upper", "name of the task", choices=("go1push_upper",))
    team: str = option(
        "pretrained:cuboid", "frozen team that pushes: a run, a checkpoint or pretrained:NAME"
    )
    mid_level: str = option(
        "team",
        "policy that leads robots to a sub-goal: the frozen team, or a registered script",
        choices=MID_LEVELS,
    )
    map: str = option("scattered", "family of maps, or a .json or .yaml file of maps")
    map_seed: int = option(1, "seed of the maps of a family", min=0, max=2**31 - 1)
    num_maps: int = option(100, "number of maps of a family", min=1, max=10_000)
    planner: str = option("field", "planner of the sub-goals", choices=PLANNERS)
    look_ahead: float = option(
        2.0, "distance from the object to its sub-goal [m]", min=0.5, max=10.0
    )
    residual_scale: float = option(
        0.75, "largest shift of the sub-goal along x and y by an action [m]", min=0.0, max=10.0
    )
    decision_period: int = option(
        25, "number of control steps (50 Hz) that a sub-goal is held", min=1, max=1000
    )
    episode_length_s: float = option(120.0, "time limit of an episode [s]", min=0.02, max=1e6)
    success_radius: float = option(
        1.0,
        "distance of the object's origin from the goal below which it is success [m]",
        min=1e-3,
        max=10.0,
    )
    failures_end: bool = option(
        True,
        "end of the episode at a fall, a collapse or a collision; false: it continues, as the "
        "reference's",
    )
    rewards: str = option("default", "reward preset", choices=PRESETS)
    observation: str = option(
        "default",
        "observations of the agent: the map, or 64 rays of each robot",
        choices=OBSERVED,
    )
    actions: str = option(
        "shift",
        "meaning of actions: a shift of the planned sub-goal",
        choices=ACTIONS,
    )

    def __post_init__(self) -> None:
        check_values(NavigateCfg, vars(self), "task")
        self.check_terms(NAVIGATE_TERMS)
        steps = round(self.episode_length_s / STEP_DT)
        if steps < 1 or steps % self.decision_period:
            raise ConfigError(
                f"task.decision_period: {self.decision_period} does not divide the {steps} "
                f"control steps of task.episode_length_s {self.episode_length_s}; take a divisor "
                f"of {max(steps, 1)}"
            )
        if self.map not in FAMILIES and not self.map.endswith(SUFFIXES):
            raise ConfigError(
                f"task.map: {unknown('family of maps', self.map, FAMILIES)}; or name a file: "
                f"{', '.join(SUFFIXES)}"
            )
        if self.rewards == "default":
            check_waiting(self.all_weights(), steps)
            if self.failures_end:
                check_failing(self.all_weights(), steps)

    def preset_weights(self) -> Mapping[str, float]:
        """Return the reward preset's weights."""
        return PRESETS[self.rewards]

    def all_weights(self) -> dict[str, float]:
        """Return the weights other than 0."""
        return chosen_weights(NAVIGATE_TERMS.rewards, self)
