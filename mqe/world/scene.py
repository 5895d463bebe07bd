"""The scene: floor, walls, obstacles, robots, object and goal marker in one MjModel, with the
addresses of each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations

import mujoco
import torch
from torch import Tensor

from mqe.sim.simulator import GRAVITY_FIELD, Simulator
from mqe.world.geometry import length
from mqe.world.layout import Layout
from mqe.world.objects import (
    ROBOT_FLOOR_FRICTION,
    GeomCfg,
    ObjectCfg,
    object_floor_friction,
    robot_object_friction,
)
from mqe.world.obstacles import OBSTACLE_FRICTION, PARKED_HEIGHT, ObstacleCfg
from mqe.world.robots import DEFAULT_ROBOT, NUM_JOINTS, RobotCfg, robots_of
from mqe.world.robots.build import add_robot, team_color
from mqe.world.robots.robot import PLACES
from mqe.world.state import VELOCITY, SceneState, overwrite
from mqe.world.things import Thing, Things, add_thing, tie

PHYSICS_DT = 0.005  # [s]
DECIMATION = 4  # physics steps a control step
STEP_DT = PHYSICS_DT * DECIMATION  # [s] 50 Hz
GRAVITY = 9.81  # [m/s^2] MuJoCo's own
ARENA_HALF_SIZE = 12.0  # [m]
WALL_HEIGHT = 0.5  # [m]
WALL_THICKNESS = 0.1  # [m]
GOAL_HEIGHT = 0.004  # [m] of the disc that the goal is drawn as
GROUNDS = ("flat", "kerbs")
KERB_HEIGHTS = (0.02, 0.03, 0.04)  # [m] in turn
KERB_WIDTH = 0.3  # [m]
KERB_SPACING = 1.5  # [m]

# Contacts as stiff as a 200 Hz step allows (time constant of two steps, MuJoCo's least), so that
# feet and objects do not sink in. A larger impedance (solimp 0.99) gains nothing, and the line
# search of either simulator then ends too early, each at another place. Sliding couples to the
# normal force through the time constant of friction: with 0.01 s a box at 1 m/s would be lifted by
# 5 mm. So for objects on the floor it stays at 0.02 s.
CONTACT_SOLREF = (2 * PHYSICS_DT, 1.0)
SLIDING_SOLREF = (0.02, 1.0)
# Contacts of robots with an object of the physical model yield by about a centimetre, as covers,
# rubber feet and cardboard do, so that a knock gains nothing over a push. With a quarter of the
# stiffness and with four times as much, a Go1's force on a wall changes by 2 % ahead and by at
# most 12 % backwards, and its share of time in contact by at most 9 %; with half the time step,
# the force below 50 Hz by at most 8 %. The object's numbers count alone: SOFT_SOLMIX is its weight
# beside the robot's 1.
SOFT_SOLREF = (0.03, 1.0)
SOFT_SOLIMP = (0.2, 0.9, 0.015, 0.5, 2.0)
SOFT_SOLMIX = 1e6
ACTUATOR_LAG = 1  # physics steps by which motors follow their targets late

# Collision bits. After these come one for each robot, since a robot does not collide with itself,
# and one for each robot's thighs, calves and feet among themselves.
OBJECT_BIT = 1 << 0
FLOOR_BIT = 1 << 1
WALL_BIT = 1 << 2
_NUM_FIXED_BITS = 3
MAX_ROBOTS = (31 - _NUM_FIXED_BITS) // 2  # MuJoCo's bit masks have 31 bits
_UNSEEN = 3  # a group of geoms that is not drawn
# Of a contact sensor: the net force of all contacts, in one slot
_NET_FORCE = (1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), 3, 1)


@dataclass(frozen=True)
class Scene:
    """A compiled model and its named addresses. Robots come first in qpos and qvel, then object and
    things.
    """

    model: mujoco.MjModel
    robots: tuple[RobotCfg, ...]
    object: ObjectCfg | None
    spec: mujoco.MjSpec  # what the model was compiled from
    # Slots of obstacles; an episode's layout places each, or parks it below the floor.
    obstacles: tuple[ObstacleCfg, ...] = ()
    has_marker: bool = False  # a spot on the floor that a task may move, drawn and nothing else
    # (N, 3) each world's direction against gravity; None: the ground is level.
    against_gravity: Tensor | None = None
    things: Things | None = None

    @property
    def num_robots(self) -> int:
        """Return the size of the team."""
        return len(self.robots)

    @property
    def robot_qpos(self) -> int:
        """Return the robots' number of qpos entries. The object's 7 follow."""
        return SceneState.sizes(self.num_robots, False)[0]

    @property
    def robot_qvel(self) -> int:
        """Return the robots' number of qvel entries. The object's 6 follow."""
        return SceneState.sizes(self.num_robots, False)[1]

    @property
    def num_forces(self) -> int:
        """Return the number of contact force components in a state, three per sensor."""
        return SceneState.sizes(self.num_robots, self.object is not None)[2]

    @property
    def num_obstacles(self) -> int:
        """Return the number of obstacle slots."""
        return len(self.obstacles)

    @property
    def num_rows(self) -> int:
        """Return the number of rows in a state."""
        level = SceneState.zeros(
            1,
            self.num_robots,
            self.object is not None,
            num_obstacles=self.num_obstacles,
            things=self.things,
        )
        return len(level.rows) + 3 * (self.against_gravity is not None)

    @property
    def trunk_bodies(self) -> list[int]:
        """Return the robots' trunk body ids."""
        return [self.model.body(f"robot{i}/trunk").id for i in range(self.num_robots)]

    def state_of(self, rows: Tensor) -> SceneState:
        """Name a state's ``rows`` (X, N)."""
        has_object = self.object is not None
        return SceneState(rows, self.num_robots, has_object, self.num_obstacles, self.things)

    @property
    def ground_geoms(self) -> list[int]:
        """Return the geom ids of the floor and its kerbs."""
        return (self.model.geom_contype == FLOOR_BIT).nonzero()[0].tolist()

    @property
    def object_geoms(self) -> list[int]:
        """Return the object's geom ids."""
        if self.object is None:
            names = []
        else:
            names = [f"object/{k}" for k in range(len(self.object.geoms))]
        return [self.model.geom(name).id for name in names]

    @property
    def object_floor_pairs(self) -> list[int]:
        """Return the ids of the object's pairs with the floor."""
        pairs = [self.model.pair(k) for k in range(self.model.npair)]
        return [pair.id for pair in pairs if pair.name.startswith("object/")]


