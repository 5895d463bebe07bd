"""Files for an exported world: the scene as MJCF, and the episodes' initial layouts."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from harl_mapush.config import RunCfg
from mqe.env.environment import MultiAgentEnv
from mqe.registry import TASKS
from mqe.tasks.push import PushTask
from mqe.world.scene import pack_layout
from mqe.world.streams import Streams


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
