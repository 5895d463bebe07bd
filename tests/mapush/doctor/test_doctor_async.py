"""mapush doctor --async: a run with collectors, from each part to all."""

from __future__ import annotations

import pytest

from harl_mapush import config
from harl_mapush.collectors.shared_memory import CollectorMemory
from mapush.doctor import command
from mapush.doctor.async_stages import ASYNC_STAGES, AsyncCheckup
from mapush.doctor.command import examine
from mapush.doctor.stage import Stage


def test_a_run_with_collectors_is_checked_from_each_part_to_all():
    assert [stage.name for stage in ASYNC_STAGES] == [
        "versions",
        "settings",
        "environment",
        "agent",
        "collector",
        "ingest",
        "learner",
        "together",
    ]


def test_parts_of_a_run_with_collectors_pass_alone():
    over = {
        "sim": {"device": "cpu"},
        "env": {"num_envs": 4},
        "runner": {"num_steps": 2, "collectors": 2},
    }
    cfg, _ = config.resolve(config.load_preset("laptop_hasac"), over)
    checkup = AsyncCheckup(cfg)
    said = list(examine(checkup, lambda result: None, ASYNC_STAGES[1:4]))
    assert [result.status for result in said] == ["passed"] * 3, said
    assert said[0].detail.startswith("2 collectors, 2 worlds each")
    assert "12 tensors of weights, cpu -> cpu -> cpu" in said[2].detail


def test_the_first_stage_that_fails_names_the_tensor():
    cfg, _ = config.resolve(
        config.load_preset("laptop_hasac"),
        {"sim": {"device": "cpu"}, "env": {"num_envs": 4}, "runner": {"collectors": 2}},
    )
    checkup = AsyncCheckup(cfg)

    def spoil(there):
        step = there.collector.env.step
        there.collector.env.step = lambda actions: (made := step(actions))._replace(
            reward=made.reward.double()
        )
        memory = CollectorMemory(there.collector.layout, 1)
        there.collector.collect(memory.blocks[0])
        return ""

    stages = (*ASYNC_STAGES[1:3], Stage("spoiled", spoil, "report it"))
    *_, last = examine(checkup, lambda result: None, stages)
    assert (last.status, last.stage) == ("failed", "spoiled")
    assert "transition.rewards is (2, 1) torch.float64 on cpu" in last.detail


@pytest.mark.slow
def test_a_run_with_collectors_passes_as_a_whole(capsys):
    assert command.main("--async --device cpu --duration 3 --collectors 4".split()) == 0
    said = capsys.readouterr().out
    assert "4 collectors, 16 worlds each" in said
    assert "cpu -> cpu (shared) -> cpu: obs (8, 16, 2, 10) float32" in said
    assert "[Learner] warm-up 1,024/1,024" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--collectors 4", "--collectors 4 needs --async"),
        ("--duration 30", "--duration 30 needs --async"),
        ("--async --collectors 0", "--collectors: must be above 0, not 0"),
        ("--async --duration nan", "--duration: must be above 0, not nan"),
    ],
)
def test_flags_of_a_check_with_collectors_are_checked_first(capsys, words, said):
    assert command.main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_ranks_and_collectors_are_not_checked_together(capsys):
    assert command.main(["--async", "--gpus", "2"]) == 2
    assert "--gpus 2 and --async exclude each other" in capsys.readouterr().err
