"""Broken worlds: limits for their states, and causes.

Finite values may still be nonsense: a robot a kilometre away, a knee bent three times round. A
world beyond any limit is broken: it is reset, counted and left out of the learning.
"""

import mujoco
import torch
from torch import Tensor

from mqe.world.scene import ARENA_HALF_SIZE, Scene
from mqe.world.state import SceneState

# Wide enough for the spawns of overlapping robots (spawn=independent). The largest of 54,000 had
# joints 1.6 rad out of range, contact forces of 2.5e5 N and joints at 280 rad/s; such episodes end
# as collisions.
SPEED_LIMIT = 1e3  # [m/s, rad/s] of any generalised velocity
FORCE_LIMIT = 1e7  # [N] in each direction, between two bodies
# [m] from the middle of the arena, along x and y: beyond the walls.
POSITION_LIMIT = ARENA_HALF_SIZE + 1.0
# [m] of the origins of trunks and object: under the floor, above all that a kick can do.
HEIGHTS = (0.0, 3.0)
QUATERNION_LIMIT = 1.1  # in each number
JOINT_MARGIN = 3.0  # [rad] beyond a joint's range

_UNBOUNDED = torch.finfo(torch.float32).max  # anything finite
_ANYTHING = (-_UNBOUNDED, _UNBOUNDED)


class Limits:
    """Ranges for a scene's state in a working simulation."""

    def __init__(self, scene: Scene, device: torch.device) -> None:
        """Derive the limits from the scene's model."""
        self._names, spans = _named_spans(scene)
        low, high = torch.tensor(spans, device=device).t().unsqueeze(2)
        self._low = low  # (X, 1)
        self._high = high  # (X, 1)
        self._num_robots = scene.num_robots
        self._has_object = scene.object is not None

    def are_met(self, state: SceneState, looks_inside: bool = True) -> Tensor:
        """Return whether all values of each world are finite and within their limits, (N,) bool.

        ``looks_inside`` also checks for robots inside the object.
        """
        rows = self._limited(state) if looks_inside else state.rows
        low = self._low[: len(rows)]
        high = self._high[: len(rows)]
        return (rows.clamp(low, high) == rows).all(dim=0)

    def violation(self, state: SceneState) -> str | None:
        """Describe the first value beyond its limits in a single world's state."""
        values = self._limited(state)
        off = (values.clamp(self._low, self._high) != values)[:, 0].nonzero()
        if not len(off):
            return None
        first = int(off[0])
        low = float(self._low[first])
        high = float(self._high[first])
        allowed = f"{low:.4g} or more" if high == _UNBOUNDED else f"{low:.4g} to {high:.4g}"
        return f"{self._names[first]} was {float(values[first]):.4g}, not {allowed}"

    def _limited(self, state: SceneState) -> Tensor:
        """Return the rows of a state, and below them each robot's distance from the object's
        origin.
        """
        if not self._has_object:
            return state.rows
        pos = state.body_pos
        distance = torch.cdist(pos[:, : self._num_robots], pos[:, self._num_robots :])
        return torch.cat((state.rows, distance[..., 0].t()))


class BrokenWorldRecorder:
    """Every world's state. A broken world's first broken state stays until ``take_cause``."""

    def __init__(self, scene: Scene, num_envs: int, device: torch.device, first_world: int) -> None:
        """Record ``num_envs`` worlds of ``scene``, numbered from ``first_world`` on."""
        self._scene = scene
        self._first_world = first_world
        self._rows = torch.zeros(scene.num_rows, num_envs, device=device)
        self._is_recording = torch.ones(num_envs, dtype=torch.bool, device=device)

    def record(self, state: SceneState, is_working: Tensor) -> None:
        """Store every world's state. Stop recording worlds outside ``is_working`` (N,)."""
        torch.where(self._is_recording, state.rows, self._rows, out=self._rows)
        self.keep(is_working)

    def keep(self, valid: Tensor) -> None:
        """Stop recording worlds outside ``valid`` (N,)."""
        self._is_recording.logical_and_(valid)

    def take_cause(self) -> str | None:
        """Return the number and cause of a world broken since the last call. None: no world broke.

        Waits for the device. All worlds are recorded again after this.
        """
        scene = self._scene
        world = (~self._is_recording).nonzero()[:1, 0]
        self._is_recording.fill_(True)
        if not len(world):
            return None
        state = scene.state_of(self._rows[:, world].cpu())
        cause = Limits(scene, torch.device("cpu")).violation(state)
        cause = cause or "the simulator gave up on it, or an action was no number"
        return f"world {self._first_world + int(world)}: {cause}"


def _named_spans(scene: Scene) -> tuple[list[str], list[tuple[float, float]]]:
    """Return name and limits for every row in a state, and for each robot's distance from the
    object.
    """
    model = scene.model
    num_qpos, num_qvel, _, _ = SceneState.sizes(scene.num_robots, scene.object is not None)
    places = []
    rates = []
    for k in range(model.njnt):
        joint = model.joint(k)
        name = joint.name
        kind = mujoco.mjtJoint(joint.type[0])
        if kind == mujoco.mjtJoint.mjJNT_FREE:
            name = name.removesuffix("/root")
            arena = (-POSITION_LIMIT, POSITION_LIMIT)
            places += [
                (f"{name}: x [m]", arena),
                (f"{name}: y [m]", arena),
                (f"{name}: z [m]", HEIGHTS if len(places) < num_qpos else arena),
            ]
            rates += [f"{name}: velocity [m/s]"] * 3
        if kind in (mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtJoint.mjJNT_BALL):
            places += [(f"{name}: quaternion", (-QUATERNION_LIMIT, QUATERNION_LIMIT))] * 4
            rates += [f"{name}: turning [rad/s]"] * 3
        else:
            span = _ANYTHING
            if model.jnt_limited[k]:
                span = (joint.range[0] - JOINT_MARGIN, joint.range[1] + JOINT_MARGIN)
            unit = "m" if kind == mujoco.mjtJoint.mjJNT_SLIDE else "rad"
            places.append((f"{name} [{unit}]", span))
            rates.append(f"{name} [{unit}/s]")
    forces = [f"{model.sensor(k // 3).name}: contact force [N]" for k in range(scene.num_forces)]
    speeds = [(name, (-SPEED_LIMIT, SPEED_LIMIT)) for name in rates]
    named = [*places[:num_qpos], *speeds[:num_qvel]]
    named += [(name, (-FORCE_LIMIT, FORCE_LIMIT)) for name in forces]
    named += [("goal: position [m]", _ANYTHING)] * 3
    num_others = SceneState.OBSTACLE_ROWS * scene.num_obstacles
    named += [("obstacles", _ANYTHING)] * num_others
    named += [*places[num_qpos:], *speeds[num_qvel:]]  # of things
    if scene.against_gravity is not None:
        named += [("gravity", _ANYTHING)] * 3
    assert len(named) == scene.num_rows
    if scene.object is not None:
        # A ball around the object's origin that is all object: a trunk's origin inside it is deep
        # within.
        part = scene.object.geoms[0]
        ball = min(part.size) / 2 if part.type == "box" else min(part.size[0], part.size[1] / 2)
        named += [
            (f"robot{i}: distance to the object's middle [m]", (ball, _UNBOUNDED))
            for i in range(scene.num_robots)
        ]
    return [name for name, _ in named], [span for _, span in named]
