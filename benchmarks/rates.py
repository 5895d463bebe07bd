"""How fast physics, environment, collecting and training go, in one run of one configuration."""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from measuring import OnIteration, seconds

from harl_mapush.callback import Callback
from harl_mapush.runner import Runner
from mqe.cuda_graphs import GraphedFunction
from mqe.env.environment import MultiAgentEnv
from mqe.world.scene import DECIMATION

NUM_STEPS = 200  # control steps of a pass
HELD_STEPS = 25  # control steps that a drawn command is held
WARM_STEPS = 5  # the first ones load kernels and capture graphs
WARM_ITERATIONS = (
    10  # likewise: agents take turns at random, and a part of a turn is captured at its third
)


class CtrlRecorder:
    """Records every ``Simulator.step``'s input without a device wait, also inside captured
    graphs.
    """

    def __init__(self, env: MultiAgentEnv, num_steps: int) -> None:
        self._step = env.sim.step
        self.ctrl = torch.zeros(num_steps, DECIMATION, *env.sim.data.ctrl.shape, device=env.device)
        self.row = torch.zeros(1, dtype=torch.int64, device=env.device)
        env.sim.step = self._record
        self._graph: GraphedFunction[torch.Tensor] | None = None
        if env.sim.features.graphs is not None:
            self._graph = GraphedFunction(env.device, pack=_same, unpack=_same)

    def _record(self, decimation: int, ctrl: torch.Tensor) -> None:
        self.ctrl.index_copy_(0, self.row % len(self.ctrl), ctrl.unsqueeze(0))
        self.row += 1
        self._step(decimation, ctrl)

    def replay(self) -> None:
        """Play everything once through the simulator alone, on a GPU as a graph a control step."""
        for ctrl in self.ctrl:
            self.step_alone(ctrl)

    def step_alone(self, ctrl: torch.Tensor) -> torch.Tensor:
        """Take one control step with ``ctrl`` (4, N, nu). Return ``ctrl``."""
        if self._graph is None:
            return self._take(ctrl)
        return self._graph(self._take, ctrl)

    def _take(self, ctrl: torch.Tensor) -> torch.Tensor:
        self._step(DECIMATION, ctrl)
        return ctrl


def _same(ctrl: torch.Tensor) -> torch.Tensor:
    return ctrl


def step_rates(
    env: MultiAgentEnv, repeats: int = 3, num_steps: int = NUM_STEPS
) -> dict[str, float]:
    """Return env-steps/s for ``env.step`` with held random commands, and for the physics alone.

    Physics alone replays the ``ctrl`` recorded in the ``env.step`` pass, from an equal state and
    without resets. Both take turns, with medians over ``repeats``. The environment's
    ``decision_period`` must be 1.
    """
    assert env.decision_period == 1
    recorder = CtrlRecorder(env, num_steps)
    draw = torch.Generator(env.device).manual_seed(0)
    shape = (
        math.ceil(num_steps / HELD_STEPS),
        env.num_envs,
        env.num_agents,
        env.spec.action_size,
    )
    actions = 2.0 * torch.rand(shape, generator=draw, device=env.device) - 1.0

    def walk() -> None:
        for t in range(num_steps):
            env.step(actions[t // HELD_STEPS])

    env.reset()
    for _ in range(WARM_STEPS):
        env.step(actions[0])
    for _ in range(WARM_STEPS):
        recorder.step_alone(recorder.ctrl[0])
    env_s = []
    physics_s = []
    for _ in range(repeats):
        env.reset()
        start = env.sim.state_dict()
        recorder.row.zero_()
        env_s.append(seconds(env.device, walk))
        env.sim.load_state_dict(start)
        physics_s.append(seconds(env.device, recorder.replay))
    env.sim.step = recorder._step
    env.reset()
    done = env.num_envs * num_steps
    env_rate = done / statistics.median(env_s)
    physics_rate = done / statistics.median(physics_s)
    return {"physics": physics_rate, "env": env_rate, "env_share": env_rate / physics_rate}


def warm_up(runner: Runner) -> None:
    """Train until every update graph exists, with the trainer's requests."""
    _learn(runner, WARM_ITERATIONS, [OnIteration(lambda _: runner.statistics())])


def run_rates(
    runner: Runner, least_steps: int = NUM_STEPS, iterations: int = 4
) -> dict[str, float]:
    """Return env-steps/s for collecting with policies and for whole training, once every update
    graph exists.

    ``replayed`` is ``env.step`` alone with one rollout's actions, from the rollout's start. The
    rest of an iteration is inference, storage, returns and update (``beyond_env_share``).
    """
    env: Any = runner.env
    warm_up(runner)
    passes = max(1, math.ceil(least_steps / (runner.cfg.num_steps * env.decision_period)))

    def collect() -> None:
        for _ in range(passes):
            runner.collect()

    steps = runner.progress.steps_per_iteration
    start = env.sim.state_dict()
    runner.collect()
    actions = runner.experience.actions.permute(1, 2, 0, 3).contiguous()  # decision, world, agent
    env.sim.load_state_dict(start)

    def step_alone() -> None:
        for action in actions:
            env.step(action)

    alone_s = seconds(env.device, step_alone)
    collect_s = seconds(env.device, collect) / passes
    iteration_s = seconds(env.device, lambda: _learn(runner, iterations)) / iterations
    share = 1.0 - collect_s / iteration_s
    return {
        "replayed": steps / alone_s,
        "collect": steps / collect_s,
        "training": steps / iteration_s,
        "learning_share": share,
        "beyond_env_share": 1.0 - alone_s / iteration_s,
    }


def shares(runner: Runner, iterations: int = 3) -> dict[str, float]:
    """Return the training time fractions for physics, gait, task, policy and update, with a host
    wait after each.
    """
    env: Any = runner.env
    spent: dict[str, float] = defaultdict(float)
    with (
        _timed(env.sim, "step", spent, "physics"),
        _timed(env.task, "targets", spent, "gait"),
        _timed(env, "step", spent, "env"),
        _timed(runner, "update", spent, "update"),
    ):
        total = seconds(env.device, lambda: _learn(runner, iterations))
    parts = {name: spent[name] / total for name in ("physics", "gait", "update")}
    parts["task"] = spent["env"] / total - parts["physics"] - parts["gait"]
    parts["policy"] = 1.0 - sum(parts.values())
    return parts


def where_time_goes(rates: dict[str, float], num_envs: int) -> dict[str, float]:
    """Convert rates into milliseconds per control step over all worlds, as each layer's
    extra time.
    """
    took = {
        name: 1e3 * num_envs / rates[name] for name in ("physics", "env", "collect", "training")
    }
    return {
        "physics": took["physics"],
        "gait_and_task": took["env"] - took["physics"],
        "policy_and_storage": took["collect"] - took["env"],
        "update": took["training"] - took["collect"],
    }


def _learn(runner: Runner, iterations: int, callbacks: Sequence[Callback] = ()) -> None:
    runner.progress.num_iterations = runner.progress.iteration + iterations
    runner.learn(callbacks)


@contextmanager
def _timed(thing: Any, name: str, spent: dict[str, float], key: str) -> Iterator[None]:
    function: Callable[..., Any] = getattr(thing, name)

    def timed(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        spent[key] += time.perf_counter() - start
        return result

    setattr(thing, name, timed)
    try:
        yield
    finally:
        setattr(thing, name, function)
