"""harl_mapush.runs.resume: a resumed run equals an uninterrupted one, and unusable training states
are refused.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from filelock import FileLock, Timeout

from harl_mapush import train, training
from harl_mapush.callbacks import checkpoints
from harl_mapush.callbacks.checkpoints import CheckpointSaver
from harl_mapush.callbacks.logger import RunLogger
from harl_mapush.runner import Runner
from harl_mapush.runs import checkpoint, provenance, run_folder
from harl_mapush.runs.resume import CHANGEABLE_ON_RESUME
from harl_mapush.start import Start
from mqe.config import ConfigError
from mqe.manifest import MANIFEST
from tests.support.error_lines import error_line
from tests.support.lazy_modules import needs_warp
from tests.support.nested import leaves
from tests.support.pushing import weights_of
from tests.support.run_files import curves, state
from tests.support.tiny_runs import TINY

# Several in a tiny run.
EPISODES = (
    "--set",
    "task.episode_length_s=0.2",
    "--set",
    "task.decision_period=2",
)
# An iteration is 32 env steps.
EVERY = (
    "--set",
    "runner.checkpoint_interval=32",
    "--set",
    "runner.torch_threads=1",
)
LINEAR = ("--set", "algorithm.schedule=linear")


def command(gait: Path, out: Path, *more: str) -> list[str]:
    size = ("--set", f"task.gait={gait}", "--num_env_steps", "128")
    return [*TINY, *EPISODES, *EVERY, *LINEAR, *size, "--out", str(out), *more]


@pytest.fixture(scope="module")
def through(gait, tmp_path_factory) -> Path:
    """Four iterations without a stop."""
    out = tmp_path_factory.mktemp("through") / "run"
    assert train.main(command(gait, out)) == 0
    return out


@pytest.fixture
def run(through, tmp_path) -> Path:
    """The same run as it was after two iterations."""
    path = tmp_path / "run"
    shutil.copytree(through, path)
    for name in ("96", "128"):
        shutil.rmtree(path / "checkpoints" / name)
    return path


def assert_same(run: Path, through: Path, env_steps: int = 128) -> None:
    ours = leaves(state(run, env_steps))
    theirs = leaves(state(through, env_steps))
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(ours[key].nan_to_num(), value.nan_to_num()), key
        else:
            assert ours[key] == value, key


def edit(folder: Path, old: str, new: str) -> None:
    """Change the settings of a run or checkpoint as if they had been written so."""
    lines = (folder / "config.yaml").read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("#"))
    assert old in text
    run_folder.write_config(folder, text.replace(old, new))
    (folder / MANIFEST).unlink(missing_ok=True)


def test_every_start_records_its_reward_weights(run) -> None:
    assert train.main(["--resume", str(run)]) == 0
    starts = json.loads((run / provenance.ORIGIN).read_text())["starts"]
    expected = weights_of("default", "cuboid", {})
    assert [start["reward_weights"] for start in starts] == [expected] * 2


# Going on


def test_a_resumed_run_equals_one_that_never_stopped(run, through, capsys) -> None:
    assert train.main(["--resume", str(run)]) == 0
    assert "resumes at 64 of 128 env steps" in capsys.readouterr().out
    assert_same(run, through)
    assert int(state(through)["env"]["statistics"]["count"]) > 4
    assert (run / "config.yaml").read_text() == (through / "config.yaml").read_text()
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "128",
        "32",
        "64",
        "96",
    ]


@pytest.mark.slow
def test_likewise_on_warp(gait, tmp_path) -> None:
    pytest.importorskip("mujoco_warp")
    out = tmp_path / "through"
    again = tmp_path / "again"
    words = ["--sim", "warp", "--device", "cpu", "--num_envs", "2", "--num_env_steps", "8"]
    words += ["--set", "task.decision_period=1", "--set", "runner.num_steps=2"]
    words += ["--set", "runner.checkpoint_interval=4"]
    assert train.main(command(gait, out, *words)) == 0
    shutil.copytree(out, again)
    assert train.main(["--resume", str(again / "checkpoints" / "4")]) == 0
    assert_same(again, out, 8)


def test_the_curves_have_every_point_once(run, through) -> None:
    for path in run.glob("events*"):  # as if it had been written an hour ago
        head, _, tail = path.name.partition("tfevents.")
        stamp, _, rest = tail.partition(".")
        path.rename(path.with_name(f"{head}tfevents.{int(stamp) - 3600}.{rest}"))
    assert [step for step, _ in curves(run)["critic/value_loss"]] == [32, 64, 96, 128]
    assert train.main(["--resume", str(run)]) == 0
    assert len(list(run.glob("events*"))) == 2
    assert curves(run) == curves(through)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_what_the_named_command_resumes(
    number, gait, through, tmp_path, monkeypatch, capsys
):
    plain_log = RunLogger.log

    def log_and_signal(self, report, statistics) -> None:
        plain_log(self, report, statistics)
        if report.iteration == 3:
            signal.raise_signal(number)

    monkeypatch.setattr(RunLogger, "log", log_and_signal)
    out = tmp_path / "a run"
    assert (
        train.main([*command(gait, out), "--set", "runner.checkpoint_interval=1000"])
        == 128 + number
    )
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(
        f"Interrupted ({number.name}); the last state is saved in {out / 'checkpoints' / '96'}. "
    )
    assert line.endswith(f"Resume with: mapush train --resume '{out}'")
    monkeypatch.undo()
    assert train.main(["--resume", str(out)]) == 0
    assert_same(out, through)


def test_an_earlier_checkpoint_sets_the_later_ones_aside(through, tmp_path, capsys) -> None:
    run = tmp_path / "run"
    shutil.copytree(through, run)
    (run / "checkpoints" / ".96-4711").mkdir()
    assert train.main(["--resume", str(run / "checkpoints" / "64"), "--num_env_steps", "96"]) == 0
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        *("128.set-aside", "32", "64", "96", "96.set-aside"),
    ]
    assert checkpoint.resolve(str(run)).name == "96"
    assert "96.set-aside" in capsys.readouterr().out
    assert checkpoint.resolve(str(run / "checkpoints" / "128.set-aside")).is_dir()


def test_an_incomplete_newest_checkpoint_is_passed_over(run, capsys) -> None:
    (run / "checkpoints" / "64" / "actor_agent1.pt").unlink()
    (run / "checkpoints" / "9999").mkdir()
    assert train.main(["--resume", str(run), "--num_env_steps", "64"]) == 0
    out = capsys.readouterr().out
    assert "resumes at 32 of 64" in out
    assert "is skipped" in out


def test_a_run_that_is_being_trained_is_left_alone(run, capsys) -> None:
    with run_folder.locked(run):
        assert train.main(["--resume", str(run)]) == 2
    said = capsys.readouterr().err
    assert str(run) in said
    assert "another process is training in this run folder" in said
    assert not (run / "checkpoints" / "96").exists()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_run_keeps_its_folder_to_itself_while_it_trains(
    is_new: bool, gait, run, tmp_path, monkeypatch
) -> None:
    tried = []

    def learn(*_: Any) -> int:
        with pytest.raises(ConfigError, match="another process"), run_folder.locked(folder):
            pass
        tried.append(folder)
        return 0

    folder = tmp_path / "new" if is_new else run
    monkeypatch.setattr(training.Training, "train", learn)
    assert train.main(command(gait, folder) if is_new else ["--resume", str(folder)]) == 0
    assert tried
    with run_folder.locked(folder):  # free again
        pass


def test_a_lock_without_flock_names_its_process_and_host(tmp_path, monkeypatch) -> None:
    def fail(lock: Any, **_: Any) -> None:
        raise Timeout(lock.lock_file)

    monkeypatch.setattr(FileLock, "acquire", fail)
    (tmp_path / ".lock").write_text("4791\nnode07\n1\n")
    message = f"process 4791 on node07; if that process is over, remove {tmp_path / '.lock'}"
    with pytest.raises(ConfigError, match=re.escape(message)), run_folder.locked(tmp_path):
        pass


@pytest.mark.parametrize("how", ["replaced", "emptied", "moved"])
def test_a_folder_that_is_no_longer_its_own_is_not_written(
    how: str, run, tmp_path, monkeypatch, capsys
) -> None:
    """The run's folder changes hands between the third and the fourth checkpoint."""
    save = CheckpointSaver.save_last
    elsewhere = tmp_path / "elsewhere"

    def save_last(saver: CheckpointSaver, env_steps: int) -> None:
        run.rename(elsewhere)
        if how == "replaced":
            shutil.copytree(elsewhere, run)
            (run / provenance.ORIGIN).unlink()
            shutil.rmtree(run / "checkpoints")
            provenance.write(run, provenance.describe("cpu", {}, {}))
        if how == "emptied":
            run.mkdir()
        before.extend(sorted(run.rglob("*")))
        save(saver, env_steps)

    before: list[Path] = []
    monkeypatch.setattr(checkpoints, "_PAUSE_S", 0.0)
    monkeypatch.setattr(CheckpointSaver, "save_last", save_last)
    assert train.main(["--resume", str(run)]) == 4
    said = {
        "replaced": "has become the folder of another run",
        "emptied": "checkpoint 128 cannot be written (No such file or directory)",
        "moved": "(No such file or directory); the training since the last checkpoint is lost; the "
        "folder is gone; if it was moved, --resume takes its new place",
    }
    assert said[how] in error_line(capsys)
    assert sorted(run.rglob("*")) == before
    monkeypatch.undo()
    assert train.main(["--resume", str(elsewhere)]) == 0
    assert sorted(path.name for path in (elsewhere / "checkpoints").iterdir())[0] == "128"