def build_scene(
    num_robots: int,
    obj: ObjectCfg | None,
    inertia: str = "physical",
    success_radius: float = 1.0,
    robots: str | Sequence[str] = DEFAULT_ROBOT,
    model: str = "reference",
    obstacles: Sequence[ObstacleCfg] = (),
    arena: tuple[float, float] = (2.0 * ARENA_HALF_SIZE, 2.0 * ARENA_HALF_SIZE),
    has_marker: bool = False,
    foot_friction: Sequence[float] = (ROBOT_FLOOR_FRICTION,),
    ground: str = "flat",
    things: Sequence[Thing] = (),
) -> Scene:
    """Build the scene with 1 to ``MAX_ROBOTS`` robots, an object or none, and a goal.

    The object has ``inertia`` "physical" or "reference". The goal is drawn as a disc of
    ``success_radius`` [m]. ``robots`` names one kind for all robots, or one for each. ``model`` is
    "physical" or "reference", for robots and for objects' contacts. ``arena`` is the length along x
    and y [m] between the walls. ``obstacles`` need an object. With ``has_marker`` a spot is drawn
    on the floor. ``foot_friction`` is the robots' friction on the floor: sliding, or sliding,
    torsion [m] and rolling [m]. ``ground`` is one of ``GROUNDS``. ``things`` stand in a scene
    without an object.
    """
    team = robots_of(robots, num_robots, model)
    arena_file = files("mqe") / "assets" / "arena.xml"
    spec = mujoco.MjSpec.from_string(arena_file.read_text(encoding="utf-8"))
    spec.option.timestep = PHYSICS_DT
    _add_arena(spec, (arena[0] / 2, arena[1] / 2))
    floor = spec.geom("floor")
    floor.friction[: len(foot_friction)] = foot_friction
    if len(foot_friction) > 1:
        floor.condim = 6  # with torsion and rolling
    if ground == "kerbs":
        _add_kerbs(spec, (arena[0] / 2, arena[1] / 2))
    for i, robot in enumerate(team):
        collision = 1 << (_NUM_FIXED_BITS + i)
        others = ((1 << num_robots) - 1) << _NUM_FIXED_BITS & ~collision
        hits = OBJECT_BIT | FLOOR_BIT | others
        limbs = collision << MAX_ROBOTS if robot.has_self_collision else 0
        add_robot(spec, robot, f"robot{i}", team_color(i), collision, hits, limbs)
        for geom in spec.body(f"robot{i}/trunk").geoms:
            geom.conaffinity |= WALL_BIT
    if obj is not None:
        _add_object(spec, obj, inertia)
        for i in range(num_robots):
            _add_contact_sensor(spec, f"robot{i}/push", f"robot{i}/trunk", "object")
    for i, j in combinations(range(num_robots), 2):
        _add_contact_sensor(spec, f"robot{i}/robot{j}", f"robot{i}/trunk", f"robot{j}/trunk")
    goal = spec.worldbody.add_body(name="goal", mocap=True, pos=(0.0, 0.0, 0.0))
    if obj is not None:
        # A site: moving the 36 parts of a ring at every physics step would cost 2 %.
        goal.add_site(
            name="goal",
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=(success_radius, GOAL_HEIGHT / 2, 0.0),
            pos=(0.0, 0.0, GOAL_HEIGHT / 2),
            rgba=(0.90, 0.20, 0.18, 0.22),
        )
    for k, obstacle in enumerate(obstacles):
        _add_obstacle(spec, f"obstacle{k}", obstacle)
    if has_marker:
        marker = spec.worldbody.add_body(name="marker", mocap=True)
        marker.add_site(
            name="marker",
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=(0.16, GOAL_HEIGHT, 0.0),
            rgba=(0.10, 0.55, 0.25, 0.9),
        )
    for geom in spec.geoms:
        geom.solref[:2] = CONTACT_SOLREF
    for pair in spec.pairs:
        pair.solref[:2] = CONTACT_SOLREF
        pair.solreffriction[:2] = SLIDING_SOLREF
    if obj is not None and model == "physical":
        for geom in spec.body("object").geoms:
            geom.solref[:2] = SOFT_SOLREF
            geom.solimp[:] = SOFT_SOLIMP
            geom.solmix = SOFT_SOLMIX
    # Contacts of things are as stiff as in their files.
    for thing in things:
        add_thing(spec, thing, OBJECT_BIT, OBJECT_BIT | FLOOR_BIT | WALL_BIT)
        if thing.hook:
            for i, robot in enumerate(team):
                reach = robot.legs[0].hip_pos[0] if robot.legs else max(robot.wheels)[0]
                tie(spec, thing, i, reach)
    model = _compile(spec, obj)
    return Scene(
        model,
        team,
        obj,
        spec,
        obstacles=tuple(obstacles),
        has_marker=has_marker,
        things=Things(model, things) if things else None,
    )


