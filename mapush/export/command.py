"""Write a trained policy in another form: ``mapush export CHECKPOINT OUT_DIR``.

The default is ONNX, with a contract in JSON and the scene.

The exported files need ONNX Runtime, and MuJoCo for the scene, but not this library
(``examples/exported_team.py``).
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.process import say, seed_everything
from harl_mapush.runs import checkpoint, durable, evaluation_worlds
from mapush.export import onnx_folder, policy_folder  # noqa: F401, register exporters
from mapush.export.exporter import EXPORTERS, ExportRequest
from mqe.config import ConfigError, merge
from mqe.hub import upload

PROGRAM = "mapush export"
ENV_SETTINGS = ("num_agents", "model")  # allowed in an export


def make_parser() -> config.Parser:
    """Build the command line."""
    parser = config.Parser(
        prog=PROGRAM,
        description="A trained policy as ONNX, with a description of every number.",
        example="mapush export pretrained:cuboid team",
    )
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a checkpoint folder, a run folder or pretrained:NAME",
    )
    parser.add_argument("target", metavar="OUT_DIR", help="the folder to make")
    parser.add_argument(
        "--for",
        dest="form",
        metavar="FORM",
        default="onnx",
        help="form of the export (default: onnx); "
        + "; ".join(f"{name}: {exporter.help}" for name, exporter in EXPORTERS.items()),
    )
    parser.add_argument(
        "--last",
        type=int,
        metavar="K",
        default=1,
        help="number of the run's last checkpoints whose mean is exported (--for policy)",
    )
    parser.add_argument(
        "--hub", metavar="USER/TEAM", help="upload the folder (--for policy); fetch it as hub:NAME"
    )
    config.add_import(parser)
    config.add_flags(parser, ("--seed", "--num_agents"))
    return parser


@config.command(make_parser)
def main(arguments: Any) -> int:
    """Export a policy. Return the exit code."""
    out = Path(arguments.target)
    _check_new(out)
    exporter = EXPORTERS.find(arguments.form, "--for")
    if arguments.last < 1 or (arguments.last > 1 and arguments.form != "policy"):
        raise ConfigError(
            f"--last {arguments.last}: must be at least 1, and 1 without --for policy; leave it out"
        )
    if arguments.hub is not None and arguments.form != "policy":
        raise ConfigError(f"--hub {arguments.hub}: needs --for policy; add it, or leave out --hub")
    folder = checkpoint.resolve(arguments.checkpoint)
    cfg = _settings(folder, arguments)
    request = ExportRequest(cfg, folder, arguments.checkpoint, out, arguments.last)
    seed_everything(cfg.runner.seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with durable.new_folder(out) as partial:
        worst = exporter.write(request._replace(out=partial))
        if arguments.hub is not None:
            policy_folder.use_safetensors(partial)
    differences = ", ".join(f"{name} {error:.1e}" for name, error in worst.items())
    say(f"{out}: largest differences from torch: {differences}." if worst else f"{out}: done.")
    if arguments.hub is not None:
        say(f"Uploaded: {upload(out, arguments.hub)}")
    return 0


def _check_new(out: Path) -> None:
    """Raise ConfigError, before any work, for a folder that cannot be made."""
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; name another folder, or remove it")
    existing = next(parent for parent in out.absolute().parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"{out} cannot be made: {existing} is no folder that you may write to")


def _settings(folder: Path, arguments: Any) -> RunCfg:
    """Return the checkpoint's settings in the calculator's worlds, changed by ``--set``."""
    suite: Mapping[str, Any] = {}
    if arguments.suite is not None:
        suite = config.load_suite(arguments.suite).worlds
    changes = config.flag_values(arguments)
    _check_changes(changes, suite, arguments.suite)
    return evaluation_worlds.settings(
        folder, merge({"sim": {"name": "mujoco", "device": "cpu"}}, changes)
    )


def _check_changes(changes: Mapping[str, Any], suite: Mapping[str, Any], name: str | None) -> None:
    """Raise ConfigError for a setting without a meaning in an export. ``name`` is the suite's."""
    for section in sorted(changes.keys() - {"task", "runner"}):
        allowed = {"imports", *ENV_SETTINGS} if section == "env" else set()
        for key in sorted(changes[section].keys() - allowed):
            source = f"--suite {name}: " if key in suite.get(section, {}) else ""
            raise ConfigError(
                f"{source}{section}.{key}: no export takes it; leave it out (an export takes task, "
                f"{', '.join(f'env.{setting}' for setting in ENV_SETTINGS)} and seed)"
            )
