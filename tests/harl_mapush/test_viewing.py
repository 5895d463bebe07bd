"""Films from the command line: flags, rejected input and progress."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harl_mapush import test, viewing
from mapush import cli
from mqe.viewer.camera import CAMERAS
from mqe.viewer.recording import Recording


def read(record: str = "x.mp4", **given: object) -> dict[str, Any]:
    nothing = dict.fromkeys((*viewing.FLAGS, "num_episodes"))
    film = viewing.requested_film(SimpleNamespace(**(nothing | {"record": record} | given)))
    assert film is not None
    return film.keywords


def test_flags_make_a_film() -> None:
    plain = read()
    path = Path("x.mp4")
    follow = CAMERAS["follow"]
    assert plain == {"path": path, "angle": follow, "speed": 1.0, "seconds": 30.0}
    near = read("x.mp4", camera="low", speed=0.5)
    assert (near["angle"], near["speed"]) == (CAMERAS["low"], 0.5)
    more = read(num_episodes=7, size="1280x720", camera="top")
    top = CAMERAS["top"]
    assert more == {"path": path, "angle": top, "speed": 1.0, "size": (1280, 720), "episodes": 7}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "--record x.mp4 --size 12",
            "--size 12: must be two whole numbers from 32 to 7680, for example 960x540",
        ),
        (
            "--record x.mp4 --camera above",
            "--camera: unknown camera 'above' (allowed: follow, low, side, top)",
        ),
        ("--record x.mp4 --speed 0", "--speed 0: must be from 0.05 to 50"),
        ("--record x.avi", "must end in .mp4"),
        ("--record x.mp4 --size 16x64", "--size 16x64: must be two whole numbers from 32"),
        ("--mode viewer --speed 2", "--speed 2.0: belongs to a film; add --record FILE.mp4"),
        ("--mode calculator --record x.mp4", "--record belongs to --mode viewer"),
        ("--record x.mp4 --num_episodes 0", "--num_episodes 0"),
    ],
)
def test_bad_films_are_one_line(argv: str, said: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recording, "play", lambda *_: pytest.fail("it is filmed"))
    assert test.main(["--checkpoint", "pretrained:cuboid", "--device", "cpu", *argv.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_play_films_as_well(tmp_path, monkeypatch, capsys) -> None:
    made = SimpleNamespace(path="x.mp4", seconds=1.0, outcomes=["success"])
    monkeypatch.setattr(viewing, "record", lambda *_, **__: made)
    assert (
        cli.main(
            ["play", "pretrained:cuboid", "--record", str(tmp_path / "x.mp4"), "--device", "cpu"]
        )
        == 0
    )
    assert capsys.readouterr().out.endswith("x.mp4: 1.0 s, 1 episode: success.\n")
