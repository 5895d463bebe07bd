"""A run in many parts, each a process resumed from the last stop, watched from outside.

``python tools/faults/soak.py RUN --minutes 20 --part_minutes 5 [--env_steps N] [-- words for
train]`` trains in the folder RUN until the time is over or the run has N env steps. It samples the
process's memory, GPU memory, open files and threads, and the logged success rate. ``RUN-soak.csv``
gets the samples, ``RUN-soak.svg`` the figure. A second call resumes. It prints the change in
memory, files and threads from a part's second quarter to its last, and exits with 1 if a part ended
unexpectedly or its resources grew by more than a tenth.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple, get_type_hints

ROOT = Path(__file__).resolve().parents[2]
TIME_IS_UP = 3  # what a run that its own clock ended gives back
_GROWTH = 1.10  # of memory, files or threads within a part that is a leak
_MOST_POINTS = 150  # of a curve in the figure
_PROGRESS = re.compile(r"total num timesteps (\d+)/")
_SUCCESS = re.compile(r"Success: ([\d.]+|-)")


class Sample(NamedTuple):
    """A process's resources at one moment."""

    seconds: float  # since the soak began, without pauses between calls
    part: int
    env_steps: int
    success_rate: float
    rss_mib: float
    gpu_mib: float  # 0 without a GPU
    files: int
    threads: int


def main() -> int:
    """Soak, and print the change in memory, files and threads. Return 1 after a problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--part_minutes", type=float, default=5.0)
    parser.add_argument("--env_steps", type=int, default=10**12, help="of the whole run")
    parser.add_argument("--interval", type=float, default=2.0, help="between two samples [s]")
    words = sys.argv[1:]
    separator = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:separator], argparse.Namespace(words=words[separator + 1 :]))
    table = given.run.with_name(f"{given.run.name}-soak.csv")
    samples = read(table)
    is_good = True
    start = time.monotonic() - (samples[-1].seconds if samples else 0.0)
    while is_good and time.monotonic() - start < 60.0 * given.minutes:
        part = samples[-1].part + 1 if samples else 1
        left = min(given.part_minutes, given.minutes - (time.monotonic() - start) / 60.0)
        code = train(given, part, left, start, samples)
        write(table, samples)
        table.with_suffix(".svg").write_text(picture(samples), encoding="utf-8")
        is_good = report(samples, part, code)
        if code == 0:  # the end of the run
            break
    return 0 if is_good else 1


def train(
    given: argparse.Namespace, part: int, minutes: float, start: float, samples: list[Sample]
) -> int:
    """Train for some minutes in a new process, add its samples and return its exit code."""
    settings = [
        "--max_wall_time",
        f"{max(1, round(60 * minutes))}s",
        "--num_env_steps",
        str(given.env_steps),
    ]
    if given.run.exists():
        begins = ["--resume", str(given.run)]
    else:
        begins = [*given.words, "--out", str(given.run)]
    log = given.run.with_name(f"{given.run.name}-soak.log")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [
        sys.executable,
        "-m",
        "harl_mapush.train",
        *begins,
        *settings,
        "--set",
        "logger.interval=1",
        "--set",
        "logger.lines=harl",
    ]
    with log.open("a") as stream:
        offset = stream.tell()
        process = subprocess.Popen(command, stdout=stream, stderr=stream, env=environment)
        try:
            while process.poll() is None:
                time.sleep(given.interval)
                sample = look(process.pid, log, offset, part, time.monotonic() - start)
                samples += [] if sample is None else [sample]
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    return process.returncode


def look(pid: int, log: Path, offset: int, part: int, seconds: float) -> Sample | None:
    """Return a process's present resources. None before its first iteration, or after its end."""
    with log.open() as stream:
        stream.seek(offset)
        text = stream.read()
    steps = _PROGRESS.findall(text)
    success = _SUCCESS.findall(text)
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return None
    held = re.search(r"VmRSS:\s*(\d+)", status)
    threads = re.search(r"Threads:\s*(\d+)", status)
    if not steps or not success or held is None or threads is None:
        return None
    return Sample(
        round(seconds, 1),
        part,
        int(steps[-1]),
        math.nan if success[-1] == "-" else float(success[-1]),
        int(held[1]) / 1024,
        gpu_memory(pid),
        files,
        int(threads[1]),
    )


