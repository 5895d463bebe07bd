"""Write a trained team or gait as ONNX, with a contract in JSON and the scene: ``mapush export
CHECKPOINT OUT_DIR``, or a gait for Unitree's controllers: ``--for unitree``.

Running it needs ONNX Runtime, and MuJoCo for the scene, but not this library
(``examples/exported_team.py``).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.interop import harl_format  # noqa: F401, registers a format
from harl_mapush.interop.harl_actors import OffPolicyTeam
from harl_mapush.process import seed_everything
from harl_mapush.runs import checkpoint, durable, evaluation_worlds
from harl_mapush.runs.policy import TeamPolicy, load_team
from mapush.export import description, unitree
from mapush.export.exported_networks import (
    ExportedActor,
    ExportedGait,
    ExportedLimit,
    ExportedTeam,
)
from mqe.config import ConfigError, merge
from mqe.controllers.gait import GaitController, gait_names
from mqe.controllers.gait_network import load_gait, read_description
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS, make_env
from mqe.tasks.push import PushCfg, PushTask
from mqe.tasks.push.terminations import describe_terminations
from mqe.viewer.looks import with_meshes
from mqe.viewer.meshes import add_looks, chosen
from mqe.world.robots import DEFAULT_ROBOT, NUM_JOINTS, ROBOTS, RobotCfg, Robots
from mqe.world.scene import STEP_DT, pack_layout
from mqe.world.state import ROBOT_QVEL, SceneState
from mqe.world.streams import Streams

PROGRAM = "mapush export"
TOLERANCE = 1e-5  # of every output against torch
_NUM_CHECKED = 16  # worlds, and control steps in each, in which outputs are compared
_OPSET = 17


class Exported(NamedTuple):
    """One network to export, with its example inputs and the names of inputs and outputs."""

    network: nn.Module
    inputs: dict[str, Tensor]  # examples, in the order of its arguments
    outputs: tuple[str, ...]


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A trained team or gait as ONNX, with a description of every number.",
        example="mapush export pretrained:cuboid team",
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint folder, a run folder or pretrained:NAME",
    )
    parser.add_argument("target", metavar="OUT_DIR", nargs="?", help="the folder to make")
    # --out of a training run has another meaning.
    parser.add_argument("--out", metavar="OUT_DIR", dest="folder", help="the folder, as a flag")
    parser.add_argument(
        "--for",
        dest="reader",
        choices=("unitree",),
        help="reader of the exported gait: unitree's C++ controllers",
    )
    add_looks(parser, "shapes")
    config.add_import(parser)
    config.add_flags(parser, ("--seed",))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Export as the command line says; return the exit code."""
    return config.exit_code(lambda: _main(argv), PROGRAM)


