from __future__ import annotations

import torch

from mapush.extensions.gait.gait_worlds import GaitWorlds, Walker
from mapush.extensions.gait.push_limits import measure_push_limits
from mqe.controllers.gait import load_gait
from mqe.registry import SimCfg
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS
from mqe.world.scene import SOFT_SOLIMP, SOFT_SOLREF, build_scene
from mqe.world.state import SceneState

SIM = SimCfg(name="mujoco", device="cpu", num_threads=1)


def test_a_robot_leans_on_a_soft_contact_and_does_not_hammer() -> None:
    gait = load_gait("pretrained:go1_velocity", torch.device("cpu"), ROBOTS["go1"])
    walker = Walker(gait, SIM, 0, model="physical")
    metrics = measure_push_limits(walker, num_robots=1, duration=4.0)
    assert 25.0 < metrics["push_ahead_n"] < 40.0
    assert metrics["push_falls"] == 0

    worlds = GaitWorlds(walker, 1, obj=OBJECTS["cuboid"].with_mass(2000.0), start=-1.0)
    is_touching = []

    def touch(state: SceneState) -> None:
        is_touching.append(bool(state.contact_force.any()))

    for _ in range(200):
        worlds.advance(worlds.along_x(0.5), touch)
    worlds.close()
    last = is_touching[-400:]
    assert sum(last) > 0.98 * len(last)


def test_only_the_objects_contacts_of_the_physical_model_are_soft() -> None:
    scene = build_scene(1, OBJECTS["cuboid"], model="physical")
    soft = scene.object_geoms
    for geom in range(scene.model.ngeom):
        is_soft = geom in soft
        assert (tuple(scene.model.geom_solref[geom]) == SOFT_SOLREF) == is_soft
        assert (tuple(scene.model.geom_solimp[geom]) == SOFT_SOLIMP) == is_soft
    assert tuple(scene.model.pair_solref[0]) != SOFT_SOLREF  # the object on the floor
    reference = build_scene(1, OBJECTS["cuboid"])
    assert SOFT_SOLREF not in {tuple(row) for row in reference.model.geom_solref}
