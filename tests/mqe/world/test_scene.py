"""The scene equals the reference's: masses, joints, actuators, friction pairs, and correct
addresses.
"""

import mujoco
import numpy as np
import pytest
import torch

from mqe.config import load_yaml
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.sim.simulator import snapshot
from mqe.world.fields import floor_friction_fields, object_friction_fields
from mqe.world.layout import Layout
from mqe.world.objects import OBJECTS
from mqe.world.robots import ROBOTS, Robots
from mqe.world.robots.robot import LEGS, Inertial, combine
from mqe.world.scene import (
    ARENA_HALF_SIZE,
    MAX_ROBOTS,
    SOFT_SOLIMP,
    SOFT_SOLREF,
    WALL_HEIGHT,
    build_scene,
    pack_layout,
    read_state,
)
from tests.support.paths import ROOT
from tests.support.rounding import FEW_STEPS, SIX_DECIMALS
from tests.support.scenes import DEFAULT_JOINT_POS, GO1


def _layout(num_envs, robots, object_xy=(0.0, 0.0), yaw=0.0):
    """Robots at (x, y) in ``robots``, nominal pose, facing ``yaw``."""
    pos = torch.tensor([[x, y, 0.30] for x, y in robots]).repeat(num_envs, 1, 1)
    half = torch.tensor(yaw / 2)
    quat = torch.tensor([torch.cos(half), 0.0, 0.0, torch.sin(half)]).repeat(
        num_envs, len(robots), 1
    )
    return Layout(
        pos,
        quat,
        torch.zeros(num_envs, len(robots), 6),
        torch.tensor(DEFAULT_JOINT_POS).repeat(num_envs, len(robots), 1),
        torch.tensor([*object_xy, 0.25]).repeat(num_envs, 1),
        torch.tensor([1.0, 0, 0, 0]).repeat(num_envs, 1),
        torch.tensor([2.0, 0.0, 0.0]).repeat(num_envs, 1),
    )


def _simulate(scene, layout, num_envs):
    sim = MujocoBatchSimulator(scene.model, num_envs, 1)
    sim.write(torch.ones(num_envs, dtype=torch.bool), *pack_layout(scene, layout))
    sim.data.ctrl[:] = torch.tensor(DEFAULT_JOINT_POS).repeat(scene.num_robots)
    return sim


def test_masses_are_the_urdfs():
    scene = build_scene(2, OBJECTS["cuboid"])
    model = scene.model
    trunk = model.body("robot1/trunk")
    assert model.body_subtreemass[trunk.id] == pytest.approx(11.309932, abs=SIX_DECIMALS)
    assert model.body("object").mass[0] == pytest.approx(4.0)
    # Nothing else weighs.
    assert model.body_subtreemass[0] == pytest.approx(2 * 11.309932 + 4.0, abs=SIX_DECIMALS)


def test_combine_is_the_parallel_axis_theorem():
    point = Inertial(1.0, (1.0, 0.0, 0.0), (0.0,) * 6)
    other = Inertial(1.0, (-1.0, 0.0, 0.0), (0.0,) * 6)
    mass, com, inertia = combine(point, other)
    assert mass == 2.0
    assert com == (0.0, 0.0, 0.0)
    assert inertia == pytest.approx((0.0, 2.0, 2.0, 0.0, 0.0, 0.0))


def test_joints_and_actuators_stand_in_policy_order():
    model = build_scene(2, OBJECTS["cuboid"]).model
    expected = [
        f"robot{i}/{leg}_{joint}"
        for i in range(2)
        for leg in LEGS
        for joint in ("hip", "thigh", "calf")
    ]
    hinges = [
        model.joint(j).name
        for j in range(model.njnt)
        if model.jnt_type[j] == mujoco.mjtJoint.mjJNT_HINGE
    ]
    assert hinges == expected
    assert [model.actuator(k).name for k in range(model.nu)] == expected
    np.testing.assert_allclose(model.actuator_forcerange[:3], [[-20, 20], [-20, 20], [-22, 22]])
    np.testing.assert_allclose(
        model.joint("robot0/FL_calf").range, [-2.69653369433, -0.916297857297]
    )


