"""Films from the command line: flags, rejected input and progress."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from harl_mapush import test
from harl_mapush.viewing import filming
from mapush import cli
from mqe.viewer.camera import CAMERAS, Angle
from mqe.viewer.recording import Recording


def read(record: str = "x.mp4", **given: object) -> filming.FilmCfg:
    nothing = dict.fromkeys((*filming.FLAGS, "num_episodes"))
    return filming.read(
        SimpleNamespace(**(nothing | {"record": record} | given)), record, "--record"
    )


def test_flags_make_a_film() -> None:
    plain = read()
    assert (plain.size, plain.tiles, plain.angle, plain.episodes) == (
        (960, 540),
        (1, 1),
        CAMERAS["follow"],
        3,
    )
    tiled = read("x.gif", tiles="3x2", camera="30,-45,4.5")
    assert (tiled.size, tiled.tiles, tiled.num_tiles, tiled.episodes) == ((480, 270), (3, 2), 6, 6)
    assert tiled.angle == Angle(30.0, -45.0, 4.5)
    more = read(tiles="2x2", num_episodes=7, size="1280x720", camera="top")
    assert (more.size, more.angle, more.episodes) == ((1280, 720), CAMERAS["top"], 7)
    assert (plain.seconds, more.seconds) == (30.0, math.inf)
    assert (plain.speed, plain.fps, tiled.fps, plain.has_captions) == (1.0, 25.0, 12.0, True)
    slow = read(speed=0.5, fps=50.0, title="ours")
    assert (slow.speed, slow.fps, slow.title) == (0.5, 50.0, "ours")
    bare = read(no_captions=True)
    assert not bare.has_captions


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "--record x.mp4 --tiles 0x3",
            "--tiles 0x3: must be two whole numbers from 1 to 64, for example 3x3",
        ),
        ("--record x.mp4 --tiles 30x30", "--tiles 30x30: at most 64 tiles"),
        (
            "--record x.mp4 --size 12",
            "--size 12: must be two whole numbers from 1 to 7680, for example 960x540",
        ),
        (
            "--record x.mp4 --size 64x64 --tiles 3x3",
            "--size 64x64: every tile needs at least 32x32",
        ),
        (
            "--record x.mp4 --camera above",
            "--camera above: no such camera; name one of follow, low, side, top, or",
        ),
        ("--record x.mp4 --camera 10", "--camera 10: no such camera"),
        ("--record x.mp4 --speed 0", "--speed 0: must be from 0.05 to 50"),
        ("--record x.mp4 --fps 1000", "--fps 1000: must be from 1 to 100"),
        ("--record x.mp4 --title ours --no_captions", "--title and --no_captions exclude each"),
        ("--no_captions", "--no_captions: belongs to a film; add --record FILE.mp4"),
        ("--record x.mp4 --camera 10,nan", "elevation from -90 to 90"),
        ("--record x.mp4 --camera 10,-20,0", "distance from 0.1 to 100 m"),
        ("--record x.avi", "must end in .mp4 or .gif"),
        ("--mode viewer --tiles 2x2", "--tiles 2x2: belongs to a film; add --record FILE.mp4"),
        ("--mode calculator --record x.mp4", "--record 'x.mp4' belongs to --mode viewer"),
        ("--record x.mp4 --num_episodes 0", "--num_episodes 0"),
        ("--record x.mp4 --tiles 2x2 --num_envs 3", "4 tiles need a world each, and there are 3"),
    ],
)
def test_bad_films_are_one_line(argv: str, said: str, capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recording, "step", lambda *_: pytest.fail("it is filmed"))
    assert test.main(["--checkpoint", "pretrained:cuboid", "--device", "cpu", *argv.split()]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        "--tiles 2x2",
        "--workers 2",
        "--seeds 3",
        "--suite strict",
        "--agent zero",
        "--web",
        "--num_episodes 2",
    ],
)
def test_a_replay_takes_nothing_else(words: str, capsys) -> None:
    assert test.main(["--replay", "x.npz", "--record", "x.mp4", *words.split()]) == 2
    assert "takes nothing else except --mode viewer" in capsys.readouterr().err


def test_a_film_shows_its_progress(monkeypatch) -> None:
    said: list[str] = []
    clock = iter([0.0, 1.0, 4.0, 5.0, 9.0])
    monkeypatch.setattr(filming.time, "monotonic", lambda: next(clock))
    progress = filming._Progress(said.append)
    progress("simulated", 2.0, None)  # after 1 s: nothing yet
    progress("simulated", 8.0, None)
    progress("drawn", 0.5, 10.0)
    progress("drawn", 4.0, 10.0)  # 4 s of film in 4 s
    assert said == ["Film: 8.0 s simulated", "Film: 4.0 s drawn of 10 s, 6 s left"]


def test_play_films_as_well(tmp_path, monkeypatch, capsys) -> None:
    made = SimpleNamespace(path="x.gif", seconds=1.0, outcomes=["success"])
    monkeypatch.setattr(filming, "record", lambda *_, **__: made)
    assert (
        cli.main(
            ["play", "pretrained:cuboid", "--record", str(tmp_path / "x.gif"), "--device", "cpu"]
        )
        == 0
    )
    assert capsys.readouterr().out.endswith("x.gif: 1.0 s, 1 episode: success.\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pretrained:cuboid", "missing: --out; example: mapush film"),
        ("pretrained:cuboid --out x.avi", "--out 'x.avi': must end in .mp4 or .gif"),
        ("zero random --out x.mp4 --tiles 2x1", "--tiles: several teams have a tile each"),
        ("zero random --out x.mp4 --num_episodes 0", "--num_episodes 0: must be at least 1"),
        ("zero nobody --out x.mp4", "nobody"),
    ],
)
def test_bad_films_of_teams_are_one_line(words: str, said: str, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["film", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("mapush film: ")
    assert error.count("\n") == 1
    assert said in error
    assert list(tmp_path.iterdir()) == []
