from __future__ import annotations

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOptionalMemberAccess=false
import gc
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from harl_mapush.algorithms.algorithm import Decision
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.learning.settings import NetworkCfg, OnPolicyCfg
from harl_mapush.learning.update_graphs import Graphs
from mqe.cuda_graphs import EAGER_CALLS, capture_stream, capturing
from mqe.env.decision_graph import PackedStep
from mqe.resumable import map_tensors
from tests.support.cuda_graph_recording import stand_in
from tests.support.rounding import FEW_STEPS
from tests.support.toy import ToyEnv


def test_results_are_copied_whatever_holds_them():
    x = torch.ones(2)
    given = ({"a": x}, x, None, Decision(x, x, None))
    copied = map_tensors(torch.clone, given)
    x.zero_()
    assert copied[2] is None
    assert isinstance(copied[3], Decision)
    for value in (copied[0]["a"], copied[1], copied[3].actions):
        assert value.tolist() == [1.0, 1.0]


def test_a_packed_decision_is_copied_whole():
    env = ToyEnv(4)
    env.reset()
    step = env.step(torch.zeros(4, 2, 2))
    step = step._replace(
        terminated=step.terminated[:, :1].expand(-1, 2), info={"a": step.reward, "b": -step.reward}
    )
    packed = PackedStep(step)
    first = packed.copy()
    second = packed.copy()
    for name in step._fields[:-1]:
        assert torch.equal(getattr(first, name), getattr(step, name)), name
        assert getattr(first, name).dtype == getattr(step, name).dtype
    assert list(first.info) == ["a", "b"]
    assert torch.equal(first.info["b"], -step.reward)
    first.obs.zero_()
    assert torch.equal(second.obs, step.obs)


def test_without_cuda_functions_just_run():
    graphs = Graphs(torch.device("cpu"), torch.Generator())
    calls = [graphs("double", lambda x: 2 * x, torch.tensor(float(k))) for k in range(4)]
    assert [float(x) for x in calls] == [0.0, 2.0, 4.0, 6.0]


def test_every_device_captures_on_a_stream_of_its_own(monkeypatch):
    """Stand-ins replace torch.cuda. Its capture stream always belongs to the first device.

    A graph registers a generator's state on the current device.
    """
    current = [0]
    used = []
    registered = []
    scopes = []

    class Stream:
        def __init__(self, index):
            self.index = index
            self.waited_for = []

        def wait_stream(self, other):
            self.waited_for.append(other)

    class Graph:
        def register_generator_state(self, generator):
            registered.append((generator, current[-1]))

    @contextmanager
    def on(device):
        current.append(device.index)
        try:
            yield
        finally:
            current.pop()

    @contextmanager
    def scope(stream):
        scopes.append(stream)
        try:
            yield
        finally:
            scopes.remove(stream)

    @contextmanager
    def graph(graph, pool, stream, capture_error_mode):
        # Torch restores nothing where the end of a capture fails.
        assert scopes == [usual[stream.index]]
        assert not gc.isenabled()
        used.append((graph, pool, stream))
        yield

    usual = [Stream(0), Stream(1)]
    default = list(usual)
    stand_ins = {
        "device": on,
        "current_device": lambda: current[-1],
        "Stream": Stream,
        "graph": graph,
        "stream": scope,
        "current_stream": lambda device=None: usual[
            current[-1] if device is None else device.index
        ],
    }
    stand_ins["default_stream"] = lambda: default[current[-1]]
    for name, substitute in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, substitute)
    capture_stream.cache_clear()
    graphs: list[Any] = [Graph() for _ in range(3)]
    for k, index in enumerate((0, 1, 1)):
        with capturing(
            graphs[k], torch.device("cuda", index), 10 * k, generator=None if k == 0 else -k
        ):
            assert current[-1] == index
        assert usual[index].waited_for[-1] is used[-1][2]
    side = usual[1] = Stream(1)
    with capturing(graphs[0], torch.device("cuda", 1)):
        pass
    assert used.pop()[2] is side  # what runs beside others shares no workspace with them
    usual[1] = default[1]
    with pytest.raises(MemoryError), capturing(graphs[0], torch.device("cuda", 1)):
        raise MemoryError
    capture_stream.cache_clear()
    assert (current, scopes, gc.isenabled()) == ([0], [], True)
    assert [(graph, pool, stream.index) for graph, pool, stream in used[:3]] == [
        (graphs[0], 0, 0),
        (graphs[1], 10, 1),
        (graphs[2], 20, 1),
    ]
    assert used[1][2] is used[2][2]  # who shares memory must share the stream
    assert registered == [(-1, 1), (-2, 1)]