def test_actuators_stand_for_the_reference_motor():
    """Facts 1.5: -1.87 N m at 0.1 rad measured minus target, -8.51 at 10 rad/s, never more than
    the limit.
    """
    model = build_scene(1, None).model
    data = mujoco.MjData(model)
    data.qpos[2] = 5.0  # in the air
    joints = np.array(DEFAULT_JOINT_POS)
    data.qpos[7:] = joints
    data.ctrl[:] = joints - 0.1
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.actuator_force, -1.9, atol=1e-9)
    data.ctrl[:] = joints
    data.qvel[6:] = 10.0
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.actuator_force, -8.0, atol=1e-9)
    data.qvel[:] = 0.0
    data.ctrl[:] = joints + 3.0
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(data.actuator_force, [20.0, 20.0, 22.0] * 4)


@pytest.mark.parametrize("name", ROBOTS)
def test_knees_are_where_mujoco_has_them(name):
    robots = Robots([ROBOTS[name]], dtype=torch.float64)
    model = build_scene(1, None, robots=name).model
    data = mujoco.MjData(model)
    data.qpos[3:7] = (1.0, 0.0, 0.0, 0.0)
    data.qpos[7:] = np.array(DEFAULT_JOINT_POS) + np.random.default_rng(0).uniform(-0.3, 0.3, 12)
    mujoco.mj_forward(model, data)
    knees = robots.knees(torch.tensor(data.qpos[7:]))
    for k, leg in enumerate(LEGS):
        expected = data.body(f"robot0/{leg}_calf").xpos - data.body("robot0/trunk").xpos
        np.testing.assert_allclose(knees[k], expected, atol=1e-9)


def test_friction_pairs_are_the_references_averages():
    """Facts 3: robot on floor 0.55, cuboid on floor 0.325 and robot on cuboid 0.775 at mid
    range.
    """
    scene = build_scene(2, OBJECTS["cuboid"])
    sim = _simulate(scene, _layout(1, [(-0.88, 0.0), (0.0, 1.5)]), 1)
    seen = {}
    for _ in range(30):
        sim.data.qvel[:, 0] = 0.5
        sim.step(1)
        data = snapshot(sim, 0)
        for contact in data.contact:
            names = sorted(scene.model.geom(g).name or "limb" for g in contact.geom)
            key = tuple("foot" if "foot" in name else name.split("/")[0] for name in names)
            seen[key] = contact.friction[0]
    assert seen[("floor", "foot")] == pytest.approx(0.55)
    assert seen[("floor", "object")] == pytest.approx(0.325)
    assert seen[("limb", "object")] == pytest.approx(0.775)


def test_friction_of_each_world_is_its_own():
    scene = build_scene(1, OBJECTS["cuboid"])
    sim = _simulate(scene, _layout(2, [(-3.0, 0.0)]), 2)
    for name, values in object_friction_fields(scene, torch.tensor([0.1, 0.55])).items():
        sim.set_field(name, values)
    sim.step(100)
    start = sim.data.qpos[:, scene.robot_qpos].clone()
    sim.data.qvel[:, scene.robot_qvel] = (
        1.0  # the box slides to a stop after v^2 / (2 mu g), mu = (material + 0.1) / 2
    )
    sim.step(300)
    effective = 1.0 / (2.0 * 9.81 * (sim.data.qpos[:, scene.robot_qpos] - start))
    np.testing.assert_allclose(effective, [0.10, 0.325], rtol=0.02)
    fields = floor_friction_fields(scene, torch.tensor([0.3, 0.6]))
    assert fields["geom_friction"][1, scene.model.geom("floor").id, 0] == pytest.approx(0.6)


