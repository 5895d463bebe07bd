"""Folder of an export: networks, their contract, the scene and the episodes' initial layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harl_mapush.config import RunCfg
from mapush.export import description, gait_networks, onnx_files
from mapush.export.exported_networks import ExportedGait
from mapush.export.exporter import EXPORTERS, Exporter, ExportRequest
from mapush.export.push_episodes import describe_terminations
from mapush.export.scene_files import least_mujoco, write_scene, write_starts
from mapush.export.team_networks import TeamNetworks
from mqe.controllers.gait import gait_names, load_gait
from mqe.env.environment import MultiAgentEnv
from mqe.manifest import renew_manifest
from mqe.registry import TASKS, make_env
from mqe.tasks.push import PushTask
from mqe.world.robots import Robots

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
    folder = request.folder
    out = request.out
    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    try:
        robots = Robots(env.scene.robots)
        gaits = _gaits(cfg, folder, env)
        files = {name: gait_networks.as_file(gait) for name, gait in gaits.items()}
        contract = _contract(cfg, env, request.name)
        entry = TASKS[cfg.task.name]
        actions = entry.actions(cfg.task)
        scale = actions["max_command"] if entry.is_gait else actions.get("scale", ())
        models = {name: gait_networks.contract(scale, env.decision_period) for name in gaits}
        if not entry.is_gait:
            team = TeamNetworks(env, cfg, folder, list(gaits.values()))
            files = team.files() | files
            models = team.contracts() | models
            contract["starts"] = STARTS
            if isinstance(env.task, PushTask):
                contract |= _of_pushes(cfg)
            write_starts(cfg, out / STARTS)
        write_scene(env, request.looks, out / SCENE, request.say)
        contract["mujoco_at_least"] = least_mujoco(out / SCENE)
    finally:
        env.close()
    contract["models"] = models
    (out / CONTRACT).write_text(json.dumps(contract, indent=2) + "\n", encoding="utf-8")

    worst = {}
    for name, exported in files.items():
        onnx_files.write(exported, out / name)
        worst[name] = onnx_files.largest_difference(exported, out / name)
    for (name, gait), robot in zip(gaits.items(), robots.cfgs, strict=False):
        difference = gait_networks.largest_difference(gait, robot, out / name)
        worst[name] = max(worst[name], difference)
    onnx_files.check(worst)
    renew_manifest(out)  # a checksum of every file
    return worst


def _gaits(cfg: RunCfg, folder: Path, env: MultiAgentEnv) -> dict[str, ExportedGait]:
    """Return every robot's gait by its file's name, none if actions are no commands for gaits.

    A gait's checkpoint has its own actor.
    """
    entry = TASKS[cfg.task.name]
    robots = env.scene.robots
    if entry.is_gait:
        names = [str(folder)]
        files = ["gait.onnx"]
    elif entry.gaits is not None:
        names = gait_names(entry.gaits(cfg.task), robots)
        files = [f"gait_agent{agent}.onnx" for agent in range(len(robots))]
    else:
        return {}
    return {
        file: ExportedGait(load_gait(name, env.device, robot), robot)
        for file, name, robot in zip(files, names, robots, strict=True)
    }


def _contract(cfg: RunCfg, env: MultiAgentEnv, what: str) -> dict[str, Any]:
    """Describe the common part of exported teams and gaits."""
    return {
        "format_version": description.FORMAT_VERSION,
        "task": cfg.task.name,
        "checkpoint": what,
        "versions": description.versions(),
        "rates": description.rates(env.decision_period),
        "robots": description.robots(env.scene),
        "motors": description.motors(env.scene),
        "scene": SCENE,
    }


def _of_pushes(cfg: RunCfg) -> dict[str, Any]:
    """Describe a pushing team's episodes."""
    return {
        "object": cfg.task.object if cfg.task.shapes is None else f"shapes: {cfg.task.shapes}",
        "keeps_apart_m": cfg.task.keep_apart,
        "episode": describe_terminations(cfg.task),
    }


EXPORTERS.register(
    "onnx", Exporter("networks as ONNX, with a contract and the scene", write, check)
)
