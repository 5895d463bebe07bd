"""Compress the weights of shipped policies without loss: ``python tools/smaller_weights.py
FOLDER [FOLDER ...]``.

``torch.load`` reads compressed archives like plain ones. The digests in ``policy.yaml``, in the
manifest and in ``benchmarks/results/rows.jsonl`` follow, since every tensor stays equal.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import torch

from mqe.manifest import renew_manifest, sha256
from mqe.tensor_files import read_file

ROWS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "rows.jsonl"
DIGITS = 12  # of a digest in a row


def main(folders: list[Path]) -> None:
    """Compress the actors in each folder."""
    for folder in folders:
        for path in sorted(folder.glob("actor*.pt")):
            before = sha256(path)
            compress(path)
            after = sha256(path)
            replace(folder / "policy.yaml", before, after)
            if len(list(folder.glob("actor*.pt"))) == 1:
                replace(ROWS, before[:DIGITS], after[:DIGITS])
            sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
        renew_manifest(folder)


def compress(path: Path) -> None:
    """Compress the entries of an archive of ``torch.save``."""
    tensors = read_file(path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(buffer, "w") as archive:
        for entry in plain.infolist():
            content = plain.read(entry)
            entry.extra = b""  # torch's padding to 64 bytes
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=9)
    buffer.seek(0)
    compressed = read_file(buffer)
    assert tensors.keys() == compressed.keys()
    assert all(torch.equal(tensors[name], compressed[name]) for name in tensors)
    path.write_bytes(buffer.getvalue())


def replace(path: Path, before: str, after: str) -> None:
    """Replace a digest in a text."""
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(before, after), encoding="utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
