"""A reader for OpenRL's ``module.pt``, a pickled ``PPOModule``, without executing its code.

The reader lists the pickle's instructions first, and refuses an unknown instruction or name before
it follows any. Classes become placeholders with their state alone, and the functions below read
tensors from the archive's storages. Sizes are limited. So a malicious file can neither run code nor
fill the memory.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
import re
import zipfile
from collections import OrderedDict
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
MAX_INSTRUCTIONS = 20_000  # MAPush's have 6,700
MAX_LAYERS = 200  # of a network

_MODULE_CLASS = "openrl.modules.ppo_module PPOModule"
_INSTRUCTIONS = frozenset(
    "PROTO STOP MARK GLOBAL NEWOBJ REDUCE BUILD "
    "BINPERSID BINPUT LONG_BINPUT BINGET LONG_BINGET "
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE "
    "EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "
    "EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS".split()
)
_STORAGES = {
    "torch FloatStorage": torch.float32,
    "torch DoubleStorage": torch.float64,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch BoolStorage": torch.bool,
}
_INERT = frozenset(
    {
        _MODULE_CLASS,
        "openrl.modules.networks.policy_network PolicyNetwork",
        "openrl.modules.networks.value_network ValueNetwork",
        "openrl.modules.networks.utils.mlp MLPBase",
        "openrl.modules.networks.utils.mlp MLPLayer",
        "openrl.modules.networks.utils.act ACTLayer",
        "openrl.modules.networks.utils.distributions DiagGaussian",
        "openrl.modules.networks.utils.distributions AddBias",
        "openrl.modules.utils.valuenorm ValueNorm",
        "torch device",
        "torch float32",
        "torch float64",
        "numpy dtype",
        "numpy ndarray",
        "_codecs encode",
        "__builtin__ dict",
    }
)
# Packages whose every class is a placeholder: layers, optimisers, spaces, settings.
_INERT_PACKAGES = (
    "torch.nn.modules.",
    "torch.optim.",
    "gym.",
    "gymnasium.",
    "isaacgym.",
    "argparse",
    "jsonargparse",
    "pathlib",
    "numpy.core.multiarray",
    "numpy._core.multiarray",
    "numpy.random.",
)


class Placeholder:
    """A pickled instance's state, and its class's name in place of the class."""

    state: Any
    kind: str

    def __new__(cls, *_: Any) -> Placeholder:
        """Ignore the original constructor's arguments."""
        instance = super().__new__(cls)
        instance.state = {}
        return instance

    def __setstate__(self, state: Any) -> None:
        self.state = state


class OpenRLModule(NamedTuple):
    """A ``PPOModule``'s tensors, by OpenRL's names."""

    path: Path
    policy: dict[str, Tensor]
    critic: dict[str, Tensor]  # empty where it cannot be used
    value_normalizer: dict[str, Tensor]  # empty for a run without one
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
        _check(text)
        return _Unpickler(text, archive, pickles[0].removesuffix("data.pkl")).load()


def _check(text: bytes) -> None:
    """Raise ConfigError for a pickle with an unknown instruction or name. Execute nothing."""
    for count, (instruction, argument, _) in enumerate(pickletools.genops(text)):
        if count >= MAX_INSTRUCTIONS:
            raise ConfigError(
                f"its pickle has more than {MAX_INSTRUCTIONS:,} instructions; it is not read"
            )
        if instruction.name not in _INSTRUCTIONS:
            raise ConfigError(
                f"its pickle has the instruction {instruction.name}, which is not allowed; "
                "nothing was run"
            )
        if instruction.name == "GLOBAL":
            _find(str(argument))
        if instruction.name == "LONG_BINPUT" and int(argument or 0) > MAX_INSTRUCTIONS:
            raise ConfigError(f"its pickle numbers an object {argument}; it is damaged")


def _find(name: str) -> Any:
    """Return the substitute for a global ``module name``. Raise ConfigError for an unknown one."""
    if name in _INERT or name.startswith(_INERT_PACKAGES):
        return type("Inert", (Placeholder,), {"kind": name})
    substitute = _STORAGES.get(name, _KNOWN.get(name))
    if substitute is None:
        raise ConfigError(
            f"asks for {name.replace(' ', '.')!r:.120}, which is not allowed; nothing was run"
        )
    return substitute


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


class _Unpickler(pickle.Unpickler):
    def __init__(self, text: bytes, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(io.BytesIO(text), fix_imports=False, encoding="utf-8")
        self._archive = archive
        self._folder = folder
        self._storages: dict[str, Tensor] = {}

    def find_class(self, module: str, name: str) -> Any:
        return _find(f"{module} {name}")

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
    models = top.state["models"]
    policy = models["policy"]
    critic = models.get("critic")
    weights, activations = _tensors(policy)
    for name, tensor in weights.items():
        if not name.startswith(LOG_STD) and not bool(torch.isfinite(tensor).all()):
            raise ConfigError(
                "holds numbers that are not finite; take another checkpoint of the run"
            )
    return OpenRLModule(
        path,
        weights,
        _critic_tensors(critic),
        _value_statistics(critic),
        activations,
        _settings(top),
    )


def _critic_tensors(critic: Any) -> dict[str, Tensor]:
    """Return a critic's parameters by dotted names. {} for an unusable critic."""
    try:
        tensors, _ = _tensors(critic)
    except (ConfigError, AttributeError, KeyError, TypeError):
        return {}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        return {}
    return {
        name: tensor for name, tensor in tensors.items() if not name.startswith("value_normalizer.")
    }


def _value_statistics(critic: Placeholder) -> dict[str, Tensor]:
    """Return statistics from the critic's value normalizer. {} if it has none."""
    state = critic.state if isinstance(critic, Placeholder) else {}
    normalizer = state.get("_modules", {}).get("value_normalizer") or state.get("value_normalizer")
    if not isinstance(normalizer, Placeholder):
        return {}
    # OpenRL keeps them as parameters if the networks were on a CPU.
    state = {**normalizer.state, **normalizer.state.get("_parameters", {})}
    names = ("running_mean", "running_mean_sq", "debiasing_term")
    for name in names:
        value = state.get(name)
        if not isinstance(value, Tensor) or not bool(torch.isfinite(value).all()):
            return {}
    return {name: state[name] for name in names}


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
