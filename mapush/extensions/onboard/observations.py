"""Observation terms with the time since a robot last saw a body."""

from dataclasses import replace

import torch
from torch import Tensor

from mapush.extensions.onboard.recollection import KnownFeatures
from mqe.tasks.push.entities import as_set, seen_others
from mqe.tasks.push.features import SceneFeatures
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.settings import ROOM
from mqe.tasks.terms import PRESENT, ObservationTerm


def _ages(scene: SceneFeatures) -> Tensor:
    """Return ages (N, A, A) for object and others, 0 with exact observations."""
    if isinstance(scene, KnownFeatures):
        return scene.ages
    return torch.zeros_like(scene.bodies_b[..., 0])


def object_age(scene: SceneFeatures) -> Tensor:
    """Return the time (N, A, 1) since the object's last sight, 1 for an unknown object."""
    return _ages(scene)[:, :, :1]


def others_and_age(scene: SceneFeatures) -> Tensor:
    """Return the other robots as a set (N, A, M - 1, 6): presence, x, y [m], the heading's sine and
    cosine, age.
    """
    others = torch.cat((scene.bodies_b, _ages(scene).unsqueeze(-1)), dim=-1)[:, :, 1:]
    return as_set(others, seen_others(scene), ROOM - 1)


_OTHERS = OBSERVATIONS["others"]

OBSERVATIONS.update(
    {
        "object_age": ObservationTerm(
            "time since the last sight of the object, over task.senses.memory_time; 1: unknown",
            object_age,
            numbers=("object_age",),
            mirror_signs=(1.0,),
            noise=0.0,
            turn=_OTHERS.turn,
        ),
        "others_and_age": replace(
            _OTHERS,
            help=f"{_OTHERS.help}, and the time since their last sight, over "
            "task.senses.memory_time",
            function=others_and_age,
            unit="1, m, 1, 1",
            numbers=(PRESENT, "x", "y", "sin_yaw", "cos_yaw", "age"),
            mirror_signs=(1.0, 1.0, -1.0, -1.0, 1.0, 1.0),
            noise=(0.0, 1.0, 1.0, 1.0, 1.0, 0.0),
        ),
    }
)
