"""A stand-in for another simulator: plain MuJoCo, of any version from 3.1 on, one world after the
other.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from mapush.extensions.isaacgym.worker.protocol import Sizes
from mapush.extensions.isaacgym.worker.serve import Refused


class PlainMujoco:
    """N worlds of one model text. ``memory`` has the rest of a step's initial state."""

    def __init__(self, scene: dict[str, Any], sizes: Sizes, views: dict[str, np.ndarray]) -> None:
        self._scene = scene
        self._sizes = sizes
        self._views = views
        model = mujoco.MjModel.from_xml_string(scene["mjcf"])
        self._models = [model] * sizes.num_envs
        self._datas = [mujoco.MjData(model) for _ in range(sizes.num_envs)]
        self._trees = [self._subtree(model, name) for name in scene["trees"]]

    def set_field(self, name: str, values: np.ndarray) -> None:
        if not isinstance(getattr(self._models[0], name, None), np.ndarray):
            raise Refused(f"MuJoCo {mujoco.__version__} has no field {name}")
        if self._models[0] is self._models[-1] and len(self._models) > 1:
            text = self._scene["mjcf"]
            self._models = [mujoco.MjModel.from_xml_string(text) for _ in self._models]
        for model, data, value in zip(self._models, self._datas, values):  # noqa: B905, Python 3.8
            getattr(model, name)[:] = value
            if name.startswith(("body_", "dof_")):
                mujoco.mj_setConst(model, data)

    def step(self, num_steps: int, num_rows: int) -> None:
        views = self._views
        nv = self._sizes.nv
        views["failed"][:] = False
        for env, (model, data) in enumerate(zip(self._models, self._datas)):  # noqa: B905
            data.qpos[:] = views["qpos"][env]
            data.qvel[:] = views["qvel"][env]
            data.ctrl[:] = views["ctrl"][env]
            data.xfrc_applied[:] = views["xfrc_applied"][env]
            data.mocap_pos[:] = views["mocap_pos"][env]
            data.qacc_warmstart[:] = views["memory"][env, :nv]
            data.time = views["memory"][env, nv]
            try:
                for k in range(num_steps):
                    if num_rows:
                        data.ctrl[:] = views["targets"][k, env]
                    mujoco.mj_step(model, data)
            except Exception:  # of the engine, in this world alone
                views["failed"][env] = True
            views["qpos"][env] = data.qpos
            views["qvel"][env] = data.qvel
            views["ctrl"][env] = data.ctrl
            views["memory"][env, :nv] = data.qacc_warmstart
            views["memory"][env, nv] = data.time
            views["sensordata"][env] = self._forces(model, data).ravel()

    def close(self) -> None:
        pass

    def _forces(self, model: Any, data: Any) -> np.ndarray:
        """Return the net force (K, 3) in each pair of trees, first on second, world frame."""
        total = np.zeros((len(self._scene["forces"]), 3))
        one = np.zeros(6)
        for k in range(data.ncon):
            contact = data.contact[k]
            first, second = (
                self._tree_of(model.geom_bodyid[geom]) for geom in (contact.geom1, contact.geom2)
            )
            for row, pair in enumerate(self._scene["forces"]):
                if [first, second] in (pair, pair[::-1]):
                    mujoco.mj_contactForce(model, data, k, one)
                    sign = 1.0 if [first, second] == pair else -1.0
                    total[row] += sign * (contact.frame.reshape(3, 3).T @ one[:3])
        return total

    def _tree_of(self, body: int) -> int:
        return next((tree for tree, bodies in enumerate(self._trees) if body in bodies), -1)

    @staticmethod
    def _subtree(model: Any, name: str) -> frozenset:
        root = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, name)
        return frozenset(body for body in range(model.nbody) if model.body_rootid[body] == root)


def make_engine(scene: dict[str, Any], sizes: Sizes, views: dict[str, np.ndarray]) -> PlainMujoco:
    return PlainMujoco(scene, sizes, views)