def test_a_share_that_fails_is_not_taken_for_a_lost_origin(tmp_path) -> None:
    (tmp_path / provenance.ORIGIN).mkdir()
    with pytest.raises(IsADirectoryError):
        provenance.check_folder(tmp_path, "own")


def test_a_full_disk_names_the_way_on(run, monkeypatch, capsys) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(
            "[enforce fail at inline_container.cc:672] . unexpected pos 7104 vs 6992"
        )

    monkeypatch.setattr(torch, "save", fail)
    monkeypatch.setattr(checkpoints, "_PAUSE_S", 0.0)
    assert train.main(["--resume", str(run), "--num_env_steps", "96"]) == 4
    line = error_line(capsys)
    assert (
        "checkpoint 96 cannot be written (RuntimeError; is the disk full?); the training since "
        "the last checkpoint is lost" in line
    )
    assert "resume from its last checkpoint with: " in line
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["32", "64"]
    monkeypatch.undo()
    assert train.main(["--resume", str(run), "--num_env_steps", "96"]) == 0
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["32", "64", "96"]


# Otherwise than before


def test_a_finished_run_says_so(through, capsys) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in through.rglob("*"))
    capsys.readouterr()
    assert train.main(["--resume", str(through)]) == 0
    assert (
        "is finished: 128 of 128 env steps are done; a larger --num_env_steps continues"
        in capsys.readouterr().out
    )
    assert sorted((path.name, path.stat().st_mtime_ns) for path in through.rglob("*")) == before


