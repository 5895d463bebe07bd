"""harl_mapush.callbacks.wandb_logger: an offline run, and rejected settings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from harl_mapush.callbacks import wandb_logger
from harl_mapush.callbacks.wandb_logger import WandbLogger, check_wandb
from harl_mapush.config import LoggerCfg
from harl_mapush.progress import IterationReport
from mqe.config import ConfigError, build

REPORT = IterationReport(1, 8, 100, 800, 3.0, 1.0, {"reward/push": 0.01})


def test_an_offline_run_has_curves_settings_and_films(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    film = tmp_path / "film.gif"
    film.write_bytes(b"GIF89a" + bytes([3, 0, 2, 0, 0, 0, 0]) + b";")
    lines: list[str] = []
    settings = {"algorithm": {"gamma": 0.875}}
    cfg = LoggerCfg(wandb="offline")
    check_wandb(cfg)
    logger = WandbLogger(cfg, tmp_path, "0123abcd", settings, lines.append)
    logger.log(REPORT, {"success_rate": 0.5})
    logger.add_film(film, 100)
    logger.close()
    (run,) = (tmp_path / "wandb").glob("offline-run-*-0123abcd")
    assert lines == [f"W&B run 0123abcd: `wandb sync {run}` sends it."]
    written = (run / "run-0123abcd.wandb").read_bytes()
    for name in (b"mapush/success_rate", b"reward/push", b"env_steps", b"gamma", b"0.875"):
        assert name in written
    (sent,) = (run / "files" / "media").rglob("*.gif")
    assert sent.read_bytes() == film.read_bytes()


def test_a_run_outlives_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    class Gone:
        dir = "files"
        url = None

        def define_metric(self, *_: object, **__: object) -> None: ...

        def log(self, values: object) -> None:
            raise BrokenPipeError("its process has ended")

    monkeypatch.setattr(wandb, "init", lambda **_: Gone())
    lines: list[str] = []
    logger = WandbLogger(LoggerCfg(wandb="offline"), tmp_path, "1", {}, lines.append)
    logger.log(REPORT, {})
    logger.log(REPORT, {})
    logger.close()
    assert lines[1:] == [
        "Note: nothing more is logged to W&B (its process has ended); training continues."
    ]


def test_what_cannot_be_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    check_wandb(LoggerCfg())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"logger.wandb=offline: .*pip install '\.\[wandb\]'"):
        check_wandb(LoggerCfg(wandb="offline"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setattr(wandb_logger, "_has_key", lambda: False)
    check_wandb(LoggerCfg(wandb="offline"))
    with pytest.raises(ConfigError, match="no API key .* `wandb login` .* .logger.wandb=offline"):
        check_wandb(LoggerCfg(wandb="online"))
    with pytest.raises(ConfigError, match="wandb_project: 'a/b' cannot name a project"):
        build(LoggerCfg, {"wandb_project": "a/b"}, "logger")
