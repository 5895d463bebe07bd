"""Folder of an export: networks, their contract, the scene and the episodes' initial layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harl_mapush.config import RunCfg
from mapush.export import description, models, onnx_files
from mapush.export.description import describe_terminations
from mapush.export.exported_networks import ExportedGait
from mapush.export.exporter import EXPORTERS, Exporter, ExportRequest
from mapush.export.scene_files import least_mujoco, write_scene, write_starts
from mqe.config import ConfigError
from mqe.controllers.gait import gait_names, load_gait
from mqe.env.environment import MultiAgentEnv
from mqe.manifest import renew_manifest, versions
from mqe.registry import TASKS, make_env
from mqe.tasks.push import PushTask

CONTRACT = "contract.json"
SCENE = "scene.xml"
STARTS = "starts.npz"


def check(request: ExportRequest) -> None:
    """Raise ConfigError without ONNX."""
    onnx_files.check_packages()


def write(request: ExportRequest) -> dict[str, float]:
    """Write networks, contract, scene and initial layouts. Return the largest differences from
    torch.

    Raises ConfigError for a too large difference.
    """
    cfg = request.cfg
    out = request.out
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
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
    finally:
        env.close()
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
        "motors": description.motors(env.scene),
        "scene": SCENE,
    }


EXPORTERS.register(
    "onnx", Exporter("networks as ONNX, with a contract and the scene", write, check)
)