def test_state_is_read_in_the_frames_it_names():
    scene = build_scene(2, OBJECTS["tblock"])
    sim = _simulate(scene, _layout(1, [(-2.0, 0.0), (3.0, 1.0)], object_xy=(0.5, -0.5), yaw=0.7), 1)
    sim.data.qvel[0, 18:21] = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    state = read_state(sim, scene)
    assert state.robot_pos.dtype is torch.float32
    torch.testing.assert_close(state.robot_pos[0, 1], torch.tensor([3.0, 1.0, 0.30]))
    torch.testing.assert_close(state.robot_yaw[0], torch.tensor([0.7, 0.7]))
    torch.testing.assert_close(state.robot_linvel[0, 1], torch.tensor([0.1, 0.2, 0.3]))
    torch.testing.assert_close(state.joint_pos[0, 0], torch.tensor(DEFAULT_JOINT_POS))
    torch.testing.assert_close(state.object_pos[0], torch.tensor([0.5, -0.5, 0.25]))
    torch.testing.assert_close(state.goal_pos[0], torch.tensor([2.0, 0.0, 0.0]))


def test_contact_sensor_gives_the_force_of_each_robot_on_the_object():
    scene = build_scene(2, OBJECTS["cuboid"])
    sim = _simulate(scene, _layout(1, [(-0.88, 0.0), (0.0, 1.5)]), 1)
    pushed = torch.zeros(3)
    for _ in range(40):
        sim.data.qvel[:, 0] = 0.5
        sim.step(1)
        force = read_state(sim, scene).contact_force[0]
        assert not force[1].any()  # the other robot stands apart
        pushed += force[0]
    assert pushed[0] > 50.0  # forward, in the direction it walks
    assert pushed[0] > 5 * pushed[1].abs()


def test_a_cylinder_that_lands_flat_lies_still():
    """MuJoCo's own cylinder on a plane jumps at some of these headings."""
    scene = build_scene(1, OBJECTS["cylinder"])
    sim = _simulate(scene, _layout(64, [(-4.0, 0.0)]), 64)
    heading = torch.linspace(0.0, 6.2, 64, dtype=torch.float64)
    at = scene.robot_qpos
    sim.data.qpos[:, at + 2] = 0.33
    sim.data.qpos[:, at + 3] = torch.cos(heading / 2)
    sim.data.qpos[:, at + 6] = torch.sin(heading / 2)
    sim.step(40)
    height = []
    speed = []
    for _ in range(60):
        sim.step(4)
        height.append(sim.data.qpos[:, at + 2].clone())
        speed.append(sim.data.qvel[:, scene.robot_qvel :].abs().amax(dim=1))
    assert float(torch.stack(height).max()) < 0.2501
    assert float(torch.stack(speed)[-1].max()) < 1e-3
    data = snapshot(sim, 0)
    rim = [
        contact.pos[:2] - data.body("object").xpos[:2]
        for contact in data.contact
        if contact.geom[0] == 0
    ]
    far = [np.linalg.norm(point) for point in rim if np.linalg.norm(point) < 2.0]
    np.testing.assert_allclose(far, [1.5] * 4, atol=1e-3)
    hidden = scene.model.geom("object/0/base")
    # Meets the floor alone, and is not drawn.
    assert (hidden.contype, hidden.conaffinity, hidden.group) == (
        0,
        0,
        3,
    )


# A tower is higher than the wall, and falls over it.
LOW = [name for name, obj in OBJECTS.items() if obj.spawn_height < WALL_HEIGHT]


@pytest.mark.parametrize("name", LOW)
def test_walls_stop_an_object(name):
    scene = build_scene(1, OBJECTS[name])
    reach = max(x for x, _ in OBJECTS[name].outline)
    start = ARENA_HALF_SIZE - max(2.0, reach + 0.5)
    sim = _simulate(scene, _layout(1, [(-4.0, 0.0)], object_xy=(start, 0.0)), 1)
    for _ in range(100):
        sim.data.qvel[:, scene.robot_qvel] = 2.0
        sim.step(4)
    assert start < float(sim.data.qpos[0, scene.robot_qpos]) < ARENA_HALF_SIZE