def read_state(sim: Simulator, scene: Scene) -> SceneState:
    """Copy the state for tasks from the simulator's memory, as float32."""
    data = sim.data
    forces = data.sensordata
    if scene.obstacles:
        forces = forces[:, : scene.num_forces]
    num_qpos, num_qvel, _, _ = SceneState.sizes(scene.num_robots, scene.object is not None)
    parts = [data.qpos[:, :num_qpos], data.qvel[:, :num_qvel], forces, data.mocap_pos[:, 0]]
    num_obstacles = scene.num_obstacles
    if num_obstacles:
        slots = slice(1, 1 + num_obstacles)
        parts += [data.mocap_pos[:, slots].flatten(1), data.mocap_quat[:, slots].flatten(1)]
        parts.append(data.sensordata[:, scene.num_forces : scene.num_forces + 2 * num_obstacles])
    if scene.things is not None:
        parts += [data.qpos[:, num_qpos:], data.qvel[:, num_qvel:]]
    if scene.against_gravity is not None:
        parts.append(scene.against_gravity)
    return scene.state_of(torch.cat([part.t() for part in parts]).to(torch.float32))


def pack_layout(scene: Scene, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Convert a layout to qpos (N, nq), qvel (N, nv) and the positions (N, nmocap, 3) of goal,
    obstacles and marker.
    """
    still = layout.robot_vel.new_zeros(1).expand(len(layout.robot_vel), NUM_JOINTS)
    qpos = []
    qvel = []
    for i in range(scene.num_robots):
        qpos += [layout.robot_pos[:, i], layout.robot_quat[:, i], layout.joint_pos[:, i]]
        qvel += [layout.robot_vel[:, i], still]
    if scene.object is not None:
        qpos += [layout.object_pos, layout.object_quat]
        qvel += [still[:, :VELOCITY]]
    if scene.things is not None:
        things = layout.things
        if things is None:
            things = scene.things.qpos({}, len(still), still.device)
        qpos.append(things)
        qvel.append(still[:, :1].expand(-1, scene.things.num_qvel))
    fixed = [layout.goal_pos.unsqueeze(1)]
    if layout.obstacle_pos is not None:
        fixed.append(layout.obstacle_pos)
    if scene.has_marker:
        fixed.append(layout.goal_pos.unsqueeze(1))
    return torch.cat(qpos, dim=1), torch.cat(qvel, dim=1), torch.cat(fixed, dim=1)


def turn_obstacles(sim: Simulator, scene: Scene, layout: Layout, mask: Tensor) -> None:
    """Turn the obstacles as ``layout`` does in the worlds of ``mask`` (N,)."""
    if layout.obstacle_quat is None:
        return
    overwrite(sim.data.mocap_quat[:, 1 : 1 + scene.num_obstacles], mask, layout.obstacle_quat)


def sliding_force(obj: ObjectCfg) -> float:
    """Return an object's sliding force [N] on the floor, at its mean friction."""
    return object_floor_friction(0.5 * sum(obj.friction)) * obj.mass * GRAVITY


def with_sliding_force(obj: ObjectCfg, force: float) -> ObjectCfg:
    """Return the object with the mass for sliding at a push of ``force`` [N]."""
    return obj.with_mass(obj.mass * force / sliding_force(obj))


def sliding_forces(scene: Scene, fields: dict[str, Tensor]) -> Tensor | None:
    """Return each world's sliding force, (N,) or (1,) [N], uphill on a slope, None without an
    object.

    ``fields`` are the model fields (N, ...) with per-world values.
    """
    if scene.object is None:
        return None
    model = scene.model
    mass = fields.get("body_mass", torch.as_tensor(model.body_mass)[None])
    friction = fields.get("pair_friction", torch.as_tensor(model.pair_friction)[None])
    floor = model.pair("object/0-floor").id
    object_mass = mass[:, model.body("object").id]
    gravity = fields.get(GRAVITY_FIELD)
    if gravity is None:
        return GRAVITY * object_mass * friction[:, floor, 0]
    return object_mass * (length(gravity[:, :2]) - gravity[:, 2] * friction[:, floor, 0])


def _add_arena(spec: mujoco.MjSpec, half_size: tuple[float, float]) -> None:
    world = spec.worldbody
    world.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        size=(ARENA_HALF_SIZE + 1, ARENA_HALF_SIZE + 1, 0.1),
        material="grid",
        contype=FLOOR_BIT,
        conaffinity=0,
        priority=1,
        condim=3,
        friction=(ROBOT_FLOOR_FRICTION, 0.005, 0.0001),
    )
    half = WALL_THICKNESS / 2
    for x, y in ((1, 0), (-1, 0), (0, 1), (0, -1)):
        if x:
            size = (half, half_size[1], WALL_HEIGHT / 2)
        else:
            size = (half_size[0], half, WALL_HEIGHT / 2)
        pos = (x * (half_size[0] + half), y * (half_size[1] + half), WALL_HEIGHT / 2)
        world.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=size,
            pos=pos,
            rgba=(0.55, 0.57, 0.60, 1.0),
            contype=WALL_BIT,
            conaffinity=0,
        )


