"""Checkpoints: folders with flat tensor files beside the run's ``config.yaml``, each usable alone.

``actor_agent{i}.pt`` for each agent, ``critic_agent.pt`` and ``value_normalizer.pt`` are plain
state dicts on the CPU. ``training_state.pt`` is optional, for ``--resume``. ``manifest.json`` has
each file's checksum. No code is unpickled here. Other kinds of checkpoint from the registry
``FORMATS`` can be evaluated as well.
"""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.runs import durable
from harl_mapush.runs.formats import FORMATS, Format, foreign
from harl_mapush.runs.run_folder import CHECKPOINTS, CONFIG, checkpoints, step_name
from mqe.config import ConfigError, nearest, reason_of
from mqe.controllers.frozen_policy import DESCRIPTION, describe_policy, policy_folder
from mqe.hub import HUB
from mqe.manifest import check_files, damage, write_manifest
from mqe.pretrained import PRETRAINED, pretrained_names
from mqe.tensor_files import is_plain, read_file, read_tensors, reason

TRAINING_STATE = "training_state.pt"
# Limit for all training states in a run together. The newest is kept even if it is larger.
TRAINING_STATES_BYTES = 256 * 2**20


def actor_file(agent: int) -> str:
    """Return the file name for one agent's actor."""
    return f"actor_agent{agent}.pt"


def stored_file(folder: Path, name: str) -> str:
    """Return the name under which a checkpoint stores the network file ``name``.

    A checkpoint whose ``policy.yaml`` has one actor for all robots may store only the first file.
    """
    if not name.startswith("actor_agent") or (folder / name).is_file():
        return name
    if not (folder / DESCRIPTION).is_file():
        return name
    files = list(describe_policy(str(folder), "checkpoint").weights)
    stems = {Path(file).stem: file for file in files}
    return files[0] if len(files) == 1 else stems.get(Path(name).stem, name)


def actor_files(folder: Path, num_agents: int) -> list[str]:
    """Return the names of the files with the actors of ``num_agents`` agents, each once."""
    name = format_of(folder).actor_file
    return list(dict.fromkeys(stored_file(folder, name(i)) for i in range(num_agents)))


def save(
    run: Path,
    env_steps: int,
    networks: Mapping[str, nn.Module],
    training_state: Mapping[str, Any] | None = None,
    *,
    settings: str | None = None,
    device: str = "cpu",
    named_files: Mapping[str, str] | None = None,
    export: Callable[[Path], object] | None = None,
) -> Path:
    """Write a run's ``checkpoints/<env steps>/``. A final rename makes incomplete ones impossible.

    ``networks`` are the algorithm's. ``settings`` is the text of the checkpoint's ``config.yaml``,
    by default the run's. The digests ``named_files`` are stored in its manifest. ``export`` writes
    further files into the folder, before the manifest.
    """
    folder = run / CHECKPOINTS / step_name(env_steps)
    # The run's folder is not made again, since it may have been moved.
    folder.parent.mkdir(exist_ok=True)
    with durable.new_folder(folder) as partial:
        for name, network in networks.items():
            weights = {key: value.cpu().clone() for key, value in network.state_dict().items()}
            torch.save(weights, partial / f"{name}.pt")
        if training_state is not None:
            torch.save(training_state, partial / TRAINING_STATE)
        if settings is None:
            settings = (run / CONFIG).read_text(encoding="utf-8")
        (partial / CONFIG).write_text(settings, encoding="utf-8")
        if export is not None:
            export(partial)
        write_manifest(partial, device, named_files)
    _drop_old_training_states(run)
    return folder


def resolve(name: str | Path) -> Path:
    """Return the folder of a checkpoint, of a run's last checkpoint, or of ``pretrained:NAME``.

    A policy in a single file, if its format has any, is returned unchanged. The folder needs its
    settings and actors only. Raises ConfigError for an absent, unknown or incomplete folder.
    """
    folder = _locate(str(name))
    kind = format_of(folder)
    num_agents = kind.num_agents(folder)
    if folder.is_file():
        return folder
    files = actor_files(folder, num_agents)
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ConfigError(_incomplete(folder, missing))
    check_files(folder, files)
    return folder


def all_checkpoints(run: Path) -> list[tuple[int, Path]]:
    """Return a run's checkpoints as env steps and path, oldest first, all in one format."""
    listings = (kind.checkpoints(run) for kind in FORMATS.values())
    return sorted(next(filter(None, listings), []))


def format_of(folder: Path) -> Format:
    """Return a checkpoint folder's kind. Raise ConfigError if its settings are missing."""
    for kind in FORMATS.values():
        if kind.is_format_of(folder):
            return kind
    raise ConfigError(_incomplete(folder, [CONFIG]))


