"""A damaged or hostile ``policy.yaml`` ends in one line, never in a traceback."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from mqe.config import ConfigError
from mqe.controllers.frozen_policy import DESCRIPTION, read_policy
from mqe.manifest import sha256
from mqe.pretrained import pretrained_folder

CPU = torch.device("cpu")


def copy_of(name: str, folder: Path) -> Path:
    """Copy a policy's two files without the manifest, so no check notices a change."""
    folder.mkdir()
    for file in (DESCRIPTION, "actor_agent0.pt"):
        shutil.copy(pretrained_folder(name) / file, folder)
    return folder


@pytest.mark.parametrize("name", ["go1_push", "any"])
def test_flipped_bytes_of_a_description_end_in_one_line(name: str, tmp_path) -> None:
    folder = copy_of(name, tmp_path / name)
    path = folder / DESCRIPTION
    whole = path.read_bytes()
    rng = random.Random(0)
    errors = []
    for _ in range(30):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        path.write_bytes(flipped)
        try:
            read_policy(str(folder)).network(CPU)
        except ConfigError as error:
            errors.append(str(error))
    assert len(errors) > 2
    assert not [error for error in errors if "\n" in error]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actors", [[["sets", "sets", "deep_set", 88, 64, [["outline", 0, 10**9, 3]]]]]),
        ("actors", [[["sets", "sets", "deep_set", 88, 64, [1]]]]),
        ("actors", [[["sets", "sets", "sorted", 88, 64, []]]]),
        ("actors", [[["linear", "net.mlp.0", 0, 256]]]),
        ("actors", [[["linear"]]]),
        ("actors", [[["relu", 1]]]),
        ("actors", [[["relu"]]]),
        ("actors", [[{"linear": 1}]]),
        ("actors", [1]),
        ("actors", [[["gru", "rnn", 88, 8, 90_000]]]),
        ("actors", [[["bound", ".nan"]]]),
        ("weights", {"actor_agent0.pt": 1}),
        ("robots", []),
        ("learned_in", {"task": []}),
        ("num_robots", 10**9),
    ],
)
def test_a_hostile_description_ends_in_one_line(key: str, value: object, tmp_path) -> None:
    folder = copy_of("any", tmp_path / "any")
    path = folder / DESCRIPTION
    values = yaml.safe_load(path.read_text()) | {key: value}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"^[^\n]*$"):
        read_policy(str(folder)).network(CPU)


@pytest.mark.parametrize("number_type", [torch.float64, torch.bfloat16, torch.int32])
def test_other_number_types_are_refused(number_type: torch.dtype, tmp_path) -> None:
    folder = copy_of("go1_push", tmp_path / "gait")
    path = folder / "actor_agent0.pt"
    weights = torch.load(path, weights_only=True)
    torch.save({name: value.to(number_type) for name, value in weights.items()}, path)
    with pytest.raises(ConfigError, match=r"actor_agent0\.pt is damaged"):
        read_policy(str(folder))
    values = yaml.safe_load((folder / DESCRIPTION).read_text())
    values["weights"] = {path.name: sha256(path)}
    (folder / DESCRIPTION).write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=f"type {number_type}, but its description needs"):
        read_policy(str(folder)).network(CPU)