def _main(argv: Sequence[str] | None) -> int:
    arguments = make_parser().parse(argv)
    out = _new_folder(arguments)
    for package in ("onnx", "onnxruntime"):
        _import(package)
    folder = checkpoint.resolve(arguments.checkpoint)
    cfg = _settings(folder, arguments)
    if not isinstance(cfg.task, PushCfg) and TASKS[cfg.task.name].examination != "gait":
        raise ConfigError(
            f"task.name={cfg.task.name}: only push teams and gaits can be exported; load it from "
            "Python"
        )
    if arguments.reader is not None and TASKS[cfg.task.name].examination != "gait":
        raise ConfigError(
            f"--for {arguments.reader}: {arguments.checkpoint} is a team, and its controllers walk "
            "only; name a gait, for example pretrained:go2_velocity, or leave --for out"
        )
    checkpoint.check_actors(folder)
    seed_everything(cfg.runner.seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.new_folder(out) as partial:
        if arguments.reader is None:
            worst = export(cfg, folder, arguments.checkpoint, partial, arguments.looks)
        else:
            worst = export_for_unitree(cfg, folder, arguments.checkpoint, partial)
            robot = read_description(str(folder)).robot
            if robot != unitree.ROBOT:
                sys.stdout.write(
                    f"Note: Unitree has such a controller for the {unitree.ROBOT}, and this gait "
                    f"is a {robot}'s.\n"
                )
    largest = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    sys.stdout.write(f"{out}: largest differences from torch: {largest}.\n")
    return 0


def _new_folder(arguments: Any) -> Path:
    """Return the folder to make; raise ConfigError, before any work, if it cannot be made."""
    if (arguments.target is None) == (arguments.folder is None):
        raise ConfigError("OUT_DIR: name one folder to make, after the checkpoint or with --out")
    out = Path(arguments.target or arguments.folder)
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; name another folder, or remove it")
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"{out} cannot be made: {existing} is no folder that you may write to")
    return out


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def export(
    cfg: RunCfg, folder: Path, what: str, out: Path, looks: str | None = None
) -> dict[str, float]:
    """Write the checkpoint in ``folder`` into the folder ``out``; ``looks`` are the robots' in the
    scene.

    Returns each network's largest difference from torch over random states; raises ConfigError
    where one is too large.
    """
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        robots = Robots(env.scene.robots)
        is_gait = TASKS[cfg.task.name].examination == "gait"
        names = [str(folder)] if is_gait else gait_names(cfg.task.gait, robots.cfgs)
        gaits = [
            ExportedGait(load_gait(name, env.device, robot), robot)
            for name, robot in zip(names, robots.cfgs, strict=True)
        ]
        scale = cfg.task.max_command if is_gait else cfg.task.action_scale
        files = ["gait.onnx"] if is_gait else [f"gait_agent{i}.onnx" for i in range(len(gaits))]
        made: dict[str, Exported] = {}
        models: dict[str, Any] = {}
        described: dict[str, Any] = {
            "format_version": description.FORMAT_VERSION,
            "task": cfg.task.name,
            "checkpoint": what,
            "versions": description.versions(),
            "rates": description.rates(env.decision_period),
            "robots": description.robots(env.scene),
            "motors": description.motors(env.scene),
            "scene": "scene.xml",
        }
        if isinstance(env.task, PushTask):
            made, models = _team(env, env.task, cfg, folder, gaits)
            described |= {
                "object": cfg.task.object,
                "keeps_apart_m": cfg.task.keep_apart,
                "episode": describe_terminations(cfg.task),
                "starts": "starts.npz",
            }
            _write_starts(cfg, out / "starts.npz")
        for name, gait in zip(files, gaits, strict=True):
            made[name] = Exported(
                gait, _gait_example(_NUM_CHECKED), ("joint_targets", "memory_out")
            )
            models[name] = _gait_contract(scale, env.decision_period)
        described["models"] = models
        assert env.scene.spec is not None
        spec = env.scene.spec
        if looks is not None:
            spec = with_meshes(env.scene, spec, chosen(looks, env.scene.robots, _say))
            spec.compile()
        (out / "scene.xml").write_text(spec.to_xml(), encoding="utf-8")
    finally:
        env.close()
    (out / "contract.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    worst = {}
    for name, exported in made.items():
        _write(exported, out / name)
        worst[name] = _compare(exported, out / name)
    for name, gait, robot in zip(files, gaits, robots.cfgs, strict=True):
        worst[name] = max(worst[name], _compare_gait(gait, robot, out / name))
    _check(worst)
    return worst


def export_for_unitree(cfg: RunCfg, folder: Path, what: str, out: Path) -> dict[str, float]:
    """Write the gait in ``folder`` for Unitree's controllers into the folder ``out``.

    Returns the network's largest difference from torch; raises ConfigError if it is too large.
    """
    robot = ROBOTS[read_description(str(folder)).robot]
    network = unitree.UnitreeGait(
        ExportedGait(load_gait(str(folder), torch.device("cpu"), robot), robot)
    )
    obs = torch.randn(_NUM_CHECKED, unitree.OBS_SIZE)
    path = out / unitree.NETWORK
    path.parent.mkdir()
    # Their runner makes an input of the shape that the file names: one row.
    _write(Exported(network, {"obs": obs[:1]}, ("actions",)), path, is_batch=False)
    _describe(path, unitree.metadata(robot, what))
    unitree.write_settings(robot, cfg.task.max_command, out)
    run = _session(path)
    with torch.no_grad():
        wanted = network(obs)
    found = torch.cat([run({"obs": row})[0] for row in obs.split(1)])
    worst = {unitree.NETWORK.as_posix(): float((wanted - found).abs().max())}
    _check(worst)
    return worst


def _describe(path: Path, properties: Mapping[str, str]) -> None:
    """Write properties into a network's file."""
    onnx = _import("onnx")
    model = onnx.load(path)
    onnx.helper.set_model_props(model, dict(properties))
    onnx.save(model, path)


def _check(worst: Mapping[str, float]) -> None:
    """Raise ConfigError for the first network that differs too much from torch."""
    for name, error in worst.items():
        if not error <= TOLERANCE:
            raise ConfigError(
                f"{name} differs by {error:.1e} from torch, more than {TOLERANCE}; nothing was "
                "exported"
            )


def _settings(folder: Path, arguments: Any) -> RunCfg:
    """Return the checkpoint's settings in the worlds in which the calculator measures it, changed
    by ``--set``.
    """
    asked = config.flag_values(arguments)
    for section in asked:
        for key in asked[section] if section not in ("task", "runner") else ():
            if (section, key) == ("env", "imports"):  # what --import brought
                continue
            raise ConfigError(
                f"{section}.{key}: an export has no such setting; leave it out (it takes task "
                "and seed)"
            )
    return evaluation_worlds.settings(
        folder, merge({"sim": {"name": "mujoco", "device": "cpu"}}, asked)
    )


def _team(
    env: MultiAgentEnv, task: PushTask, cfg: RunCfg, folder: Path, gaits: list[ExportedGait]
) -> tuple[dict[str, Exported], dict[str, Any]]:
    """Return the networks of a team by the names of their files, and their contracts."""
    policy = load_team(cfg, folder, env)
    assert isinstance(policy, (TeamPolicy, OffPolicyTeam))
    num_agents = env.num_agents
    decision_hz = 1.0 / (STEP_DT * env.decision_period)
    names = [task.obs_names(agent) for agent in range(num_agents)]
    apart = cfg.task.keep_apart if num_agents > 1 else 0.0
    limits = [ExportedLimit(own, apart) if apart > 0.0 else None for own in names]
    actors = [
        ExportedActor(actor.eval(), cfg.task.action_scale, limit)
        for actor, limit in zip(policy.actors, limits, strict=True)
    ]
    obs = env.reset()[0][:_NUM_CHECKED] * torch.linspace(0.2, 2.0, _NUM_CHECKED).view(-1, 1, 1)
    hidden = {}
    if actors[0].is_recurrent:
        hidden = {"hidden": torch.rand(_NUM_CHECKED, num_agents, *policy.actors[0].hidden_shape)}  # type: ignore
    made = {}
    models = {}
    for agent, actor in enumerate(actors):
        own = {name: values[:, agent] for name, values in hidden.items()}
        made[f"actor_agent{agent}.onnx"] = Exported(
            actor, {"obs": obs[:, agent], **own}, ("command", *_out(own))
        )
        models[f"actor_agent{agent}.onnx"] = {
            "inputs": {"obs": description.observation(names[agent]) | {"rate_hz": decision_hz}}
            | _hidden(own),
            "outputs": {
                "command": description.command(["batch"], cfg.task.action_scale, decision_hz)
            }
            | {f"{name}_out": described for name, described in _hidden(own).items()},
        }
    body = _gait_example(_NUM_CHECKED * num_agents)
    body = {name: values.unflatten(0, (_NUM_CHECKED, num_agents)) for name, values in body.items()}
    first = {
        "obs": obs,
        "decide": torch.arange(_NUM_CHECKED) % 2 == 0,
        "command": body.pop("command"),
    }
    outputs = ("joint_targets", "command_out", "memory_out", *_out(hidden))
    made["team.onnx"] = Exported(ExportedTeam(actors, gaits), first | body | hidden, outputs)
    lead = ["batch", num_agents]
    held = description.command(lead, cfg.task.action_scale, decision_hz)
    decide = (
        "true in the first control step and every control_steps_per_decision after it: the "
        "actors decide"
    )
    models["team.onnx"] = {
        "inputs": {
            "obs": {"shape": [*lead, len(names[0])], "names": names, "rate_hz": decision_hz},
            "decide": {"shape": ["batch"], "type": "bool", "meaning": decide},
            "command": held
            | {"meaning": "command_out of the last control step; zeros in the first"},
            **description.gait_inputs(lead),
            **_hidden(hidden),
        },
        "outputs": {
            "joint_targets": description.joint_targets(lead),
            "command_out": held,
            "memory_out": description.gait_memory(lead),
            **{f"{name}_out": described for name, described in _hidden(hidden).items()},
        },
        "rate_hz": 1.0 / STEP_DT,
    }
    return made, models


def _gait_contract(scale: Sequence[float], decision_period: int) -> dict[str, Any]:
    lead = ["batch"]
    held = description.command(lead, scale, 1.0 / (STEP_DT * decision_period))
    outputs = {
        "joint_targets": description.joint_targets(lead),
        "memory_out": description.gait_memory(lead),
    }
    return {
        "inputs": {"command": held, **description.gait_inputs(lead)},
        "outputs": outputs,
        "rate_hz": 1.0 / STEP_DT,
    }


def _hidden(values: Mapping[str, Tensor]) -> dict[str, Any]:
    meaning = "zeros at the start of an episode, then hidden_out of the last decision"
    return {
        name: {"shape": ["batch", *value.shape[1:]], "meaning": meaning}
        for name, value in values.items()
    }


def _out(names: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{name}_out" for name in names)


def _gait_example(num_robots: int) -> dict[str, Tensor]:
    """Draw states of robots, one of four of them commanded to stand."""
    generator = torch.Generator().manual_seed(0)

    def around(size: int, spread: float) -> Tensor:
        return spread * (2.0 * torch.rand(num_robots, size, generator=generator) - 1.0)

    nominal = torch.tensor(ROBOTS[DEFAULT_ROBOT].joint_pos)
    command = around(3, 0.5) * (torch.arange(num_robots) % 4 > 0).unsqueeze(1)
    up_b = nn.functional.normalize(around(3, 0.3) + torch.tensor([0.0, 0.0, 1.0]), dim=-1)
    memory = torch.cat((around(1, 0.5) + 0.5, around(24, 1.0)), dim=-1)
    return {
        "command": command,
        "up_b": up_b,
        "angvel_b": around(3, 1.0),
        "joint_pos": nominal + around(NUM_JOINTS, 0.3),
        "joint_vel": around(NUM_JOINTS, 5.0),
        "memory": memory,
    }


def _write(exported: Exported, path: Path, is_batch: bool = True) -> None:
    """Write one network; the number of rows is free, or that of the example."""
    names = (*exported.inputs, *exported.outputs) if is_batch else ()
    axes = {name: {0: "batch"} for name in names}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of shapes that tracing fixes: all but the batch are fixed
        torch.onnx.export(
            exported.network,
            tuple(exported.inputs.values()),
            str(path),
            dynamo=False,
            opset_version=_OPSET,
            input_names=list(exported.inputs),
            output_names=list(exported.outputs),
            dynamic_axes=axes,
        )


def _session(path: Path) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    """Return a function from named inputs to outputs that ONNX Runtime computes."""
    runtime = _import("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Tensor]) -> list[Tensor]:
        feed = {name: values.numpy() for name, values in inputs.items()}
        return [torch.from_numpy(values) for values in session.run(None, feed)]

    return run


@torch.no_grad()
def _compare(exported: Exported, path: Path) -> float:
    """Return the largest difference between a file's outputs and the network's, of all rows and of
    one alone.
    """
    run = _session(path)
    worst = 0.0
    for rows in (slice(None), slice(3, 4)):
        inputs = {name: values[rows].contiguous() for name, values in exported.inputs.items()}
        wanted = exported.network(*inputs.values())
        worst = max(
            worst, *(float((a - b).abs().max()) for a, b in zip(wanted, run(inputs), strict=True))
        )
    return worst


def _compare_gait(gait: ExportedGait, robot: RobotCfg, path: Path) -> float:
    """Return the largest difference of joint targets from those of the environment's controller,
    step by step.
    """
    run = _session(path)
    worst = 0.0
    controller = GaitController(gait.policy, 1, Robots([robot] * _NUM_CHECKED))
    memory = torch.zeros(_NUM_CHECKED, description.GaitMemory.SIZE)
    no_forces = torch.zeros(3 * math.comb(_NUM_CHECKED, 2) + 3)
    for _ in range(_NUM_CHECKED):
        tilted = torch.tensor([1.0, 0.0, 0.0, 0.0]) + 0.2 * torch.randn(_NUM_CHECKED, 4)
        joints = 0.5 * torch.randn(_NUM_CHECKED, NUM_JOINTS)
        speed = torch.randn(_NUM_CHECKED, ROBOT_QVEL)
        qpos = torch.cat(
            (torch.zeros(_NUM_CHECKED, 3), nn.functional.normalize(tilted, dim=1), joints), dim=1
        )
        state = SceneState(
            torch.cat((qpos.flatten(), speed.flatten(), no_forces)).unsqueeze(1),
            _NUM_CHECKED,
            False,
        )
        command = (torch.rand(1, _NUM_CHECKED, 3) - 0.5) * (
            torch.arange(_NUM_CHECKED) % 4 > 0
        ).view(1, -1, 1)
        values = (command, state.up_b, state.robot_angvel_b, state.joint_pos, state.joint_vel)
        names = ("command", "up_b", "angvel_b", "joint_pos", "joint_vel")
        inputs = {name: value[0].contiguous() for name, value in zip(names, values, strict=True)}
        targets, memory = run(inputs | {"memory": memory})
        controller.command(command)
        worst = max(worst, float((targets - controller.targets(state)[0]).abs().max()))
    return worst


def _write_starts(cfg: RunCfg, path: Path) -> None:
    """Write where the first episode of every world starts, and the model fields that differ
    between worlds.
    """
    device = torch.device("cpu")
    setup = TASKS[cfg.task.name].make(
        cfg.task, cfg.env, device, Streams(cfg.runner.seed, cfg.env.num_envs, device)
    )
    layout = setup.task.layout(torch.zeros(cfg.env.num_envs, dtype=torch.int64))
    qpos, qvel, goal = pack_layout(setup.scene, layout)
    arrays = {"qpos": qpos, "qvel": qvel, "goal": goal[:, 0]}
    arrays |= {f"model.{name}": values for name, values in setup.fields.items()}
    np.savez_compressed(
        path, allow_pickle=False, **{name: values.numpy() for name, values in arrays.items()}
    )


def _import(name: str) -> Any:
    """Import what only an export needs; raise ConfigError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"{name} is not installed; pip install 'mapush[export]'") from None


if __name__ == "__main__":
    sys.exit(main())