@pytest.mark.slow
def test_a_longer_run_falls_to_zero_at_its_new_end(run) -> None:
    longer = ["--num_env_steps", "256", "--set", "runner.checkpoint_interval=256"]
    assert yaml.safe_load((run / "config.yaml").read_text())["algorithm"]["schedule"] == "linear"
    assert train.main(["--resume", str(run), *longer]) == 0
    rates = [value for step, value in curves(run)["agent0/learning_rate"] if step > 64]
    assert rates == pytest.approx([1e-3 * (1.0 - i / 8) for i in range(2, 8)])
    assert yaml.safe_load((run / "config.yaml").read_text())["runner"]["num_env_steps"] == 256
    assert (run / "checkpoints" / "256").is_dir()


def test_an_interrupted_longer_run_remembers_its_length(run, capsys) -> None:
    edit(run, "num_env_steps: 128", "num_env_steps: 96")
    assert train.main(["--resume", str(run)]) == 0
    assert "resumes at 64 of 96" in capsys.readouterr().out


@pytest.mark.parametrize("schedule", ["constant", "adaptive"])
def test_other_learning_rates(run, schedule, capsys) -> None:
    rates = [
        "algorithm.learning_rate=0.5",
        "algorithm.critic_learning_rate=0.25",
        f"algorithm.schedule={schedule}",
    ]
    settings = [word for rate in rates for word in ("--set", rate)]
    argv = ["--resume", str(run), "--num_env_steps", "96", "--set", "algorithm.desired_kl=10"]
    assert train.main([*argv, *settings]) == 0
    saved = state(run, 96)["algorithm"]
    assert saved["value"]["optimizer"]["learning_rate"] == 0.25
    out = capsys.readouterr().out
    if schedule == "constant":
        assert [float(part["learning_rate"]) for part in saved["optimizers"]] == [0.5, 0.5]
    else:
        assert "continue from the saved ones" in out
        assert all(float(part["learning_rate"]) < 0.5 for part in saved["optimizers"])


