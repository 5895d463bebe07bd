"""Inject faults into runs with collectors on Ray, and check their ends.

``python tools/faults/ray_collectors.py --tries 3`` prints a table like ``collectors.py``, and exits
with 1 after an unexpected end. A head and a second node start on this machine, with one processor
each. Signals run on jobs with their own Ray. Every try takes up to half a minute.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = str(ROOT)  # Ray's workers import the toys from there
os.environ["OMP_NUM_THREADS"] = "1"
FAULT = Path(tempfile.mkdtemp(prefix="faults")) / "fault"
# Ray's workers have the environment that their node was started with.
os.environ["TOY_FAULT"] = str(FAULT)

import collectors  # noqa: E402
import tiny  # noqa: E402
from collectors import Said, expect, run_faults, signalled  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from harl_mapush.collectors.async_runner import AsyncRunner  # noqa: E402
from harl_mapush.collectors.launchers import CollectionError  # noqa: E402
from harl_mapush.runs import run_folder  # noqa: E402
from mapush.extensions.ray import ray_launcher  # noqa: E402
from mapush.extensions.ray.entry import ADDRESS  # noqa: E402
from tests.support import toy_collectors  # noqa: E402
from tests.support.hooks import Hooks  # noqa: E402

TRANSITIONS = 3200
_STORE = 80 * 2**20  # bytes, of a node; the least that Ray takes


class Nodes:
    """A head and a second node, with a processor each, started on demand."""

    def __init__(self) -> None:
        self.cluster: Cluster | None = None
        self.second = None

    def both(self) -> None:
        """Start both nodes if they are down."""
        if self.cluster is None:
            self.cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": 1,
                    "object_store_memory": _STORE,
                    "include_dashboard": False,
                },
            )
            self.second = None
        if self.second is None:
            self.second = self.cluster.add_node(num_cpus=1, object_store_memory=_STORE)
        os.environ[ADDRESS] = self.cluster.address

    def lose_second(self) -> None:
        """Kill the second node with all its processes."""
        assert self.cluster is not None
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.second = None

    def lose_head(self) -> None:
        """Kill the cluster's central processes."""
        assert self.cluster is not None
        self.cluster.head_node.kill_gcs_server(check_alive=False)

    def end(self) -> None:
        """End both."""
        os.environ.pop(ADDRESS, None)
        if self.cluster is not None:
            self.cluster.shutdown()
        self.cluster = self.second = None


NODES = Nodes()
STARTED: list[subprocess.Popen[bytes]] = []


@contextmanager
def run_of(
    folder: Path, transitions: int = TRANSITIONS, num_collectors: int = 2
) -> Iterator[AsyncRunner]:
    """Build a run with a collector stall time of three seconds."""
    NODES.both()
    FAULT.unlink(missing_ok=True)
    given = {"stall_time": 3.0, "engine": "ray"}
    cfg = toy_collectors.settings(num_collectors, 8, transitions, runner=given)
    with ray_launcher.RayLauncher(cfg, toy_collectors.make_toy) as launcher:
        yield toy_collectors.make_runner(cfg, launcher)


def finish(
    runner: AsyncRunner,
    draw: random.Random,
    act: Callable[[], object],
    on_wait: Callable[[], object] | None = None,
) -> str | None:
    """Run to the end, with a fault some time after both collectors began. Return the problem."""
    wait = draw.randrange(5, 30)
    total = runner.progress.num_iterations * runner.progress.num_transitions
    is_over = [False]

    def on_iteration(report: object) -> None:
        nonlocal wait
        wait -= all(post.num_decisions > 0 for post in runner.collectors.posts)
        if not is_over[0] and wait <= 0:
            is_over[0] = True
            act()

    runner.learn([Hooks(on_iteration, on_wait=on_wait)])
    if not is_over[0]:
        return "it was over before all collectors were there"
    return collectors.miscounted(runner, total)


def pid(runner: AsyncRunner) -> int:
    """Return the process of the first collector."""
    return int(runner.collectors.posts[0].worker.describe().split()[1])


