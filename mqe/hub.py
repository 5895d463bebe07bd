"""Policies on the Hugging Face Hub, named ``hub:USER/TEAM``, with weights as safetensors."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from mqe.config import ConfigError, install

HUB = "hub:"


def fetch(name: str) -> Path:
    """Return the folder of the policy ``name`` (USER/TEAM) in the library's cache.

    A policy that was fetched before needs no network. Raises ConfigError for any failure.
    """
    hub = library("huggingface_hub", name)
    try:
        return Path(hub.snapshot_download(name))
    except Exception as error:  # of many types: names, rights, networks
        raise _refusal(name, error) from None


def upload(folder: Path, name: str) -> str:
    """Upload a policy folder as ``name`` (USER/TEAM). Return its address."""
    hub = library("huggingface_hub", name)
    try:
        hub.create_repo(name, exist_ok=True)
        return str(hub.upload_folder(repo_id=name, folder_path=folder))
    except Exception as error:
        raise _refusal(name, error) from None


def library(module: str, name: str) -> Any:
    """Return a module that the Hub needs. Raise ConfigError if it is not installed."""
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
