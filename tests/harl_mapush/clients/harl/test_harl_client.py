"""harl_mapush.clients.harl: upstream HARL as a client, installed or a checkout in HARL_PATH."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from harl_mapush import clients, test, train
from harl_mapush.clients import register_with_harl
from harl_mapush.clients.harl import harl_registration
from harl_mapush.runs import checkpoint
from mapush.extensions.harl import run_harl
from mapush.extensions.harl.harl_files import DEFAULTS
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.tensor_files import read_tensors
from tests.support.paths import ROOT
from tests.support.upstream import HARL, needs_checkout

FUNCTIONS = (
    *("make_train_env", "make_eval_env", "make_render_env"),
    *("get_num_agents", "get_task_name", "get_defaults_yaml_args"),
)
LEARNER = ROOT / "benchmarks" / "learner.py"
TINY = {"n_threads": 2, "device": "cpu", "seed": 0}


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A package that has upstream's module names and, in them, functions that only tell they were
    called.
    """
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "harl"}
    for name in loaded:
        del sys.modules[name]
    files = {
        "__init__": "",
        "envs/__init__": "LOGGER_REGISTRY = {}",
        "common/__init__": "",
        "common/base_logger": "class BaseLogger: pass",
        "utils/__init__": "",
        **dict.fromkeys(
            (
                "utils/envs_tools",
                "utils/configs_tools",
                "runners/on_policy_base_runner",
                "runners/off_policy_base_runner",
            ),
            "\n".join(
                f"def {name}(env, *rest): return 'upstream', env, *rest" for name in FUNCTIONS
            ),
        ),
        "runners/__init__": "",
    }
    for name, text in files.items():
        path = tmp_path / "checkout" / "harl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", list(sys.path))
    register_with_harl(tmp_path / "checkout")
    yield tmp_path / "checkout"
    for name in [name for name in sys.modules if name.split(".")[0] == "harl"]:
        del sys.modules[name]
    sys.modules.update(loaded)


def module(name: str):
    return importlib.import_module(f"harl.{name}")


# Without upstream


def test_only_our_name_comes_to_us(stub) -> None:
    for place in (
        "runners.on_policy_base_runner",
        "runners.off_policy_base_runner",
        "utils.envs_tools",
    ):
        here = module(place)
        assert here.make_train_env("smac", 1, 2, {}) == ("upstream", "smac", 1, 2, {})
        assert here.get_num_agents("smac", {}, None) == ("upstream", "smac", {}, None)
        env = here.make_train_env("mapush", 5, 2, {"device": "cpu", "object": "tblock"})
        assert isinstance(env, harl_registration.UpstreamEnv)
        assert (env.n_threads, env._cfg.runner.seed, env._cfg.task.object) == (2, 5, "tblock")
        assert here.get_num_agents("mapush", {}, env) == 2
        env.close()
        env = here.make_eval_env("mapush", 2, 1, {"device": "cpu", "env.num_envs": 9, "seed": 7})
        assert (env.n_threads, env._cfg.runner.seed) == (1, 100_000)
        env.close()
        env, manual_render, manual_expand_dims, manual_delay, env_num = here.make_render_env(
            "mapush", 1, TINY
        )
        assert (env.n_threads, manual_render, manual_expand_dims, manual_delay, env_num) == (
            1,
            False,
            False,
            False,
            1,
        )
        env.close()
    for place in ("runners.off_policy_base_runner", "utils.configs_tools"):
        assert module(place).get_task_name("smac", {}) == ("upstream", "smac", {})
        assert module(place).get_task_name("mapush", {"object": "tblock"}) == "go1push_mid"
        assert module(place).get_task_name("mapush", {"task": "go1_velocity"}) == "go1_velocity"


def test_the_forks_runner_is_upstreams_in_our_environment(stub) -> None:
    class Runner:
        def __init__(self, *arguments) -> None:
            self.arguments = arguments

    module("runners").RUNNER_REGISTRY = {"happo": Runner}
    runner = clients.MAPushHAPPORunner({"algo": "happo", "env": "dexhands"}, {}, {"device": "cpu"})
    assert type(runner).__name__ == "MAPushHAPPORunner"
    given = ({"algo": "happo", "env": "mapush"}, {}, {"device": "cpu"})
    assert runner.arguments == given


