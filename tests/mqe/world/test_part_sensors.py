"""Forces of each robot's parts on the object, from sensors, against MuJoCo's own contacts."""

from __future__ import annotations

import importlib.util

import mujoco
import numpy as np
import pytest
import torch

from mqe import registry
from mqe.registry import EnvCfg, SimCfg
from mqe.sim.simulator import snapshot
from mqe.tasks.push import PushCfg
from mqe.world.objects import OBJECTS
from mqe.world.scene import PARTS, Scene, build_scene, forces_of_parts, with_part_sensors

HAS_WARP = importlib.util.find_spec("mujoco_warp") is not None


def part_of(scene: Scene, geom: int) -> tuple[int, int] | None:
    """Return a geom's robot and part, or None."""
    model = scene.model
    body = model.body(int(model.geom_bodyid[geom])).name
    if not body.startswith("robot"):
        return None
    kind = "legs"
    if body.endswith("/trunk"):
        kind = "trunk"
    elif model.geom(geom).name.endswith("_foot"):
        kind = "feet"
    return int(body[len("robot")]), PARTS.index(kind)


def contact_forces(scene: Scene, data: mujoco.MjData) -> torch.Tensor:
    """Sum the contact forces (A, 3, 3) [N] of each robot's parts on the object."""
    total = np.zeros((scene.num_robots, len(PARTS), 3))
    for k in range(data.ncon):
        contact = data.contact[k]
        pair = (contact.geom1, contact.geom2)
        for own_part, other, sign in ((*pair, 1.0), (*pair[::-1], -1.0)):
            part = part_of(scene, own_part)
            if part is not None and other in scene.object_geoms:
                force = np.zeros(6)
                mujoco.mj_contactForce(scene.model, data, k, force)
                total[part] += sign * contact.frame.reshape(3, 3).T @ force[:3]
    return torch.from_numpy(total)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("mujoco", 1e-4),
        pytest.param("warp", 0.05, marks=pytest.mark.skipif(not HAS_WARP, reason="an extra")),
    ],
)
def test_parts_have_the_forces_of_their_contacts(name: str, tolerance: float) -> None:
    env = registry.make_env(
        EnvCfg(2, 3),
        SimCfg(name=name, device="cpu", num_threads=1),
        PushCfg(),
        seed=0,
        senses_parts=True,
    )
    env.reset()
    scene = env.scene
    seen = torch.zeros(scene.num_robots, len(PARTS))
    # Robot 0 runs into the box nose first, robot 1 tail first, and robot 2 lands on it.
    start = scene.robot_qpos
    env.sim.data.qpos[:, start : start + 7] = torch.tensor([0.0, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0])
    places = ((-0.95, 0.3, 1.0), (0.95, 0.27, -1.5), (0.0, 0.85, 0.0))
    for i, (x, height, speed) in enumerate(places):
        first = 19 * i
        env.sim.data.qpos[:, first : first + 7] = torch.tensor([x, 0.0, height, 1.0, 0.0, 0.0, 0.0])
        env.sim.data.qvel[:, 18 * i] = speed
    for _ in range(40):
        data = snapshot(env.sim, 0)
        expected = contact_forces(scene, data)
        env.sim.step(1)
        measured = forces_of_parts(env.sim, scene)
        assert measured is not None
        size = max(20.0, float(expected.abs().max()))
        assert float((measured[0] - expected).abs().max()) < tolerance * size
        seen += expected.norm(dim=-1)
    assert (seen.sum(dim=0) > 10.0).all()  # trunk, feet and legs all had their turn
    env.close()


def test_sensors_of_parts_follow_the_others_and_leave_the_model_as_it_is() -> None:
    scene = build_scene(3, OBJECTS["tblock"])
    sensing = with_part_sensors(scene)
    names = [scene.model.sensor(k).name for k in range(scene.model.nsensor)]
    others = [sensing.model.sensor(k).name for k in range(sensing.model.nsensor)]
    assert others[: len(names)] == names
    assert others[len(names) :][:2] == ["robot0/trunk/push", "robot0/FL_foot/push"]
    assert scene.num_forces == scene.model.nsensordata
    for field in ("body_mass", "body_inertia", "geom_size", "geom_solref", "geom_bodyid", "qpos0"):
        assert np.array_equal(getattr(scene.model, field), getattr(sensing.model, field))
