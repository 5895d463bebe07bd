"""Checkpoints: folders of flat tensor files beside the run's ``config.yaml``, each usable alone.

``actor_agent{i}.pt`` per agent, ``critic_agent.pt`` and ``value_normalizer.pt`` are plain state
dicts on the CPU;
``training_state.pt``, where present, is what ``--resume`` reads; ``manifest.json`` has a checksum
of each. Nothing here
unpickles code. Checkpoints of other kinds in the registry ``FORMATS`` can be evaluated as well.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harl_mapush.runs import durable, gait_export
from harl_mapush.runs.formats import FORMATS, Format, foreign
from harl_mapush.runs.run_folder import CHECKPOINTS, CONFIG, checkpoints, step_name
from mqe.config import ConfigError
from mqe.manifest import MANIFEST, check_files, damage, write_manifest
from mqe.pretrained import PRETRAINED, pretrained_folder
from mqe.tensor_files import is_plain, read_file, read_tensors

TRAINING_STATE = "training_state.pt"
# A run's training states take no more together, unless a single one does.
TRAINING_STATES_BYTES = 256 * 2**20


def actor_file(agent: int) -> str:
    """Name the file of one agent's actor."""
    return f"actor_agent{agent}.pt"


def save(
    run: Path,
    env_steps: int,
    networks: Mapping[str, nn.Module],
    training_state: Mapping[str, Any] | None = None,
    *,
    settings: str | None = None,
    device: str = "cpu",
    gait_sha256: str | None = None,
) -> Path:
    """Write ``checkpoints/<env steps>/`` of a run by a rename, so that neither a kill nor a power
    loss leaves half.

    ``networks`` are the algorithm's, ``settings`` is the text of its ``config.yaml``, the run's own
    by default;
    ``gait_sha256`` is for its manifest.
    """
    folder = run / CHECKPOINTS / step_name(env_steps)
    folder.parent.mkdir(exist_ok=True)  # not its parents: a run that was moved is not made again
    with durable.new_folder(folder) as partial:
        for name, network in networks.items():
            torch.save(_plain(network), partial / f"{name}.pt")
        if training_state is not None:
            torch.save(training_state, partial / TRAINING_STATE)
        text = (run / CONFIG).read_text(encoding="utf-8") if settings is None else settings
        (partial / CONFIG).write_text(text, encoding="utf-8")
        gait_export.export(partial)
        write_manifest(partial, device, gait_sha256)
    _drop_old_training_states(run)
    return folder


def resolve(what: str | Path) -> Path:
    """Find the checkpoint folder that ``what`` means: itself, a run's last one, or
    ``pretrained:NAME``.

    Only its settings and actors are needed. Raises ConfigError for one that is absent, unknown or
    incomplete.
    """
    folder = _locate(str(what))
    kind = format_of(folder)
    num_agents = kind.num_agents(folder)
    files = dict.fromkeys(kind.actor_file(agent) for agent in range(num_agents))
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ConfigError(_incomplete(folder, missing))
    further = kind.actor_file(num_agents)
    if further not in files and (folder / further).exists():
        raise ConfigError(
            f"checkpoint {folder}: has more actors than its {CONFIG} has robots ({num_agents})"
        )
    check_files(folder, files)
    return folder


def format_of(folder: Path) -> Format:
    """Return which kind of checkpoint a folder is; raise ConfigError for one whose settings are
    missing.
    """
    for kind in FORMATS.values():
        if kind.is_format_of(folder):
            return kind
    others = [
        f" (or {kind.config}, if it is {kind.owner})"
        for kind in foreign()
        if kind.folder == folder.name
    ]
    raise ConfigError(_incomplete(folder, [CONFIG + "".join(others)]))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the plain values of a checkpoint's settings, as sections of a run of ours."""
    return format_of(folder).read_config(folder)


