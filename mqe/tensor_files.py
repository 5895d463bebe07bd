"""Files of tensors, read without executing or trusting their contents."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from mqe.config import ConfigError, import_extra

_PLAIN_TYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)
_LFS = b"version https://git-lfs"
LFS_REASON = "a pointer of git-lfs, and not the file; git lfs pull fetches it"


def read_file(path: Path | IO[bytes]) -> Any:
    """Read a file onto the CPU without executing code in it.

    A damaged file raises the reader's own error. The archive's checksums are checked first, since
    torch does not. Its warnings recommend loading with code, or speak about pickles in general.
    """
    if isinstance(path, Path) and is_lfs_pointer(path):
        raise LfsPointerError
    if isinstance(path, Path) and path.suffix == ".safetensors":
        return import_extra("safetensors.torch", "hub", str(path)).load_file(path)
    if zipfile.is_zipfile(path):  # what torch wrote before 1.6 is none
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
    if not isinstance(path, Path):
        path.seek(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True)


class LfsPointerError(Exception):
    """A git-lfs pointer stands in place of a file."""


def is_lfs_pointer(path: Path) -> bool:
    """Return whether a file is a pointer of git-lfs."""
    with path.open("rb") as file:
        return file.read(len(_LFS)) == _LFS


def reason(error: Exception) -> str:
    """Return a short text on an error of ``read_file``, for a message."""
    if isinstance(error, LfsPointerError):
        return LFS_REASON
    if isinstance(error, pickle.UnpicklingError):
        return "not only tensors, and no other pickled object is ever loaded"
    return type(error).__name__


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a flat state dict onto the CPU. Raise ConfigError for damage or any other content.

    Half precision is widened to single.
    """
    hint = "take another checkpoint of the run"
    try:
        tensors = read_file(path)
    except ConfigError:
        raise
    except PermissionError as error:
        raise ConfigError(f"checkpoint file {path}: cannot be read ({error.strerror})") from None
    except (
        Exception
    ) as error:  # torch raises what its readers raise: RuntimeError, EOFError, UnpicklingError, ...
        raise ConfigError(f"checkpoint file {path}: damaged ({reason(error)}); {hint}") from None
    is_flat = isinstance(tensors, dict) and all(
        isinstance(value, Tensor) for value in tensors.values()
    )
    if not is_flat or not is_plain(tensors):
        raise ConfigError(
            f"checkpoint file {path}: damaged (not a flat dictionary of plain tensors); {hint}"
        )
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise ConfigError(
            f"checkpoint file {path}: damaged (holds numbers that are not finite); {hint}"
        )
    return {
        name: value.float() if value.dtype == torch.float16 else value
        for name, value in tensors.items()
    }


def is_plain(values: Any) -> bool:
    """Return whether nested dictionaries and lists hold only Python's scalars and complete tensors.

    Sparse, quantised, complex and 8-bit tensors are not plain, and neither are repeated views.
    """
    if isinstance(values, dict):
        return all(
            isinstance(name, (str, int)) and is_plain(value) for name, value in values.items()
        )
    if isinstance(values, (list, tuple)):
        return all(is_plain(value) for value in values)
    if not isinstance(values, Tensor):
        return values is None or isinstance(values, (bool, int, float, str))
    if (
        values.layout != torch.strided
        or values.device.type != "cpu"
        or values.dtype not in _PLAIN_TYPES
    ):
        return False
    return values.numel() * values.element_size() <= values.untyped_storage().nbytes()