REFUSED = [
    ("--set network.hidden_sizes=[9]", "network.hidden_sizes=[9]", "[8]"),
    ("--num_envs 5", "env.num_envs=5", "4"),
    ("--num_agents 3", "env.num_agents=3", "2"),
    ("--task walking", "task.name=walking", "go1push_mid"),
    ("--object cylinder", "task.object=cylinder", "cuboid"),
    ("--set task.weights.reach=3", "task.weights.reach=3", "None"),
    ("--algo mappo", "algorithm.name=mappo", "happo"),
    ("--set algorithm.gamma=0.5", "algorithm.gamma=0.5", "0.995"),
    ("--seed 9", "runner.seed=9", "1"),
    ("--set runner.num_steps=8", "runner.num_steps=8", "4"),
    ("--exp_name x", "logger.exp_name=x", "default"),
    ("--out elsewhere", "logger.out_dir=elsewhere", "None"),
]


@pytest.mark.usefixtures("walking")
@pytest.mark.parametrize(("argv", "said", "old"), REFUSED, ids=[argv for argv, _, _ in REFUSED])
def test_what_may_not_change(argv: str, said: str, old: str, run, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Runner, "learn", lambda _: pytest.fail("it went on"))
    assert train.main(["--resume", str(run), *argv.split()]) == 2
    line = error_line(capsys)
    assert said in line
    assert f"was trained with {old}," in line
    assert all(key in line for key in (*CHANGEABLE_ON_RESUME, "leave it out", "start a new run"))


@needs_warp
def test_a_run_stays_on_its_kind_of_device(run, capsys) -> None:
    for folder in (run, run / "checkpoints" / "64"):
        edit(folder, "name: mujoco", "name: warp")
        edit(folder, "device: cpu", "device: cuda:0")
    assert train.main(["--resume", str(run), "--device", "cpu"]) == 2
    line = error_line(capsys)
    assert "sim.device=cpu: " in line
    assert "trained with cuda:0" in line
    assert "to one of the same kind" in line


def test_a_present_value_may_be_repeated(run) -> None:
    argv = [
        "--num_envs",
        "4",
        "--seed",
        "1",
        "--device",
        "auto",
        "--sim",
        "mujoco",
        "--set",
        "logger.interval=1",
    ]
    assert train.main(["--resume", str(run), *argv]) == 0


# What no run can resume from


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (self.path.touch, ())