def test_four_walls_enclose_a_square_of_24_metres():
    model = build_scene(1, None).model
    walls = [
        k
        for k in range(model.ngeom)
        if model.geom_bodyid[k] == 0 and model.geom_type[k] == mujoco.mjtGeom.mjGEOM_BOX
    ]
    boxes = sorted([*model.geom_pos[k].tolist(), *model.geom_size[k].tolist()] for k in walls)
    across = [0.05, 12.0, 0.25]
    along = [12.0, 0.05, 0.25]
    expected = [
        [-12.05, 0, 0.25, *across],
        [0, -12.05, 0.25, *along],
        [0, 12.05, 0.25, *along],
        [12.05, 0, 0.25, *across],
    ]
    np.testing.assert_allclose(boxes, expected, atol=1e-12)
    floor = model.geom("floor")
    assert floor.size[:2].tolist() == [13.0, 13.0]
    assert floor.pos.tolist() == [0.0, 0.0, 0.0]


def test_the_solver_is_the_one_that_the_friction_was_measured_with():
    option = build_scene(2, OBJECTS["cuboid"]).model.opt
    assert option.timestep == 0.005
    assert (option.iterations, option.ls_iterations) == (10, 20)
    assert (option.cone, option.integrator) == (
        mujoco.mjtCone.mjCONE_ELLIPTIC,
        mujoco.mjtIntegrator.mjINT_IMPLICITFAST,
    )
    assert option.jacobian == mujoco.mjtJacobian.mjJAC_DENSE
    expected = mujoco.mjtDisableBit.mjDSBL_AUTORESET | mujoco.mjtDisableBit.mjDSBL_MIDPHASE
    assert option.disableflags == expected


def touches(model, first: int, second: int) -> bool:
    """Return whether two geoms can be in contact, by their bits or by a pair of their own."""
    bits = (model.geom_contype[first] & model.geom_conaffinity[second]) | (
        model.geom_contype[second] & model.geom_conaffinity[first]
    )
    pairs = {
        frozenset(pair)
        for pair in zip(model.pair_geom1.tolist(), model.pair_geom2.tolist(), strict=True)
    }
    return bool(bits) or frozenset((first, second)) in pairs


def test_robots_object_floor_and_walls_touch_one_another_and_no_robot_itself():
    model = build_scene(3, OBJECTS["tblock"]).model
    robots = [model.body(f"robot{i}/trunk").id for i in range(3)]
    geom_groups = [
        [k for k in range(model.ngeom) if model.body_rootid[model.geom_bodyid[k]] == robot]
        for robot in robots
    ]
    bodies = [[k for k in geoms if model.geom_contype[k]] for geoms in geom_groups]
    trunks = [
        [k for k in geoms if model.geom_bodyid[k] == robot]
        for geoms, robot in zip(bodies, robots, strict=True)
    ]
    floor = model.geom("floor").id
    box = [model.geom(f"object/{k}").id for k in range(2)]
    walls = [k for k in range(model.ngeom) if model.geom_bodyid[k] == 0 and k != floor]
    assert all(len(geoms) > 4 for geoms in bodies)
    assert len(walls) == 4
    for i, geoms in enumerate(bodies):
        others = [k for j, more in enumerate(bodies) if j != i for k in more]
        assert all(touches(model, k, other) for k in geoms for other in (floor, *box, *others))
        assert not any(touches(model, k, other) for k in geoms for other in geoms)
    for trunk in trunks:
        assert all(touches(model, k, wall) for k in trunk for wall in walls)
    assert all(touches(model, k, other) for k in box for other in (floor, *walls))
    assert not touches(model, *box)


@pytest.mark.parametrize("name", OBJECTS)
def test_contacts_are_as_stiff_as_the_step_bears(name):
    model = build_scene(2, OBJECTS[name]).model
    np.testing.assert_allclose(model.geom_solref, np.tile([0.01, 1.0], (model.ngeom, 1)))
    np.testing.assert_allclose(model.pair_solref, np.tile([0.01, 1.0], (model.npair, 1)))
    np.testing.assert_allclose(model.pair_solreffriction, np.tile([0.02, 1.0], (model.npair, 1)))
    assert (model.pair_dim == 3).all()
    assert model.npair == len(OBJECTS[name].geoms)
    low, high = OBJECTS[name].friction
    np.testing.assert_allclose(model.pair_friction[:, :2], ((low + high) / 2 + 0.1) / 2)
    parts = [model.geom(f"object/{k}") for k in range(len(OBJECTS[name].geoms))]
    np.testing.assert_allclose([part.friction[0] for part in parts], ((low + high) / 2 + 1.0) / 2)


