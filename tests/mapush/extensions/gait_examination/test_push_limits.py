from __future__ import annotations

import torch

from mapush.extensions.gait_examination.gait_worlds import Walker
from mapush.extensions.gait_examination.push_limits import measure_push_limits
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg
from mqe.world.objects import CUBOID
from mqe.world.robots import ROBOTS
from mqe.world.scene import SOFT_SOLIMP, SOFT_SOLREF, build_scene

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


def test_a_robot_leans_on_a_soft_contact_and_does_not_hammer() -> None:
    gait = load_gait("pretrained:go1_velocity", torch.device("cpu"), ROBOTS["go1"])
    hard = measure_push_limits(Walker(gait, SIM, 0), num_robots=1, duration=3.0)
    soft = measure_push_limits(Walker(gait, SIM, 0, model="physical"), num_robots=1, duration=4.0)
    assert hard["push_back_contact_share"] < 0.7
    assert soft["push_ahead_contact_share"] > 0.98
    assert soft["push_back_contact_share"] > 0.85
    assert 25.0 < soft["push_ahead_n"] < 40.0


def test_only_the_objects_contacts_of_the_physical_model_are_soft() -> None:
    scene = build_scene(1, CUBOID, model="physical")
    soft = scene.object_geoms
    for geom in range(scene.model.ngeom):
        is_soft = geom in soft
        assert (tuple(scene.model.geom_solref[geom]) == SOFT_SOLREF) == is_soft
        assert (tuple(scene.model.geom_solimp[geom]) == SOFT_SOLIMP) == is_soft
    assert tuple(scene.model.pair_solref[0]) != SOFT_SOLREF  # the object on the floor
    reference = build_scene(1, CUBOID)
    assert SOFT_SOLREF not in {tuple(row) for row in reference.model.geom_solref}
