"""mapush doctor: stages in order, the first failure ends it, JSON alone on stdout, exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
import torch

from harl_mapush import config
from harl_mapush.callback import Callback
from harl_mapush.callbacks.run_context import CALLBACKS, RunContext
from harl_mapush.runner import Runner
from harl_mapush.trainer import NonFiniteError
from mapush import cli
from mapush.doctor import command, stages
from mapush.doctor import tiny_training as training
from mapush.doctor.checkup import Checkup
from mapush.doctor.command import StageResult, examine, format_result, result_of_crash, run_stage
from mapush.doctor.stage import Stage, StageError
from mapush.doctor.stages import STAGES, driver_version
from mqe.config import ConfigError

NAMES = [stage.name for stage in STAGES]
CPU = ("--device", "cpu")


@pytest.fixture
def few_worlds(monkeypatch):
    monkeypatch.setattr(stages, "NUM_WORLDS_CPU", 4)
    monkeypatch.setattr(training, "NUM_WORLDS", 4)


@pytest.fixture
def checkup():
    cfg, _ = config.resolve(config.load_preset("smoke"), {"sim": {"device": "cpu"}})
    checkup = Checkup(cfg)
    yield checkup
    checkup.close()


def fail_at(monkeypatch, name: str, error: Exception) -> None:
    def run(checkup: Checkup) -> str:
        raise error

    broken = tuple(stage._replace(run=run) if stage.name == name else stage for stage in STAGES)
    monkeypatch.setattr(command, "STAGES", broken)


def test_the_stages_go_from_simple_to_whole():
    assert NAMES == [
        "versions",
        "device",
        "gpus",
        "memory plan",
        "one world",
        "frames",
        "many worlds",
        "graph",
        "training",
        "collectors",
        "run folder",
        "film",
        "ranks",
    ]
    assert [stage.name for stage in STAGES if stage.needs_gpu] == ["gpus", "graph"]


def test_without_a_gpu_everything_else_passes_as_json_alone(few_worlds, monkeypatch, capfd):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert command.main(["--json", *CPU]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["ok"] is True
    assert [stage["stage"] for stage in facts["stages"]] == NAMES
    skipped = ("gpus", "graph", "collectors", "ranks")
    expected = {name: "skipped" if name in skipped else "passed" for name in NAMES}
    assert {stage["stage"]: stage["status"] for stage in facts["stages"]} == expected
    assert facts["versions"]["torch"] == torch.__version__
    assert (facts["simulator"], facts["device"], facts["gpus"]) == ("mujoco", "cpu", [])
    assert facts["memory_plan"]["needed"] == sum(
        facts["memory_plan"][part] for part in ("fixed", "worlds", "learner")
    )


RECURRENT = ["--set", "network.use_recurrent_policy=true"]


@pytest.mark.parametrize("chunk_length", [0, 8])
def test_what_trains_passes(chunk_length: int, few_worlds, capsys):
    minibatches = [
        "--set",
        "algorithm.num_minibatches=64",
        "--set",
        "algorithm.critic_num_minibatches=32",
    ]
    minibatches += ["--set", "algorithm.num_epochs=1"]
    chunks = ["--set", f"network.chunk_length={chunk_length}"]
    assert command.main([*CPU, *RECURRENT, *chunks, *minibatches]) == 0
    assert capsys.readouterr().out.endswith("Everything works: simulator mujoco on cpu.\n")


def test_a_long_stage_shows_that_it_lives(checkup, monkeypatch, capsys):
    monkeypatch.setattr(command, "SIGN_INTERVAL_S", 0.05)
    slow = Stage("slow", lambda _: time.sleep(0.13) or "done", "")
    list(examine(checkup, command._teller(False, None), (slow,)))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [
        ["running", "slow"],
        ["running", "slow"],
        ["passed", "slow"],
    ]


def test_what_cannot_be_filmed_can_still_be_trained(checkup, monkeypatch, tmp_path):
    def cannot(*_: object, **__: object) -> None:
        raise ConfigError("cannot render: neither EGL nor OSMesa works")

    monkeypatch.setattr(stages, "record", cannot)
    result = run_stage(STAGES[NAMES.index("film")], checkup)
    assert (result.status, result.hint) == ("skipped", None)
    assert result.detail.endswith("neither EGL nor OSMesa works")


def test_a_place_where_no_run_can_be_written_fails(checkup, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    stage = STAGES[NAMES.index("run folder")]
    assert run_stage(stage, checkup).detail.startswith(f"{tmp_path / 'results'} can be written, ")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "results").write_text("")
    result = run_stage(stage, checkup)
    assert result.status == "failed"
    assert "is a file" in result.detail


def test_it_stops_at_the_first_failure_and_says_what_to_do(few_worlds, monkeypatch, capsys):
    fail_at(monkeypatch, "training", StageError("the actions are purple", "wear glasses"))
    assert command.main([*CPU]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3:] == [
        "failed  training      the actions are purple",
        "        what to do: wear glasses",
        "Stopped at stage 'training'; 4 stages were not run.",
    ]
    assert lines[0].startswith("passed  versions ")


def test_a_failure_is_in_the_json_and_in_the_exit_code(few_worlds, monkeypatch, capsys):
    fail_at(
        monkeypatch,
        "one world",
        RuntimeError("CUDA error: an illegal\nmemory access was encountered"),
    )
    assert command.main(["--json", *CPU]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is False
    failed = facts["stages"][NAMES.index("one world")]
    assert failed["status"] == "failed"
    assert failed["detail"] == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert "--cuda-debug" in failed["hint"]
    assert {stage["status"] for stage in facts["stages"][NAMES.index("many worlds") :]} == {
        "not run"
    }


def test_nothing_that_libraries_print_reaches_stdout(monkeypatch, capfd):
    def chatter(checkup: Checkup) -> str:
        sys.stdout.write("python\n")
        os.write(1, b"compiled\n")
        return "done"

    monkeypatch.setattr(command, "STAGES", (Stage("chatter", chatter, ""),))
    assert command.main(["--json", *CPU]) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out)["stages"][0]["detail"] == "done"
    assert "python" in printed.err
    assert "compiled" in printed.err


@pytest.mark.parametrize("arguments", [["--jsn"], ["--preset", "lap"], ["--set", "env.num_env=3"]])
def test_a_wrong_command_line_is_exit_code_2(arguments, capsys):
    assert command.main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_it_is_a_command(monkeypatch, capsys):
    monkeypatch.setattr(command, "STAGES", ())
    assert cli.main(["doctor", *CPU]) == 0
    assert capsys.readouterr().out.startswith("Everything works")


def test_results(checkup):
    def raising(error: Exception) -> Stage:
        def run(checkup: Checkup) -> str:
            raise error

        return Stage("s", run, "in general")

    assert run_stage(raising(StageError("a", "in particular")), checkup)[3:] == (
        "a",
        "in particular",
    )
    assert run_stage(raising(ConfigError("b: c")), checkup)[3:] == ("b: c", "in general")
    assert run_stage(raising(ZeroDivisionError("d")), checkup)[3:] == (
        "ZeroDivisionError: d",
        "in general",
    )
    assert run_stage(Stage("s", lambda _: "well", "x"), checkup)[3:] == ("well", None)
    assert run_stage(Stage("s", lambda _: "well", "x", needs_gpu=True), checkup).status == "skipped"
    assert (
        format_result(StageResult("s", "passed", 0.25, "well"))
        == "passed  s             well (0.2 s)"
    )


def test_a_training_goes_through_the_program_and_resumes(few_worlds, checkup):
    assert stages.check_training(checkup).startswith("4 iterations with a checkpoint in between; ")
    assert "doctor" not in CALLBACKS


def test_a_training_that_fails_is_its_last_line(few_worlds, checkup, monkeypatch):
    def learn(self: Runner, callbacks: object, folder: object) -> None:
        raise NonFiniteError("critic/loss is nan")

    monkeypatch.setattr(Runner, "learn", learn)
    with pytest.raises(StageError, match="^mapush doctor: critic/loss is nan; "):
        stages.check_training(checkup)


def test_kernels_one_by_one_reach_the_training(few_worlds, checkup, monkeypatch):
    """CUDA graphs would hide a failing kernel."""
    graphs = []
    watch = training._Watch.follow

    def follow(self: training._Watch, run: RunContext) -> Callback:
        run.env.use_graphs = True
        callback = watch(self, run)
        graphs.append(run.env.use_graphs)
        run.env.use_graphs = False
        return callback

    monkeypatch.setattr(training._Watch, "follow", follow)
    checkup.is_launched_singly = True
    stages.check_training(checkup)
    assert graphs == [False, False]


@pytest.mark.slow
def test_collectors_train_for_the_given_time(capsys):
    assert command.main([*CPU, "--async", "--collectors", "1", "--duration", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("passed  collectors")]
    assert "[Collector 0]" in line
    assert "[Learner] warm-up" in line


@pytest.fixture
def versions(monkeypatch):
    """A machine with the GPU's packages and a driver for CUDA 12.4."""
    versions = {
        "torch": "2.13.0",
        "mujoco": "4.0.0",
        "mujoco-warp": "4.0.2",
        "warp-lang": "1.19.0",
        "numpy": "2.0",
    }

    def version(package: str) -> str:
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    needs = {
        "mujoco-warp": [
            "etils[epath]",
            "mujoco>=3.13.0",
            "warp-lang>=1.15",
            "numpy>=9; extra == 'dev'",
        ]
    }
    monkeypatch.setattr(stages, "version", version)
    monkeypatch.setattr(stages, "requires", needs.get)
    monkeypatch.setattr(stages, "driver_version", lambda: 12040)
    monkeypatch.setattr(stages, "warp_cuda", lambda: "12.9")  # minor versions are compatible
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    return versions


