"""OpenRL's ``module.pt`` as a checkpoint format. An import registers it."""

import re
from pathlib import Path

import torch

from harl_mapush import config
from harl_mapush.runs import exported
from harl_mapush.runs.checkpoint import CONFIG as OUR_CONFIG
from harl_mapush.runs.checkpoint import actor_file
from harl_mapush.runs.formats import FORMATS, Format
from harl_mapush.runs.policy import TeamPolicy, check_sizes
from harl_mapush.runs.run_folder import CHECKPOINTS
from mapush.extensions.openrl.mapush_policies import convert
from mapush.extensions.openrl.openrl_files import MODULE
from mqe.config import dump_yaml, to_dict
from mqe.controllers.network import build_network, declare
from mqe.manifest import renew_manifest
from mqe.notices import note
from mqe.vec_env import VecEnv


def _load_team(folder: Path, env: VecEnv) -> TeamPolicy:
    """Load a policy, shared by all robots. Raise ConfigError if it does not fit ``env``."""
    policy = convert(folder)
    for notice in policy.notices:
        note(f"{folder}: {notice}")
    layers = declare(policy.actor)
    assert layers is not None  # an actor of ours
    network = build_network([layers], [policy.actor.state_dict()])
    check_sizes(folder, network, env.spec)
    return TeamPolicy(network.to(env.device))


def _write_checkpoint(source: Path, folder: Path) -> None:
    """Write a policy as a checkpoint of ours into an empty ``folder``."""
    policy = convert(source)
    torch.save(policy.actor.state_dict(), folder / actor_file(0))
    settings = to_dict(config.resolve(policy.sections, {})[0])
    (folder / OUR_CONFIG).write_text(dump_yaml(settings), encoding="utf-8")
    exported.copy_description(folder, folder)
    renew_manifest(folder)


def env_steps_of(path: Path) -> int:
    """Return the env steps in a folder name like ``rl_model_100000000_steps``, 0 without them."""
    match = re.fullmatch(r"rl_model_(\d{1,15})_steps", path.absolute().parent.name)
    return int(match[1]) if match else 0


def _is_format_of(folder: Path) -> bool:
    if folder.is_file():
        return folder.suffix == ".pt"
    return not (folder / OUR_CONFIG).is_file() and (folder / MODULE).is_file()


def _checkpoints(run: Path) -> list[tuple[int, Path]]:
    checkpoints = [(env_steps_of(path), path) for path in (run / CHECKPOINTS).glob(f"*/{MODULE}")]
    return [(env_steps, path.parent) for env_steps, path in checkpoints if env_steps > 0]


FORMATS.register(
    "openrl",
    Format(
        owner="OpenRL's",
        config=MODULE,
        folder="",  # the file is in the checkpoint's folder itself
        is_format_of=_is_format_of,
        num_agents=lambda folder: convert(folder).sections["env"]["num_agents"],
        read_config=lambda folder: convert(folder).sections,
        load_team=_load_team,
        actor_file=lambda agent: MODULE,
        checkpoints=_checkpoints,
        write_checkpoint=_write_checkpoint,
    ),
)
