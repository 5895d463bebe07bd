"""Settings for the velocity task."""

from dataclasses import dataclass

from mqe.config import check_ranges, check_values, option
from mqe.tasks.term_settings import TermCfg
from mqe.tasks.terms import TermRegistry
from mqe.world.scene import STEP_DT

# The terms of the task. The modules of observations, rewards and so on add them.
VELOCITY_TERMS = TermRegistry()


@dataclass(frozen=True)
class VelocityCfg(TermCfg):
    """Commands, disturbances and rewards in a gait's training."""

    name: str = option("go1_velocity", "name of the task", choices=("go1_velocity",))
    episode_length_s: float = option(20.0, "time limit of an episode [s]", min=STEP_DT, max=160.0)
    max_command: tuple[float, float, float] = option(
        (0.65, 0.65, 0.65), "largest |vx|, |vy| [m/s], |yaw rate| [rad/s]", min=0.0, max=10.0
    )
    max_kick: float = option(
        1.2, "largest sudden change of the trunk's velocity [m/s]", min=0.0, max=20.0
    )
    max_force: float = option(
        25.0, "largest horizontal force that leans on the trunk for a while [N]", min=0.0, max=1e4
    )
    max_load: float = option(
        0.0,
        "largest resistance to walking ahead, like a sliding object's, in two thirds of the "
        "commands; these lead ahead [N]",
        min=0.0,
        max=1e4,
    )
    floor_friction: tuple[float, float] = option(
        (0.48, 0.65), "range of the floor's friction over worlds", min=1e-3, max=10.0
    )

    @property
    def num_steps(self) -> int:
        """Return the time limit in control steps."""
        return round(self.episode_length_s / STEP_DT)

    def __post_init__(self) -> None:
        check_values(VelocityCfg, vars(self), "task")
        self.check_terms(VELOCITY_TERMS)
        check_ranges(self, "task")
