"""Settings for the navigation task."""

from dataclasses import dataclass

from mapush.extensions.navigate.maps.arena_map import SUFFIXES
from mapush.extensions.navigate.maps.families import FAMILIES
from mapush.extensions.navigate.planners.entries import PLANNERS
from mqe.config import ConfigError, check_values, option, unknown
from mqe.tasks.term_settings import TermCfg, check_decision_period
from mqe.tasks.terms import TermRegistry

NUM_OBSERVED_OBSTACLES = 6  # the nearest ones
# The terms of the task. The modules of observations, rewards and so on add them.
NAVIGATE_TERMS = TermRegistry()
# Terms of the agent and of the critic in every navigation task
OBSERVED = ("planned_distance", "cost_to_go", "goal", "object", "robots", "obstacles")


@dataclass(frozen=True)
class NavigateCfg(TermCfg):
    """The navigation task: the team, its maps, the planner, rewards and the episodes' end."""

    name: str = option("go1push_upper", "name of the task", choices=("go1push_upper",))
    team: str = option(
        "pretrained:cuboid", "frozen team that pushes: a run, a checkpoint or pretrained:NAME"
    )
    map: str = option("scattered", "family of maps, or a .json or .yaml file of maps")
    map_seed: int = option(1, "seed of the maps of a family", min=0, max=2**31 - 1)
    num_maps: int = option(100, "number of maps of a family", min=1, max=10_000)
    planner: str = option("field", "planner of the sub-goals", choices=PLANNERS)
    residual_scale: float = option(
        0.75, "largest shift of the sub-goal along x and y by an action [m]", min=0.0, max=10.0
    )
    decision_period: int = option(
        25, "number of control steps (50 Hz) that a sub-goal is held", min=1, max=1000
    )
    episode_length_s: float = option(120.0, "time limit of an episode [s]", min=0.02, max=1e6)
    success_radius: float = option(
        1.0,
        "largest distance between object's origin and goal in a success [m]",
        min=1e-3,
        max=10.0,
    )

    def __post_init__(self) -> None:
        check_values(NavigateCfg, vars(self), "task")
        self.check_terms(NAVIGATE_TERMS)
        check_decision_period(self.decision_period, self.episode_length_s)
        if self.map not in FAMILIES and not self.map.endswith(SUFFIXES):
            raise ConfigError(
                f"task.map: {unknown('family of maps', self.map, FAMILIES)}; or name a file: "
                f"{', '.join(SUFFIXES)}"
            )