def test_the_parts_of_an_object_are_where_its_settings_put_them():
    model = build_scene(1, OBJECTS["tblock"]).model
    bar = model.geom("object/0")
    stem = model.geom("object/1")
    assert (bar.size.tolist(), bar.pos.tolist()) == ([0.5, 0.25, 0.25], [0.0, 0.0, 0.0])
    assert (stem.size.tolist(), stem.pos.tolist()) == ([0.25, 0.25, 0.25], [0.0, 0.5, 0.0])
    assert model.body("object").pos.tolist() == [0.0, 0.0, OBJECTS["tblock"].spawn_height]
    cylinder = build_scene(1, OBJECTS["cylinder"]).model
    round_side = cylinder.geom("object/0")
    base = cylinder.geom("object/0/base")
    assert round_side.size[:2].tolist() == [1.5, 0.25]
    np.testing.assert_allclose(base.size, [1.5 / np.sqrt(2.0), 1.5 / np.sqrt(2.0), 0.25])
    assert base.pos.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("radius", [1.0, 0.5])
def test_the_goal_is_a_flat_disc_of_the_success_radius_that_touches_nothing(radius):
    model = build_scene(2, OBJECTS["cuboid"], success_radius=radius).model
    body = model.body("goal").id
    # A site is not tested for contacts, and moved at little cost.
    assert model.body_geomnum[body] == 0
    assert model.body_mass[body] == 0.0
    assert model.body_pos[body].tolist() == [0.0, 0.0, 0.0]
    disc = model.site("goal")
    assert disc.bodyid.tolist() == [body]
    np.testing.assert_allclose(
        [disc.size[0], disc.pos[2] - disc.size[1], disc.pos[2] + disc.size[1]], [radius, 0, 0.004]
    )


def test_the_goal_is_drawn_for_a_success_radius_of_a_metre():
    assert build_scene(1, OBJECTS["cuboid"]).model.site("goal").size[0] == 1.0


def test_robots_push_a_cylinder_along_its_radius():
    """MuJoCo's several contacts a pair push along the normal of a limb's face, up to 54 degrees
    from there.
    """
    model = build_scene(1, OBJECTS["cylinder"]).model
    side = model.geom("object/0").id
    data = mujoco.MjData(model)
    draw = np.random.default_rng(0)
    cosines = []
    for _ in range(1500):
        angle, heading = draw.uniform(0.0, 2.0 * np.pi, 2)
        reach = 1.5 + draw.uniform(0.05, 0.35)
        data.qpos[:3] = [reach * np.cos(angle), reach * np.sin(angle), 0.3]
        data.qpos[3:7] = [np.cos(heading / 2), 0.0, 0.0, np.sin(heading / 2)]
        data.qpos[7:19] = DEFAULT_JOINT_POS + draw.uniform(-0.4, 0.4, 12)
        data.qpos[19:26] = [0.0, 0.0, 0.25, 1.0, 0.0, 0.0, 0.0]
        mujoco.mj_fwdPosition(model, data)
        for contact in data.contact:
            if (
                side in contact.geom
                and -0.004 < contact.dist < 0.0
                and 0.03 < contact.pos[2] < 0.44
            ):
                cosines.append(
                    abs(contact.frame[:2] @ contact.pos[:2]) / np.linalg.norm(contact.pos[:2])
                )
    assert len(cosines) > 100
    assert min(cosines) > np.cos(np.radians(2.0))


