"""mapush.extensions.ray.ray_launcher: collectors on a Ray cluster. Its faults:
tools/faults/ray_collectors.py.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from typing import Any

import pytest
import torch

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.collector import Identity
from harl_mapush.collectors.collector_settings import settled
from harl_mapush.collectors.exchange import Exchange
from harl_mapush.collectors.launchers import (
    LAUNCHERS,
    CollectionError,
    LocalLauncher,
    WorkerGoneError,
)
from mqe.config import ConfigError, to_dict
from tests.support.fault_scripts import script
from tests.support.toy import ToyEnv
from tests.support.toy_collectors import make_toy, settings

ray_launcher = pytest.importorskip("mapush.extensions.ray.ray_launcher")
ray_cluster = pytest.importorskip("mapush.extensions.ray.cluster")
GIVEN = {"algorithm": {"name": "hasac"}, "runner": {"collectors": 2, "engine": "ray"}}


def cluster_settings(**over: dict[str, object]):
    return settled(config.resolve(GIVEN | over, {})[0])


def test_collectors_of_a_cluster_ignore_the_devices_and_cores_of_this_machine():
    cfg = cluster_settings()
    assert (cfg.sim.name, cfg.sim.device, cfg.sim.num_threads) == ("mujoco", "cpu", 1)
    assert cluster_settings(sim={"num_threads": 3}).sim.num_threads == 3
    local = LAUNCHERS["local"].make(settings(1, 8, 640))
    assert isinstance(local.__enter__(), LocalLauncher)
    assert isinstance(LAUNCHERS["ray"].make(cfg), ray_launcher.RayLauncher)


def test_only_a_cluster_that_is_named_takes_collectors_elsewhere(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not LAUNCHERS["ray"].is_elsewhere()
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert LAUNCHERS["ray"].is_elsewhere()
    assert not LAUNCHERS["local"].is_elsewhere()


def test_settings_that_no_cluster_can_have_are_refused(monkeypatch):
    with pytest.raises(
        ConfigError,
        match="collectors of runner.engine=ray simulate on CPUs; use --device cpu",
    ):
        cluster_settings(sim={"device": "cuda:0"})
    with pytest.raises(ConfigError, match="engine=ray: needs runner.collectors"):
        config.resolve({"runner": {"engine": "ray"}}, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ConfigError,
        match=r"Ray is not installed; pip install '\.\[ray\]' in a clone of mapush, or use local",
    ):
        cluster_settings()


@pytest.mark.parametrize(
    "address, said",
    [
        ("hello", "use HOST:PORT"),
        ("ray://here:10001", "use HOST:PORT"),
        ("127.0.0.1:1", "no Ray answers there"),
        ("127.0.0.1:99999", "no Ray answers there"),
    ],
)
def test_an_address_without_ray_is_refused(address, said, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"RAY_ADDRESS={address}: {said}"):
        ray_launcher.RayLauncher(cluster_settings()).__enter__()


@pytest.mark.parametrize(
    "answer, is_ray", [(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), True), (b"HTTP/1.0 400", False)]
)
def test_only_what_speaks_as_ray_does_counts_as_an_answer(answer, is_ray):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert ray_cluster.answers(f"127.0.0.1:{server.getsockname()[1]}") is is_ray
        thread.join(5.0)


def test_collectors_that_can_never_have_a_place_are_refused():
    ray_cluster.check_room(3, 2, {"a": 4.0, "b": 3.0})
    with pytest.raises(
        ConfigError, match="take 8 CPUs, .* a with 4, b with 3, room for 3; .* runner.collectors=3"
    ):
        ray_cluster.check_room(4, 2, {"a": 4.0, "b": 3.0})
    with pytest.raises(ConfigError, match="room for 0; .* or lower sim.num_threads"):
        ray_cluster.check_room(1, 8, {"a": 4.0, "b": 4.0})


def test_rays_message_about_a_dead_actor_becomes_a_reason():
    said = (
        "The actor died.\nclass_name: A\nThe actor is dead because its worker process has "
        "died. Worker exit type: X."
    )
    assert ray_launcher.how_an_actor_died(said) == "its worker process has died"
    assert (
        ray_launcher.how_an_actor_died("an error raised in its creation task, ray::A")
        == ray_launcher.NOT_MADE
    )


class Method:
    """A method of an actor, called at once in this process."""

    def __init__(self, call) -> None:
        self.call = call

    def options(self, **_: object) -> Method:
        return self

    def remote(self, *arguments: object) -> object:
        return self.call(*arguments)


class Actor:
    """A worker's view on an actor, around a real actor's object."""

    def __init__(self, collector) -> None:
        for name in ("collect", "num_decisions"):
            setattr(self, name, Method(getattr(collector, name)))
        self.describe = Method(lambda: "process 4711 on there")


@pytest.fixture
def no_ray(monkeypatch) -> list[Any]:
    """Replace Ray's calls. References are results. Return a list of killed actors."""
    killed: list[Any] = []
    monkeypatch.setattr(ray_launcher.ray, "wait", lambda refs, timeout: (refs, []))
    monkeypatch.setattr(ray_launcher.ray, "get", lambda refs, timeout=None: refs)
    monkeypatch.setattr(ray_launcher.ray, "kill", killed.append)
    return killed