def test_versions_that_do_not_belong_together(checkup, versions):
    assert "driver_cuda 12.4, warp_cuda 12.9" in stages.check_versions(checkup)
    versions["mujoco-warp"] = "3.9.1"
    with pytest.raises(StageError, match="mujoco-warp 3.9.1 is not for MuJoCo 4") as raised:
        stages.check_versions(checkup)
    assert raised.value.hint.startswith("pip install mujoco-warp==4.")


@pytest.mark.parametrize(
    ("warp", "said"),
    [
        ("1.0.0", "not 1.0.0"),
        ("1.9.2", "not 1.9.2"),
        (None, "which is not installed"),
        ("1.15", None),
        ("1.15.0rc1", None),
        ("1.100.0+cu12", None),
        ("2", None),
    ],
)
def test_mujoco_warp_says_which_warp_it_needs(checkup, versions, warp, said):
    versions["warp-lang"] = warp
    if warp is None:
        del versions["warp-lang"]
    if said is None:
        assert f"warp-lang {warp}" in stages.check_versions(checkup)
        return
    with pytest.raises(
        StageError, match=f"^mujoco-warp needs warp-lang 1.15 or newer, {said}$"
    ) as raised:
        stages.check_versions(checkup)
    assert raised.value.hint == "pip install 'warp-lang>=1.15'"