def test_defaults_and_logger_are_found_by_name(stub) -> None:
    configs = module("utils.configs_tools")
    assert configs.get_defaults_yaml_args("happo", "smac") == ("upstream", "happo", "smac")
    place = stub / "harl" / "configs" / "algos_cfgs"
    place.mkdir(parents=True)
    (place / "happo.yaml").write_text("algo: {gamma: 0.9}\n")
    assert configs.get_defaults_yaml_args("happo", "mapush") == (
        {"algo": {"gamma": 0.9}},
        harl_registration.DEFAULT_SETTINGS,
    )
    from harl_mapush.clients import MAPushLogger

    assert issubclass(MAPushLogger, module("common.base_logger").BaseLogger)
    assert callable(MAPushLogger.set_envs)


def test_registering_twice_changes_nothing(stub) -> None:
    before = module("runners.on_policy_base_runner").make_train_env
    register_with_harl(stub)
    assert module("runners.on_policy_base_runner").make_train_env is before
    assert list(module("envs").LOGGER_REGISTRY) == ["mapush"]


def test_two_checkouts_cannot_be_mixed(stub, tmp_path) -> None:
    (tmp_path / "other" / "harl" / "runners").mkdir(parents=True)
    with pytest.raises(ConfigError, match="another HARL is already loaded"):
        register_with_harl(tmp_path / "other")


def test_a_place_without_harl(tmp_path, capsys) -> None:
    assert run_harl.main(["--harl", str(tmp_path)]) == 2
    assert "no checkout of HARL" in capsys.readouterr().err


def test_a_module_that_python_3_13_has_no_more(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "uu", raising=False)
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    harl_registration._stand_in_for_uu()
    assert issubclass(sys.modules["uu"].Error, Exception)
    monkeypatch.delitem(sys.modules, "uu")


# With upstream


def upstream_run(out: Path, algo: str, *argv: str) -> Path:
    small = (
        *(
            "train.episode_length=4",
            "train.log_interval=1",
            "train.eval_interval=1",
            "eval.n_eval_rollout_threads=2",
        ),
        *("eval.eval_episodes=2", "algo.ppo_epoch=1", "algo.critic_epoch=1"),
    )
    small_off_policy = (
        *(
            "train.warmup_steps=16",
            "train.train_interval=4",
            "train.eval_interval=4",
            "algo.batch_size=8",
        ),
        "algo.buffer_size=100",
    )
    is_on_policy = algo in run_harl.ON_POLICY
    settings = [
        text
        for text in (small if is_on_policy else small_off_policy)
        if algo != "hatrpo" or "ppo" not in text
    ]
    settings += [
        "task.episode_length_s=0.1",
        "model.hidden_sizes=[8]",
        f"device.torch_threads={torch.get_num_threads()}",
    ]
    sets = [word for text in settings for word in ("--set", text)]
    sizes = ("--num_envs", "2", "--num_env_steps", "16", "--device", "cpu", "--out", str(out))
    assert run_harl.main(["--harl", str(HARL), "--algo", algo, *sizes, *sets, *argv]) == 0
    return next((out / "mapush" / "go1push_mid" / algo / "default").iterdir())


@needs_checkout
@pytest.mark.parametrize(
    "algo",
    [
        "happo",
        "hasac",
        *(pytest.param(algo, marks=pytest.mark.slow) for algo in ("hatrpo", "mappo", "hatd3")),
    ],
)
def test_upstreams_runners_train_and_we_measure_them(algo: str, tmp_path, capsys) -> None:
    run = upstream_run(tmp_path, algo)
    assert "[MAPush Stats]" in capsys.readouterr().out
    content = json.loads((run / "config.json").read_text())
    assert (content["main_args"]["env"], content["env_args"]["object"]) == ("mapush", "cuboid")
    out = tmp_path / "figures.json"
    argv = [
        "--checkpoint",
        str(run / "models"),
        "--num_envs",
        "2",
        "--device",
        "cpu",
        "--baselines",
        "0",
        "--set",
        "task.episode_length_s=0.4",
        "--json",
        str(out),
    ]
    assert test.main(argv) == 0
    assert json.loads(out.read_text())["num_episodes"] == 2


@needs_checkout
def test_upstream_trains_a_task_without_an_object(tmp_path) -> None:
    sizes = [
        "--num_envs",
        "2",
        "--num_env_steps",
        "16",
        "--set",
        "train.episode_length=8",
        "--device",
        "cpu",
    ]
    sizes += ["--set", "task.episode_length_s=0.1", "--set", "eval.eval_episodes=2"]
    argv = ["--harl", str(HARL), "--task", "go1_velocity", *sizes, "--out", str(tmp_path)]
    assert run_harl.main(argv) == 0
    assert (tmp_path / "mapush" / "go1_velocity").is_dir()


