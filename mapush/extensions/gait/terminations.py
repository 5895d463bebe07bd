"""Terminations in the velocity task."""

from torch import Tensor

from mapush.extensions.gait.features import StepFeatures
from mapush.extensions.gait.leg_motion import WalkingRobots
from mapush.extensions.gait.settings import VELOCITY_TERMS
from mqe.tasks.terms import TerminationTerm
from mqe.world.state import SceneState

FALL_HEIGHT = 0.15  # [m] trunk below this has fallen, with the Go1's legs
FALL_TILT_COS = 0.5  # cosine of the trunk's tilt below this has fallen


def has_fallen(state: SceneState, robots: WalkingRobots) -> Tensor:
    """(N, A) bool: the trunk is near the floor or tilted beyond 60 degrees."""
    is_low = state.robot_pos[..., 2] < FALL_HEIGHT * robots.size
    return is_low | (state.up_b[..., 2] < FALL_TILT_COS)


def _fall(step: StepFeatures) -> Tensor:
    return ((step.state.up_b[..., 2] < FALL_TILT_COS) | step.is_collapsed)[:, 0]


TERMINATIONS = VELOCITY_TERMS.terminations
TERMINATIONS.update(
    {
        "fall": TerminationTerm(
            "a trunk tilted beyond 60 degrees, or a robot that lies or kneels for a while", _fall
        )
    }
)