def _add_kerbs(spec: mujoco.MjSpec, half_size: tuple[float, float]) -> None:
    """Add kerbs across the arena, along x and along y. They do not touch the object."""
    floor = spec.geom("floor")
    for axis in (0, 1):
        count = int(half_size[axis] / KERB_SPACING)
        for k in range(-count, count):
            height = KERB_HEIGHTS[k % len(KERB_HEIGHTS)]
            size = [*half_size, height / 2]
            size[axis] = KERB_WIDTH / 2
            pos = [0.0, 0.0, height / 2]
            pos[axis] = (k + 0.5) * KERB_SPACING
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                size=size,
                pos=pos,
                rgba=(0.50, 0.47, 0.43, 1.0),
                contype=FLOOR_BIT,
                conaffinity=0,
                priority=1,
                condim=floor.condim,
                friction=floor.friction,
            )


def _add_obstacle(spec: mujoco.MjSpec, name: str, obstacle: ObstacleCfg) -> None:
    """Add an obstacle for robots and object, with sensors for any contact and for contact with the
    object.
    """
    body = spec.worldbody.add_body(name=name, mocap=True, pos=(0.0, 0.0, PARKED_HEIGHT))
    kind, size = _geom(obstacle.shape, obstacle.size)
    body.add_geom(
        name=name,
        type=kind,
        size=size,
        rgba=(0.44, 0.50, 0.60, 1.0),
        mass=0.0,
        contype=OBJECT_BIT | WALL_BIT,
        conaffinity=0,
        priority=2,
        condim=3,
        friction=(OBSTACLE_FRICTION, 0.005, 0.0001),
    )
    num_contacts = [1 << int(mujoco.mjtConDataField.mjCONDATA_FOUND), 0, 1]
    for sensor, other in ((f"{name}/touched", ""), (f"{name}/object", "object")):
        _add_contact_sensor(spec, sensor, name, other, values=num_contacts)


