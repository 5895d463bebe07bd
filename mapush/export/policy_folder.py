"""A policy as a checkpoint folder: the last checkpoint, or the mean of the last ones.

With a constant learning rate, the weights keep fluctuating around an optimum. The mean of several
checkpoints is then mostly nearer to the optimum than a single one (B. T. Polyak and A. B. Juditsky,
"Acceleration of Stochastic Approximation by Averaging", 1992).
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from harl_mapush.process import say
from harl_mapush.runs import checkpoint, exported
from harl_mapush.runs.run_folder import checkpoints
from mapush.export.exporter import EXPORTERS, Exporter, ExportRequest
from mqe.config import ConfigError, import_extra
from mqe.controllers.frozen_policy import DESCRIPTION, describe_policy, write_description
from mqe.manifest import MANIFEST, check_files, renew_manifest, sha256
from mqe.tensor_files import read_file


def write(request: ExportRequest) -> dict[str, float]:
    """Write the mean over a run's last checkpoints, or a copy of one checkpoint in any format."""
    write_checkpoint = checkpoint.format_of(request.folder).write_checkpoint
    if write_checkpoint is not None:
        if request.last > 1:
            raise ConfigError(
                f"--last {request.last}: {request.name} has checkpoints of another library, which "
                "have no mean here; leave it out"
            )
        write_checkpoint(request.folder, request.out)
        return {}
    folders = [request.folder]
    if request.last > 1:
        folders = last_checkpoints(Path(request.name), request.last)
        say(f"The mean of {', '.join(folder.name for folder in folders)}.")
    average(folders, request.out)
    return {}


def last_checkpoints(run: Path, count: int) -> list[Path]:
    """Return a run's last ``count`` checkpoints, oldest first. Raises ConfigError for fewer."""
    stored = [folder for _, folder in checkpoints(run)]
    if len(stored) < count:
        raise ConfigError(
            f"{str(run)!r} has {len(stored)} of the {count} checkpoints; name a run folder with "
            "more, or lower --last"
        )
    return stored[:count][::-1]


def average(folders: Sequence[Path], out: Path) -> None:
    """Fill the empty folder ``out`` with the mean actors of ``folders``.

    All other files are copied from the last checkpoint, except for the training state: no run can
    resume from a mean. Raises ConfigError for damaged checkpoints, and for actors with different
    shapes.
    """
    last = folders[-1]
    actors = [checkpoint.read_actors(checkpoint.resolve(folder)) for folder in folders]
    left_out = (checkpoint.TRAINING_STATE, DESCRIPTION)
    names = [path.name for path in last.iterdir() if path.is_file() and path.name not in left_out]
    check_files(last, [name for name in names if name != MANIFEST])
    for name in names:
        shutil.copy(last / name, out / name)
    if len(folders) > 1:
        for name in actors[-1]:
            weights = [states.get(name, {}) for states in actors]
            mean = _mean(weights, f"{folders[0]} to {last.name}, {name}")
            torch.save(mean, out / f"{name}.pt")
    exported.copy_description(last, out)
    renew_manifest(out, {"average_of": [folder.name for folder in folders]})


def use_safetensors(folder: Path) -> None:
    """Replace the actors' files in a policy folder by safetensors, which hold no code."""
    save_file = import_extra("safetensors.torch", "hub", "--hub").save_file
    description = describe_policy(str(folder))
    digests = {}
    for name in description.weights:
        path = (folder / name).with_suffix(".safetensors")
        if path.name != name:
            save_file(read_file(folder / name), path)
            (folder / name).unlink()
        digests[path.name] = sha256(path)
    for path in folder.glob("*.pt"):  # a critic, which a team does not need
        path.unlink()
    write_description(folder, replace(description, weights=digests))
    renew_manifest(folder)


def _mean(weights: Sequence[dict[str, Tensor]], label: str) -> dict[str, Tensor]:
    """Return the mean of state dicts. Tensors without floating-point values are the last
    checkpoint's.
    """
    last = weights[-1]
    shapes = [{key: value.shape for key, value in state.items()} for state in weights]
    if any(state_shapes != shapes[-1] for state_shapes in shapes):
        raise ConfigError(f"{label}: shapes differ; average checkpoints of one run")
    mean = dict(last)
    for key, value in last.items():
        if value.is_floating_point():
            stacked = torch.stack([state[key].double() for state in weights])
            mean[key] = stacked.mean(dim=0).to(value.dtype)
    return mean


EXPORTERS.register(
    "policy", Exporter("a checkpoint folder, or the mean of a run's last --last", write)
)
