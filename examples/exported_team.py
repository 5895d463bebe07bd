"""Run an exported team or gait in plain MuJoCo and ONNX Runtime, without this library or torch.

``mapush export pretrained:cuboid team`` writes the folder, ``python examples/exported_team.py
team`` runs it, with ``pip install mujoco onnxruntime``. ``contract.json`` in the folder explains
every number. A gait, from ``mapush export pretrained:go2_velocity gait``, follows commands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime

COMMANDS = ((0.5, 0.0, 0.0), (-0.3, 0.0, 0.0), (0.0, 0.3, 0.0), (0.0, 0.0, 0.5), (0.0, 0.0, 0.0))
JUDGED = ("object_to_goal_below_m", "distance")  # conditions of success
HOLD_TIME = 3.0  # [s] of each command of a gait
SETTLE_TIME = 1.0  # [s] of these, at their beginning, that its velocity is not measured in


class Network:
    """An exported network with its memory: outputs NAME_out are the next step's input NAME."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # networks this small gain nothing from more
        self._session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        self._shapes = {
            tensor.name: [1, *tensor.shape[1:]] for tensor in self._session.get_inputs()
        }
        self._outputs = [tensor.name for tensor in self._session.get_outputs()]
        self.begin()

    def begin(self) -> None:
        """Start an episode: memories are zero."""
        carried = [name.removesuffix("_out") for name in self._outputs if name.endswith("_out")]
        self._carried = {name: np.zeros(self._shapes[name], np.float32) for name in carried}

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        """Return the first output: a command, or joint targets [rad] of a gait."""
        inputs = {name: values.astype(np.float32) for name, values in inputs.items()}
        outputs = dict(
            zip(self._outputs, self._session.run(None, inputs | self._carried), strict=True)
        )
        self._carried = {name: outputs[f"{name}_out"] for name in self._carried}
        return outputs[self._outputs[0]]


class Team:
    """The exported networks of one world."""

    def __init__(self, folder: Path, contract: dict) -> None:
        models = contract["models"]
        count = range(len(contract["robots"]))
        self._actors = [Network(folder / f"actor_agent{i}.onnx") for i in count]
        self._gaits = [Network(folder / f"gait_agent{i}.onnx") for i in count]
        self._period = contract["rates"]["control_steps_per_decision"]
        self.names = [models[f"actor_agent{i}.onnx"]["inputs"]["obs"]["names"] for i in count]
        self.begin()

    def begin(self) -> None:
        """Start an episode."""
        self._step = 0
        self._commands = [np.zeros((1, 3))] * len(self._actors)
        for network in (*self._actors, *self._gaits):
            network.begin()

    def act(self, obs: np.ndarray, robots: dict[str, np.ndarray]) -> np.ndarray:
        """Return joint targets (A, 12) [rad] for the coming control step."""
        if self._step % self._period == 0:
            pairs = zip(self._actors, obs, strict=True)
            self._commands = [actor.run({"obs": seen[None]}) for actor, seen in pairs]
        self._step += 1
        targets = []
        for i, (gait, command) in enumerate(zip(self._gaits, self._commands, strict=True)):
            body = {name: values[i : i + 1] for name, values in robots.items()}
            targets.append(gait.run({"command": command, **body})[0])
        return np.array(targets)


