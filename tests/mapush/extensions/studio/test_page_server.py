"""Only this machine can open the page, and the page ends with the player."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest
import torch

from mapush import cli
from mapush.extensions.studio import page_server as studio
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.viewer.player import Player


def test_the_page_is_served_to_this_machine_alone_and_ends_with_the_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound = []
    listening = studio._listening_socket
    monkeypatch.setattr(
        studio, "_listening_socket", lambda port: bound.append(listening(port)) or bound[-1]
    )
    lines = []
    monkeypatch.setattr(studio, "say", lines.append)
    pages = []

    def fetch(self, data) -> None:
        host, port = bound[0].getsockname()
        until = time.monotonic() + 20.0
        while not pages:
            try:
                address = lines[0].split()[1]
                assert address.startswith(f"http://127.0.0.1:{port}/?token=")
                pages.append((host, urllib.request.urlopen(address, timeout=20).read()))
            except urllib.error.URLError:  # the server is about to begin
                assert time.monotonic() < until

    monkeypatch.setattr(Player, "_look", fetch)
    cpu = SimCfg(name="mujoco", device="cpu")
    env = make_env(EnvCfg(num_envs=1), cpu, PushCfg(episode_length_s=0.1), seed=1)
    stand = torch.zeros(1, 2, 3)
    player = Player(env, {"zero": lambda: lambda obs: stand}, num_episodes=1)
    assert studio.show(player, 0) == ["time is up"]
    env.close()
    assert lines == [f"Open {lines[0].split()[1]} in a browser; Ctrl-C ends it."]
    host, page = pages[0]
    assert host == "127.0.0.1"
    assert b"<html" in page.lower()


def test_a_port_in_use_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["play", "--object", "cuboid", "--web", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"port {port} cannot be used" in error
    assert error.count("\n") == 1
