"""Observations in the velocity task: a real gait's inputs for the policy, more for the critic."""

from mapush.extensions.gait.gait_mirror import GAIT_MIRROR_INDEX, GAIT_MIRROR_SIGNS, SWAPPED_LEGS
from mapush.extensions.gait.settings import VELOCITY_TERMS
from mqe.controllers.trot import GAIT_NAMES, GAIT_TERMS, planar_velocity
from mqe.tasks.terms import ObservationTerm

_SIGNS_XYZ = (1.0, -1.0, 1.0)  # of a vector in a mirror that swaps left and right
# With ``observation_noise`` of 0.05: 0.05 of gravity's direction, 0.2 rad/s of turning, 0.015 rad
# and 1.5 rad/s of every joint
_NOISE = {"gravity": 1.0, "turn_rates": 1.0, "joint_pos": 0.3, "joint_vel": 1.5}
_GAIT_NOISE = tuple(_NOISE.get(term.name, 0.0) for term in GAIT_TERMS for _ in range(term.size))

OBSERVATIONS = VELOCITY_TERMS.observations
OBSERVATIONS.update(
    {
        "gait": ObservationTerm(
            "observation of a gait policy, with the terms of mqe.controllers.trot",
            lambda scene: scene.gait_obs,
            numbers=GAIT_NAMES,
            mirror_signs=GAIT_MIRROR_SIGNS,
            mirror_index=GAIT_MIRROR_INDEX,
            noise=_GAIT_NOISE,
        )
    }
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
            lambda scene: planar_velocity(scene.state)[:, 0, :2],
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
            mirror_index=SWAPPED_LEGS,
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
    }
)