def spoil(run: Path, how: str) -> None:
    folder = run / "checkpoints" / "64"
    path = folder / checkpoint.TRAINING_STATE
    (folder / MANIFEST).unlink()  # as older ones are: what is in the file has to be noticed
    whole = torch.load(path, weights_only=True)
    if how == "cut":
        path.write_bytes(path.read_bytes()[:5000])
    elif how == "flipped":
        contents = path.read_bytes()
        middle = len(contents) // 2
        flipped = bytes(byte ^ 1 for byte in contents[middle:][:300])
        path.write_bytes(contents[:middle] + flipped + contents[middle + 300 :])
    elif how == "code":
        torch.save({"iteration": Trap(run / "sprung")}, path)
    elif how == "no dictionary":
        torch.save([whole], path)
    elif how == "another's":
        shutil.copyfile(run / "checkpoints" / "32" / checkpoint.TRAINING_STATE, path)
    elif how in ("no iteration", "no env"):
        torch.save(
            {key: value for key, value in whole.items() if key != how.removeprefix("no ")}, path
        )
    elif how == "other sizes":
        whole["storage"]["state"] = whole["storage"]["state"][:, :-1]
        torch.save(whole, path)


DAMAGES = [
    "cut",
    "flipped",
    "code",
    "no dictionary",
    "another's",
    "no iteration",
    "no env",
    "other sizes",
]


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_states(how: str, run, monkeypatch, capsys) -> None:
    monkeypatch.setattr(Runner, "learn", lambda _: pytest.fail("it went on"))
    spoil(run, how)
    before = sorted(path.name for path in run.rglob("*"))
    assert train.main(["--resume", str(run / "checkpoints" / "64")]) == 2
    line = error_line(capsys)
    assert "training_state.pt: damaged (" in line
    assert "earlier checkpoint" in line or "which resumes from its newest intact checkpoint" in line
    assert sorted(path.name for path in run.rglob("*")) == before


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nowhere", "does not exist"),
        ("file", "is not a folder"),
        ("empty", "neither a run nor a checkpoint"),
        ("run/checkpoints", "neither a run nor a checkpoint"),
        ("64", "neither a run nor a checkpoint in a run's folder"),
        ("pretrained:cuboid", "does not exist"),
        ("stateless", "it has no checkpoint to resume from"),
        ("stateless/checkpoints/64", "no training_state.pt"),
        ("bare", "no config.yaml and no checkpoint"),
    ],
)
def test_what_is_no_run(what: str, said: str, run, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("empty", "bare/checkpoints"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copytree(run / "checkpoints" / "64", tmp_path / "64")
    shutil.copytree(run, tmp_path / "stateless")
    for path in (tmp_path / "stateless").rglob("training_state.pt"):
        path.unlink()
    assert train.main(["--resume", what]) == 2
    line = error_line(capsys)
    assert said in line
    assert what in line


def test_old_training_states_go_when_they_take_too_much(run, monkeypatch) -> None:
    size = (run / "checkpoints" / "64" / "training_state.pt").stat().st_size
    monkeypatch.setattr(checkpoint, "TRAINING_STATES_BYTES", int(2.5 * size))
    assert train.main(["--resume", str(run)]) == 0
    assert sorted(path.parent.name for path in run.rglob("training_state.pt")) == ["128", "96"]
    monkeypatch.setattr(checkpoint, "TRAINING_STATES_BYTES", 1)
    assert train.main(["--resume", str(run), "--num_env_steps", "160"]) == 0
    assert [path.parent.name for path in run.rglob("training_state.pt")] == ["160"]
    assert sorted(path.parent.name for path in run.rglob("critic_agent.pt")) == [
        "128",
        "160",
        "32",
        "64",
        "96",
    ]


def test_the_printed_command_imports_what_the_run_needs(tmp_path) -> None:
    run = tmp_path / "a run"
    start = Start(run, {}, ("own_object", "own_reward"))
    words = shlex.split(start.command())
    assert words[:2] == ["mapush", "train"]
    given = train.make_parser().parse_args(words[2:])
    assert given.imports == ["own_object", "own_reward"]
    assert given.resume == str(run)
    assert "the folder is gone" in start.how_to_resume()
