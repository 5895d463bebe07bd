"""Isaac Gym Preview 4 as an engine, written against its stubs. It has not run on the real thing.

``docs/guides/isaacgym.md`` has the checklist for the first run. Worlds lie side by side on a grid.
At one place, each body would be near the bodies of all other worlds, and PhysX's buffers of
pairs would overflow. Isaac Gym's envs have no extent, so their frames and the simulation's are one.
The engine adds a world's origin to every position.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from typing import Any

import numpy as np
from isaacgym import gymapi, gymtorch  # pyright: ignore[reportAttributeAccessIssue]  # the stubs lack gymtorch

import torch  # isort: skip  # after Isaac Gym, which refuses to be imported after it

from mapush.extensions.isaacgym.worker.frames import (
    changed_rows,
    from_root_states,
    material,
    to_root_states,
)
from mapush.extensions.isaacgym.worker.protocol import Sizes
from mapush.extensions.isaacgym.worker.serve import Refused

ROBOT_FRICTION = 1.0  # the importer's default, which the reference leaves as it is
POSE = 7
VELOCITY = 6
JOINTS = 12
GROUP_FILTER = 1  # bit of the first robot: shapes collide where their filters have no bit in common
PUSHING_LINKS = ("trunk", "hip", "thigh")  # whose contact is with other bodies, not with the floor
TOLERANCE = 1e-4  # of friction
FRAME_TOLERANCE = 0.01  # [m] of a pose after ``prepare_sim``
ROOM = 8.0  # [m] from the middle of a world without walls to its edge
MARGIN = 1.0  # [m] between a wall and the edge of its world


class IsaacGym:
    """N worlds on PhysX. Torques follow the scene's motor law. Isaac Gym's drives are off."""

    def __init__(self, scene: dict[str, Any], sizes: Sizes, views: dict[str, np.ndarray]) -> None:
        self._scene = scene
        self._sizes = sizes
        self._views = views
        self._robots: list[str] = scene["robots"]
        # (N, ...) by MuJoCo's names
        self._fields = {
            name: np.repeat([values], sizes.num_envs, axis=0)
            for name, values in scene["fields"].items()
        }
        self._device = torch.device(scene["device"])
        self._is_ready = False
        self._gym = gymapi.acquire_gym()
        _say("makes the simulation")
        self._sim = self._make_sim()

    def set_field(self, name: str, values: np.ndarray) -> None:
        if self._is_ready:
            raise Refused("fields are set before the first step")
        if name not in self._fields:
            raise Refused(f"Isaac Gym's worlds have no {name} of their own")
        self._fields[name] = values.astype(np.float64)

    def step(self, num_steps: int, num_rows: int) -> None:
        if not self._is_ready:
            self._make_worlds()
        gym = self._gym
        sim = self._sim
        views = self._views
        self._write_changes()
        pushes = torch.from_numpy(views["xfrc_applied"]).to(self._device)
        is_pushed = bool(views["xfrc_applied"].any())
        if is_pushed:
            self._push[:, self._trunk_links] = pushes[:, self._scene["trunk_bodies"], :3]
        rows = torch.from_numpy(
            views["targets"][:num_rows] if num_rows else views["ctrl"][None]
        ).to(self._device)
        for k in range(num_steps):
            if k:
                gym.refresh_dof_state_tensor(sim)
            target = rows[min(k, len(rows) - 1)][:, self._ours_at]
            torque = (
                self._gain * target
                + self._bias_pos * self._dof[..., 0]
                + self._bias_vel * self._dof[..., 1]
            )
            torque = torch.maximum(torch.minimum(torque, self._most), self._least)
            gym.set_dof_actuation_force_tensor(sim, gymtorch.unwrap_tensor(torque.contiguous()))
            if is_pushed:
                gym.apply_rigid_body_force_tensors(
                    sim,
                    forceTensor=gymtorch.unwrap_tensor(self._push),
                    space=gymapi.CoordinateSpace.GLOBAL_SPACE,
                )
            gym.simulate(sim)
            gym.fetch_results(sim, True)
        if num_rows:
            views["ctrl"][:] = views["targets"][num_rows - 1]
        self._read()

    def close(self) -> None:
        self._gym.destroy_sim(self._sim)

    def _make_sim(self) -> Any:
        params = gymapi.SimParams()
        is_gpu = self._device.type == "cuda"
        params.dt = self._scene["timestep"]
        params.substeps = 1
        params.up_axis = gymapi.UpAxis.UP_AXIS_Z
        params.gravity = gymapi.Vec3(*self._scene["gravity"])
        params.use_gpu_pipeline = is_gpu
        physx = params.physx
        physx.use_gpu = is_gpu
        physx.num_threads = 10
        physx.solver_type = 1
        physx.num_position_iterations = 4
        physx.num_velocity_iterations = 0
        physx.contact_offset = 0.01
        physx.rest_offset = 0.0
        physx.bounce_threshold_velocity = 0.5
        physx.max_depenetration_velocity = 1.0
        physx.max_gpu_contact_pairs = self._scene["contact_pairs"]
        physx.default_buffer_size_multiplier = 5.0
        physx.contact_collection = gymapi.ContactCollection.CC_ALL_SUBSTEPS
        sim = self._gym.create_sim(self._device.index or 0, -1, gymapi.SimType.SIM_PHYSX, params)
        if sim is None:
            raise Refused(f"Isaac Gym could make no simulation on {self._device}")
        return sim

    def _make_worlds(self) -> None:
        gym = self._gym
        sim = self._sim
        scene = self._scene
        floor = self._check_fields()
        _say("makes the ground")
        ground = gymapi.PlaneParams()
        ground.normal = gymapi.Vec3(0.0, 0.0, 1.0)
        ground.static_friction = ground.dynamic_friction = floor
        ground.restitution = 0.0
        gym.add_ground(sim, ground)
        assets = self._load_assets()
        fixed = gymapi.AssetOptions()
        fixed.fix_base_link = True
        walls = [
            (gymapi.Vec3(*wall[:3]), gym.create_box(sim, wall[3], wall[4], wall[5], fixed))
            for wall in scene["walls"]
        ]
        _say(f"makes {self._sizes.num_envs} worlds")
        per_row = math.ceil(math.sqrt(self._sizes.num_envs))
        # Worlds lie side by side, (N, 3) [m].
        rows, columns = np.divmod(np.arange(self._sizes.num_envs), per_row)
        places = np.stack((columns, rows, np.zeros_like(rows)), axis=1)
        self._origins = 2.0 * self._reach() * places.astype(np.float64)
        positions = {}  # of all actors by their index in the simulation
        root_ids = []
        link_ids = []
        dof_at = []
        for env_id in range(self._sizes.num_envs):
            env = gym.create_env(sim, gymapi.Vec3(), gymapi.Vec3(), per_row)
            x, y, _ = self._origins[env_id].tolist()
            roots = []
            for k, tree in enumerate(scene["trees"]):
                bit = GROUP_FILTER << k if tree in self._robots else 0
                pose = gymapi.Transform()
                # The first write puts it where it belongs.
                pose.p = gymapi.Vec3(x + 3.0 * k, y, 1.0)
                actor = gym.create_actor(env, assets[tree], pose, tree, env_id, bit, 0)
                self._set_properties(env, actor, tree, env_id, floor)
                roots.append(gym.get_actor_index(env, actor, gymapi.IndexDomain.DOMAIN_SIM))
                positions[roots[-1]] = (pose.p.x, pose.p.y, pose.p.z)
                if not bit:
                    continue
                drives = gym.get_asset_dof_properties(assets[tree])
                drives["driveMode"].fill(int(gymapi.DofDriveMode.DOF_MODE_EFFORT))
                drives["stiffness"].fill(0.0)
                drives["damping"].fill(0.0)
                gym.set_actor_dof_properties(env, actor, drives)
                if env_id == 0:
                    dof_at.append(gym.get_actor_dof_dict(env, actor))
                    link_ids.append(self._links(env, actor))
            for pos, asset in walls:
                pose = gymapi.Transform()
                pose.p = gymapi.Vec3(x + pos.x, y + pos.y, pos.z)
                wall = gym.create_actor(env, asset, pose, "wall", env_id, 0, 0)
                index = gym.get_actor_index(env, wall, gymapi.IndexDomain.DOMAIN_SIM)
                positions[index] = (pose.p.x, pose.p.y, pose.p.z)
            root_ids.append(roots)
        _say("prepares the simulation")
        gym.prepare_sim(sim)
        _say("is prepared")
        self._bind(np.array(root_ids), dof_at, link_ids)
        self._check_frame(positions)
        self._is_ready = True

    def _links(self, env: Any, actor: int) -> dict[str, int]:
        """Return the numbers of an actor's links in its env, by name."""
        gym = self._gym
        return {
            name: gym.find_actor_rigid_body_index(env, actor, name, gymapi.IndexDomain.DOMAIN_ENV)
            for name in gym.get_actor_rigid_body_dict(env, actor)
        }

    def _check_frame(self, positions: dict[int, tuple[float, float, float]]) -> None:
        """Raise Refused if the root states do not have the positions given to ``create_actor``."""
        self._gym.refresh_actor_root_state_tensor(self._sim)
        given = np.array(list(positions.values()))
        positions_read = self._root[list(positions), :3].cpu().numpy()
        error = np.abs(positions_read - given).max(axis=1)
        worst = int(error.argmax())
        if error[worst] > FRAME_TOLERANCE:
            raise Refused(
                "Isaac Gym's root states are in another frame than its actors' poses: an actor at "
                f"{given[worst].round(2).tolist()} m has "
                f"{positions_read[worst].round(2).tolist()} m"
            )

    def _reach(self) -> float:
        """Return the distance [m] from the middle of a world to its edge."""
        sides = [
            abs(wall[axis]) + 0.5 * wall[axis + 3]
            for wall in self._scene["walls"]
            for axis in (0, 1)
        ]
        return max([ROOM, *(side + MARGIN for side in sides)])

    def _load_assets(self) -> dict[str, Any]:
        assets = {}
        with tempfile.TemporaryDirectory() as folder:
            for tree, text in self._scene["urdfs"].items():
                name = tree.replace("/", "_") + ".urdf"
                with open(os.path.join(folder, name), "w") as file:
                    file.write(text)
                options = gymapi.AssetOptions()
                options.collapse_fixed_joints = False
                # The object stays what it is.
                options.replace_cylinder_with_capsule = tree in self._robots
                options.default_dof_drive_mode = int(gymapi.DofDriveMode.DOF_MODE_EFFORT)
                options.override_com = options.override_inertia = False
                options.linear_damping = options.angular_damping = options.armature = 0.0
                options.max_linear_velocity = options.max_angular_velocity = 1000.0
                options.thickness = 0.01
                assets[tree] = self._gym.load_asset(self._sim, folder, name, options)
        return assets

    def _check_fields(self) -> float:
        """Return the floor's material. Raise Refused for frictions beyond PhysX's averages."""
        geoms = self._fields["geom_friction"]
        floors = geoms[:, self._scene["floor_geom"], 0]
        if np.ptp(floors) > TOLERANCE:
            raise Refused(
                "Isaac Gym has one ground for all worlds; leave env.randomize.ground_friction a "
                "number"
            )
        floor = float(material(floors[0], ROBOT_FRICTION))
        if self._scene["object_geoms"]:
            of_floor = material(self._fields["pair_friction"][:, 0, 0], floor)
            of_robots = material(geoms[:, self._scene["object_geoms"][0], 0], ROBOT_FRICTION)
            if np.abs(of_floor - of_robots).max() > TOLERANCE:
                raise Refused(
                    "PhysX averages materials, so that an object's friction with floor and "
                    "robots are one number; "
                    "leave env.randomize.object_friction and ground_friction at 1"
                )
        if floor < 0.0:
            raise Refused(f"a floor of this friction is none that PhysX averages to ({floor:.3f})")
        return floor

    def _set_properties(self, env: Any, actor: int, tree: str, env_id: int, floor: float) -> None:
        gym = self._gym
        is_robot = tree in self._robots
        friction = ROBOT_FRICTION
        if not is_robot:
            friction = float(material(self._fields["pair_friction"][env_id, 0, 0], floor))
        shapes = gym.get_actor_rigid_shape_properties(env, actor)
        for shape in shapes:
            shape.friction = friction
            shape.restitution = 0.0
        gym.set_actor_rigid_shape_properties(env, actor, shapes)
        if is_robot:
            body = self._scene["trunk_bodies"][self._robots.index(tree)]
        else:
            body = self._scene["object_body"]
        mass = self._fields["body_mass"][env_id, body]
        share = float(mass / self._scene["fields"]["body_mass"][body])
        links = gym.get_actor_rigid_body_properties(env, actor)
        root = links[0]  # the trunk, or the object: nothing else varies
        root.mass *= share
        for row in (root.inertia.x, root.inertia.y, root.inertia.z):
            row.x = row.x * share
            row.y = row.y * share
            row.z = row.z * share
        gym.set_actor_rigid_body_properties(env, actor, links, False)

    def _bind(
        self, root_ids: np.ndarray, dof_at: list[dict[str, int]], link_ids: list[dict[str, int]]
    ) -> None:
        """Take Isaac Gym's tensors, and find our joints and links in them."""
        gym = self._gym
        sim = self._sim
        n = self._sizes.num_envs
        device = self._device
        self._root = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(sim))
        self._dof = gymtorch.wrap_tensor(gym.acquire_dof_state_tensor(sim)).view(n, -1, 2)
        self._net = gymtorch.wrap_tensor(gym.acquire_net_contact_force_tensor(sim)).view(n, -1, 3)
        self._push = torch.zeros_like(self._net)
        self._root_ids = torch.as_tensor(root_ids, dtype=torch.long, device=device)
        at = [
            JOINTS * robot + dof_at[robot][joint]
            for robot, joints in enumerate(self._scene["joints"])
            for joint in joints
        ]
        self._theirs_at = torch.tensor(at, device=device)  # theirs by our order
        self._ours_at = torch.argsort(self._theirs_at)  # ours by their order
        self._trunk_links = torch.tensor([links["trunk"] for links in link_ids], device=device)
        self._pushing = [
            torch.tensor(
                [index for name, index in links.items() if name.endswith(PUSHING_LINKS)],
                device=device,
            )
            for links in link_ids
        ]

        def motors(field: str, column: int) -> torch.Tensor:
            values = self._fields["actuator_" + field][:, :, column].astype(np.float32)
            return torch.as_tensor(values, device=device)[:, self._ours_at]

        self._gain = motors("gainprm", 0)
        self._bias_pos = motors("biasprm", 1)
        self._bias_vel = motors("biasprm", 2)
        self._least = motors("forcerange", 0)
        self._most = motors("forcerange", 1)
        self._known = {name: np.full_like(self._views[name], np.nan) for name in ("qpos", "qvel")}

        # Columns of qpos and qvel: each robot's pose and joints, then the object's pose.
        trees = np.arange(len(self._scene["trees"]))[:, None]
        poses_at = trees * (POSE + JOINTS)
        velocities_at = trees * (VELOCITY + JOINTS)
        self._poses_at = poses_at + np.arange(POSE)  # (B, 7)
        self._velocities_at = velocities_at + np.arange(VELOCITY)  # (B, 6)
        joints = np.arange(JOINTS)
        num_robots = len(self._robots)
        self._joint_pos_at = (poses_at[:num_robots] + POSE + joints).ravel()  # (J,)
        self._joint_vel_at = (velocities_at[:num_robots] + VELOCITY + joints).ravel()  # (J,)

    def _write_changes(self) -> None:
        """Write the state of all worlds changed by the host since the last step."""
        views = self._views
        device = self._device
        changed = changed_rows(views["qpos"], self._known["qpos"]) | changed_rows(
            views["qvel"], self._known["qvel"]
        )
        if not changed.any():
            return
        rows = torch.as_tensor(np.flatnonzero(changed), device=device)
        qpos = views["qpos"][changed]
        qvel = views["qvel"][changed]
        poses = qpos[:, self._poses_at]
        poses[..., :3] += self._origins[changed][:, None]
        root_states = to_root_states(poses, qvel[:, self._velocities_at])
        roots = torch.as_tensor(root_states, dtype=torch.float32, device=device)
        ids = self._root_ids[rows]
        self._root[ids.reshape(-1)] = roots.reshape(-1, 13)
        joints = np.stack((qpos[:, self._joint_pos_at], qvel[:, self._joint_vel_at]), axis=-1)
        self._dof[rows] = torch.as_tensor(joints, dtype=torch.float32, device=device)[
            :, self._ours_at
        ]
        actors = ids.reshape(-1).to(torch.int32).contiguous()
        self._gym.set_actor_root_state_tensor_indexed(
            self._sim,
            gymtorch.unwrap_tensor(self._root),
            gymtorch.unwrap_tensor(actors),
            len(actors),
        )
        robots = ids[:, : len(self._robots)].reshape(-1).to(torch.int32).contiguous()
        self._gym.set_dof_state_tensor_indexed(
            self._sim,
            gymtorch.unwrap_tensor(self._dof.contiguous()),
            gymtorch.unwrap_tensor(robots),
            len(robots),
        )

    def _read(self) -> None:
        """Write the state after a step into the shared memory."""
        gym = self._gym
        sim = self._sim
        views = self._views
        gym.refresh_actor_root_state_tensor(sim)
        gym.refresh_dof_state_tensor(sim)
        gym.refresh_net_contact_force_tensor(sim)
        poses, velocities = from_root_states(self._root[self._root_ids].cpu().numpy())
        poses[..., :3] -= self._origins[:, None]
        joints = self._dof[:, self._theirs_at].cpu().numpy()
        qpos = views["qpos"]
        qvel = views["qvel"]
        qpos[:, self._poses_at] = poses
        qvel[:, self._velocities_at] = velocities
        qpos[:, self._joint_pos_at] = joints[..., 0]
        qvel[:, self._joint_vel_at] = joints[..., 1]
        views["failed"][:] = ~(np.isfinite(qpos).all(axis=1) & np.isfinite(qvel).all(axis=1))
        # Isaac Gym knows a link's net contact force, but not with which body. A robot's push on the
        # object is the negative of the forces on its trunk, hips and thighs. Forces between robots
        # are not measured.
        forces = views["sensordata"].reshape(self._sizes.num_envs, -1, 3)
        forces[:] = 0.0
        for row, (first, second) in enumerate(self._scene["forces"]):
            if second >= len(self._robots):
                forces[:, row] = -self._net[:, self._pushing[first]].sum(dim=1).cpu().numpy()
        self._known = {"qpos": qpos.copy(), "qvel": qvel.copy()}


def _say(phase: str) -> None:
    """Name a phase of the start: the host shows the last words of a process that crashes."""
    sys.stderr.write(f"Isaac Gym {phase}\n")
    sys.stderr.flush()


make_engine = IsaacGym