def read_training_state(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's training state onto the CPU, without running code in it; raise
    ConfigError if damaged.
    """
    try:
        state = read_file(folder / TRAINING_STATE)
    except Exception as error:  # as in read_tensors
        raise damaged_state(folder, type(error).__name__) from None
    if not isinstance(state, dict):
        raise damaged_state(folder, "not a dictionary")
    if not is_plain(state):
        raise damaged_state(folder, "holds tensors that are not plain numbers")
    return state


def damaged_state(folder: Path, detail: str) -> ConfigError:
    """Format the error for a training state from which no run can resume."""
    return ConfigError(
        f"{folder / TRAINING_STATE}: damaged ({detail}); --resume an earlier checkpoint of the run"
    )


def check_whole(folder: Path) -> None:
    """Raise ConfigError if no run can resume from a checkpoint of ours: a file is missing or
    damaged.
    """
    problem = damage(folder)  # every file, by name, before any is read
    if problem is not None:
        raise ConfigError(problem)
    resolve(str(folder))
    if not (folder / TRAINING_STATE).is_file():
        raise ConfigError(
            f"it has no {TRAINING_STATE}, so that it can be evaluated but cannot be resumed"
        )
    if not (folder / MANIFEST).is_file():  # an older one: see whether its files can be read at all
        read_training_state(folder)


def check_actors(folder: Path) -> None:
    """Read a checkpoint's actors once; raise ConfigError for a damaged file."""
    for path in sorted(folder.glob("actor_agent*.pt")):
        read_tensors(path)


def load(folder: Path, networks: Mapping[str, nn.Module]) -> None:
    """Put a checkpoint into an algorithm's networks of the same shape; raise ConfigError where it
    does not fit.
    """
    _load(folder, {f"{name}.pt": network for name, network in networks.items()})


def load_actors(
    folder: Path,
    networks: Mapping[str, nn.Module],
    weights: Mapping[str, dict[str, Tensor]] | None = None,
) -> None:
    """Put a checkpoint's actors, ours or upstream's, into networks of the same shape; raise
    ConfigError as ``load``.

    ``weights`` are its actors' as ``read_actors`` returned them; None reads them now.
    """
    actors = {name: network for name, network in networks.items() if name.startswith("actor_agent")}
    if weights is None:
        load(folder, actors)
        return
    for name, network in actors.items():
        _fill(folder / f"{name}.pt", network, weights[name])


def read_actors(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return a checkpoint's actors, state dicts on the CPU by name; raise ConfigError for a
    damaged file.
    """
    paths = sorted(folder.glob("actor_agent*.pt"))
    check_files(folder, [path.name for path in paths])
    return {path.stem: read_tensors(path) for path in paths}


def remove_partial(run: Path) -> None:
    """Remove what a process that was killed while it saved left behind."""
    for path in (run / CHECKPOINTS).glob(".*-*"):
        shutil.rmtree(path, ignore_errors=True)


def _load(folder: Path, modules: Mapping[str, nn.Module]) -> None:
    check_files(folder, modules)
    for name, module in modules.items():
        _fill(folder / name, module, read_tensors(folder / name))


def _fill(path: Path, module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put the values of a checkpoint's file into a network; raise ConfigError where they do not
    fit.
    """
    try:
        module.load_state_dict(values)
    except (RuntimeError, KeyError) as error:
        detail = " ".join(str(error).split())
        detail = re.sub(r"^Error\(s\) in loading state_dict for \w+: ", "", detail)[:160]
        raise ConfigError(
            f"checkpoint file {path}: does not fit this task, robot count and network ({detail}); "
            f"the settings that it goes with are in its own {format_of(path.parent).config}"
        ) from None


def _drop_old_training_states(run: Path) -> None:
    """Remove the oldest training states of a run beyond their allowance; the newest stays."""
    taken = 0
    for i, (_, folder) in enumerate(checkpoints(run)):
        path = folder / TRAINING_STATE
        taken += path.stat().st_size if path.is_file() else 0
        if i > 0 and taken > TRAINING_STATES_BYTES:
            path.unlink(missing_ok=True)


def _plain(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}


def _locate(what: str) -> Path:
    if what.startswith(PRETRAINED):
        return pretrained_folder(what.removeprefix(PRETRAINED))
    if os.path.isfile(what) and os.path.basename(what) in [kind.config for kind in foreign()]:
        what = os.path.dirname(what) or "."
    path = Path(what)
    kinds = "a checkpoint folder, a run folder or pretrained:NAME"
    if not os.path.isdir(what):  # also of a name that cannot be one
        problem = "is not a folder" if os.path.exists(what) else "does not exist"
        raise ConfigError(f"--checkpoint {what!r} {problem}; give {kinds}")
    if (path / CHECKPOINTS).is_dir():
        found = [kind.newest(path) for kind in FORMATS.values()]
        last = next((folder for folder in found if folder is not None), None)
        if last is None:
            raise ConfigError(
                f"--checkpoint {what!r}: this run has no checkpoint yet; give {kinds}"
            )
        return last
    for kind in foreign():
        if (path / kind.folder).is_dir() and (path / kind.config).is_file():
            return path / kind.folder
    if not any(path.glob("*.pt")) and not (path / CONFIG).exists():
        raise ConfigError(
            f"--checkpoint {what!r} holds neither a run nor a checkpoint; give {kinds}"
        )
    return path


def _incomplete(folder: Path, missing: Sequence[str]) -> str:
    return (
        f"checkpoint {folder}: incomplete, it lacks {', '.join(missing)}; take another "
        "checkpoint of the run"
    )