def test_its_own_requirements_are_read(checkup, monkeypatch):
    pytest.importorskip("mujoco_warp")
    installed = stages.version
    monkeypatch.setattr(
        stages, "version", lambda package: "0.1" if package == "warp-lang" else installed(package)
    )
    with pytest.raises(StageError, match=r"^mujoco-warp needs warp-lang 1\.\d+ or newer, not 0.1$"):
        stages.check_versions(checkup)


@pytest.mark.parametrize(
    ("driver", "torchs", "warps", "said"),
    [
        (
            11080,
            "12.8",
            None,
            "^torch is built for CUDA 12.8, but the driver supports CUDA 11.8 at most$",
        ),
        (
            12040,
            "12.8",
            "13.4",
            "^warp is built for CUDA 13.4, but the driver supports CUDA 12.4 at most$",
        ),
        (12040, "12.8", None, None),
        (None, "12.8", "13.4", None),
    ],
)
def test_what_is_built_for_a_newer_cuda_than_the_drivers(
    checkup, versions, monkeypatch, driver, torchs, warps, said
):
    monkeypatch.setattr(stages, "driver_version", lambda: driver)
    monkeypatch.setattr(stages, "warp_cuda", lambda: warps)
    monkeypatch.setattr(torch.version, "cuda", torchs)
    # On the CPU that was asked for, it is all the same.
    assert "mujoco-warp 4.0.2" in stages.check_versions(checkup)
    checkup.cfg = dataclasses.replace(
        checkup.cfg, sim=dataclasses.replace(checkup.cfg.sim, device="auto")
    )
    if said is None:
        assert "mujoco-warp 4.0.2" in stages.check_versions(checkup)
        return
    with pytest.raises(StageError, match=said) as raised:
        stages.check_versions(checkup)
    assert raised.value.hint.endswith(f"{said.split()[0][1:]} build for CUDA {driver // 1000}")


