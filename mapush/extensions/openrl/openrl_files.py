"""A reader for OpenRL's ``module.pt``, a pickled ``PPOModule``, without executing its code.

Every class and function that the pickle names becomes a placeholder with its state alone, but for
tensors, which the functions below read from the archive's storages. Sizes are limited. So a
malicious file can neither run code nor fill the memory.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections import OrderedDict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mqe.config import ConfigError
from mqe.tensor_files import LFS_REASON, is_lfs_pointer

MODULE = "module.pt"
LOG_STD = "act.action_out.logstd._bias"

MAX_BYTES = 16 * 2**20  # of the file; MAPush's have 0.2 MB
MAX_MEMBERS = 2_000  # of the archive; MAPush's have 91
MAX_PICKLE_BYTES = 2**20  # MAPush's have 29 kB
MAX_LAYERS = 200  # of a network

_MODULE_CLASS = "openrl.modules.ppo_module PPOModule"
_STORAGES = {
    "torch FloatStorage": torch.float32,
    "torch DoubleStorage": torch.float64,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch BoolStorage": torch.bool,
}


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


class OpenRLModule(NamedTuple):
    """A ``PPOModule``'s policy, by OpenRL's names."""

    path: Path
    policy: dict[str, Tensor]
    activations: list[str]  # class names in the policy's trunk
    settings: dict[str, Any]  # OpenRL's configuration, plain values only


def read(path: Path) -> OpenRLModule:
    """Read a file. Raise a one-line ConfigError if it is damaged, too large or not allowed."""
    try:
        return _module(path, _unpickle(path))
    except ConfigError as error:
        raise ConfigError(f"OpenRL's file {path}: {error}") from None
    except OSError as error:
        raise ConfigError(f"OpenRL's file {path}: cannot be read ({error.strerror})") from None
    except Exception as error:  # a damaged file can raise anything
        raise ConfigError(
            f"OpenRL's file {path}: damaged ({type(error).__name__}); take another copy"
        ) from None


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
        text = archive.read(pickles[0])
        return _Unpickler(text, archive, pickles[0].removesuffix("data.pkl")).load()


@cache
def _substitute(name: str) -> Any:
    """Return the substitute for a global ``module name``."""
    if name in _STORAGES:
        return _STORAGES[name]
    return _KNOWN.get(name) or type("Inert", (Placeholder,), {"kind": name})


class _NewDict:
    """Replaces a defaultdict by an empty dictionary and ignores its default factory."""

    __slots__ = ()

    def __call__(self, *_: Any) -> dict[Any, Any]:
        return {}


class _View:
    """Rebuilds a tensor as a view into its storage, within bounds and without repeated elements."""

    __slots__ = ()

    def __call__(self, storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Tensor:
        counts = [offset, *size, *stride]
        if not isinstance(storage, Tensor) or len(size) != len(stride) or len(size) > 4:
            raise ConfigError("has a tensor without a storage; it is damaged")
        if not all(type(count) is int and 0 <= count <= MAX_BYTES for count in counts):
            raise ConfigError("has a tensor of impossible size; it is damaged")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if math.prod(size) > storage.numel() or (math.prod(size) and last >= storage.numel()):
            raise ConfigError("has a tensor larger than its storage; it is damaged")
        return storage.as_strided(size, stride, offset)


class _Parameter:
    """Replaces a parameter by its tensor."""

    __slots__ = ()

    def __call__(self, tensor: Any, *_: Any) -> Any:
        return tensor


_KNOWN = {
    "collections OrderedDict": OrderedDict,
    "collections defaultdict": _NewDict(),
    "__builtin__ set": set,
    "torch._utils _rebuild_tensor_v2": _View(),
    "torch._utils _rebuild_parameter": _Parameter(),
}


class _Unpickler(pickle._Unpickler):
    # Python's own unpickler, not the one in C: a pickle's numbers of objects are keys of a
    # dictionary, and take no memory.
    def __init__(self, text: bytes, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(io.BytesIO(text), fix_imports=False, encoding="utf-8")
        self._archive = archive
        self._folder = folder
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        return _substitute(f"{module} {name}")

    def persistent_load(self, pid: Any) -> Tensor:
        tag, dtype, key, _, count = pid
        if (
            tag != "storage"
            or not isinstance(dtype, torch.dtype)
            or not re.fullmatch(r"\d{1,6}", key)
        ):
            raise ConfigError("has a storage of no known kind; it is damaged")
        if key not in self._storages:
            numbers = self._archive.read(f"{self._folder}data/{key}")
            if len(numbers) != count * dtype.itemsize:
                raise ConfigError(f"its storage {key} has the wrong size; it is damaged")
            values = torch.empty(0, dtype=dtype)
            if numbers:
                values = torch.frombuffer(bytearray(numbers), dtype=dtype)
            self._storages[key] = values
        return self._storages[key]


def _module(path: Path, top: Any) -> OpenRLModule:
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
    return OpenRLModule(path, weights, activations, _settings(top))


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
        if layer.kind.startswith("torch.nn.modules.activation "):
            activations.append(layer.kind.rpartition(" ")[2])
        for name, value in layer.state["_parameters"].items():
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise ConfigError(f"its {prefix}{name} is no tensor; it is damaged")
            tensors[f"{prefix}{name}"] = value
        for name, child in layer.state["_modules"].items():
            if child is not None:
                ahead.append((f"{prefix}{name}.", child))
    raise ConfigError(f"has a network of more than {MAX_LAYERS} layers; it is not read")
