"""A reader for OpenRL's ``module.pt``, a pickled ``PPOModule``, without executing its code.

torch's own reader for tensors alone reads the file. Every class and function that the pickle names
becomes a placeholder with its state alone. Sizes are limited. So a malicious file can neither run
code nor fill the memory.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from mqe.config import ConfigError
from mqe.tensor_files import LFS_REASON, is_lfs_pointer, is_plain, read_file

MODULE = "module.pt"
LOG_STD = "act.action_out.logstd._bias"

MAX_BYTES = 16 * 2**20  # of the file; MAPush's have 0.2 MB
MAX_MEMBERS = 2_000  # of the archive; MAPush's have 91
MAX_PICKLE_BYTES = 2**20  # MAPush's have 29 kB
MAX_LAYERS = 200  # of a network

_MODULE_CLASS = "openrl.modules.ppo_module.PPOModule"


class Placeholder:
    """A pickled instance's state, and its class's name in place of the class."""

    state: Any
    kind: str

    def __new__(cls, *_: Any) -> Placeholder:
        """Take the original class's arguments, and ignore them."""
        instance = super().__new__(cls)
        instance.state = {}
        return instance

    def __setstate__(self, state: Any) -> None:
        self.state = state


def new_dict(*_: Any) -> dict[Any, Any]:
    """Return a dictionary in place of a defaultdict, whose factory is ignored."""
    return {}


class OpenRLModule(NamedTuple):
    """A ``PPOModule``'s policy, by OpenRL's names."""

    policy: dict[str, Tensor]
    activations: list[str]  # class names in the policy's trunk
    settings: dict[str, Any]  # OpenRL's configuration, plain values only


def read(path: Path) -> OpenRLModule:
    """Read a file. Raise a one-line ConfigError if it is damaged, too large or not allowed."""
    try:
        return _module(_unpickle(path))
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot be read ({error.strerror})") from None
    except Exception as error:  # a damaged file can raise anything
        raise ConfigError(f"damaged ({type(error).__name__}); take another copy") from None


def _unpickle(path: Path) -> Any:
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(
            f"has more than {MAX_BYTES // 2**20} MiB, MAPush's have 0.2; it is not read"
        )
    if is_lfs_pointer(path):
        raise ConfigError(LFS_REASON)
    if not zipfile.is_zipfile(path):
        raise ConfigError("not an archive of torch.save; name a module.pt of OpenRL")
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: member for member in archive.infolist()}
        pickles = [name for name in members if name.endswith("/data.pkl")]
        is_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members.values())
        if len(members) > MAX_MEMBERS or len(pickles) != 1 or not is_stored:
            raise ConfigError("not an archive of torch.save; name a module.pt of OpenRL")
        if members[pickles[0]].file_size > MAX_PICKLE_BYTES:
            raise ConfigError(
                f"its pickle has more than {MAX_PICKLE_BYTES // 2**20} MiB; it is not read"
            )
        # torch's reader would make one of any size.
        if b"bytearray" in archive.read(pickles[0]):
            raise ConfigError("its pickle makes a bytearray, as no policy does; it is not read")
    names = get_unsafe_globals_in_checkpoint(str(path))
    with safe_globals([(_substitute(name), name) for name in names]):
        return read_file(path)


@cache
def _substitute(name: str) -> Callable[..., Any]:
    """Return the substitute for a class or function ``module.name``."""
    if name == "collections.defaultdict":
        return new_dict
    return type("Inert", (Placeholder,), {"kind": name})


def _module(top: Any) -> OpenRLModule:
    if not isinstance(top, Placeholder) or top.kind != _MODULE_CLASS:
        raise ConfigError(
            "holds no PPOModule of OpenRL; a state dict of HARL or of this project is named by its "
            "folder"
        )
    weights, activations = _tensors(top.state["models"]["policy"])
    for name, tensor in weights.items():
        if not name.startswith(LOG_STD) and not bool(torch.isfinite(tensor).all()):
            raise ConfigError(
                "holds numbers that are not finite; take another checkpoint of the run"
            )
    return OpenRLModule(weights, activations, _settings(top))


def _settings(top: Placeholder) -> dict[str, Any]:
    """Return the plain values in OpenRL's configuration. {} if there is none."""
    cfg = top.state.get("cfg")
    if not isinstance(cfg, Placeholder) or not isinstance(cfg.state, dict):
        return {}
    plain = (bool, int, float, str)
    return {str(key): value for key, value in cfg.state.items() if isinstance(value, plain)}


def _tensors(module: Any) -> tuple[dict[str, Tensor], list[str]]:
    """Return a pickled module's parameters by dotted names, and its activations' class names."""
    tensors: dict[str, Tensor] = {}
    activations = []
    ahead: list[tuple[str, Any]] = [("", module)]
    for _ in range(MAX_LAYERS):
        if not ahead:
            return tensors, activations
        prefix, layer = ahead.pop(0)
        if layer.kind.startswith("torch.nn.modules.activation."):
            activations.append(layer.kind.rpartition(".")[2])
        for name, value in layer.state["_parameters"].items():
            if value is None:
                continue
            if not isinstance(value, Tensor) or not is_plain(value):
                raise ConfigError(f"its {prefix}{name} is no plain tensor; it is damaged")
            tensors[f"{prefix}{name}"] = value.detach()
        for name, child in layer.state["_modules"].items():
            if child is not None:
                ahead.append((f"{prefix}{name}.", child))
    raise ConfigError(f"has a network of more than {MAX_LAYERS} layers; it is not read")