def read_config(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's settings as plain values, in the sections of our runs."""
    return format_of(folder).read_config(folder)


def read_training_state(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's training state onto the CPU without running code in it.

    Raises ConfigError for a damaged file.
    """
    try:
        state = read_file(folder / TRAINING_STATE)
    except Exception as error:  # torch's reader raises many types
        raise damaged_state(folder, reason(error)) from None
    if not isinstance(state, dict):
        raise damaged_state(folder, "not a dictionary")
    if not is_plain(state):
        raise damaged_state(folder, "some of its tensors are not plain numbers")
    return state


def damaged_state(folder: Path, detail: str) -> ConfigError:
    """Format the error for a damaged training state."""
    return ConfigError(
        f"{folder / TRAINING_STATE}: damaged ({detail}); --resume an earlier checkpoint of the run"
    )


def check_whole(folder: Path) -> None:
    """Raise ConfigError if a file for resuming the run is missing or damaged."""
    problem = damage(folder)
    if problem is not None:
        raise ConfigError(problem)
    resolve(str(folder))
    if not (folder / TRAINING_STATE).is_file():
        raise ConfigError(f"it has no {TRAINING_STATE}, so it can be evaluated but not resumed")


def load(folder: Path, networks: Mapping[str, nn.Module]) -> None:
    """Load a checkpoint into networks with equal shapes. Raise ConfigError for other networks."""
    stored = {name: stored_file(folder, f"{name}.pt") for name in networks}
    check_files(folder, stored.values())
    for name, network in networks.items():
        path = folder / stored[name]
        _fill(path, network, read_tensors(path))


def read_actors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return a checkpoint's actors as state dicts on the CPU, by name.

    Raises ConfigError for a damaged file.
    """
    files = folder.glob("actor_agent*")
    paths = sorted(path for path in files if path.suffix in (".pt", ".safetensors"))
    check_files(folder, [path.name for path in paths])
    return {path.stem: read_tensors(path) for path in paths}


def remove_partial(run: Path) -> None:
    """Remove the incomplete checkpoints in a run's folder, left by a killed process."""
    for path in (run / CHECKPOINTS).glob(".*-*"):
        shutil.rmtree(path, ignore_errors=True)


def _fill(path: Path, module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Load a checkpoint file's values into a network. Raise ConfigError if they do not fit."""
    try:
        module.load_state_dict(values)
    except (RuntimeError, KeyError) as error:
        detail = reason_of(error)
        detail = re.sub(r"^Error\(s\) in loading state_dict for \w+: ", "", detail)[:160]
        raise ConfigError(
            f"checkpoint file {path}: does not fit this task, robot count and network ({detail}); "
            f"the settings that it was trained with are in its own {format_of(path.parent).config}"
        ) from None


def _drop_old_training_states(run: Path) -> None:
    """Remove a run's oldest training states beyond the size limit. The newest stays."""
    taken = 0
    for i, (_, folder) in enumerate(checkpoints(run)):
        path = folder / TRAINING_STATE
        if path.is_file():
            taken += path.stat().st_size
        if i > 0 and taken > TRAINING_STATES_BYTES:
            path.unlink(missing_ok=True)


def _locate(name: str) -> Path:
    if name.startswith((PRETRAINED, HUB)):
        return policy_folder(name, "checkpoint")
    path = Path(name)
    if os.path.isfile(name):  # unlike Path, os.path accepts impossible file names
        if path.name in [kind.config for kind in foreign()]:
            path = path.parent
        elif any(kind.is_format_of(path) for kind in foreign()):
            return path
    kinds = "a checkpoint folder, a run folder or pretrained:NAME"
    if not os.path.isdir(path):
        problem = "is not a folder" if os.path.exists(name) else "does not exist"
        meant = nearest(name, pretrained_names())
        hint = f"give {kinds}" if meant is None else f"did you mean {PRETRAINED}{meant}?"
        raise ConfigError(f"checkpoint {name!r} {problem}; {hint}")

    if (path / CHECKPOINTS).is_dir():
        saved = all_checkpoints(path)
        if not saved:
            raise ConfigError(f"checkpoint {name!r}: this run has no checkpoint yet; give {kinds}")
        return saved[-1][1]
    for kind in foreign():
        if (path / kind.folder).is_dir() and (path / kind.config).is_file():
            return path / kind.folder
    if not any(path.glob("*.pt")) and not (path / CONFIG).exists():
        raise ConfigError(
            f"checkpoint {name!r} is neither a run nor a checkpoint; give {kinds} (mapush list "
            f"{shlex.quote(name)} lists the runs in a folder)"
        )
    return path


def _incomplete(folder: Path, missing: Sequence[str]) -> str:
    files = ", ".join(missing)
    if CONFIG in missing:
        files += "".join(f" or {kind.owner} {kind.config}" for kind in foreign())
    return f"checkpoint {folder}: incomplete, it lacks {files}; use another checkpoint of the run"