def toy_actor() -> tuple[Any, Exchange]:
    """Return an actor's object of eight toy worlds, and the learner's memory."""
    cfg = settings(1, 8, 640, runner={"engine": "ray"})
    team = make_algorithm(cfg.algorithm, cfg.network, ToyEnv(1).spec, "cpu", 1)
    collector = ray_launcher.RayCollector(to_dict(cfg), Identity(0, 1), make_toy)
    exchange = Exchange(team.replay_shape(8), 4, 2, team.unique_actors, 70)
    return collector, exchange


def test_a_worker_fills_the_blocks_as_if_it_were_a_process(no_ray, tmp_path):
    collector, exchange = toy_actor()
    channel = exchange.channel(0)
    log = tmp_path / "0.txt"
    worker = ray_launcher.RayWorker(Actor(collector), channel, lambda: None, log)
    assert worker.receive() is None
    assert channel.counts.tolist() == [0, 70]
    assert worker.describe() == "process 4711 on there"
    assert worker.describe() in log.read_text()
    worker.free(1)
    worker.free(0)
    for number in (1, 0):
        assert worker.receive() is None
        block = worker.receive()
        assert block.number == number
        assert block.report.num_valid > 0
        for ours, theirs in zip(channel.block(number), collector._block, strict=True):
            assert torch.equal(ours, theirs)
    assert worker.receive() is None
    assert channel.counts.tolist() == [8, 70]
    for actor, state in zip(collector._collector.team.unique_actors, channel.weights, strict=True):
        assert all(torch.equal(actor.state_dict()[name], value) for name, value in state.items())
    assert collector._collector.team.num_updates == 70
    worker.end()
    assert len(no_ray) == 1


def test_a_worker_without_its_cluster_ends_with_the_reason(no_ray, monkeypatch, tmp_path):
    def refuse(refs: Any, timeout: float) -> None:
        raise RuntimeError("this cluster is gone. It was shut down.")

    collector, exchange = toy_actor()
    problems = [None]
    worker = ray_launcher.RayWorker(
        Actor(collector), exchange.channel(0), lambda: problems[-1], tmp_path / "0.txt"
    )
    monkeypatch.setattr(ray_launcher.ray, "wait", refuse)
    with pytest.raises(WorkerGoneError, match="^RuntimeError: this cluster is gone$"):
        worker.receive()
    problems.append("the head is gone")
    with pytest.raises(CollectionError, match="^the head is gone$"):
        worker.receive()


def test_decisions_are_counted_during_a_block(no_ray, monkeypatch, tmp_path):
    """Signs of life are decisions: another thread answers while an actor hangs."""
    monkeypatch.setattr(ray_launcher, "_PROGRESS_S", 0.0)
    collector, exchange = toy_actor()
    channel = exchange.channel(0)
    actor = Actor(collector)
    actor.collect = Method(lambda *_: "pending")
    worker = ray_launcher.RayWorker(actor, channel, lambda: None, tmp_path / "0.txt")
    worker.receive()
    worker.free(0)
    worker.receive()
    monkeypatch.setattr(
        ray_launcher.ray, "wait", lambda refs, timeout: ([] if refs == ["pending"] else refs, [])
    )
    collector._num_decisions = 3
    assert [worker.receive(), worker.receive()] == [None, None]
    assert channel.counts[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["actor killed", "actor hangs", "node gone", "learner killed"])
def test_runs_on_two_nodes_end_well(fault):
    table = script("ray_collectors.py", "--tries", "1", "--only", fault)
    rows = [line.split()[-3:-1] for line in table.splitlines()[1:] if line.startswith(fault)]
    assert rows == [["1", "1"]]  # tries, ended well


def test_a_token_that_others_can_read_is_refused(monkeypatch, tmp_path):
    token = tmp_path / "auth_token"
    token.write_text("secret")
    token.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigError, match=f"other users can read the token.*chmod 600 {token}"):
        ray_cluster.connect(num_cpus=1)
    token.chmod(0o600)
    ray_cluster.check_token(token)
    ray_cluster.check_token(tmp_path / "none")
