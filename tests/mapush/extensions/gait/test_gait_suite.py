"""The gait suite: its task's default, with its own worlds."""

from __future__ import annotations

import pytest

from harl_mapush import config, test
from mapush.extensions.gait import gait_suite
from mqe.extensions import load_extensions

load_extensions()
WORDS = ["pretrained:go1_velocity", "--device", "cpu"]


def test_a_gait_is_measured_in_the_examination(monkeypatch, capsys) -> None:
    monkeypatch.setattr(gait_suite, "evaluate_gait", lambda *_: {"worst": 0.5})
    assert config.measured_suite("go1_velocity", None).examination == "gait"
    assert test.main(WORDS) == 0
    assert capsys.readouterr().out.split() == ["worst", "0.5"]
    assert test.main([*WORDS, "--set", "env.model=physical"]) == 0
    # A gait may have learned from the user's terms.
    assert test.main([*WORDS, "--import", "json"]) == 0


def test_a_gait_that_learned_with_loads_is_a_push_gait(monkeypatch) -> None:
    kinds = []
    monkeypatch.setattr(gait_suite, "evaluate_gait", lambda _, kind, __: kinds.append(kind) or {})
    for gait in ("go1_velocity", "go1_push"):
        assert test.main([f"pretrained:{gait}", "--device", "cpu"]) == 0
    assert kinds == ["velocity", "push"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--num_envs", "5"), "--num_envs: has no effect, because the examination 'gait'"),
        (("--seeds", "1", "2"), "--seeds: has no effect, because the examination 'gait'"),
        (("--set", "task.max_kick=9.0"), "task.max_kick: the examination 'gait' has worlds"),
    ],
)
def test_settings_of_worlds_are_refused(words, message, capsys) -> None:
    assert test.main([*WORDS, *words]) == 2
    assert message in capsys.readouterr().err
