"""JSON description of an exported team: inputs, outputs, robots, motors, rates and versions."""

from collections.abc import Mapping, Sequence
from typing import Any

from mqe.controllers.trot import JOINTS, STANDING_COMMAND
from mqe.tasks.drop import SPAWN_HEIGHT
from mqe.tasks.push.posture import HEIGHT_LIMIT
from mqe.tasks.push.settings import PushCfg
from mqe.world import collapse
from mqe.world.objects import OBJECTS, REST_SPEED
from mqe.world.robots import NUM_JOINTS
from mqe.world.robots.tensors import TOUCH
from mqe.world.scene import ACTUATOR_LAG, DECIMATION, PHYSICS_DT, STEP_DT, Scene

FORMAT_VERSION = 1
HEADING = (
    "heading frame of the robot: origin at its trunk, turned by its yaw only, x forward, y left"
)
BODY = "trunk frame of the robot: x forward, y left, z up"
COMMAND = ["forward", "left", "turning_left"]

Numbers = dict[str, Any]


def numbers(names: Sequence[str], unit: str, frame: str, meaning: str = "") -> Numbers:
    """Describe a tensor (batch, N) by unit and frame, with names for its last dimension."""
    described: Numbers = {
        "shape": ["batch", len(names)],
        "names": list(names),
        "unit": unit,
        "frame": frame,
    }
    if meaning:
        described["meaning"] = meaning
    return described


def gait_inputs() -> dict[str, Numbers]:
    """Describe a gait's inputs other than the command."""
    return {
        "up_b": numbers(
            "xyz",
            "1",
            BODY,
            "unit vector that points up; the acceleration that an IMU at rest measures, divided "
            "by g",
        ),
        "angvel_b": numbers("xyz", "rad/s", BODY, "angular velocity, as a gyroscope measures it"),
        "joint_pos": numbers(JOINTS, "rad", "joint"),
        "joint_vel": numbers(JOINTS, "rad/s", "joint"),
        "memory": gait_memory(),
    }


def gait_memory() -> Numbers:
    """Describe a gait's memory between control steps."""
    actions = [f"{which}_action_{joint}" for which in ("last", "older") for joint in JOINTS]
    meaning = "zeros at the start of an episode, then memory_out of the last control step"
    return numbers(["phase", *actions], "1", "none", meaning)


def command(scale: Sequence[float], rate_hz: float) -> Numbers:
    """Describe a gait's velocity command."""
    described = {"names": COMMAND, "unit": "m/s, m/s, rad/s", "frame": HEADING, "scale": scale}
    return action(described, rate_hz) | {"robot_stands_below": STANDING_COMMAND}


def joint_targets() -> Numbers:
    """Describe the motors' joint targets."""
    meaning = "position targets; see motors and robots"
    return numbers(JOINTS, "rad", "joint", meaning) | {"rate_hz": 1.0 / STEP_DT}


def action(actions: Mapping[str, Any], rate_hz: float) -> Numbers:
    """Describe a robot's scaled action by names, unit and scale."""
    scale = actions["scale"]
    described = numbers(actions["names"], actions["unit"], actions.get("frame", "none"))
    return described | {"range": [[-limit for limit in scale], list(scale)], "rate_hz": rate_hz}


def observation(terms: Mapping[str, Any], rate_hz: float) -> dict[str, Any]:
    """Describe one robot's observation by its ``terms``, in their order."""
    names = observed_names(terms)
    return {
        "shape": ["batch", len(names)],
        "names": names,
        "terms": {name: dict(term) for name, term in terms.items()},
        "rate_hz": rate_hz,
    }


def observed_names(terms: Mapping[str, Any]) -> list[str]:
    """Return the names of all observation components."""
    return [name for term in terms.values() for name in term["names"]]


def robots(scene: Scene) -> list[dict[str, Any]]:
    """Describe a team's robots, and their motors in the scene."""
    limits = scene.model.actuator_forcerange[:, 1].reshape(-1, NUM_JOINTS).tolist()
    return [
        {
            "name": f"robot{i}",
            "kind": cfg.name,
            "joints": JOINTS,
            "nominal_joint_pos_rad": cfg.joint_pos,
            "joint_range_rad": cfg.joint_range,
            "stiffness_nm_per_rad": cfg.stiffness,
            "damping_nms_per_rad": cfg.damping,
            "torque_limit_nm": limits[i],
            "low_trunk_m": cfg.low_height,
            "knee_clearance_m": cfg.knee_radius + TOUCH,
            "trunk_clearance_m": TOUCH,
        }
        for i, cfg in enumerate(scene.robots)
    ]


def motors() -> dict[str, Any]:
    """Describe the motors: force law and delay."""
    return {
        "law": "torque = stiffness * (target - joint_pos) - damping * joint_vel, within +- "
        "torque_limit",
        "control": "MuJoCo's ctrl in scene.xml takes joint targets [rad]: robot by robot, each in "
        "the order of its joints",
        "delay_physics_steps": ACTUATOR_LAG,
        "delay": "the motors follow the targets of a control step delay_physics_steps physics "
        "steps after its start; until then they follow the previous targets, or in the first "
        "control step of an episode its own",
    }


def rates(decision_period: int) -> dict[str, Any]:
    """Return the rates of physics steps, control steps and decisions."""
    return {
        "physics_hz": 1.0 / PHYSICS_DT,
        "control_hz": 1.0 / STEP_DT,
        "decision_hz": 1.0 / (STEP_DT * decision_period),
        "physics_steps_per_control_step": DECIMATION,
        "control_steps_per_decision": decision_period,
    }


def describe_terminations(cfg: PushCfg) -> dict[str, Any]:
    """Describe the terminations in words and values for JSON, for a reader without this library.

    Conditions hold after a control step.
    """
    obj = OBJECTS[cfg.object]
    return {
        "time_limit_s": cfg.episode_length_s,
        "success": _describe_success(cfg),
        "collision": {"trunks_closer_than_m": obj.collision_distance},
        "fall": {
            "roll_limit_rad": cfg.roll_limit,
            "pitch_limit_rad": cfg.pitch_limit,
            "height_limit_m": HEIGHT_LIMIT,
            "robot_height_m": SPAWN_HEIGHT,
            "object_height_m": obj.spawn_height,
            "meaning": "a robot rolls or pitches further, or its trunk's or the object's origin "
            "leaves its height by more than the limit",
        },
        "collapse": {
            "ends_episode": cfg.collapse_ends,
            "low_time_s": collapse.LOW_TIME,
            "rest_time_s": collapse.REST_TIME,
            "meaning": "a trunk's origin stays lower than its low_trunk for low_time, or for "
            "rest_time a knee (the calf's origin) is lower than knee_clearance or a trunk's lowest "
            "point lower than trunk_clearance",
        },
    }


def _describe_success(cfg: PushCfg) -> dict[str, Any]:
    """Describe the conditions for success, each under its own name."""
    success: dict[str, Any] = {
        "object_to_goal_below_m": cfg.success_radius,
        "distance": "horizontal, of the object's origin",
    }
    if cfg.success_heading is not None:
        success |= {
            "heading_error_below_rad": cfg.success_heading,
            "goal_heading_rad": cfg.goal_heading,
            "heading": "of the object in the arena; the nearest of those at which it looks alike",
        }
    if cfg.success_rest_s > 0.0:
        success |= {"rest_s": cfg.success_rest_s, "object_slower_than_m_s": REST_SPEED}
    if not cfg.success_ends:
        success["ends_episode"] = False
    return success
