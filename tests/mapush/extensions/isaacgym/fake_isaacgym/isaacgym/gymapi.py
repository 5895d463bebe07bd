"""The engine's part of ``gymapi``. Joints are in alphabetical order, as in Isaac Gym."""

from __future__ import annotations

import copy
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import torch

IndexDomain = IntEnum("IndexDomain", "DOMAIN_ENV DOMAIN_SIM")
SimType = IntEnum("SimType", "SIM_PHYSX")
UpAxis = IntEnum("UpAxis", "UP_AXIS_Z")
DofDriveMode = IntEnum("DofDriveMode", "DOF_MODE_EFFORT")
ContactCollection = IntEnum("ContactCollection", "CC_ALL_SUBSTEPS")
CoordinateSpace = IntEnum("CoordinateSpace", "GLOBAL_SPACE")
AssetOptions = PlaneParams = SimpleNamespace


class Vec3:
    def __init__(self, x: float = 0.0, y: float = 0.0, z: float = 0.0) -> None:
        self.x = x
        self.y = y
        self.z = z


def SimParams() -> SimpleNamespace:  # noqa: N802, as there
    return SimpleNamespace(physx=SimpleNamespace())


def Transform() -> SimpleNamespace:  # noqa: N802, as there
    return SimpleNamespace(p=Vec3(), r=None)


class World(list):
    """The actors of one world. Poses and root states are relative to its origin."""

    origin: Vec3


class Gym:
    """One simulation. Bodies float, and joints of unit inertia follow their torques."""

    def create_sim(self, compute, graphics, kind, params):
        self.params = params
        self.actors = []
        self.num_worlds = 0
        return self

    def add_ground(self, sim, plane):
        self.ground = plane

    def load_asset(self, sim, folder, name, options):
        root = ElementTree.parse(Path(folder) / name).getroot()
        links = {
            str(link.get("name")): float(link.find("inertial/mass").get("value"))
            for link in root.iter("link")
        }
        joints = sorted(str(joint.get("name")) for joint in root.iter("joint"))
        return SimpleNamespace(links=links, joints=joints, options=options)

    def create_box(self, sim, x, y, z, options):
        assert options.fix_base_link
        return SimpleNamespace(links={"box": 1.0}, joints=[], options=options)

    def create_env(self, sim, low, high, per_row):
        row, column = divmod(self.num_worlds, per_row)
        self.num_worlds += 1
        env = World()
        env.origin = Vec3(column * (high.x - low.x), row * (high.y - low.y), 0.0)
        return env

    def positions(self):
        """Return the positions of all actors in the simulation, (actors, 3)."""
        origins = [[a.env.origin.x, a.env.origin.y, 0.0] for a in self.actors]
        return self.root[:, :3] + torch.tensor(origins)

    def get_env_origin(self, env):
        return env.origin

    def create_actor(self, env, asset, pose, name, group, collides, segmentation):
        links = [
            SimpleNamespace(
                mass=mass,
                inertia=SimpleNamespace(x=Vec3(1, 0, 0), y=Vec3(0, 1, 0), z=Vec3(0, 0, 1)),
            )
            for mass in asset.links.values()
        ]
        shape = SimpleNamespace(friction=-1.0, restitution=-1.0)
        first = [
            sum(len(getattr(other.asset, part)) for other in env) for part in ("links", "joints")
        ]
        env.append(
            SimpleNamespace(
                asset=asset,
                env=env,
                name=name,
                pose=pose,
                group=group,
                filter=collides,
                links=links,
                shapes=[shape],
                first_link=first[0],
                first_joint=first[1],
                index=len(self.actors),
            )
        )
        self.actors.append(env[-1])
        return len(env) - 1

    def get_actor_index(self, env, actor, domain):
        return env[actor].index

    def get_asset_dof_properties(self, asset):
        kind = [("driveMode", "i4"), ("stiffness", "f4"), ("damping", "f4")]
        return np.ones(len(asset.joints), dtype=kind)

    def set_actor_dof_properties(self, env, actor, drives):
        env[actor].drives = drives

    def get_actor_dof_dict(self, env, actor):
        return {name: k for k, name in enumerate(env[actor].asset.joints)}

    def get_actor_rigid_body_dict(self, env, actor):
        return {name: k for k, name in enumerate(env[actor].asset.links)}

    def find_actor_rigid_body_index(self, env, actor, name, domain):
        assert domain == IndexDomain.DOMAIN_ENV
        return env[actor].first_link + list(env[actor].asset.links).index(name)

    def get_actor_rigid_shape_properties(self, env, actor):
        return copy.deepcopy(env[actor].shapes)

    def set_actor_rigid_shape_properties(self, env, actor, shapes):
        env[actor].shapes = shapes

    def get_actor_rigid_body_properties(self, env, actor):
        return copy.deepcopy(env[actor].links)

    def set_actor_rigid_body_properties(self, env, actor, links, recompute):
        assert not recompute
        env[actor].links = links

    def prepare_sim(self, sim):
        self.root = torch.zeros(len(self.actors), 13)
        poses = [[a.pose.p.x, a.pose.p.y, a.pose.p.z] for a in self.actors]
        self.root[:, :3] = torch.tensor(poses)
        self.dof = torch.zeros(sum(len(actor.asset.joints) for actor in self.actors), 2)
        self.net = torch.zeros(sum(len(a.asset.links) for a in self.actors), 3)
        self.seen = [self.root.clone(), self.dof.clone()]
        self.torque = torch.zeros(len(self.dof))
        self.force = None
        self.num_steps = 0

    def acquire_actor_root_state_tensor(self, sim):
        return self.seen[0]

    def acquire_dof_state_tensor(self, sim):
        return self.seen[1]

    def acquire_net_contact_force_tensor(self, sim):
        return self.net

    def set_actor_root_state_tensor_indexed(self, sim, states, ids, count):
        assert ids.dtype == torch.int32
        assert len(ids) == count
        self.root[ids.long()] = states[ids.long()]

    def set_dof_state_tensor_indexed(self, sim, states, ids, count):
        first = np.cumsum([0] + [len(actor.asset.joints) for actor in self.actors])
        for k in ids.tolist():
            self.dof[first[k] : first[k + 1]] = states.view(-1, 2)[first[k] : first[k + 1]]

    def set_dof_actuation_force_tensor(self, sim, torque):
        self.torque = torque.reshape(-1).clone()

    def apply_rigid_body_force_tensors(self, sim, forceTensor, space):  # noqa: N803, as there
        self.force = forceTensor.clone()

    def simulate(self, sim):
        dt = self.params.dt
        self.root[:, :3] += dt * self.root[:, 7:10]
        self.dof[:, 1] += dt * self.torque
        self.dof[:, 0] += dt * self.dof[:, 1]
        self.num_steps += 1

    def fetch_results(self, sim, wait):
        assert wait

    def refresh_actor_root_state_tensor(self, sim):
        self.seen[0].copy_(self.root)

    def refresh_dof_state_tensor(self, sim):
        self.seen[1].copy_(self.dof)

    def refresh_net_contact_force_tensor(self, sim):
        pass

    def destroy_sim(self, sim):
        pass


def acquire_gym() -> Gym:
    return Gym()
