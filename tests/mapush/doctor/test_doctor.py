"""mapush doctor: stages in order, the first failure ends it, exit codes."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from harl_mapush import config
from harl_mapush.config import RunCfg
from mapush import cli
from mapush.doctor import command, stages
from mapush.doctor.command import run_stage
from mapush.doctor.stages import Stage, StageError, driver_version
from mqe.config import ConfigError

NAMES = ["versions", "device", "worlds", "pictures"]
CPU = ("--device", "cpu")


@pytest.fixture
def few_worlds(monkeypatch) -> None:
    monkeypatch.setattr(stages, "NUM_WORLDS", {"cpu": 2})


@pytest.fixture
def cfg() -> RunCfg:
    return config.resolve(config.load_preset("smoke"), {"sim": {"device": "cpu"}})[0]


def fail_at(monkeypatch, name: str, error: Exception) -> None:
    def run(cfg: RunCfg) -> str:
        raise error

    monkeypatch.setattr(stages, f"check_{name}", run)


def test_the_stages_go_from_simple_to_whole() -> None:
    assert list(stages.stages()) == NAMES


def test_without_a_gpu_everything_passes(few_worlds, capsys) -> None:
    assert command.main([*CPU]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0::2] == [*(f"running {name}" for name in NAMES), lines[-1]]
    assert [line.split()[:2] for line in lines[1::2]] == [["passed", name] for name in NAMES]
    assert f"torch {torch.__version__.split('+')[0]}" in lines[1]
    assert "simulator mujoco on cpu" in lines[3]
    assert lines[-1].startswith("Everything works.")


def test_what_cannot_be_filmed_can_still_be_trained(cfg, monkeypatch) -> None:
    def cannot() -> str:
        raise ConfigError("cannot render: neither EGL nor OSMesa works")

    monkeypatch.setattr(stages, "choose_backend", cannot)
    detail = stages.check_pictures(cfg)
    assert detail.endswith("training does not need: cannot render: neither EGL nor OSMesa works")


def test_it_stops_at_the_first_failure_and_says_what_to_do(monkeypatch, capsys) -> None:
    fail_at(monkeypatch, "worlds", StageError("the actions are purple", "wear glasses"))
    assert command.main([*CPU]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-4] == "running worlds"
    assert lines[-3].startswith("failed  worlds      the actions are purple (0.0 s)")
    assert lines[-2:] == ["        what to do: wear glasses", "Stopped at stage 'worlds'."]
    assert lines[1].startswith("passed  versions ")


def test_an_error_of_cuda_is_a_failure_in_one_line(monkeypatch, capsys) -> None:
    error = RuntimeError("CUDA error: an illegal\nmemory access was encountered")
    fail_at(monkeypatch, "worlds", error)
    assert command.main([*CPU]) == 1
    failed, hint, _ = capsys.readouterr().out.splitlines()[-3:]
    assert "RuntimeError: CUDA error: an illegal memory access was encountered" in failed
    assert "CUDA_LAUNCH_BLOCKING=1 mapush doctor" in hint


def test_worlds_that_break_fail(cfg, few_worlds, monkeypatch) -> None:
    make = stages.make_env

    def make_broken(*settings):
        env = make(*settings)
        step = env.step
        env.step = lambda actions: step(actions * torch.nan)
        return env

    monkeypatch.setattr(stages, "make_env", make_broken)
    with pytest.raises(StageError, match="not finite, or of broken worlds"):
        stages.check_worlds(cfg)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--jsn"], "--jsn"),
        (["--preset", "lap"], "lap"),
        (["--set", "env.num_env=3"], "env.num_env"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2(arguments, said, capsys) -> None:
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_it_is_a_command(few_worlds, capsys) -> None:
    fail = ["doctor", "--jsn"]
    assert cli.main(fail) == 2
    assert "--jsn" in capsys.readouterr().err


def test_results(cfg, capsys) -> None:
    def lines_of(error: Exception | None) -> list[str]:
        def run(cfg: RunCfg) -> str:
            if error is not None:
                raise error
            return "well"

        assert run_stage("s", Stage(run, "in general"), cfg) == (error is None)
        return capsys.readouterr().out.splitlines()

    failed = "failed  s           "
    to_do = "        what to do: in general"
    particular = StageError("a", "in particular")
    assert lines_of(particular) == [f"{failed}a (0.0 s)", "        what to do: in particular"]
    assert lines_of(ConfigError("b: c")) == [f"{failed}b: c (0.0 s)", to_do]
    assert lines_of(ZeroDivisionError("d")) == [f"{failed}ZeroDivisionError: d (0.0 s)", to_do]
    assert lines_of(None) == ["passed  s           well (0.0 s)"]


def test_nothing_runs_after_a_failure(monkeypatch, capsys) -> None:
    fail_at(monkeypatch, "versions", ValueError("ouch"))
    assert command.main([*CPU]) == 1
    assert capsys.readouterr().out.count("running") == 1


@pytest.fixture
def versions(monkeypatch):
    """A machine with the GPU's packages and a driver for CUDA 12.4."""
    versions = {
        "mapush": "0.3.0",
        "torch": "2.13.0",
        "mujoco": "4.0.0",
        "mujoco-warp": "4.0.2",
        "warp-lang": "1.19.0",
        "numpy": "2.0",
    }
    monkeypatch.setattr(stages, "packages", lambda: versions)
    monkeypatch.setattr(stages, "driver_version", lambda: 12040)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    return versions


def test_versions_that_do_not_belong_together(cfg, versions) -> None:
    assert "driver for CUDA 12.4" in stages.check_versions(cfg)
    versions["mujoco-warp"] = "3.9.1"
    with pytest.raises(StageError, match="mujoco-warp 3.9.1 is not for MuJoCo 4") as raised:
        stages.check_versions(cfg)
    assert raised.value.hint.startswith("pip install mujoco-warp==4.")


@pytest.mark.parametrize(
    ("driver", "said"),
    [
        (11080, "^torch is built for CUDA 12.8, but the driver supports CUDA 11.8 at most$"),
        (12040, None),
        (None, None),
    ],
)
def test_what_is_built_for_a_newer_cuda_than_the_drivers(
    cfg, versions, monkeypatch, driver, said
) -> None:
    monkeypatch.setattr(stages, "driver_version", lambda: driver)
    # On the CPU that was asked for, it is all the same.
    assert "mujoco-warp 4.0.2" in stages.check_versions(cfg)
    cfg = dataclasses.replace(cfg, sim=dataclasses.replace(cfg.sim, device="auto"))
    if said is None:
        assert "mujoco-warp 4.0.2" in stages.check_versions(cfg)
        return
    with pytest.raises(StageError, match=said) as raised:
        stages.check_versions(cfg)
    assert raised.value.hint.endswith("torch build for CUDA 11")


def test_a_torch_for_the_cpu_alone_is_reported(cfg, versions, monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for CPUs only" in stages.check_versions(cfg)


def test_the_driver_is_asked_without_a_gpu() -> None:
    assert driver_version() is None or driver_version() > 10000
