"""mapush capacity: the largest number of worlds within a training's memory plan."""

from __future__ import annotations

import re

import pytest
import torch

from harl_mapush import config, memory_plan
from harl_mapush.memory_plan import GIB, check_memory, most_worlds, plan_memory
from mapush import cli
from mqe.config import ConfigError


@pytest.mark.parametrize(("free_gib", "code"), [(40.0, 0), (0.35, 1)])
def test_it_names_the_worlds_that_fit(free_gib, code, monkeypatch, capsys) -> None:
    free = (round(free_gib * GIB), 64 * GIB)
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: free)
    sizes = ["--num_envs", "4096", "--device", "cpu"]
    assert cli.main(["capacity", "--preset", "laptop", *sizes]) == code
    output = capsys.readouterr().out
    assert "these settings have 4096" in output
    (largest,) = map(int, re.findall(r"Up to env.num_envs=(\d+) fit", output))

    def plan(num_envs: int) -> memory_plan.MemoryPlan:
        over = {"env": {"num_envs": num_envs}, "sim": {"device": "cpu"}}
        cfg, _ = config.resolve(config.load_preset("laptop"), over)
        return plan_memory(cfg, "mujoco", torch.device("cpu"))

    check_memory(plan(largest))
    with pytest.raises(ConfigError, match="lower env.num_envs"):
        check_memory(plan(2 * largest))
    assert most_worlds(plan(largest)) == largest


def test_a_machine_that_does_not_tell_is_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (None, None))
    assert cli.main(["capacity", "--device", "cpu"]) == 2
    assert "does not tell its free memory" in capsys.readouterr().err


def test_a_replay_buffer_takes_the_same_for_any_number_of_worlds(monkeypatch, capsys) -> None:
    """The fitting number of worlds does not depend on the number in the settings. Neither do the
    transitions.
    """
    free = (round(2.0 * GIB), 64 * GIB)
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: free)
    line = ["capacity", "--preset", "laptop_hasac", "--device", "cpu"]
    limits = set()
    for num_envs in (64, 4096):
        assert cli.main([*line, "--num_envs", str(num_envs)]) == 0
        limits |= set(re.findall(r"Up to env.num_envs=(\d+) fit", capsys.readouterr().out))
    assert len(limits) == 1

    def plan(buffer_size: int) -> memory_plan.MemoryPlan:
        over = {"algorithm": {"buffer_size": buffer_size}, "sim": {"device": "cpu"}}
        cfg, _ = config.resolve(config.load_preset("laptop_hasac"), over)
        return plan_memory(cfg, "mujoco", torch.device("cpu"))

    with pytest.raises(ConfigError, match=r"lower algorithm.buffer_size$"):
        check_memory(plan(50_000_000))
    check_memory(plan(500_000))


def test_settings_that_fit_pass_where_the_largest_number_is_rounded_below_them(
    monkeypatch, capsys
) -> None:
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (20 * GIB, 64 * GIB))
    line = ["capacity", "--preset", "laptop", "--device", "cpu", "--num_envs"]
    assert cli.main([*line, "64"]) == 0
    (num_envs,) = map(int, re.findall(r"num_envs=(\d+) fit", capsys.readouterr().out))
    assert cli.main([*line, str(num_envs + 1)]) == 0