def test_a_torch_for_the_cpu_alone_is_reported(checkup, versions, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built for CPUs only" in stages.check_versions(checkup)


@pytest.mark.parametrize(("built_with", "said"), [(None, None), ((12, 9), "12.9")])
def test_warp_is_asked_for_its_cuda(monkeypatch, built_with, said):
    pytest.importorskip("mujoco_warp")
    from mqe.sim.mujoco_warp import wp

    monkeypatch.setattr(wp, "get_cuda_toolkit_version", lambda: built_with)
    assert stages.warp_cuda() == said


def test_gpus_are_listed_though_the_run_is_on_the_cpu(checkup, monkeypatch):
    def mem_get_info(index: int) -> tuple[int, int]:
        if index == 1:
            raise RuntimeError("CUDA error:\nout of memory")
        return 2**30, 2**32

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "H100")
    gpus = STAGES[NAMES.index("gpus")]
    result = run_stage(gpus, checkup)
    assert (result.status, result.detail) == (
        "passed",
        "cuda:0 H100, 1.0 of 4.0 GiB free; cuda:1 does not answer (CUDA error: out of memory); "
        "the run is on the CPU",
    )
    assert checkup.gpus == [{"name": "H100", "free_gib": 1.0, "total_gib": 4.0}]
    assert run_stage(STAGES[NAMES.index("graph")], checkup).status == "skipped"
    checkup.device = torch.device("cuda", 0)
    assert run_stage(gpus, checkup).status == "failed"
    checkup.device = torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert run_stage(gpus, checkup).status == "skipped"


def test_the_driver_is_asked_without_a_gpu():
    assert driver_version() is None or driver_version() > 10000


def test_a_crash_is_reported_with_its_stage(monkeypatch, capsys):
    def run(command: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess:
        names = ("CUDA_LAUNCH_BLOCKING", "TORCH_USE_CUDA_DSA", "PYTORCH_USE_CUDA_DSA")
        assert [env[name] for name in names] == ["1"] * 3
        results = [
            StageResult("versions", "running"),
            StageResult("versions", "passed"),
            StageResult("one world", "running"),
        ]
        report = Path(command[command.index("--report") + 1])
        report.write_text("".join(json.dumps(result._asdict()) + "\n" for result in results))
        return subprocess.CompletedProcess(command, -11, stdout="")

    monkeypatch.setattr(subprocess, "run", run)
    assert command.main(["--cuda-debug"]) == 1
    out = capsys.readouterr().out
    assert "failed  one world     the process died: SIGSEGV" in out
    assert command.main(["--cuda-debug", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["stages"][1]["stage"] == "one world"


@pytest.mark.parametrize(
    ("last", "returncode", "crashed"),
    [("passed", 0, False), ("failed", 1, False), ("passed", 1, True)],
)
def test_what_a_separate_process_reported_is_not_reported_again(
    monkeypatch, capsys, last, returncode, crashed
):
    """It writes results to our stdout as it runs. An exit code without a result is a crash."""

    def run(command: list[str], stdout: int | None, **_: object) -> subprocess.CompletedProcess:
        Path(command[-1]).write_text(json.dumps(StageResult("versions", last)._asdict()) + "\n")
        return subprocess.CompletedProcess(
            command, returncode, stdout=None if stdout is None else '{"its": "own"}'
        )

    monkeypatch.setattr(subprocess, "run", run)
    assert command.main(["--cuda-debug"]) == returncode
    assert ("the process died: exit code 1" in capsys.readouterr().out) == crashed
    assert command.main(["--cuda-debug", "--json"]) == returncode
    assert ("stages" in json.loads(capsys.readouterr().out)) == crashed


def test_a_process_that_dies_at_once_failed_at_the_first_stage():
    assert result_of_crash([], 3)[:4] == (
        "versions",
        "failed",
        0.0,
        "the process died: exit code 3",
    )


def test_examine_closes_what_it_built(checkup):
    seen = []
    first = Stage("a", lambda c: str(c.build(1)), "")
    second = Stage("b", lambda c: "never", "")

    def fall(checkup: Checkup) -> str:
        raise ValueError("ouch")

    results = list(examine(checkup, seen.append, (first, Stage("f", fall, "rest"), second)))
    assert [result.status for result in results] == ["passed", "failed"]
    assert [(result.stage, result.status) for result in seen] == [
        ("a", "running"),
        ("a", "passed"),
        ("f", "running"),
        ("f", "failed"),
    ]
    assert checkup.env is None