class World:
    """One world in plain MuJoCo, with a short delay from motor target to motor."""

    def __init__(self, folder: Path, contract: dict) -> None:
        self.contract = contract
        try:
            self.model = mujoco.MjModel.from_xml_path(str(folder / contract["scene"]))
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise SystemExit(
                f"{contract['scene']}: MuJoCo {mujoco.__version__} cannot read it ({reason}); it "
                f"needs {contract.get('mujoco_at_least', 'the version in contract.json')} or later"
            ) from None
        self.data = mujoco.MjData(self.model)
        self.names = [robot["name"] for robot in contract["robots"]]
        self.trunks = [self.model.body(f"{name}/trunk").id for name in self.names]
        self.object = self.model.body("object").id if "object" in contract else None
        self.goal = np.zeros(3)
        if self.object is not None:
            _check_success(contract["episode"]["success"])
        self._roots = [self.model.joint(f"{name}/root") for name in self.names]
        self._steps = contract["rates"]["physics_steps_per_control_step"]
        self._delay = contract["motors"]["delay_physics_steps"]
        calves = [
            body for body in range(self.model.nbody) if self.model.body(body).name.endswith("_calf")
        ]
        self._knees = [
            [calf for calf in calves if self.model.body_rootid[calf] == trunk]
            for trunk in self.trunks
        ]
        self._shapes = [np.flatnonzero(self.model.geom_bodyid == trunk) for trunk in self.trunks]

    def begin(self, start: dict[str, np.ndarray]) -> None:
        """Place everything for an episode's start."""
        mujoco.mj_resetData(self.model, self.data)
        for name, values in start.items():
            if name.startswith("model."):  # what differs from world to world, friction for instance
                getattr(self.model, name.removeprefix("model."))[:] = values
        self.outline = start.get("outline", np.zeros((0, 2)))  # (P, 2) [m] in the object's frame
        self.data.qpos[:] = start["qpos"]
        self.data.qvel[:] = start["qvel"]
        self.goal = start["goal"]
        self.data.mocap_pos[0] = self.goal
        self._targets = None
        self._low = np.zeros(len(self.trunks))
        self._resting = np.zeros(len(self.trunks))
        mujoco.mj_kinematics(self.model, self.data)

    def step(self, targets: np.ndarray) -> None:
        """Advance by one control step. During the delay the motors follow the previous targets."""
        before = targets if self._targets is None else self._targets
        for k in range(self._steps):
            self.data.ctrl[:] = (before if k < self._delay else targets).ravel()
            mujoco.mj_step(self.model, self.data)
        self._targets = targets
        mujoco.mj_kinematics(self.model, self.data)  # poses lag one physics step behind otherwise

    def robots(self) -> dict[str, np.ndarray]:
        """Return each robot's proprioception."""
        qpos = self.data.qpos
        qvel = self.data.qvel
        at = [(int(root.qposadr[0]), int(root.dofadr[0])) for root in self._roots]
        return {
            "up_b": np.array([self.data.xmat[trunk].reshape(3, 3)[2] for trunk in self.trunks]),
            "angvel_b": np.array([qvel[v + 3 : v + 6] for _, v in at]),
            "joint_pos": np.array([qpos[q + 7 : q + 19] for q, _ in at]),
            "joint_vel": np.array([qvel[v + 6 : v + 18] for _, v in at]),
        }

    def velocity(self, robot: int = 0) -> np.ndarray:
        """Return a robot's velocity: forwards, left [m/s] and yaw rate [rad/s]."""
        root = int(self._roots[robot].dofadr[0])
        turning = self.data.xmat[self.trunks[robot]][6:] @ self.data.qvel[root + 3 : root + 6]
        return np.array([*self._ahead_and_left(robot, root), turning])

    def _ahead_and_left(self, robot: int, root: int) -> tuple[float, float]:
        """Return the velocity [m/s] of the body with the free joint at ``root``, as a robot sees
        it.
        """
        rotation = self.data.xmat[self.trunks[robot]]
        yaw = math.atan2(rotation[3], rotation[0])
        x, y = self.data.qvel[root : root + 2]
        return math.cos(yaw) * x + math.sin(yaw) * y, math.cos(yaw) * y - math.sin(yaw) * x

    def observations(self, names: list[list[str]]) -> np.ndarray:
        """Return each robot's observation (A, O), number by number in the contract's order."""
        bodies = dict(zip(self.names, self.trunks, strict=True)) | {"object": self.object}
        pos = {name: self.data.xpos[body][:2] for name, body in bodies.items()} | {
            "goal": self.goal[:2]
        }
        yaw = {
            name: math.atan2(self.data.xmat[body][3], self.data.xmat[body][0])
            for name, body in bodies.items()
        }
        rotation = self.data.xmat[self.object].reshape(3, 3)[:2, :2]
        points = pos["object"] + self.outline @ rotation.T
        pos |= {f"outline{k}": point for k, point in enumerate(points)}
        rows = []
        for i, robot in enumerate(self.names):
            # A set's other robots; there may be room for more of them.
            others = [self.names[i - k] for k in range(1, len(self.names))]
            slots = {f"teammates{k}": other for k, other in enumerate(others)}
            seen_pos = pos | {slot: pos[other] for slot, other in slots.items()}
            seen_yaw = yaw | {slot: yaw[other] for slot, other in slots.items()}
            velocity = {f"own_velocity_{k}": value for k, value in enumerate(self.velocity(i))}
            of_object = self._ahead_and_left(i, int(self.model.body_dofadr[self.object]))
            known = velocity | dict(zip(("object_vx", "object_vy"), of_object, strict=True))
            known["load"] = self.load
            rows.append(self._seen(names[i], robot, seen_pos, seen_yaw, known))
        return np.array(rows)

    @property
    def load(self) -> float:
        """Return the push that slides the object [100 N]."""
        friction = self.model.pair_friction[self.model.pair("object/0-floor").id, 0]
        return friction * self.model.body_mass[self.object] * 9.81 / 100.0

    def outcome(self, step: int) -> str | None:
        """Return the episode's ending after control step ``step``, or None. Call it after every
        step.
        """
        ends = self.contract["episode"]
        data = self.data
        dt = 1.0 / self.contract["rates"]["control_hz"]
        to_goal = np.linalg.norm(self.goal[:2] - data.xpos[self.object][:2])
        apart = [
            np.linalg.norm(data.xpos[a] - data.xpos[b])
            for a in self.trunks
            for b in self.trunks
            if a < b
        ]
        is_collapsed = self._is_collapsed(ends["collapse"], dt)
        if to_goal < ends["success"]["object_to_goal_below_m"]:
            return "success"
        if any(distance < ends["collision"]["trunks_closer_than_m"] for distance in apart):
            return "collision"
        if self._has_fallen(ends["fall"]):
            return "fall"
        if is_collapsed and ends["collapse"]["ends_episode"]:
            return "collapse"
        return "time is up" if step * dt >= ends["time_limit_s"] - 0.5 * dt else None

    def _seen(
        self, names: list[str], robot: str, pos: dict, yaw: dict, known: dict[str, float]
    ) -> list[float]:
        cos = math.cos(yaw[robot])
        sin = math.sin(yaw[robot])
        numbers = []
        for name in names:
            what, _, number = name.partition("_")
            if name == "present":
                numbers.append(1.0)
                continue
            if name in known:
                numbers.append(known[name])
                continue
            if number == "present":
                numbers.append(float(what in pos))
                continue
            if what.startswith("teammates") and what not in pos:
                numbers.append(0.0)  # room for a robot that this team does not have
                continue
            if what not in pos or number == "age":
                raise SystemExit(
                    f"the team sees {name}, which this example does not compute; add it here, or "
                    "take onboard_team.py for a team with senses"
                )
            x, y = pos[what] - pos[robot]
            turned = yaw.get(what, 0.0) - yaw[robot]
            values = {
                "x": cos * x + sin * y,
                "y": cos * y - sin * x,
                "yaw": turned % (2.0 * math.pi),
            }
            values |= {"sin_yaw": math.sin(turned), "cos_yaw": math.cos(turned)}
            numbers.append(values[number])
        return numbers

    def _has_fallen(self, limits: dict) -> bool:
        heights = [(trunk, limits["robot_height_m"]) for trunk in self.trunks]
        heights.append((self.object, limits["object_height_m"]))
        if any(
            abs(self.data.xpos[body][2] - height) > limits["height_limit_m"]
            for body, height in heights
        ):
            return True
        for trunk in self.trunks:
            rotation = self.data.xmat[trunk].reshape(3, 3)
            roll = math.atan2(rotation[2, 1], rotation[2, 2])
            pitch = math.asin(max(-1.0, min(1.0, -rotation[2, 0])))
            if abs(roll) > limits["roll_limit_rad"] or abs(pitch) > limits["pitch_limit_rad"]:
                return True
        return False

    def _is_collapsed(self, limits: dict, dt: float) -> bool:
        data = self.data
        for i, (trunk, robot) in enumerate(zip(self.trunks, self.contract["robots"], strict=True)):
            is_low = data.xpos[trunk][2] < robot["low_trunk_m"]
            knee = min(data.xpos[body][2] for body in self._knees[i])
            lowest = min(data.geom_xpos[g][2] - self._reach_down(g) for g in self._shapes[i])
            is_resting = knee < robot["knee_clearance_m"] or lowest < robot["trunk_clearance_m"]
            self._low[i] = (self._low[i] + dt) * is_low
            self._resting[i] = (self._resting[i] + dt) * is_resting
        rounding = 0.5 * dt  # sums of steps may fall short by this much
        has_been_low = self._low > limits["low_time_s"] - rounding
        return bool((has_been_low | (self._resting > limits["rest_time_s"] - rounding)).any())

    def _reach_down(self, geom: int) -> float:
        """Return how far a box or a sphere reaches below its middle [m]."""
        size = self.model.geom_size[geom]
        if self.model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_SPHERE:
            return size[0]
        return np.abs(self.data.geom_xmat[geom][6:]) @ size