def actor_killed(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Kill an actor's process."""
    words = "its worker process has died"
    return ends_by(folder, draw, words, lambda runner: os.kill(pid(runner), signal.SIGKILL), 30.0)


def actor_hangs(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Have an actor sleep for ever."""
    words = "has made no progress"
    return ends_by(folder, draw, words, lambda runner: FAULT.write_text("hang"), 30.0)


def actor_stopped(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Stop an actor's process."""
    words = "has made no progress"
    return ends_by(folder, draw, words, lambda runner: os.kill(pid(runner), signal.SIGSTOP), 30.0)


def actor_raises(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Have an actor raise again and again."""
    return ends_by(
        folder, draw, "ValueError: the toy broke", lambda runner: FAULT.write_text("raise"), 120.0
    )


def node_gone(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Lose a node. Under load its collector's silence is noticed before its death."""
    return ends_by(folder, draw, "collector ", lambda runner: NODES.lose_second(), 60.0)


def head_gone(folder: Path, said: Said, draw: random.Random) -> str | None:
    """Lose the cluster's head, and with it the cluster."""
    try:
        return ends_by(
            folder, draw, "does not answer any more", lambda runner: NODES.lose_head(), 60.0
        )
    finally:
        NODES.end()


def ends_by(
    folder: Path, draw: random.Random, words: str, act: Callable[[AsyncRunner], object], in_s: float
) -> str | None:
    """Inject a fatal fault into a run. It must report the fault, with its state ready to save."""
    at = [0.0]
    with run_of(folder, 40 * TRANSITIONS) as runner:
        try:
            finish(
                runner,
                random.Random(draw.random()),
                lambda: (at.append(time.monotonic()), act(runner)),
            )
        except CollectionError as error:
            left_s = time.monotonic() - at[-1]
            is_well = words in str(error) and left_s < in_s and runner.state_dict()["iteration"] > 0
            return expect(is_well, f"{left_s:.0f} s: {error}")
    return "it did not end"


def signalled_alone(
    number: int, is_group: bool, folder: Path, said: Said, draw: random.Random
) -> str | None:
    """Signal a run with its own Ray. No Ray process may stay."""
    NODES.end()
    return signalled(number, is_group, folder, said, draw)


def learner_killed(is_own: bool, folder: Path, said: Said, draw: random.Random) -> str | None:
    """Kill a learner's process. Its actors must end at once, its own Ray soon. The run must be
    ready to resume.
    """
    NODES.end() if is_own else NODES.both()
    run = folder / "run"
    log = folder / "log"
    process = start(run, log)
    deadline = time.monotonic() + 120.0
    while len(run_folder.checkpoints(run)) < 2:
        time.sleep(0.05)
        if time.monotonic() > deadline:
            return log.read_text()
    time.sleep(draw.random())
    actors = [
        int(n)
        for n in re.findall(
            r"^process (\d+) on", (run / run_folder.COLLECTORS / "0.txt").read_text(), re.M
        )
    ]
    children = collectors.descendants(process)
    os.kill(process, signal.SIGKILL)
    tiny.wait(process)
    actors_s = [ends_in(actor, 20.0) for actor in actors]
    begun = time.monotonic()
    children_s = [ends_in(child, 120.0) for child in children]
    sys.stderr.write(
        f"actors gone after {max(actors_s):.1f} s, all after {time.monotonic() - begun:.1f} s "
        "more\n"
    )
    if not actors or max(actors_s) > 10.0 or max(children_s, default=0.0) > 100.0:
        return f"actors {actors} ended in {actors_s}, others in {children_s} s"
    steps = run_folder.checkpoints(run)[0][0]
    process = start(run, log, "--num_env_steps", str(steps + 320))
    return expect(tiny.wait(process) == 0, log.read_text()[-800:])


def ends_in(process: int, within_s: float) -> float:
    """Return how long it takes for a process to end [s], at most ``within_s``."""
    begun = time.monotonic()
    while collectors.is_running(process) and time.monotonic() < begun + within_s:
        time.sleep(0.05)
    return time.monotonic() - begun


def start(run: Path, log: Path, *more: str) -> int:
    """Start or resume a run in a new process. A fork from a Ray user cannot use Ray."""
    if run.exists():
        words = ["--resume", str(run), *more]
    else:
        words = [*collectors.SETTINGS, "--out", str(run)]
    with log.open("a") as stream:
        command = [sys.executable, "-m", "harl_mapush.train", *words]
        STARTED.append(
            subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        )
    return STARTED[-1].pid


FAULTS: dict[str, Callable[[Path, Said, random.Random], str | None]] = {
    "actor killed": actor_killed,
    "actor hangs": actor_hangs,
    "actor stopped": actor_stopped,
    "actor raises": actor_raises,
    "node gone": node_gone,
    "head gone": head_gone,
    "learner killed": lambda *given: learner_killed(False, *given),
    "own Ray, learner killed": lambda *given: learner_killed(True, *given),
    "own Ray, Ctrl-C": lambda *given: signalled_alone(signal.SIGINT, True, *given),
    "own Ray, SIGTERM": lambda *given: signalled_alone(signal.SIGTERM, False, *given),
    "own Ray, SIGTERM to all": lambda *given: signalled_alone(signal.SIGTERM, True, *given),
}


def main() -> int:
    """Print the table and return 1 after an unexpected end."""
    collectors.SETTINGS += ("--set", "runner.engine=ray")
    collectors.start = start
    try:
        return 0 if run_faults(FAULTS, __doc__, tries=3) else 1
    finally:
        NODES.end()
        for process in STARTED:
            if collectors.is_running(process.pid):
                process.kill()


if __name__ == "__main__":
    sys.exit(main())