@needs_checkout
def test_what_upstream_asserts_is_one_line(tmp_path, capsys) -> None:
    sizes = ["--num_envs", "1", "--num_env_steps", "10", "--set", "train.episode_length=10"]
    # A single chunk, of which upstream wants two.
    sizes += [
        "--set",
        "model.use_recurrent_policy=true",
    ]
    assert (
        run_harl.main(["--harl", str(HARL), "--out", str(tmp_path), "--device", "cpu", *sizes]) == 2
    )
    assert "upstream refuses the settings: " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@needs_checkout
def test_what_we_assert_is_no_complaint_of_upstreams(tmp_path, monkeypatch) -> None:
    # Raises: no reset came first.
    monkeypatch.setattr(MultiAgentEnv, "reset", lambda self: self.state)
    sizes = ["--num_envs", "1", "--num_env_steps", "200", "--device", "cpu", "--out", str(tmp_path)]
    with pytest.raises(RuntimeError, match="reset"):
        run_harl.main(["--harl", str(HARL), *sizes])


@needs_checkout
def test_upstream_trains_with_fp_states(tmp_path) -> None:
    weights = torch.load(
        upstream_run(tmp_path, "happo", "--state_type", "FP") / "models" / "critic_agent.pt"
    )
    assert weights["base.feature_norm.weight"].shape == (17,)


@needs_checkout
def test_upstream_takes_our_checkpoints_and_we_its_configuration(tmp_path, capsys) -> None:
    first = upstream_run(tmp_path / "first", "happo")
    ours = tmp_path / "ours"
    assert (
        train.main(
            ["--load_config", str(first / "config.json"), "--out", str(ours), "--device", "cpu"]
        )
        == 0
    )
    folder = checkpoint.resolve(str(ours))
    second = upstream_run(
        tmp_path / "second", "happo", "--set", f"train.model_dir={folder}", "--set", "model.lr=0.0"
    )
    # Loaded strictly, and not moved at a learning rate of 0.
    for name in (
        "actor_agent0.pt",
        "actor_agent1.pt",
    ):
        mine, theirs = (read_tensors(path / name) for path in (folder, second / "models"))
        assert set(mine) == set(theirs)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    critic = read_tensors(second / "models" / "critic_agent.pt")
    assert set(critic) == set(read_tensors(folder / "critic_agent.pt"))


SLOW = pytest.param(["haa2c", "mappo"], marks=pytest.mark.slow)  # recordings hold them as well