def _check_success(conditions: dict) -> None:
    """End the program if success asks for more than ``World.outcome`` judges."""
    for name in conditions:
        if name not in JUDGED:
            raise SystemExit(
                f"success also asks for {name}, which this example does not judge; add it here"
            )


def follow_commands(world: World, gait: Network) -> list[np.ndarray]:
    """Return a gait robot's velocity for each of ``COMMANDS``: forwards, left [m/s], and the yaw
    rate [rad/s].
    """
    (robot,) = world.contract["robots"]
    joints = robot["nominal_joint_pos_rad"]
    qpos = np.concatenate((world.model.qpos0[:7], joints))
    world.begin({"qpos": qpos, "qvel": np.zeros(world.model.nv), "goal": np.zeros(3)})
    hz = world.contract["rates"]["control_hz"]
    measured = []
    for command in COMMANDS:
        velocities = []
        for _ in range(round(HOLD_TIME * hz)):
            targets = gait.run({"command": np.array([command]), **world.robots()})
            world.step(targets)
            velocities.append(world.velocity())
        measured.append(np.mean(velocities[round(SETTLE_TIME * hz) :], axis=0))
    return measured


def run_episode(world: World, team: Team, start: dict[str, np.ndarray]) -> tuple[str, float]:
    """Return how an episode ended, and after how many seconds."""
    world.begin(start)
    team.begin()
    step = 0
    outcome = None
    while outcome is None:
        world.step(team.act(world.observations(team.names), world.robots()))
        step += 1
        outcome = world.outcome(step)
    return outcome, step / world.contract["rates"]["control_hz"]


