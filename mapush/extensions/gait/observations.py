"""Observations in the velocity task: a real gait's inputs for the policy, more for the critic."""

from __future__ import annotations

from mapush.extensions.gait.settings import VELOCITY_TERMS
from mqe.controllers.trot import GAIT_MIRROR_INDEX, GAIT_MIRROR_SIGNS, GAIT_NAMES, GAIT_NOISE
from mqe.tasks.terms import ObservationTerm

_SIGNS_XYZ = (1.0, -1.0, 1.0)  # of a vector in a mirror that swaps left and right
_SWAPPED_LEGS = (1, 0, 3, 2)

OBSERVATIONS = VELOCITY_TERMS.observations
OBSERVATIONS.update(
    {
        "gait": ObservationTerm(
            "observation of a gait policy, with the terms of mqe.controllers.trot",
            lambda scene: scene.gait_obs,
            numbers=GAIT_NAMES,
            mirror_signs=GAIT_MIRROR_SIGNS,
            mirror_index=GAIT_MIRROR_INDEX,
            noise=GAIT_NOISE,
        ),
    },
)

STATE = VELOCITY_TERMS.state
STATE.update(
    {
        "gait": ObservationTerm(
            "observation of a gait policy, without noise",
            lambda scene: scene.gait_obs[:, 0],
            mirror_signs=GAIT_MIRROR_SIGNS,
            mirror_index=GAIT_MIRROR_INDEX,
        ),
        "velocity": ObservationTerm(
            "horizontal velocity of the trunk in its heading frame",
            lambda scene: scene.planar_linvel[:, 0],
            "m/s",
            mirror_signs=(1.0, -1.0),
        ),
        "rise": ObservationTerm(
            "vertical velocity of the trunk",
            lambda scene: scene.state.robot_linvel[:, 0, 2:],
            "m/s",
            mirror_signs=(1.0,),
        ),
        "mean_velocity": ObservationTerm(
            "velocity and yaw rate in the mean over a trot's cycle",
            lambda scene: scene.memory.mean_velocity[:, 0],
            "m/s, rad/s",
            mirror_signs=(1.0, -1.0, -1.0),
        ),
        "height": ObservationTerm(
            "height of the trunk",
            lambda scene: scene.state.robot_pos[:, 0, 2:],
            "m",
            mirror_signs=(1.0,),
        ),
        "feet_height": ObservationTerm(
            "heights of the feet's centres",
            lambda scene: scene.feet_height[:, 0],
            "m",
            mirror_signs=(1.0,) * 4,
            mirror_index=_SWAPPED_LEGS,
        ),
        "force": ObservationTerm(
            "force on the trunk in its frame, as a share of the largest one",
            lambda scene: scene.force_b[:, 0],
            mirror_signs=_SIGNS_XYZ,
        ),
        "load": ObservationTerm(
            "load that resists the way ahead, as a share of the largest one",
            lambda scene: scene.load,
            mirror_signs=(1.0,),
        ),
    },
)
