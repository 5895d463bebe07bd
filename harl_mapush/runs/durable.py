"""Files safe from a power loss: flushed to the disk before and after their renaming."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IS_WINDOWS = os.name == "nt"
# Errors of network file systems that cannot sync a folder.
_NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: after a failure it has its old contents."""
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)  # left over if the disk was full


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Context manager: yield an empty folder, and rename the filled folder to ``folder``.

    An error removes the folder. Its files are flushed to the disk before the rename. An existing
    folder is replaced. The parent folder must exist.
    """
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        _publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # left over after an error


def _publish(partial: Path, folder: Path) -> None:
    """Flush a folder's files to the disk, then replace ``folder`` by it."""
    for path in partial.iterdir():
        sync(path)
    sync(partial)
    replaced = folder.with_name(f".{folder.name}-{os.getpid()}-replaced")
    if folder.exists():
        folder.rename(replaced)
    partial.rename(folder)
    sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def make_folder(path: Path, exist_ok: bool = True) -> None:
    """Make a folder and its parents, and flush their entries to the disk.

    Raises FileExistsError if ``path`` exists and ``exist_ok`` is False.
    """
    missing = [parent for parent in path.absolute().parents if not parent.exists()]
    path.mkdir(parents=True, exist_ok=exist_ok)
    for folder in (path, *missing):
        sync(folder.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk.

    Windows opens no folder, and flushes only files that are open for writing.
    """
    if IS_WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