def check_files(folder: Path) -> None:
    """End the program if a file differs from its SHA-256 in ``manifest.json``."""
    digests = json.loads((folder / "manifest.json").read_text())["files"]
    for name, digest in digests.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise SystemExit(f"{folder / name} is damaged; export the policy anew")


def main() -> int:
    """Run a team's episodes in turn and print their endings, or a gait's commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what mapush export wrote")
    parser.add_argument(
        "--num_episodes", type=int, default=20, help="of the starts that came along (default: 20)"
    )
    arguments = parser.parse_args()
    described = arguments.folder / "contract.json"
    if not described.is_file():
        parser.error(f"{arguments.folder} has no contract.json; name a folder of mapush export")
    check_files(arguments.folder)
    contract = json.loads(described.read_text())
    world = World(arguments.folder, contract)
    if "gait.onnx" in contract["models"]:
        velocities = follow_commands(world, Network(arguments.folder / "gait.onnx"))
        for command, velocity in zip(COMMANDS, velocities, strict=True):
            x, y, turning = velocity
            sys.stdout.write(
                f"command {command}: {x:.2f} m/s forwards, {y:.2f} m/s left, {turning:.2f} rad/s\n"
            )
        return 0

    starts = dict(np.load(arguments.folder / contract["starts"]))
    team = Team(arguments.folder, contract)
    outcomes = []
    for i in range(min(arguments.num_episodes, len(starts["qpos"]))):
        outcome, seconds = run_episode(
            world, team, {name: values[i] for name, values in starts.items()}
        )
        outcomes.append(outcome)
        sys.stdout.write(f"episode {i}: {outcome} after {seconds:.2f} s\n")
        sys.stdout.flush()
    sys.stdout.write(f"{outcomes.count('success')} of {len(outcomes)} episodes succeeded\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
