"""mapush.extensions.ray.ray_launcher: collectors on a Ray cluster. Its faults:
tools/faults/ray_collectors.py.
"""

from __future__ import annotations

import importlib.util
import socket
import threading
from types import SimpleNamespace

import pytest
import torch

from harl_mapush import config
from harl_mapush.algorithms.entries import make_algorithm
from harl_mapush.collectors.collector import BUILDING, READY, Block, Identity, Weights
from harl_mapush.collectors.collector_settings import settled
from harl_mapush.collectors.launchers import LAUNCHERS, LocalLauncher, WorkerGoneError
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


@pytest.mark.parametrize("address", [None, "local", "auto"])
def test_only_a_ray_of_our_own_leaves_no_folder(address, monkeypatch, tmp_path) -> None:
    session = tmp_path / "session_1"
    session.mkdir()
    (tmp_path / "session_latest").symlink_to(session)
    context = SimpleNamespace(address_info={"session_dir": str(session)})
    monkeypatch.setattr(ray_cluster.ray, "init", lambda **_: context)
    monkeypatch.setattr(ray_cluster.ray, "shutdown", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    ray_cluster.leave(ray_cluster.connect(num_cpus=1))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == (["session_1", "session_latest"] if address == "auto" else [])


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
        return self.call(*arguments) or "done"


class Actor:
    """A worker's view on an actor, around a real actor's object."""

    def __init__(self, collector) -> None:
        for name in ("build", "collect", "progress"):
            setattr(self, name, Method(getattr(collector, name)))
        self.where = Method(lambda: (4711, "there"))


def test_a_worker_stands_for_an_actor_as_if_it_were_a_process(monkeypatch, tmp_path):
    monkeypatch.setattr(ray_launcher.ray, "wait", lambda refs, timeout: (refs, []))
    monkeypatch.setattr(ray_launcher.ray, "get", lambda refs, timeout=None: refs)
    monkeypatch.setattr(ray_launcher.ray, "kill", lambda actor: killed.append(actor))
    killed: list[Actor] = []
    cfg = settings(1, 8, 640, runner={"engine": "ray"})
    team = make_algorithm(cfg.algorithm, cfg.network, ToyEnv(1).spec, "cpu", 1)
    actors = list(team.unique_actors)
    collector = ray_launcher.RayCollector(to_dict(cfg), Identity(0, 1), make_toy)
    log = tmp_path / "0.txt"
    worker = ray_launcher.RayWorker(lambda: Actor(collector), lambda: None, log)
    assert [worker.receive(), worker.receive()] == [BUILDING, READY]
    for _ in range(2):
        worker.send(Weights.of(actors, 70))
        block = worker.receive()
        assert isinstance(block, Block)
        assert block.report.num_valid > 0
        assert block.arrays[0].shape[:2] == (4, 8)
    ours = next(collector._collector.actors[0].parameters())
    assert torch.equal(ours, next(actors[0].parameters()))
    assert collector._collector.team.num_updates == 70
    assert worker.describe() == "process 4711 on there"
    assert "8 worlds on cpu" in log.read_text()
    worker.end(1.0)
    assert len(killed) == 1


def test_a_worker_that_ray_gives_no_actor_ends_with_the_reason(tmp_path):
    def refuse() -> None:
        raise RuntimeError("this cluster is gone. It was shut down.")

    worker = ray_launcher.RayWorker(refuse, lambda: None, tmp_path / "0.txt")
    with pytest.raises(WorkerGoneError, match="^RuntimeError: this cluster is gone$"):
        worker.receive()


def test_an_actor_without_a_place_is_alive_and_one_that_hangs_is_not(monkeypatch, tmp_path):
    """Signs of life are decisions: other threads answer while an actor hangs."""
    monkeypatch.setattr(ray_launcher.ray, "get", lambda refs, timeout=None: refs)
    monkeypatch.setattr(ray_launcher, "_PROGRESS_S", 0.0)
    pending: list[object] = []
    monkeypatch.setattr(
        ray_launcher.ray,
        "wait",
        lambda refs, timeout: ([], refs) if refs == [worker.reference] else (refs, []),
    )
    cfg = settings(1, 8, 640, runner={"engine": "ray"})
    collector = ray_launcher.RayCollector(to_dict(cfg), Identity(0, 1), make_toy)
    actor = Actor(collector)
    actor.collect = Method(pending.append)
    worker = ray_launcher.RayWorker(lambda: actor, lambda: None, tmp_path / "0.txt")
    assert worker.receive() == ray_launcher.PLACING
    worker.send(Weights(0, []))
    collector._num_decisions = 3
    assert [worker.receive() for _ in range(4)] == [
        None,
        "collecting, decision 3",
        None,
        None,
    ]


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


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["actor killed", "actor hangs", "node gone", "learner killed"])
def test_runs_on_two_nodes_end_well(fault):
    table = script("ray_collectors.py", "--tries", "1", "--only", fault)
    rows = [line.split()[-3:-1] for line in table.splitlines()[1:] if line.startswith(fault)]
    assert rows == [["1", "1"]]  # tries, ended well
