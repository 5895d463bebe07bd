"""Run the tests on mutants from ``make.py``, and list the unnoticed ones. Needs pytest only.

``python tools/mutants/run.py mutants.json --out results.jsonl``: each of ``--workers`` mutates a
copy of the tree, one mutant after another, and runs its area's tests until the first failure. Each
mutant gives a JSON line. Mutants already in ``--out`` do not run again. At the end come a table and
the survivors' diffs.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TREE = Path(__file__).parents[2]
NOT_COPIED = (".git", ".venv", "results", "__pycache__", ".pytest_cache", ".ruff_cache")
LEAST_TIMEOUT_S = 60.0
TIMES_AS_LONG = 4.0
NOT_NOTICED = "survived"
NOTICED = ("killed", "timeout")


def main() -> int:
    """Run the missing mutants and print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mutants", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(
        "--timeout_s",
        type=float,
        help="of a mutant, instead of four times what its tests take without",
    )
    parser.add_argument(
        "--limit_s", type=float, default=float("inf"), help="begin no mutant after so long"
    )
    arguments = parser.parse_args()
    mutants = json.loads(arguments.mutants.read_text(encoding="utf-8"))
    finished = {result["id"]: result for result in read_lines(arguments.out)}
    waiting = [mutant for mutant in mutants if mutant["id"] not in finished]
    ends = time.monotonic() + arguments.limit_s
    if waiting:
        with (
            tempfile.TemporaryDirectory() as folder,
            arguments.out.open("a", encoding="utf-8") as out,
        ):
            Bench(Path(folder), arguments.workers, out, ends).run(waiting, arguments.timeout_s)
    results = {result["id"]: result for result in read_lines(arguments.out)}
    sys.stdout.write(
        report([mutant | results[mutant["id"]] for mutant in mutants if mutant["id"] in results])
    )
    return 0


class Bench:
    """Copies of the tree, one per worker, each on its own core."""

    def __init__(self, folder: Path, num_workers: int, out: Any, ends: float) -> None:
        self._out = out
        self._ends = ends
        self._lock = threading.Lock()
        self._trees: queue.Queue[tuple[Path, int]] = queue.Queue()
        cores = sorted(os.sched_getaffinity(0))
        for k in range(num_workers):
            copy = folder / f"tree{k}"
            shutil.copytree(TREE, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
            self._trees.put((copy, cores[k % len(cores)]))
        self._pool = ThreadPoolExecutor(num_workers)
        self._timeouts: dict[tuple[str, ...], float] = {}

    def run(self, mutants: list[dict[str, Any]], timeout_s: float | None) -> None:
        """Run the mutants. Without a timeout, first time the tests on the original tree. They must
        pass.
        """
        suites = sorted({tuple(mutant["tests"]) for mutant in mutants})
        if timeout_s is not None:
            self._timeouts = dict.fromkeys(suites, timeout_s)
            suites = []
        for suite, (code, output, seconds) in zip(
            suites, self._pool.map(self._as_it_is, suites), strict=True
        ):
            if code != 0:
                sys.exit(f"without a mutant, {' '.join(suite)} ends with {code}:\n{output[-3000:]}")
            self._timeouts[suite] = max(LEAST_TIMEOUT_S, TIMES_AS_LONG * seconds)
            sys.stderr.write(f"{seconds:.0f} s without a mutant: {' '.join(suite)}\n")
        list(self._pool.map(self._try, mutants))

    def _as_it_is(self, suite: tuple[str, ...]) -> tuple[int | None, str, float]:
        tree, core = self._trees.get()
        try:
            return test(tree, core, suite, 600.0)
        finally:
            self._trees.put((tree, core))

    def _try(self, mutant: dict[str, Any]) -> None:
        if time.monotonic() > self._ends:
            return
        tree, core = self._trees.get()
        path = tree / mutant["path"]
        suite = tuple(mutant["tests"])
        source = path.read_text(encoding="utf-8")
        start = mutant["start"]
        old = mutant["old"]
        if source[start : start + len(old)] != old:
            sys.exit(f"{mutant['path']} is not the one that mutants were made of; make them anew")
        try:
            path.write_text(
                source[:start] + mutant["new"] + source[start + len(old) :], encoding="utf-8"
            )
            code, output, seconds = test(tree, core, suite, self._timeouts[suite])
        finally:
            path.write_text(source, encoding="utf-8")
            self._trees.put((tree, core))
        status = {None: "timeout", 0: NOT_NOTICED, 1: "killed", 2: "killed", 4: "killed"}.get(
            code, f"pytest ended with {code}"
        )
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        by = failed[1] if failed else None
        result = {"id": mutant["id"], "status": status, "seconds": round(seconds, 1), "by": by}
        with self._lock:
            self._out.write(json.dumps(result) + "\n")
            self._out.flush()
            sys.stderr.write(
                f"{mutant['id']:4d} {status:9s} {mutant['path']}:{mutant['line']} {by or ''}\n"
            )


def test(
    tree: Path, core: int, suite: tuple[str, ...], timeout_s: float
) -> tuple[int | None, str, float]:
    """Run tests in a tree. Return pytest's exit code (None: time-out), its output and the
    seconds.
    """
    os.sched_setaffinity(0, {core})  # of this thread, and of what it starts
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        *suite,
    ]
    # Packages may lie on it.
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    changes = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    changes |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=os.environ | changes,
        text=True,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return process.returncode, output, time.monotonic() - start
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, "", time.monotonic() - start


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file, empty if missing."""
    if path.is_file():
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return []


def report(results: list[dict[str, Any]]) -> str:
    """Return a table by area, and the unnoticed mutants' diffs."""
    lines = [
        "| area | mutants | noticed | survived | other | share noticed |",
        "|---|---|---|---|---|---|",
    ]
    areas = [*dict.fromkeys(result["area"] for result in results), None]
    for area in areas:
        of = [result for result in results if area in (result["area"], None)]
        noticed = sum(result["status"] in NOTICED for result in of)
        survived = sum(result["status"] == NOT_NOTICED for result in of)
        share = f"{noticed / (noticed + survived):.3f}" if noticed + survived else "-"
        other = len(of) - noticed - survived
        lines.append(
            f"| {area or 'all'} | {len(of)} | {noticed} | {survived} | {other} | {share} |"
        )
    for result in results:
        if result["status"] not in NOTICED:
            where = (
                f"{result['id']} {result['path']}:{result['line']} {result['operator']}: "
                f"{result['status']}"
            )
            lines += ["", where, "", "```diff", result["diff"], "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
