"""Folder of an export: networks, their contract, the scene and the episodes' initial layouts."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harl_mapush.config import RunCfg
from mapush.export import description, models, onnx_files
from mapush.export.description import describe_terminations
from mapush.export.exported_networks import ExportedGait
from mapush.export.exporter import EXPORTERS, Exporter, ExportRequest
from mqe.config import ConfigError
from mqe.controllers.gait import gait_names, load_gait
from mqe.env.environment import MultiAgentEnv
from mqe.manifest import renew_manifest, versions
from mqe.registry import TASKS, make_env
from mqe.tasks.push import PushTask
from mqe.world.scene import pack_layout
from mqe.world.streams import Streams

CONTRACT = "contract.json"
SCENE = "scene.xml"
STARTS = "starts.npz"


def write(request: ExportRequest) -> dict[str, float]:
    """Write networks, contract, scene and initial layouts. Return the largest differences from
    torch.

    Raises ConfigError for a too large difference, and without ONNX.
    """
    onnx_files.check_packages()
    cfg = request.cfg
    out = request.out
    with closing(make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)) as env:
        contract = _contract(cfg, env, request.name)
        exported = _models(cfg, request.folder, env)
        if not TASKS[cfg.task.name].is_gait:
            contract["starts"] = STARTS
            write_starts(cfg, out / STARTS)
        if isinstance(env.task, PushTask):
            shapes = cfg.task.shapes
            contract["object"] = cfg.task.object if shapes is None else f"shapes: {shapes}"
            contract["keeps_apart_m"] = cfg.task.keep_apart
            contract["senses"] = cfg.task.senses
            contract["episode"] = describe_terminations(cfg.task)
        write_scene(env, out / SCENE)
        contract["mujoco_at_least"] = least_mujoco(out / SCENE)
    contract["models"] = {name: model.contract for name, model in exported.items()}
    (out / CONTRACT).write_text(json.dumps(contract, indent=2) + "\n", encoding="utf-8")

    worst = {}
    for name, model in exported.items():
        onnx_files.write(model, out / name)
        worst[name] = onnx_files.largest_difference(model, out / name)
    onnx_files.check(worst)
    renew_manifest(out)  # a checksum of every file
    return worst


def _models(cfg: RunCfg, folder: Path, env: MultiAgentEnv) -> dict[str, onnx_files.Exported]:
    """Return the networks by file name: a gait alone, or actors and the gaits under them."""
    entry = TASKS[cfg.task.name]
    actions = entry.actions(cfg.task)
    robots = env.scene.robots
    period = env.decision_period
    if entry.is_gait:
        network = ExportedGait(load_gait(str(folder), env.device, robots[0]), robots[0])
        return {"gait.onnx": models.gait(network, actions["max_command"], period)}
    exported = models.actors(env, cfg, folder, commands_gaits=entry.gaits is not None)
    if entry.gaits is None:
        return exported
    for agent, name in enumerate(gait_names(entry.gaits(cfg.task), robots)):
        if not name:
            raise ConfigError("robots on wheels are not exported as ONNX; say --for policy")
        network = ExportedGait(load_gait(name, env.device, robots[agent]), robots[agent])
        model = models.gait(network, actions["scale"], period)
        exported[f"gait_agent{agent}.onnx"] = model
    return exported


def _contract(cfg: RunCfg, env: MultiAgentEnv, what: str) -> dict[str, Any]:
    """Describe the common part of exported teams and gaits."""
    return {
        "format_version": description.FORMAT_VERSION,
        "task": cfg.task.name,
        "checkpoint": what,
        "versions": versions(),
        "rates": description.rates(env.decision_period),
        "robots": description.robots(env.scene),
        "motors": description.motors(),
        "scene": SCENE,
    }


def write_scene(env: MultiAgentEnv, path: Path) -> None:
    """Write the scene as MJCF."""
    text = env.scene.spec.to_xml()
    # Attributes that only look, unknown to MuJoCo 3.3
    text = text.replace('type="directional"', 'directional="true"')
    text = re.sub(r' colorspace="\w+"', "", text)
    path.write_text(text, encoding="utf-8")


def least_mujoco(scene: Path) -> str:
    """Return the oldest MuJoCo version able to read a scene. Its contact sensors and motors are
    new.
    """
    has_dc_motors = 'dyntype="dcmotor"' in scene.read_text(encoding="utf-8")
    return "3.12.0" if has_dc_motors else "3.3.5"


def write_starts(cfg: RunCfg, path: Path) -> None:
    """Write every world's first initial layout, its object's outline, and the model fields with
    per-world values.
    """
    device = torch.device("cpu")
    setup = TASKS[cfg.task.name].make(
        cfg.task, cfg.env, device, Streams(cfg.runner.seed, cfg.env.num_envs, device)
    )
    layout = setup.task.layout(torch.zeros(cfg.env.num_envs, dtype=torch.int64))
    qpos, qvel, goal = pack_layout(setup.scene, layout)
    arrays = {"qpos": qpos, "qvel": qvel, "goal": goal[:, 0]}
    if isinstance(setup.task, PushTask):
        footprint = setup.task.constants.footprint
        arrays["outline"] = footprint.points_of(len(qpos)).expand(len(qpos), -1, -1)
    arrays |= {f"model.{name}": values for name, values in setup.fields.items()}
    np.savez_compressed(
        path, allow_pickle=False, **{name: values.numpy() for name, values in arrays.items()}
    )


EXPORTERS.register("onnx", Exporter("networks as ONNX, with a contract and the scene", write))
