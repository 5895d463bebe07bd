"""mapush capacity: as many worlds as the plan of a training lets fit."""

from __future__ import annotations

import re

import pytest
import torch

from harl_mapush import config, memory_plan
from harl_mapush.memory_plan import GIB, check_memory, most_worlds, plan_memory
from mapush import cli
from mqe.config import ConfigError


@pytest.mark.parametrize(("free_gib", "code"), [(40.0, 0), (0.4, 1)])
def test_it_names_the_worlds_that_fit(free_gib, code, monkeypatch, capsys) -> None:
    free = (round(free_gib * GIB), 64 * GIB)
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: free)
    sizes = ["--num_envs", "4096", "--device", "cpu"]
    assert cli.main(["capacity", "--preset", "laptop", *sizes]) == code
    output = capsys.readouterr().out
    assert "these settings have 4096" in output
    (most,) = map(int, re.findall(r"Up to env.num_envs=(\d+) fit", output))

    def plan(num_envs: int) -> memory_plan.MemoryPlan:
        over = {"env": {"num_envs": num_envs}, "sim": {"device": "cpu"}}
        cfg, _ = config.resolve(config.load_preset("laptop"), over)
        return plan_memory(cfg, "mujoco", torch.device("cpu"))

    check_memory(plan(most))
    with pytest.raises(ConfigError, match="lower env.num_envs"):
        check_memory(plan(2 * most))
    assert most_worlds(plan(most)) == most


def test_a_machine_that_does_not_tell_is_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(memory_plan, "device_memory", lambda device: (None, None))
    assert cli.main(["capacity", "--device", "cpu"]) == 2
    assert "does not tell its free memory" in capsys.readouterr().err