@needs_checkout
@pytest.mark.parametrize("algos", [["happo", "hatrpo"], SLOW])
def test_the_same_update_gives_the_same_weights(algos: list[str], monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(LEARNER.parent)
    learner = importlib.import_module(LEARNER.stem)
    words = ["--harl", str(HARL), "--threads", "1", "--num_envs", "4", "--num_steps", "10"]
    words += ["--num_agents", "3", "--iterations", "1", "--allocator", "default"]
    for algo in algos:
        learner.main(["--algo", algo, *words])
    lines = capsys.readouterr().out.splitlines()
    differences = [facts["weights_max_difference"] for facts in map(json.loads, lines[2::3])]
    assert len(differences) == len(algos)
    assert max(differences) <= 1e-6


@needs_checkout
@pytest.mark.parametrize("algo", ["happo", "hatrpo", "mappo", "haa2c"])
def test_defaults_are_upstreams(algo: str) -> None:
    path = Path(str(HARL)) / "harl" / "configs" / "algos_cfgs" / f"{algo}.yaml"
    theirs = yaml.safe_load(path.read_text())
    chosen_here = {"use_eval"}
    for section, values in DEFAULTS.items():
        shared = (set(values) & set(theirs[section])) - chosen_here
        assert {key: theirs[section][key] for key in shared} == {key: values[key] for key in shared}
        assert shared or section == "eval"


SHORT = "--num_envs 4 --num_env_steps 40 --set train.episode_length=10"


@needs_checkout
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ("--algo hapo", "did you mean happo"),
        ("--set train.episode_lenth=3", "did you mean train.episode_length"),
        ("--set tran.episode_length=3", "did you mean train"),
        ("--set env.num_envs=3", "--num_envs"),
        ("--object ball", "task.object"),
        ("--device cuda:3", "CUDA_VISIBLE_DEVICES"),
        ("--seed x", "--seed"),
        ("--load_config nowhere.json", "nowhere.json"),
        ("--set model.lr=abc", "model.lr: must be a finite number, not 'abc'"),
        ("--set model.opti_eps=-1", "model.opti_eps, here algorithm.adam_eps: must be at"),
        ("--set model.hidden_sizes=[0]", "model.hidden_sizes, here"),
        (
            "--set train.episode_length=0",
            "train.episode_length: must be a whole number, at least 1, not 0",
        ),
        ("--set eval.eval_episodes=0", "eval.eval_episodes: must be a whole number"),
        ("--set model.activation_func=foo", "model.activation_func: unknown value 'foo'"),
        ("--set model.activation_func=hardswish", "upstream cannot train happo with hardswish"),
        ("--set algo.fixed_order=3", "algo.fixed_order: must be true or false"),
        ("--set seed.seed=-1", "seed.seed"),
        ("--set logger.log_dir=3", "logger.log_dir: must be a string"),
        (
            "--algo hatd3 --state_type FP",
            "--state_type FP: upstream trains hatd3 with EP states only",
        ),
        (
            "--algo haddpg --state_type FP",
            "--state_type FP: upstream trains haddpg with EP states only",
        ),
        (
            "--algo matd3 --state_type FP",
            "--state_type FP: upstream trains matd3 with EP states only",
        ),
        (
            "--algo maddpg --set task.state_type=FP",
            "--state_type FP: upstream trains maddpg with EP states only",
        ),
        ("--algo had3qn", "--algo had3qn: acts in discrete spaces only"),
        (
            f"{SHORT} --set algo.actor_num_mini_batch=41",
            "algo.actor_num_mini_batch: must be at most 40, the training",
        ),
        (
            f"{SHORT} --set algo.critic_num_mini_batch=41",
            "algo.critic_num_mini_batch: must be at most 40, the",
        ),
        (
            f"{SHORT} --algo mappo --set algo.actor_num_mini_batch=41",
            "algo.actor_num_mini_batch: must be at most 40",
        ),
        (
            f"{SHORT} --state_type FP --set algo.critic_num_mini_batch=81",
            "algo.critic_num_mini_batch: must be at most 80",
        ),
        (
            f"{SHORT} --set model.use_recurrent_policy=true --set algo.actor_num_mini_batch=5",
            "algo.actor_num_mini_batch: must be at most 4, the training rows of a rollout, not 5",
        ),
        (
            f"{SHORT} --set model.use_naive_recurrent_policy=true --set "
            "algo.critic_num_mini_batch=5",
            "algo.critic_num_mini_batch: must be at most 4, the training rows of a rollout, not 5",
        ),
        (
            f"{SHORT} --set model.use_recurrent_policy=true --set model.data_chunk_length=4",
            "train.episode_length: must be a multiple of model.data_chunk_length (4)",
        ),
        ("--exp_name ../../x", "exp_name: '../../x' cannot name a folder"),
        ("--set sim.device=3", "sim.device: must be a string"),
        ("--algo hasac --set algo.batch_size=abc", "algo.batch_size: must be a finite number"),
        ("--seed 4294967296", "seed.seed: must be below 4294967296"),
        (
            "--num_env_steps 100 --num_envs 8",
            "train.num_env_steps: 100 are fewer than one iteration of 8 worlds x 200 decisions",
        ),
        ("--task go1_velocity --object cuboid", "unknown key 'object'"),
        ("--algo hasac --set algo.batch_size=1.5", "algo.batch_size: must be a whole number"),
        (
            "--algo hasac --set algo.buffer_size=999",
            "algo.buffer_size: 999 decisions are fewer than algo.batch_size",
        ),
        (
            "--algo hasac --num_envs 8 --set train.warmup_steps=599",
            "train.warmup_steps: 992 decisions before",
        ),
        (
            "--algo hatd3 --set train.train_interval=0",
            "train.train_interval: must be a whole number",
        ),
    ],
)
def test_bad_input(argv: str, said: str, tmp_path, capsys) -> None:
    capsys.readouterr()
    assert run_harl.main(["--harl", str(HARL), "--out", str(tmp_path / "out"), *argv.split()]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def config_json(path: Path, main_args: object, algo_args: object, env_args: object) -> list[str]:
    path.write_text(
        json.dumps({"main_args": main_args, "algo_args": algo_args, "env_args": env_args})
    )
    return ["--load_config", str(path)]


HAPPO = {"algo": "happo", "env": "mapush"}


@needs_checkout
@pytest.mark.parametrize(
    ("main_args", "algo_args", "env_args", "said"),
    [
        ([], {}, {}, "main_args: must be a section of keys, not []"),
        (HAPPO, [], {}, "algo_args: must be a section of keys, not []"),
        (HAPPO, {"train": 3}, {}, "algo_args.train: must be a section of keys, not 3"),
        (HAPPO, {}, None, "env_args: must be a section of keys, not None"),
        ({"env": "mapush"}, {}, {}, "does not say which algorithm; add --algo"),
        (HAPPO, {"train": {"n_rollout_threads": None}}, {}, "train.n_rollout_threads"),
        (HAPPO, {}, {"num_agents": "two"}, "num_agents"),
        (
            HAPPO,
            {},
            {"object": "tblock", "task.object": "cuboid"},
            "env_args: object and task.object: two spellings",
        ),
    ],
)
def test_bad_configurations_of_other_runs(
    main_args, algo_args, env_args, said: str, tmp_path, capsys
) -> None:
    file = config_json(tmp_path / "config.json", main_args, algo_args, env_args)
    assert run_harl.main(["--harl", str(HARL), "--out", str(tmp_path / "out"), *file]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


@needs_checkout
@pytest.mark.parametrize("num_worlds", [64, 3])
def test_what_a_configuration_leaves_out_is_the_checkouts(
    num_worlds: int, tmp_path, capsys
) -> None:
    register_with_harl(HARL)
    worlds = {
        "env.num_envs": num_worlds,
        "task.object": "tblock",
        "sim.num_threads": 1,
        "team_reward": "sum",
    }
    file = config_json(tmp_path / "x", HAPPO, {"train": {"n_rollout_threads": 3}}, worlds)
    sets = (
        "--set",
        "model.activation_func=selu",
        "--set",
        "model.lr=0",
        "--set",
        "train.num_env_steps=1e3",
    )
    _, algo, env = run_harl.arguments_of(run_harl.make_parser().parse([*file, *sets]))
    assert (algo["train"]["n_rollout_threads"], algo["train"]["episode_length"]) == (3, 200)
    assert algo["train"]["num_env_steps"] == 1000
    assert isinstance(algo["train"]["num_env_steps"], int)
    assert (env["object"], env["sim.num_threads"], env["team_reward"]) == ("tblock", 1, "sum")
    assert not {"n_threads", "env.num_envs", "task.object"} & env.keys()
    assert ("env_args.env.num_envs of the file is not honoured" in capsys.readouterr().out) == (
        num_worlds == 64
    )


@needs_checkout
def test_another_runs_configuration(tmp_path) -> None:
    run = upstream_run(
        tmp_path, "happo", "--object", "cuboid", "--set", "task.observation=reference"
    )
    given = run_harl.make_parser().parse(
        ["--load_config", str(run / "config.json"), "--num_envs", "3"]
    )
    main, algo, env = run_harl.arguments_of(given)
    assert (main["algo"], algo["model"]["hidden_sizes"], algo["train"]["n_rollout_threads"]) == (
        "happo",
        [8],
        3,
    )
    assert (env["observation"], env["episode_length_s"]) == ("reference", 0.1)


def test_keys_of_harls_files_are_flags() -> None:
    line = "--algo happo --env mapush --exp_name x --n_rollout_threads 4 --lr 0.0005 --gamma=0.9"
    given = run_harl.parse(line.split())
    assert (given.algo, given.exp_name, given.num_envs) == ("happo", "x", 4)
    assert given.keys == (("env", "mapush"), ("lr", "0.0005"), ("gamma", "0.9"))
    assert run_harl.parse(["--a", "b=c", "--d=e=f"]).keys == (("a", "b=c"), ("d", "e=f"))
    files = {"train": {"gamma": 0.99}, "model": {"lr": 1e-3}, "algo": {"gamma": 0.99}, "x": None}
    assert list(run_harl.settings_of(given.keys, files)) == [
        {"model": {"lr": 0.0005}},
        {"train": {"gamma": 0.9}},
        {"algo": {"gamma": 0.9}},
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--lr", "--lr: has no value"),
        ("--lr= --gamma 1", "--lr: has no value"),
        ("lr 3", "unknown argument 'lr'"),
        ("--lrr 3", "unknown argument '--lrr'; did you mean --lr?"),
        ("--env smac", "--env 'smac': these worlds are mapush"),
    ],
)
def test_flags_that_harls_files_lack(line, message) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        list(run_harl.settings_of(run_harl.parse(line.split()).keys, {"model": {"lr": 1e-3}}))
