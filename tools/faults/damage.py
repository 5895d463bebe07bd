"""Damage every file in a run, and check detection by resume and evaluation.

``python tools/faults/damage.py`` prints a table and exits with 1 after unnoticed damage. A
truncation or a flipped bit is ``noticed`` if a resume skips the checkpoint, or the run's settings,
with a line with the file's name. It is ``harmless`` if the resume uses the original checkpoint and
settings: in a log, or in a manifest's versions. An evaluation ``refuses`` a checkpoint with a line
with the file's or its manifest's name.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import tiny
import torch

from harl_mapush.runs import checkpoint, resume
from mqe.config import ConfigError
from mqe.controllers.frozen_policy import DESCRIPTION, describe_policy
from mqe.manifest import MANIFEST

_READ_TO_ACT = ("actor_agent0.pt", "actor_agent1.pt", "config.yaml", DESCRIPTION, MANIFEST)


def main() -> int:
    """Print the table and return 1 after a resume from damaged files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truncations", type=int, default=10, help="of every file")
    parser.add_argument("--flips", type=int, default=20, help="of one bit, of every file")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work_folder = Path(folder)
        assert tiny.wait(tiny.start(work_folder / "run", 3, log=work_folder / "log")) == 0, (
            work_folder / "log"
        ).read_text()
        return (
            0 if try_files(work_folder / "run", draw, arguments.truncations, arguments.flips) else 1
        )


def try_files(run: Path, draw: random.Random, truncations: int, flips: int) -> bool:
    """Damage each file in each way and print the results. Return whether all damage was noticed."""
    newest, _ = resume.find(str(run))
    assert newest.folder is not None
    settings = resume.settings(newest, {})[0]
    print_row("file", "damaged", "noticed", "harmless", "unnoticed", "evaluation refuses")
    is_whole = True
    files = [*sorted(newest.folder.iterdir()), run / "config.yaml", *sorted(run.glob("events*"))]
    for path in files:
        whole = path.read_bytes()
        verdicts = Counter[str]()
        num_refused = 0
        for damaged in damages(whole, draw, truncations, flips):
            path.write_bytes(damaged)
            verdicts[judge(run, newest.folder, path, settings)] += 1
            num_refused += is_refused(newest.folder, path.name)
        path.write_bytes(whole)
        is_read = path.parent == newest.folder and path.name in _READ_TO_ACT
        total = truncations + flips
        counts = [verdicts[verdict] for verdict in ("noticed", "harmless", "unnoticed")]
        shown = path.relative_to(run) if path.parent != newest.folder else path.name
        print_row(
            str(shown)[:30],
            total,
            *counts,
            f"{num_refused} of {total}" if is_read else "does not read it",
        )
        is_whole = is_whole and not verdicts["unnoticed"]
    return is_whole


def damages(whole: bytes, draw: random.Random, truncations: int, flips: int) -> list[bytes]:
    """Return damaged versions of a file's contents. The first truncation leaves nothing."""
    lengths = [0, *(draw.randrange(len(whole)) for _ in range(truncations - 1))][:truncations]
    cut = [whole[:length] for length in lengths]
    for _ in range(flips):
        offset = draw.randrange(len(whole))
        bit = 1 << draw.randrange(8)
        cut.append(whole[:offset] + bytes([whole[offset] ^ bit]) + whole[offset + 1 :])
    return cut


def judge(run: Path, newest: Path, path: Path, settings: object) -> str:
    """Return whether a resume would notice a file's damage."""
    try:
        resumed, lines = resume.find(str(run))
        now, more = resume.settings(resumed, {})
    except ConfigError:
        return "unnoticed"  # there are whole checkpoints, and it did not resume from one
    is_named = any(path.name in line for line in lines + more)
    if now != settings:
        return "unnoticed"
    if resumed.folder != newest:
        return "noticed" if is_named and path.parent == newest else "unnoticed"
    if is_named:
        return "noticed"
    return "harmless" if path.name.startswith("events") or path.name == MANIFEST else "unnoticed"


def is_refused(folder: Path, name: str) -> bool:
    """Return whether an evaluation refuses a checkpoint and names the file, or the manifest with
    its checksum.
    """
    try:
        checkpoint.resolve(str(folder))
        describe_policy(str(folder))
    except ConfigError as error:
        return name in str(error) or MANIFEST in str(error)
    return False


def print_row(*cells: object) -> None:
    """Write one row of the table."""
    widths = (32, 9, 9, 10, 11)
    sys.stdout.write(
        "".join(f"{cell!s:<{width}}" for cell, width in zip(cells, (*widths, 0), strict=True))
        + "\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
