"""The doctor's stages for runs with collectors, from single parts to everything together.

Each stage uses the results of earlier ones. Its line names the type and both devices of everything
that crosses a border between processes or devices.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.callbacks.callback import Callback
from harl_mapush.collectors.async_runner import AsyncRunner
from harl_mapush.collectors.collector import Collector, Identity, build
from harl_mapush.collectors.collector_settings import settled
from harl_mapush.collectors.ingest_thread import IngestThread
from harl_mapush.collectors.launcher import Launcher, LocalLauncher, make_launcher
from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.collectors.pool import CollectionError, FullBlock, Pool
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.collectors.shared_memory import CollectorMemory, SharedWeights
from harl_mapush.collectors.supervision.rate_limiter import FairLock, RateLimiter
from harl_mapush.config import RunCfg
from harl_mapush.learning.off_policy.experience import ReplayExperience
from mapush.doctor.checkup import Checkup
from mapush.doctor.stage import REPORT, Stage, StageError, finite
from mapush.doctor.stages import check_device, check_versions
from mqe.config import to_dict

NUM_COLLECTORS = 2  # for settings without collectors
TOGETHER_S = 30.0  # default duration of the last stage
_NUM_BLOCKS = 3
_NUM_UPDATES = 10
_PATIENCE_S = 300.0  # time limit for a first block


@dataclass
class AsyncCheckup(Checkup):
    """The small run of a self-check with collectors, and the parts that its stages build."""

    together_s: float = TOGETHER_S  # duration of the last stage
    collector: Collector | None = None
    team: ReplayLearner | None = None  # the learner's
    weights: SharedWeights | None = None
    blocks: list[FullBlock] = field(default_factory=list)
    experience: ReplayExperience | None = None  # holds the blocks
    stack: ExitStack = field(default_factory=ExitStack)
    launcher: Launcher = field(default_factory=LocalLauncher)

    @property
    def learner(self) -> torch.device:
        """The learner's device."""
        return torch.device(self.cfg.runner.learner_device)

    def one_collector(self, **algorithm: Any) -> RunCfg:
        """Return the settings with one collector, and one collector's share of the worlds."""
        cfg = self.cfg
        return dataclasses.replace(
            cfg,
            env=dataclasses.replace(cfg.env, num_envs=cfg.env.num_envs // cfg.runner.collectors),
            runner=dataclasses.replace(cfg.runner, collectors=1),
            algorithm=dataclasses.replace(cfg.algorithm, **algorithm),
        )

    def close(self) -> None:
        """Free everything that the stages built."""
        if self.collector is not None:
            self.collector.close()
        self.stack.close()
        super().close()


def check_settings(checkup: Checkup) -> str:
    """Resolve the devices of collectors and learner, and connect to the launcher."""
    cfg = checkup.cfg
    runner = dataclasses.replace(cfg.runner, collectors=cfg.runner.collectors or NUM_COLLECTORS)
    checkup.cfg = cfg = settled(dataclasses.replace(cfg, runner=runner))
    device = check_device(checkup)
    here = _own(checkup)
    here.launcher = here.stack.enter_context(make_launcher(cfg))
    number = cfg.runner.collectors
    collectors = "1 collector" if number == 1 else f"{number} collectors"
    return (
        f"{collectors}, {cfg.env.num_envs // number} worlds each, {device}, "
        f"{here.launcher.describe()}; learner on {cfg.runner.learner_device}"
    )


def check_environment(checkup: Checkup) -> str:
    """Collect blocks with random actions in this process."""
    here = _own(checkup)
    collector = build(here.one_collector(), Identity(0, 1))
    here.collector = collector
    memory = CollectorMemory(collector.layout, 1)
    for _ in range(_NUM_BLOCKS):
        report = collector.collect(memory.blocks[0])
        if report.num_broken:
            raise StageError(
                f"{report.num_broken:.0f} transitions come from worlds that broke", REPORT
            )
    for slot in collector.layout.slots:
        finite(slot.name, slot.view(memory.blocks[0]))
    return f"{_NUM_BLOCKS} blocks of {collector.layout.num_transitions} transitions, all finite"


def check_agent(checkup: Checkup) -> str:
    """Publish the learner's weights to the collector; both must then act alike."""
    here = _own(checkup)
    collector = _there(here.collector)
    cfg = here.cfg
    env = collector.env
    spec = RemoteEnvSpec(cfg, here.learner).spec
    algorithm = make_algorithm(cfg.algorithm, cfg.network, spec, here.learner, 2)
    team = cast(ReplayLearner, algorithm)
    here.team = team
    actors = list(team.unique_actors)
    weights = SharedWeights(actors)
    here.weights = weights
    here.stack.callback(weights.memory.close)

    weights.publish(actors, 1, 0)
    with torch.no_grad():
        weights.read(collector.actors)
        obs, _ = env.reset()
        ours = team.act(obs.to(here.learner), deterministic=True).actions.cpu()
        theirs = collector.team.act(obs, deterministic=True).actions.cpu()
    finite("actions", ours)
    if not torch.allclose(ours, theirs, atol=1e-4):
        difference = float((ours - theirs).abs().max())
        raise StageError(
            f"actions of learner and collector differ by {difference:.2g} with the same weights",
            REPORT,
        )
    names = [slot.describe() for slot in weights.slots[1:]]
    return (
        f"{len(names)} tensors of weights, {here.learner} -> cpu -> {env.device}, {names[0]} "
        "and so on"
    )


def check_one_collector(checkup: Checkup) -> str:
    """Fill a few blocks with one collector in a process of its own."""
    here = _own(checkup)
    folder = Path(here.stack.enter_context(tempfile.TemporaryDirectory()))
    collector = _there(here.collector)
    pool = Pool(
        to_dict(here.one_collector()),
        1,
        collector.layout,
        _there(here.weights),
        folder,
        _NUM_BLOCKS,
        launcher=here.launcher,
    )
    here.stack.callback(pool.close)
    start = time.monotonic()
    try:
        pool.start(_NUM_BLOCKS)
        while len(here.blocks) < _NUM_BLOCKS and time.monotonic() < start + _PATIENCE_S:
            here.blocks += pool.receive(0.2)
    except CollectionError as error:
        raise StageError(str(error), "the collector wrote the last line; see there") from None
    finally:
        pool.end()
    if len(here.blocks) < _NUM_BLOCKS:
        raise StageError(
            f"{len(here.blocks)} blocks in {_PATIENCE_S:.0f} s", "try fewer worlds, or --device cpu"
        )
    for slot in collector.layout.slots:
        finite(slot.name, slot.view(here.blocks[-1].content))
    crossing = ", ".join(slot.describe() for slot in collector.layout.slots)
    return (
        f"{_NUM_BLOCKS} blocks; {collector.env.device} -> cpu ({here.launcher.medium}) -> "
        f"{here.learner}: {crossing}"
    )


def check_ingest(checkup: Checkup) -> str:
    """Store these blocks; the replay buffer must contain exactly their transitions."""
    here = _own(checkup)
    experience, ingest = _ingest(here)
    here.experience = experience
    for block in here.blocks:
        ingest.store(block)

    replay = experience.replay
    layout = _there(here.collector).layout
    t = 0
    for block in here.blocks:
        for sent in layout.read(block.content):
            rows = torch.cat(
                [part.reshape(replay.shape.num_envs, -1) for part in (sent.obs, sent.state)], dim=1
            )
            if not torch.equal(replay.here[t, :, : rows.shape[1]].cpu(), rows):
                raise StageError(f"decision {t} in the replay differs from the one sent", REPORT)
            t += 1
    return (
        f"{len(replay)} transitions stored on {replay.here.device} ({replay.here.dtype}), as "
        "they were sent"
    )


def check_learner(checkup: Checkup) -> str:
    """Warm up with one collector and make ten updates."""
    here = _own(checkup)
    size = _there(here.collector).layout.num_transitions
    env_steps = 2 * size * _there(here.collector).env.decision_period
    cfg = here.one_collector(warmup=size, buffer_size=8 * size, update_ratio=_NUM_UPDATES / size)
    cfg = dataclasses.replace(cfg, runner=dataclasses.replace(cfg.runner, num_env_steps=env_steps))
    runner = _make(cfg, here)
    before = {name: flat.clone() for name, flat in runner.algorithm.weights.items()}
    _run(runner)
    if any(torch.equal(before[name], flat) for name, flat in runner.algorithm.weights.items()):
        raise StageError(
            f"some weights have not changed in {runner.limiter.num_learned} updates", REPORT
        )
    return (
        f"warm-up {size}/{size}, {runner.limiter.num_learned} updates, weights version "
        f"{runner.limiter.version}"
    )


def check_together(checkup: Checkup) -> str:
    """Run everything as configured for ``together_s``, with a shorter warm-up."""
    cfg = checkup.cfg
    warmup = min(cfg.algorithm.warmup, 2 * cfg.runner.num_steps * cfg.env.num_envs)
    algorithm = dataclasses.replace(cfg.algorithm, warmup=warmup)
    here = _own(checkup)
    runner = _make(dataclasses.replace(cfg, algorithm=algorithm), here)
    lines: tuple[str, ...] = ()
    has_block = False
    deadline = time.monotonic() + _PATIENCE_S

    def stop_in_time() -> None:
        nonlocal lines, has_block, deadline
        now = time.monotonic()
        if runner.limiter.num_stored and not has_block:
            has_block = True
            deadline = now + here.together_s
        if now > deadline:
            lines = runner.health()
            raise _EnoughError

    _run(runner, [_OnWait(stop_in_time)])
    return "; ".join(lines or runner.health())


def _make(cfg: RunCfg, here: AsyncCheckup) -> AsyncRunner:
    learner = torch.device(cfg.runner.learner_device)
    worlds = RemoteEnvSpec(cfg, learner)
    team = make_algorithm(cfg.algorithm, cfg.network, worlds.spec, learner, 1)
    return AsyncRunner(worlds, team, cfg, here.launcher)


class _EnoughError(Exception):
    """Ends a run that has lasted long enough."""


class _OnWait(Callback):
    """Calls a function whenever the learner waits."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def on_wait(self) -> None:
        self._function()


def _run(runner: AsyncRunner, callbacks: Sequence[Callback] = ()) -> None:
    try:
        runner.learn(callbacks)
    except _EnoughError:
        try:
            runner.check_counts()
        except CollectionError as error:
            raise StageError(str(error), REPORT) from None
    except CollectionError as error:
        raise StageError(
            str(error), "look at the previous stage, and at the last line of the message"
        ) from None
    if not runner.limiter.num_stored:
        raise StageError(
            "no block arrived", "try fewer worlds or collectors: each collector needs a core"
        )


def _ingest(here: AsyncCheckup) -> tuple[ReplayExperience, IngestThread]:
    team = _there(here.team)
    layout = _there(here.collector).layout
    experience = team.make_experience(layout.num_steps, layout.num_transitions // layout.num_steps)
    pool: Any = type("Blocks", (), {"layout": layout})  # IngestThread.store needs only the layout
    limiter = RateLimiter(team, experience, 1.0, layout.num_transitions, 1)
    return experience, IngestThread(pool, limiter, FairLock(), here.learner)


def _own(checkup: Checkup) -> AsyncCheckup:
    assert isinstance(checkup, AsyncCheckup)
    return checkup


def _there(part: Any) -> Any:
    assert part is not None
    return part


_TRY = "try fewer worlds (--preset laptop_hasac) or --device cpu"

ASYNC_STAGES = (
    Stage("versions", check_versions, "reinstall: pip install -c constraints.txt 'mapush[gpu]'"),
    Stage("settings", check_settings, "choose another --preset, --device or --sim"),
    Stage("environment", check_environment, "run mapush doctor, which has more stages for worlds"),
    Stage("agent", check_agent, REPORT),
    Stage("collector", check_one_collector, _TRY),
    Stage("ingest", check_ingest, REPORT),
    Stage("learner", check_learner, _TRY),
    Stage("together", check_together, _TRY),
)
