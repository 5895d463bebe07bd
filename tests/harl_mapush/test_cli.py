"""The command lines: precedence of settings, and bad input: one line, exit code 2, no
simulation.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
import torch
import yaml

from harl_mapush import config, test, train
from harl_mapush.callbacks.logger import RunLogger
from harl_mapush.runner import Runner
from mapush import cli
from mqe.config import to_dict
from mqe.env.environment import MultiAgentEnv
from tests.support.error_lines import error_line
from tests.support.tiny_runs import TINY


@pytest.fixture(scope="module")
def run(gait, tmp_path_factory) -> Path:
    """A finished run of the push task."""
    out = tmp_path_factory.mktemp("push") / "run"
    assert (
        train.main([*TINY, "--num_env_steps", "1", "--set", f"task.gait={gait}", "--out", str(out)])
        == 0
    )
    return out


@pytest.fixture
def nothing_simulated(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was simulated")

    monkeypatch.setattr(MultiAgentEnv, "reset", refuse)


def resolved(*argv: str):
    arguments = train.make_parser().parse(argv)
    base = config.load_preset(arguments.preset or "laptop")
    return config.resolve(base, config.flag_values(arguments))[0]


# What wins over what


def test_without_anything_it_is_the_laptop_preset() -> None:
    assert resolved() == resolved("--preset", "laptop")
    assert resolved().task.object == "cuboid"
    assert resolved().runner.seed == 1


def test_later_wins() -> None:
    assert resolved("--num_envs", "3").env.num_envs == 3
    assert resolved("--set", "env.num_envs=5", "--num_envs", "3").env.num_envs == 5
    assert resolved("--set", "env.num_envs=5", "--set", "env.num_envs=6").env.num_envs == 6
    assert resolved("--n_rollout_threads", "7").env.num_envs == 7


def test_other_spellings_and_words_reach_the_same_settings(capsys) -> None:
    assert resolved("--num-envs", "3") == resolved("--num-envs=3") == resolved("--num_envs", "3")
    assert resolved("--task.object", "tblock") == resolved("--set", "task.object=tblock")
    assert resolved("--algorithm.clip_param=0.1") == resolved("--set", "algorithm.clip_param=0.1")
    assert capsys.readouterr().err == ""
    cfg = resolved("--lr", "3e-3", "--gae-lambda", "0.9")
    assert (cfg.algorithm.learning_rate, cfg.algorithm.critic_learning_rate) == (3e-3, 3e-3)
    assert cfg.algorithm.lam == 0.9
    assert "Note: --gae_lambda 0.9 is --set algorithm.lam=0.9 here.\n" in capsys.readouterr().err
    cfg = resolved("--preset", "laptop_hasac", "--tau", "0.01", "--learning_starts", "640")
    assert (cfg.algorithm.polyak, cfg.algorithm.warmup) == (0.01, 640)


def test_every_flag_reaches_its_key() -> None:
    given = {
        **{
            "--algo": "happo",
            "--task": "go1push_mid",
            "--object": "cylinder",
            "--num_agents": "3",
            "--exp_name": "x",
        },
        **{
            "--seed": "4",
            "--num_envs": "5",
            "--num_env_steps": "1e6",
            "--device": "cpu",
            "--sim": "mujoco",
        },
        **{"--out": "somewhere", "--max_wall_time": "3h50m", "--init_from": "there"},
    }
    assert set(given) == set(config.FLAGS)
    cfg = resolved(*[word for pair in given.items() for word in pair])
    assert (cfg.algorithm.name, cfg.task.name, cfg.task.object) == (
        "happo",
        "go1push_mid",
        "cylinder",
    )
    assert (cfg.env.num_agents, cfg.env.num_envs, cfg.runner.seed, cfg.runner.num_env_steps) == (
        3,
        5,
        4,
        1_000_000,
    )
    assert (cfg.sim.device, cfg.sim.name) == ("cpu", "mujoco")
    assert cfg.runner.init_from == "there"
    assert (cfg.logger.exp_name, cfg.logger.out_dir, cfg.runner.max_wall_time) == (
        "x",
        "somewhere",
        "3h50m",
    )


def test_defaults_of_the_keys_that_issues_name() -> None:
    cfg, _ = config.resolve({}, {})
    assert cfg.runner.checkpoint_interval == 10_000_000
    assert cfg.task.object == "cuboid"
    assert cfg.task.spawn == "separated"
    assert cfg.task.observation == "sincos"


def test_another_task_leaves_out_unknown_settings_and_reports_it(walking) -> None:
    base = {"task": {"name": "go1push_mid", "object": "tblock", "episode_length_s": 10.0}}
    cfg, notices = config.resolve(base, {"task": {"name": "walking"}})
    assert cfg.task.episode_length_s == 10.0
    assert notices == ["task.object left out: set for go1push_mid, unknown to walking"]


def test_another_task_on_a_whole_run_file_leaves_out_the_weights_of_the_old(run, walking) -> None:
    settings = config.load_preset(run / "config.yaml")
    settings["task"]["weights"] = {"contact": -0.1}
    cfg, notices = config.resolve(settings, {"task": {"name": "walking"}})
    common = {"name": "walking", "episode_length_s": settings["task"]["episode_length_s"]}
    assert cfg.task == config.resolve({}, {"task": common})[0].task
    assert "task.weights" in notices[0]


def test_presets_are_an_installed_package() -> None:
    assert (files("harl_mapush.configs") / "laptop.yaml").is_file()
    assert "laptop" in config.PRESETS


# What a run leaves behind


def test_run_folder(run, gait) -> None:
    names = sorted(path.name for path in run.iterdir())
    assert names[:3] + names[4:] == [".lock", "checkpoints", "config.yaml", "origin.json"]
    assert names[3].startswith("events.out.tfevents.")
    checkpoint = next((run / "checkpoints").iterdir())
    cfg = yaml.safe_load((run / "config.yaml").read_text())
    # 1 env step, rounded up to an iteration.
    assert checkpoint.name == str(4 * 4 * cfg["task"]["decision_period"])
    _, settings = (run / "config.yaml").read_text().split("\n", 1)
    assert (checkpoint / "config.yaml").read_text() == settings
    assert {"actor_agent0.pt", "actor_agent1.pt", "critic_agent.pt", "value_normalizer.pt"} <= {
        path.name for path in checkpoint.iterdir()
    }
    for path in checkpoint.glob("*_*.pt"):
        assert torch.load(path, weights_only=True)
    assert cfg["task"]["gait"] == str(gait)
    assert cfg["env"]["num_agents"] == 2
    assert cfg["sim"]["device"] != "auto"


def test_a_run_is_rebuilt_from_its_folder(run) -> None:
    again, notices = config.resolve(config.load_preset(run / "config.yaml"), {})
    assert to_dict(again) == yaml.safe_load((run / "config.yaml").read_text())
    assert notices == []


def test_default_run_folder(gait, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = ("--exp_name", "x", "--seed", "7", "--set", f"task.gait={gait}")
    assert train.main([*TINY, "--num_env_steps", "1", *named]) == 0
    (made,) = tmp_path.glob("results/mapush/cuboid/happo/x/seed-00007-*")
    assert len(made.name) == len("seed-00007-2026-01-02-03-04-05")


def test_ctrl_c_saves_the_last_state(gait, tmp_path, monkeypatch, capsys) -> None:
    plain_log = RunLogger.log

    def log_and_interrupt(self, report, statistics) -> None:
        plain_log(self, report, statistics)
        if report.iteration == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunLogger, "log", log_and_interrupt)
    before = signal.getsignal(signal.SIGINT)
    argv = [
        *TINY,
        "--num_env_steps",
        "10000",
        "--set",
        f"task.gait={gait}",
        "--out",
        str(tmp_path / "run"),
    ]
    assert train.main([*argv, "--set", "task.decision_period=1"]) == 130
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["32"]
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("Interrupted (SIGINT); ")
    assert line.endswith(f"Resume with: mapush train --resume {tmp_path / 'run'}")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_loss_that_is_not_finite_stops_the_run(gait, tmp_path, monkeypatch, capsys) -> None:
    def explode(self, *_: object) -> dict[str, torch.Tensor]:
        return {"critic/value_loss": torch.tensor(float("nan"))}

    monkeypatch.setattr(Runner, "update", explode)
    argv = [
        *TINY,
        "--num_env_steps",
        "1000",
        "--set",
        f"task.gait={gait}",
        "--out",
        str(tmp_path / "run"),
    ]
    capsys.readouterr()
    assert train.main(argv) == 1
    line = error_line(capsys)
    assert "critic/value_loss is nan" in line
    assert "start it again" in line  # there is no checkpoint yet


def test_checkpoints_at_every_interval_and_at_the_end(gait, tmp_path) -> None:
    out = tmp_path / "run"
    sizes = (
        "--num_env_steps",
        "80",
        "--set",
        "task.decision_period=1",
        "--set",
        "runner.checkpoint_interval=32",
    )
    assert train.main([*TINY, *sizes, "--set", f"task.gait={gait}", "--out", str(out)]) == 0
    assert sorted(int(path.name) for path in (out / "checkpoints").iterdir()) == [32, 64, 80]


# Evaluation


def test_calculator(run, tmp_path, capsys) -> None:
    out = tmp_path / "deep" / "figures.json"
    argv = [
        "--checkpoint",
        str(run),
        "--num_envs",
        "3",
        "--set",
        "task.episode_length_s=0.5",
        "--json",
        str(out),
    ]
    assert test.main(argv) == 0
    metrics = json.loads(out.read_text())
    assert metrics["num_episodes"] == 3
    assert {
        *(
            "success_rate",
            "success_ci95",
            "num_episodes",
            "lost_at_spawn_rate",
            "time_given_success_s",
        ),
        *(
            "finished_time_s",
            "collision_rate",
            "collaboration_degree",
            "collaboration_degree_reference",
        ),
    } <= set(metrics)
    assert "success rate" in capsys.readouterr().out


def test_evaluation_settings(run) -> None:
    def settings(*argv: str):
        return test._settings(next((run / "checkpoints").iterdir()), test.make_parser().parse(argv))

    cfg = settings()
    assert (cfg.env.num_envs, cfg.runner.seed, cfg.task.spawn, cfg.sim.device) == (
        300,
        0,
        "separated",
        "auto",
    )
    assert settings("--suite", "reference").task.spawn == "independent"
    assert settings("--set", "task.spawn=independent", "--seed", "3").task.spawn == "independent"


# What bad input gets

BAD_TRAIN = [
    ("--object ball", "task.object", "cuboid, tblock, cylinder"),
    ("--task walk", "task", "go1push_mid"),
    ("--algo hapo", "did you mean happo?", "happo"),
    ("--preset lapto", "did you mean laptop?", "laptop"),
    ("--set task.objct=cuboid", "did you mean task.object?", "task.objct"),
    (
        "--set tsk.object=cuboid",
        "did you mean task?",
        "env, sim, task, network, algorithm, runner, logger",
    ),
    ("--set algorithm.clip_parm=0.1", "did you mean algorithm.clip_param?", "algorithm.clip_parm"),
    (
        "--set algorithm.symmetries=[mirror]",
        "unknown key 'algorithm.symmetries'",
        "algorithm.clip_param",
    ),
    ("--set env.num_envs", "section.key=value", "env.num_envs"),
    ("--set num_envs=4", "section.key=value", "num_envs=4"),
    ("--set env.num_envs=many", "env.num_envs", "whole number"),
    ("--set env.num_envs=2.5", "env.num_envs", "2.5"),
    ("--set env=3", "env", "section"),
    ("--set env.num_envs=[", "env.num_envs", "YAML"),
    ("--set algorithm.use_value_norm=1", "algorithm.use_value_norm", "true or false"),
    ("--set task.object=3", "task.object", "string"),
    ("--device tpu", "tpu", "cuda:K"),
    ("--device cuda:x", "cuda:x", "cuda:K"),
    ("--device cuda:99", "cuda:99", "set it to cpu"),
    ("--sim bullet", "bullet", "mujoco, warp"),
    ("--config nowhere.yaml", "nowhere.yaml", "cannot be read"),
    ("--num_envs 0", "env.num_envs", "at least 1"),
    ("--num_envs -3", "env.num_envs", "-3"),
    ("--num_envs x", "env.num_envs", "'x'"),
    ("--num_agents 0", "env.num_agents", "at least 1"),
    ("--num_agents 15", "env.num_agents", "at most 14"),
    ("--num_env_steps 0", "runner.num_env_steps", "at least 1"),
    ("--num_env_steps 1.5", "runner.num_env_steps", "1.5"),
    ("--seed x", "runner.seed", "'x'"),
    ("--seed 1e30", "runner.seed", "at most 9223372036854775807"),
    ("--num_envs 1e30", "env.num_envs", "at most"),
    ("--set runner.torch_threads=100000", "runner.torch_threads", "at most 1024"),
    ("--set algorithm.num_minibatches=5000", "num_minibatches must be at most 4096", "not 5000"),
    ("--sed 3", "did you mean --seed?", "--sed"),
    ("--num_envs", "--num_envs", "expected one argument"),
    ("--resume {run} --preset laptop", "--preset", "--resume"),
    ("--out {file}", "--out", "file"),
    ("--out {file}/deeper", "--out", "file"),
    ("--out {run}", "already holds a run", "--out"),
    ("--out /proc/nowhere/run", "--out", "cannot be"),
    ("--set task.gait=nowhere", "task.gait", "nowhere"),
    ("--set task.decision_period=7", "task.decision_period", "divi"),
]


@pytest.mark.usefixtures("nothing_simulated")
@pytest.mark.parametrize(
    ("argv", "said", "also"), BAD_TRAIN, ids=[argv for argv, _, _ in BAD_TRAIN]
)
def test_bad_input_to_train(argv: str, said: str, also: str, run, gait, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    given = [part.format(file=tmp_path / "file", run=run) for part in argv.split()]
    out = [] if "--out" in given else ["--out", str(tmp_path / "out")]
    gaits = [] if "task.gait" in argv else ["--set", f"task.gait={gait}"]
    capsys.readouterr()
    assert train.main([*gaits, *out, *given]) == 2
    line = error_line(capsys)
    assert said in line
    assert also in line
    assert not (tmp_path / "out").exists()


BAD_TEST = [
    ("", "CHECKPOINT is missing", "pretrained:NAME"),
    ("--checkpoint nowhere", "nowhere", "pretrained:NAME"),
    ("--checkpoint pretrained:x", "x", "allowed: any, cuboid"),
    ("--checkpoint {run} --mode look", "look", "invalid choice"),
    ("--checkpoint {run} --mode viewer --web 99999", "--web", "port"),
    ("--checkpoint {run} --mode calculator --record x.mp4", "--record", "viewer"),
    ("--checkpoint {run} --num_envs 0", "env.num_envs", "at least 1"),
    ("--checkpoint {run} --device tpu", "tpu", "cuda:K"),
    ("--checkpoint {run} --sim bullet", "bullet", "mujoco"),
    ("--checkpoint {run} --set task.spwn=separated", "task.spwn", "did you mean task.spawn?"),
    ("--checkpoint {run} --set task.name=walking", "task.name", "go1push_mid"),
    ("--checkpoint {run} --set env.num_agents=3", "env.num_agents", "2"),
    (
        "--checkpoint {run} --set network.hidden_sizes=[9]",
        "network.hidden_sizes=[9]",
        "leave it out",
    ),
    (
        "--checkpoint {run} --set network.activation=tanh",
        "network.activation=tanh",
        "leave it out",
    ),
    (
        "--checkpoint {run} --set network.activaton=tanh",
        "network.activaton=tanh",
        "leave it out",
    ),
    ("--checkpoint {run} --set algorithm.compat=harl", "algorithm.compat", "harl"),
    (
        "--checkpoint {run} --set algorithm.name=mappo",
        "algorithm.name=mappo",
        "leave it out",
    ),
    (
        "--checkpoint {run} --set runner.num_steps=9",
        "runner.num_steps=9",
        "may change task, env, sim, runner.seed",
    ),
    ("--checkpoint {run} --set task.observation=reference", "does not fit", "config.yaml"),
    ("--checkpoint {run} --json {file}/x.json", "--json", "cannot be written"),
    ("--checkpoint {incomplete}", "incomplete", "actor_agent1.pt"),
    ("--checkpoint {damaged}", "damaged", "actor_agent0.pt"),
    ("--checkpoint {foreign}", "task", "soccer"),
    (
        "--checkpoint {taskless} --set task.name=walking",
        "task.name=go1push_mid",
        "leave it out",
    ),
    ("--checkpoint {models}", "lacks config.yaml", "incomplete"),
    ("--checkpoint {run} --record film.avi", "film.avi", ".mp4"),
]


@pytest.mark.usefixtures("nothing_simulated", "walking")
@pytest.mark.parametrize(("argv", "said", "also"), BAD_TEST, ids=[argv for argv, _, _ in BAD_TEST])
def test_bad_input_to_test(argv: str, said: str, also: str, run, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("")
    whole = next((run / "checkpoints").iterdir())
    names = ("incomplete", "damaged", "foreign", "taskless", "models")
    for name in names:
        shutil.copytree(whole, tmp_path / name, ignore=shutil.ignore_patterns("manifest.json"))
    (tmp_path / "models" / "config.yaml").unlink()
    (tmp_path / "models" / "policy.yaml").unlink()
    taskless = yaml.safe_load((whole / "config.yaml").read_text())
    del taskless["task"]
    (tmp_path / "taskless" / "config.yaml").write_text(yaml.safe_dump(taskless))
    (tmp_path / "incomplete" / "actor_agent1.pt").unlink()
    damaged = tmp_path / "damaged" / "actor_agent0.pt"
    damaged.write_bytes(damaged.read_bytes()[:200])
    foreign = tmp_path / "foreign" / "config.yaml"
    foreign.write_text(foreign.read_text().replace("name: go1push_mid", "name: soccer"))
    places = {name: tmp_path / name for name in ("file", *names)}
    capsys.readouterr()
    assert test.main([part.format(run=run, **places) for part in argv.split()]) == 2
    line = error_line(capsys)
    assert said in line
    assert also in line


def test_an_evaluation_may_change_the_world(run) -> None:
    settings = [
        "task.episode_length_s=0.5",
        "runner.seed=7",
        "env.num_envs=3",
    ]
    arguments = test.make_parser().parse([part for text in settings for part in ("--set", text)])
    cfg = test._settings(next((run / "checkpoints").iterdir()), arguments)
    assert (cfg.task.episode_length_s, cfg.runner.seed, cfg.env.num_envs) == (0.5, 7, 3)


def test_a_refused_file_is_not_left_behind(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(test, "seed_everything", lambda _: pytest.exit("it went on"))
    with pytest.raises(pytest.exit.Exception):
        test.main(["--checkpoint", str(run), "--json", str(tmp_path / "deep" / "x.json")])
    assert list((tmp_path / "deep").iterdir()) == []


def test_help_names_what_can_be_chosen(capsys) -> None:
    with pytest.raises(SystemExit):
        train.main(["--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "happo, haa2c, mappo, ippo" in words
    assert "cuboid, tblock, cylinder" in words


def test_a_read_only_place_is_refused(monkeypatch, tmp_path, capsys, gait) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert train.main(["--out", str(tmp_path / "out"), "--set", f"task.gait={gait}"]) == 2
    assert "read-only" in error_line(capsys)


def test_the_installed_command_hands_over(capsys) -> None:
    assert cli.main(["train", "--object", "ball"]) == 2
    assert "ball" in error_line(capsys)
    assert cli.main(["tain"]) == 2
    assert "tain" in error_line(capsys)
    assert cli.main(["--help"]) == 0
    assert "train" in capsys.readouterr().out


@pytest.mark.parametrize(
    "program",
    [
        ["mapush", "test"],
        pytest.param(["harl_mapush.train"], marks=pytest.mark.slow),
        pytest.param(["harl_mapush.test"], marks=pytest.mark.slow),
    ],
)
def test_graphics_that_do_not_exist_are_one_line(program: list[str], monkeypatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    done = subprocess.run(
        [sys.executable, "-m", *program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "MUJOCO_GL=vulkan" in done.stderr
    assert "unset it, or install the library" in done.stderr


@pytest.mark.parametrize("package", ["mqe", pytest.param("harl_mapush", marks=pytest.mark.slow)])
def test_graphics_that_do_not_exist_are_an_exception_to_a_library(
    package: str, monkeypatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    program = f"try:\n import {package}\nexcept ImportError as error:\n print(error)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.startswith("MUJOCO_GL=vulkan: ")


def test_a_schedule_that_the_other_kind_of_algorithm_lacks_is_left_out() -> None:
    preset = {"algorithm": {"name": "happo", "schedule": "adaptive", "gamma": 0.9}}
    cfg, notices = config.resolve(preset, {"algorithm": {"name": "hasac"}})
    assert (cfg.algorithm.schedule, cfg.algorithm.gamma) == ("constant", 0.9)
    assert notices == ["algorithm.schedule left out: set for happo, unknown to hasac"]
