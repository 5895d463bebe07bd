"""Files that survive a power loss: flushed to the disk before they get their name, and their name
as well.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Some network file systems cannot sync a folder.
_NO_SYNC = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
)


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: it is there whole, or as it was."""
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)  # where the disk was full


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to put files in, which then becomes ``folder``; after an error it is
    removed instead.

    Its files are on the disk before it gets that name, and a folder of that name is replaced. The
    folder above it must exist.
    """
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        _publish(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # where the disk was full


def _publish(partial: Path, folder: Path) -> None:
    """Rename a finished folder of files to ``folder``, replacing one that exists, once its files
    are on the disk.
    """
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
    """Make a folder and its parents, each entered in the one above it on the disk.

    Raises FileExistsError where ``path`` exists and must not.
    """
    missing = [parent for parent in path.absolute().parents if not parent.exists()]
    path.mkdir(parents=True, exist_ok=exist_ok)
    for folder in (path, *missing):
        sync(folder.parent)


def sync(path: Path) -> None:
    """Wait until what was written to a file, or entered in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