@pytest.mark.parametrize("name", ROBOTS)
def test_a_robot_stands_on_the_floor(name):
    scene = build_scene(1, None, robots=name)
    sim = _simulate(scene, _layout(1, [(0.0, 0.0)]), 1)
    sim.step(300)
    assert 0.25 < float(sim.data.qpos[0, 2]) < 0.33
    data = snapshot(sim, 0)
    assert data.ncon == 4
    assert all(
        abs(data.geom_xpos[c.geom[1]][2] - ROBOTS[name].foot_radius) < 2e-3 for c in data.contact
    )


def test_mass_of_each_world_is_its_own():
    """A 40 N push for 0.1 s on airborne boxes with 4 and 8 kg."""
    scene = build_scene(1, OBJECTS["cuboid"])
    sim = _simulate(scene, _layout(2, [(-3.0, 0.0)]), 2)
    body = scene.model.body("object").id
    mass = torch.as_tensor(scene.model.body_mass).repeat(2, 1)
    mass[:, body] = torch.tensor([4.0, 8.0])
    sim.set_field("body_mass", mass)
    sim.data.qpos[:, scene.robot_qpos + 2] = 2.0  # in the air
    sim.data.xfrc_applied[:, body, 0] = 40.0
    sim.step(20)
    np.testing.assert_allclose(sim.data.qvel[:, scene.robot_qvel], [1.0, 0.5], rtol=FEW_STEPS)


@pytest.mark.parametrize(("front", "left"), [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_a_legs_inertials_are_those_of_the_references_urdf(front: int, left: int) -> None:
    """Mass, centre and tensor. The file's tensor order is xx xy xz yy yz zz, ours xx yy zz xy xz
    yz.
    """
    hip, thigh, calf = GO1.legs[(1 - front) + (1 - left) // 2].inertials
    file = load_yaml(ROOT / "mqe" / "assets" / "robots" / "go1.yaml")
    shank, foot = (
        Inertial(part["mass"], tuple(part["com"]), tuple(part["inertia"]))
        for part in file["leg"]["calf"]
    )
    assert calf == combine(shank, foot)
    for ours, mass, center, (xx, xy, xz, yy, yz, zz) in (
        (
            hip,
            0.510299,
            (-0.00541 * front, -0.00074 * left, 6e-06),
            (
                0.00030528937,
                -7.788013e-06 * front * left,
                2.2016e-07 * front,
                0.000590894859,
                -1.7175e-08 * left,
                0.000396594572,
            ),
        ),
        (
            thigh,
            0.898919,
            (-0.003468, -0.018947 * left, -0.032736),
            (
                0.005395867678,
                1.02809e-07 * left,
                0.000337529085,
                0.005142451046,
                -5.816563e-06 * left,
                0.00102478732,
            ),
        ),
        (
            shank,
            0.158015,
            (0.006286, 0.001307, -0.122269),
            (
                0.003607648222,
                1.494971e-06,
                -0.000132778525,
                0.003626771492,
                -2.8638535e-05,
                3.5148003e-05,
            ),
        ),
    ):
        assert (ours.mass, ours.com) == (mass, center)
        assert ours.inertia == (xx, yy, zz, xy, xz, yz)


@pytest.mark.parametrize("model", ["reference", "physical"])
def test_as_many_robots_as_bits_allow_collide_with_one_another_alone(model: str) -> None:
    scene = build_scene(MAX_ROBOTS, OBJECTS["cylinder"], model=model)
    trunks = [scene.model.geom(scene.model.body(f"robot{i}/trunk").geomadr[0]) for i in range(14)]
    assert len(trunks) == MAX_ROBOTS
    for i, one in enumerate(trunks):
        for j, other in enumerate(trunks):
            meets = one.contype & other.conaffinity or other.contype & one.conaffinity
            assert bool(meets) == (i != j)


def test_six_robots_stand() -> None:
    scene = build_scene(6, None)
    sim = _simulate(scene, _layout(1, [(1.0 * i, 0.0) for i in range(6)]), 1)
    for _ in range(50):
        sim.step(4)
    assert not bool(sim.data.failed.any())
    heights = sim.data.qpos[0].view(6, 19)[:, 2]
    assert float(heights.min()) > 0.15


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
