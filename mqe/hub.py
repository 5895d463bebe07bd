"""Policies on the Hugging Face Hub, named ``hub:USER/TEAM``, with weights as safetensors."""

from pathlib import Path

from mqe.config import ConfigError, import_extra, reason_of

HUB = "hub:"


def fetch(name: str) -> Path:
    """Return the folder of the policy ``name`` (USER/TEAM) in the library's cache.

    A policy that was fetched before needs no network. Raises ConfigError for any failure.
    """
    hub = import_extra("huggingface_hub", "hub", f"{HUB}{name}")
    try:
        return Path(hub.snapshot_download(name))
    except Exception as error:  # of many types: names, rights, networks
        raise _refusal(name, error) from None


def upload(folder: Path, name: str) -> str:
    """Upload a policy folder as ``name`` (USER/TEAM). Return its address."""
    hub = import_extra("huggingface_hub", "hub", f"{HUB}{name}")
    try:
        hub.create_repo(name, exist_ok=True)
        return str(hub.upload_folder(repo_id=name, folder_path=folder))
    except Exception as error:
        raise _refusal(name, error) from None


def _refusal(name: str, error: Exception) -> ConfigError:
    reason = reason_of(error)[:300]
    return ConfigError(
        f"{HUB}{name}: {type(error).__name__}: {reason}; check the name, the network and "
        "hf auth login"
    )