def gpu_memory(pid: int) -> float:
    """Return a process's GPU memory [MiB], 0 without a GPU.

    In a container the driver cannot list processes. Then return the memory in use on the first
    visible GPU, by all processes.
    """
    rows = [line.split(",") for line in query("--query-compute-apps=pid,used_memory")]
    if rows:
        return sum(float(used) for owner, used in rows if owner.strip() == str(pid))
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return sum(float(line) for line in query("--query-gpu=memory.used", "-i", first)[:1])


def query(*words: str) -> list[str]:
    """Return the lines from ``nvidia-smi``, none if it cannot run."""
    command = ["nvidia-smi", *words, "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []


def report(samples: list[Sample], part: int, code: int) -> bool:
    """Print a part's end, and its last quarter's resources beside the second's. Return whether all
    is well.
    """
    part_samples = [sample for sample in samples if sample.part == part]
    is_good = code in (0, TIME_IS_UP)
    words = [f"part {part}: exit code {code}, {len(part_samples)} samples"]
    if len(part_samples) >= 8:
        quarter = len(part_samples) // 4
        early = part_samples[quarter : 2 * quarter]
        late = part_samples[-quarter:]
        words.append(
            f"{part_samples[-1].env_steps:,} env steps, success {part_samples[-1].success_rate:.3f}"
        )
        for name in ("rss_mib", "gpu_mib", "files", "threads"):
            before, after = (
                median(getattr(sample, name) for sample in some) for some in (early, late)
            )
            words.append(f"{name} {before:.0f} -> {after:.0f}")
            is_good = is_good and after <= _GROWTH * before + 1
    sys.stdout.write(", ".join(words) + ("" if is_good else "  <- wrong") + "\n")
    sys.stdout.flush()
    return is_good


def read(table: Path) -> list[Sample]:
    """Read the samples of an earlier call."""
    if not table.exists():
        return []
    with table.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    kinds = get_type_hints(Sample)
    return [Sample(**{name: kinds[name](row[name]) for name in Sample._fields}) for row in rows]


def write(table: Path, samples: list[Sample]) -> None:
    """Write all samples."""
    with table.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(Sample._fields)
        writer.writerows(
            (f"{value:g}" if isinstance(value, float) else value for value in row)
            for row in samples
        )


def picture(samples: list[Sample]) -> str:
    """Draw memory, open files, threads and success rate over time as SVG, one below the other."""
    width = 640
    height = 110
    left = 70
    end = max((sample.seconds for sample in samples), default=1.0)
    rows = [("rss_mib", "memory [MiB]"), ("gpu_mib", "GPU memory [MiB]"), ("files", "open files")]
    rows += [("threads", "threads"), ("success_rate", "success rate")]
    rows = [row for row in rows if any(getattr(sample, row[0]) > 0 for sample in samples)]
    total = len(rows) * (height + 30) + 40
    samples = samples[:: len(samples) // _MOST_POINTS + 1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 20} {total}" '
        'font-family="sans-serif" font-size="13"><rect width="100%" height="100%" fill="white"/>'
    ]
    for k, (name, label) in enumerate(rows):
        top = 25 + k * (height + 30)
        values = [(sample.seconds, float(getattr(sample, name))) for sample in samples]
        values = [(seconds, value) for seconds, value in values if value == value]
        upper = max((value for _, value in values), default=1.0) * 1.1 or 1.0
        number = f"{upper:,.0f}" if upper >= 10 else f"{upper:.2g}"
        places = " ".join(
            f"{left + width * s / end:.1f},{top + height * (1 - v / upper):.1f}" for s, v in values
        )
        parts.append(f'<path d="M{left} {top}v{height}h{width}" stroke="#aaa" fill="none"/>')
        parts.append(f'<text x="{left}" y="{top - 6}">{label}</text>')
        parts.append(f'<text x="{left - 6}" y="{top + 8}" text-anchor="end">{number}</text>')
        parts.append(
            f'<polyline points="{places}" fill="none" stroke="#1b6ca8" stroke-width="1.5"/>'
        )
    parts.append(
        f'<text x="{left + width}" y="{total - 12}" text-anchor="end">{end / 60:.0f} minutes</text>'
    )
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    sys.exit(main())
