"""Policies on the Hugging Face Hub, named ``hub:USER/TEAM``, with weights as safetensors."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from mqe.config import ConfigError, install
from mqe.controllers.frozen_policy import describe_policy, write_description
from mqe.manifest import renew_manifest, sha256
from mqe.tensor_files import read_file

HUB = "hub:"


def fetch(name: str) -> Path:
    """Return the folder of the policy ``name`` (USER/TEAM) in the library's cache.

    A policy that was fetched before needs no network. Raises ConfigError for any failure.
    """
    library = _library("huggingface_hub", name)
    try:
        return Path(library.snapshot_download(name))
    except Exception as error:  # of many types: names, rights, networks
        raise _refusal(name, error) from None


def upload(folder: Path, name: str) -> str:
    """Upload a policy folder as ``name`` (USER/TEAM). Return its address."""
    library = _library("huggingface_hub", name)
    try:
        library.create_repo(name, exist_ok=True)
        return str(library.upload_folder(repo_id=name, folder_path=folder))
    except Exception as error:
        raise _refusal(name, error) from None


def use_safetensors(folder: Path) -> None:
    """Replace the actors' files in a policy folder by safetensors, which hold no code."""
    save_file = _library("safetensors.torch", folder.name).save_file
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


def _library(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            f"{HUB}{name}: the Hub needs packages that are not installed; {install('hub')}"
        ) from None


def _refusal(name: str, error: Exception) -> ConfigError:
    reason = " ".join(str(error).split())[:300]
    return ConfigError(
        f"{HUB}{name}: {type(error).__name__}: {reason}; check the name, the network and "
        "hf auth login"
    )
