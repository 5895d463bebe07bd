"""The start of a run: its folder and its weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harl_mapush import config, start
from harl_mapush.runs import init_from
from harl_mapush.runs.resume import SavedRun
from harl_mapush.start import Start
from mqe.config import ConfigError


def test_a_saved_run_without_a_checkpoint_starts_with_its_initial_networks(
    monkeypatch, capsys
) -> None:
    cfg, _ = config.resolve({}, {"runner": {"init_from": "pretrained:cuboid"}})
    loaded: list[Any] = []
    monkeypatch.setattr(start.init_from, "load", lambda *words: loaded.append(words) or "Loaded")
    trainer = cast(Any, SimpleNamespace(algorithm=SimpleNamespace(networks={})))
    saved = SavedRun(Path("run"), None, 0)
    for begin in (Start.anew(cfg), Start.anew(cfg)._replace(saved=saved)):
        state = begin.read_state()
        assert state is None
        begin.load(trainer, 2, cfg.algorithm, state)
    assert [words[0] for words in loaded] == ["pretrained:cuboid"] * 2
    assert capsys.readouterr().out == "Loaded.\n" * 2


def test_a_new_run_has_the_folder_of_its_settings_or_one_of_its_own(monkeypatch) -> None:
    named, _ = config.resolve({}, {"logger": {"out_dir": "a/run"}})
    begin = Start.anew(named)
    assert (begin.folder, begin.is_named) == (Path("a/run"), True)
    begin = Start.anew(config.resolve({}, {"logger": {"exp_name": "mine"}})[0])
    assert "mine" in begin.folder.parts
    assert not begin.is_named


def test_a_start_from_a_team_of_any_size_asks_for_one_actor() -> None:
    cfg, _ = config.resolve({}, {"algorithm": {"name": "hasac", "share_param": False}})
    with pytest.raises(ConfigError, match=r"actors of 4 robots.*has 2; use.*share_param=true"):
        init_from.load("pretrained:any", {}, 2, cfg.algorithm)