def learned(
    name: str, use_recurrent_policy: bool, device: torch.device, enabled: bool
) -> tuple[Tensor, dict]:
    """Learn from random rollouts, with or without graphs, until the graphs have replayed twice.
    Return weights, moments and metrics.

    With CUDA, a synchronisation in the last iteration is an error. HATRPO is exempt: its line
    search reads from the device.
    """
    torch.manual_seed(0)
    entry = ALGORITHMS[name]
    env = ToyEnv(4)
    network = NetworkCfg((8,), use_recurrent_policy=use_recurrent_policy, chunk_length=2)
    settings: dict[str, Any] = {"num_epochs": 1, "num_minibatches": 2} | (
        {"fixed_order": True} if name.startswith("ha") else {}
    )
    algorithm = entry.cls(entry.cfg(**settings), network, env.spec, device)
    algorithm.graphs._enabled = enabled
    storage = algorithm.make_experience(4, 4)
    draw = torch.Generator(device).manual_seed(1)
    for tensor in (storage.obs, storage.state, storage.rewards):
        tensor.normal_(generator=draw)
    metrics = {}
    last = EAGER_CALLS + 1
    for k in range(last + 1):
        obs = storage.obs[:, k].transpose(0, 1)
        decision = algorithm.act(obs, storage.hidden(k))
        for stored, drawn in (
            (storage.actions, decision.actions),
            (storage.log_probs, decision.log_probs),
        ):
            stored[:, k] = drawn.transpose(0, 1)
        if storage.actor_hidden is not None:
            storage.actor_hidden[:, k + 1] = decision.hidden
        if device.type != "cpu":
            torch.cuda.set_sync_debug_mode("error" if k == last and name != "hatrpo" else "default")
        try:
            metrics = algorithm.update(storage)
        finally:
            if device.type != "cpu":
                torch.cuda.set_sync_debug_mode("default")
    return torch.cat([o.flat for o in (*algorithm.optimizers, algorithm.value.optimizer)]), metrics


ON_POLICY = [name for name, entry in ALGORITHMS.items() if issubclass(entry.cfg, OnPolicyCfg)]


# Every algorithm once, and every path of an update with and without a memory. IPPO's path is
# MAPPO's.
@pytest.mark.usefixtures("few_conjugate_steps")
@pytest.mark.parametrize(
    ("name", "use_recurrent_policy"),
    [
        pytest.param(name, name != "haa2c", marks=[pytest.mark.slow] * (name == "ippo"))
        for name in ON_POLICY
    ]
    + [("mappo", False)],
)
def test_replay_equals_eager_with_stand_ins(name, use_recurrent_policy, monkeypatch):
    stand_in(monkeypatch)
    cpu = torch.device("cpu")
    eager, replayed = (
        learned(name, use_recurrent_policy, cpu, enabled) for enabled in (False, True)
    )
    assert torch.equal(eager[0], replayed[0])
    torch.testing.assert_close(replayed[1], eager[1], rtol=1e-5, atol=FEW_STEPS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("use_recurrent_policy", [False, True])
def test_replay_equals_eager_and_never_waits(name, use_recurrent_policy):
    # Not the current one where there are two.
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    eager, replayed = (
        learned(name, use_recurrent_policy, device, enabled) for enabled in (False, True)
    )
    assert torch.equal(eager[0], replayed[0])
    # No graph writes over another's result.
    torch.testing.assert_close(replayed[1], eager[1], rtol=1e-5, atol=FEW_STEPS)