def _compile(spec: mujoco.MjSpec, obj: ObjectCfg | None) -> mujoco.MjModel:
    """Compile a model whose variable object has frames of its own in every world."""
    model = spec.compile()
    if obj is not None and obj.is_variable:
        # Else MuJoCo takes the body's frame for parts that have it in the shared model.
        is_part = model.geom_bodyid == model.body("object").id
        model.geom_sameframe[is_part] = mujoco.mjtSameFrame.mjSAMEFRAME_NONE
    return model


def _add_object(spec: mujoco.MjSpec, obj: ObjectCfg, inertia: str) -> None:
    mass, com, tensor = obj.inertia(inertia)
    body = spec.worldbody.add_body(
        name="object",
        pos=(0.0, 0.0, obj.spawn_height),
        mass=mass,
        ipos=com,
        fullinertia=tensor[PLACES],
        explicitinertial=True,
    )
    body.add_freejoint(name="object/root")
    if obj.is_variable:
        body.simple = False
    friction = sum(obj.friction) / 2  # the middle of the range; every world gets a value of its own
    touch = robot_object_friction(friction)
    floor = object_floor_friction(friction)
    for k, part in enumerate(obj.geoms):
        name = f"object/{k}"
        kind, size = _geom(part.type, part.size)
        # Priority over the robots' geoms: the pair takes the object's coefficient. The floor has
        # the same priority, so object and floor get an explicit pair with a coefficient of its own.
        body.add_geom(
            name=name,
            type=kind,
            size=size,
            pos=part.pos,
            rgba=(0.80, 0.62, 0.38, 1.0),
            mass=0.0,
            contype=OBJECT_BIT,
            conaffinity=WALL_BIT,
            priority=1,
            condim=3,
            friction=(touch, 0.005, 0.0001),
        )
        if part.type == "cylinder":
            # Several contacts a pair have the normal of the robot's face, however the round side
            # is turned.
            spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_MULTICCD
            if obj.is_variable:
                continue  # The box in it stands on the floor.
        stands_on = name if part.type == "box" else _add_base(body, name, part)
        spec.add_pair(
            name=f"{name}-floor",
            geomname1=stands_on,
            geomname2="floor",
            condim=3,
            friction=(floor, floor, 0.005, 0.0001, 0.0001),
        )


def _add_contact_sensor(
    spec: mujoco.MjSpec,
    name: str,
    part: str,
    other: str,
    values: Sequence[int] = _NET_FORCE,
) -> None:
    """Add a sensor for contacts of the subtree ``part`` with the subtree ``other``, or with
    anything if empty.

    ``values`` are the sensor's ``intprm``, by default the net force on ``other``, world frame.
    """
    spec.add_sensor(
        name=name,
        type=mujoco.mjtSensor.mjSENS_CONTACT,
        objtype=mujoco.mjtObj.mjOBJ_XBODY,
        objname=part,
        reftype=mujoco.mjtObj.mjOBJ_XBODY if other else mujoco.mjtObj.mjOBJ_UNKNOWN,
        refname=other,
        intprm=values,
    )


def _geom(shape: str, size: Sequence[float]) -> tuple[mujoco.mjtGeom, list[float]]:
    """Return MuJoCo's type and size of a box, or of a cylinder with radius and height [m]."""
    if shape == "box":
        return mujoco.mjtGeom.mjGEOM_BOX, [length / 2 for length in size]
    return mujoco.mjtGeom.mjGEOM_CYLINDER, [size[0], size[1] / 2, 0.0]


def _add_base(body: mujoco.MjsBody, name: str, part: GeomCfg) -> str:
    """Add what an upright cylinder stands on. Return its name."""
    # It stands on the corners of the square inscribed in its base. The cylinder's own lowest point
    # depends on the tilt even when that is almost zero, and rounding may put it deep below the
    # floor.
    base = f"{name}/base"
    half_side = part.size[0] / math.sqrt(2.0)
    body.add_geom(
        name=base,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=(half_side, half_side, part.size[1] / 2),
        pos=part.pos,
        mass=0.0,
        contype=0,
        conaffinity=0,
        group=_UNSEEN,
    )
    return base
