"""mapush.extensions.harl.harl_files: HARL's configurations become runs, its models/ folders are
measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn, tensor

from harl_mapush import config, test, train
from harl_mapush.runs import checkpoint, policy
from harl_mapush.runs.formats import OURS
from mapush.extensions.harl import harl_files
from mqe.config import ConfigError, load_yaml
from mqe.tensor_files import read_tensors
from mqe.vec_env import TeamSpec
from tests.support.pushing import make_task
from tests.support.rounding import rounding
from tests.support.upstream_folders import recorded, upstream_file, upstream_folder, write_config


def resolved(file: Path, *argv: str) -> tuple[config.RunCfg, list[str]]:
    arguments = train.make_parser().parse(["--load_config", str(file), *argv])
    over = config.flag_values(arguments)
    preset = {} if arguments.preset is None else config.load_preset(arguments.preset)
    base, notices = harl_files.apply(preset, over, harl_files.read(file))
    return config.resolve(base, over)[0], notices


# Configurations


def test_every_setting_arrives(tmp_path) -> None:
    file = write_config(
        tmp_path / "config.json",
        seed={"seed_specify": True, "seed": 7},
        device={"cuda": False, "cuda_deterministic": True, "torch_threads": 3},
        train={
            **{
                "n_rollout_threads": 6,
                "num_env_steps": 1000,
                "episode_length": 40,
                "log_interval": 2,
            },
            **{"eval_interval": 3, "use_valuenorm": False, "use_linear_lr_decay": True},
            **{"use_proper_time_limits": False, "model_dir": None},
        },
        model={
            **{
                "hidden_sizes": [32, 16],
                "activation_func": "tanh",
                "use_feature_normalization": False,
                "gain": 0.02,
            },
            **{
                "initialization_method": "xavier_uniform_",
                "use_recurrent_policy": True,
                "recurrent_n": 2,
            },
            **{
                "data_chunk_length": 8,
                "lr": 1e-3,
                "critic_lr": 2e-3,
                "opti_eps": 1e-6,
                "weight_decay": 1e-4,
            },
            **{"std_x_coef": 2.0, "std_y_coef": 0.8},
        },
        algo={
            **{
                "ppo_epoch": 3,
                "critic_epoch": 4,
                "use_clipped_value_loss": False,
                "clip_param": 0.1,
            },
            **{
                "actor_num_mini_batch": 2,
                "critic_num_mini_batch": 3,
                "entropy_coef": 0.0,
                "value_loss_coef": 0.5,
            },
            **{
                "use_max_grad_norm": False,
                "max_grad_norm": 5.0,
                "gamma": 0.95,
                "gae_lambda": 0.9,
            },
            **{"use_huber_loss": False, "huber_delta": 2.0, "use_policy_active_masks": False},
            **{"share_param": True, "fixed_order": True},
        },
    )
    cfg, notices = resolved(file)
    assert notices == []
    assert (cfg.env.num_envs, cfg.sim.device, cfg.logger.interval) == (6, "cpu", 2)
    run = cfg.runner
    assert (run.seed, run.num_steps, run.torch_threads) == (7, 40, 3)
    assert run.num_env_steps == 4 * 240  # 1000 // 40 // 6 iterations
    assert run.checkpoint_interval == 3 * 240
    assert not run.staggered_start
    net = cfg.network
    assert (net.hidden_sizes, net.activation, net.initialization_method) == (
        (32, 16),
        "tanh",
        "xavier_uniform_",
    )
    assert (net.use_feature_normalization, net.use_recurrent_policy, net.num_recurrent_layers) == (
        False,
        True,
        2,
    )
    assert (net.chunk_length, net.gain, net.std_x_coef, net.std_y_coef) == (8, 0.02, 2.0, 0.8)
    settings = cfg.algorithm
    assert (settings.name, settings.compat, settings.schedule) == ("happo", "harl", "linear")
    assert (
        settings.learning_rate,
        settings.critic_learning_rate,
        settings.adam_eps,
        settings.weight_decay,
    ) == (
        1e-3,
        2e-3,
        1e-6,
        1e-4,
    )
    assert (
        settings.num_epochs,
        settings.critic_num_epochs,
        settings.num_minibatches,
        settings.critic_num_minibatches,
    ) == (3, 4, 2, 3)
    assert (
        settings.clip_param,
        settings.entropy_coef,
        settings.value_loss_coef,
        settings.max_grad_norm,
    ) == (
        0.1,
        0.0,
        0.5,
        0.0,
    )
    assert (settings.gamma, settings.lam, settings.huber_delta) == (0.95, 0.9, 2.0)
    off = (
        settings.use_clipped_value_loss,
        settings.use_huber_loss,
        settings.use_policy_active_masks,
    )
    assert (*off, settings.use_value_norm, settings.use_proper_time_limits) == (False,) * 5
    assert settings.share_param
    assert settings.fixed_order


def test_a_file_without_some_keys_is_refused(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("algo:\n  clip_param: 1e-1\n")
    with pytest.raises(ConfigError, match=r"lacks algo\..* keys in all\); take .* file of mappo"):
        resolved(file, "--algo", "mappo")
    file.write_text(yaml.safe_dump(upstream_file("mappo", {"algo": {"share_param": True}})))
    cfg, notices = resolved(file, "--algo", "mappo")
    assert notices == []
    assert (cfg.algorithm.name, cfg.algorithm.share_param, cfg.runner.num_steps) == (
        "mappo",
        True,
        200,
    )


def test_an_algorithms_yaml_is_named_after_it(tmp_path) -> None:
    file = tmp_path / "hatrpo.yaml"
    own = {"kl_threshold": 0.006, "ls_step": 7, "accept_ratio": 0.4, "backtrack_coeff": 0.5}
    file.write_text(yaml.safe_dump(upstream_file("hatrpo", {"algo": own})))
    settings = resolved(file)[0].algorithm
    assert (settings.name, settings.kl_threshold, settings.line_search_steps) == (
        "hatrpo",
        0.006,
        7,
    )
    assert (settings.accept_ratio, settings.backtrack_coeff) == (0.4, 0.5)


def test_keys_that_cannot_be_honoured_are_named(tmp_path) -> None:
    file = write_config(
        tmp_path / "config.json",
        env="mamujoco",
        env_args={"scenario": "Ant-v2", "state_type": "FP"},
        seed={"seed_specify": False, "seed": 1},
        device={"cuda": True, "cuda_deterministic": True},
        train={"model_dir": "somewhere", "episode_length": 10},
        eval={"use_eval": True, "eval_episodes": 20, "foo": 1},
        render={"use_render": True, "render_episodes": 3},
        algo={"ppo_epoch": 5, "kl_threshold": 0.01, "use_gae": False, "action_aggregation": "mean"},
        logger={"log_dir": "elsewhere"},
        extra={"key": 1},
    )
    cfg, (notice,) = resolved(file)
    assert cfg.task.state_type == "FP"
    assert "config.json: not honoured: " in notice
    named = set(notice.split("not honoured: ")[1].split(", "))
    assert named >= {
        *(
            "seed.seed_specify",
            "device.cuda_deterministic",
            "train.model_dir",
            "eval.foo",
            *("eval.use_eval", "algo.use_gae", "algo.action_aggregation"),
        ),
        *(
            "render.use_render",
            "algo.kl_threshold",
            "logger.log_dir",
            "extra.key",
            "env_args.scenario",
        ),
    }
    assert not named & {
        "seed.seed",
        "device.cuda",
        "train.episode_length",
        "algo.ppo_epoch",
        "env_args.state_type",
    }


def test_what_asks_for_nothing_is_not_named(tmp_path) -> None:
    file = write_config(
        tmp_path / "config.json",
        named="mappo",
        device={"cuda": False, "cuda_deterministic": True},
        train={"model_dir": None},
        eval={"use_eval": False, "eval_episodes": 20},
        render={"use_render": False, "render_episodes": 10},
        algo={"fixed_order": True},  # upstream's mappo does not read it
        logger={"log_dir": "./results"},
    )
    assert resolved(file)[1] == []


def test_a_mapush_environment_arrives_too(tmp_path) -> None:
    env_args = {
        "object": "cylinder",
        "num_agents": 3,
        "state_type": "FP",
        "observation": "reference",
        "seed": 9,
    }
    env_args |= {"individualized_rewards": True, "team_reward": "sum"}
    cfg, (notice,) = resolved(write_config(tmp_path / "config.json", env_args=env_args, model={}))
    assert (cfg.task.object, cfg.env.num_agents) == ("cylinder", 3)
    assert (cfg.task.state_type, cfg.task.observation, cfg.runner.seed) == ("FP", "reference", 1)
    assert "env_args.individualized_rewards" in notice
    assert "team_reward" not in notice


@pytest.mark.parametrize(
    ("env_args", "argv", "expected"),
    [
        ({}, (), "mean"),
        ({"team_reward": "sum"}, (), "sum"),
        ({"team_reward": "own"}, (), "own"),
        ({"team_reward": None}, (), "mean"),
        ({"state_type": "FP"}, (), "own"),
        ({"state_type": "FP", "team_reward": "mean"}, (), "mean"),
        ({}, ("--set", "task.state_type=FP"), "own"),
        ({"team_reward": "own"}, ("--set", "algorithm.team_reward=mean"), "mean"),
    ],
)
def test_the_team_reward_is_what_upstream_would_be_given(
    tmp_path, env_args, argv, expected
) -> None:
    cfg, notices = resolved(
        write_config(tmp_path / "config.json", env_args=env_args, model={}), *argv
    )
    assert cfg.algorithm.team_reward == expected
    assert notices == []


def test_a_team_reward_that_does_not_exist(tmp_path) -> None:
    with pytest.raises(ConfigError, match="team_reward"):
        resolved(
            write_config(tmp_path / "config.json", env_args={"team_reward": "median"}, model={})
        )


def test_flags_win_and_decisions_become_control_steps(tmp_path) -> None:
    file = write_config(
        tmp_path / "config.json",
        train={"num_env_steps": 8000, "n_rollout_threads": 10, "episode_length": 100},
    )
    cfg, _ = resolved(
        file, "--num_envs", "5", "--set", "task.decision_period=5", "--set", "algorithm.gamma=0.9"
    )
    assert (cfg.env.num_envs, cfg.runner.num_env_steps, cfg.algorithm.gamma) == (5, 40_000, 0.9)
    assert resolved(file, "--preset", "laptop")[0].task.decision_period == 5
    assert resolved(file, "--preset", "laptop")[0].runner.num_env_steps == 40_000
    assert resolved(file, "--algo", "mappo")[0].algorithm.name == "mappo"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid YAML"),
        ("[1, 2]", "not a configuration of HARL"),
        ("env: {num_envs: 3}\nlogger: {interval: 1}", "not a configuration of HARL"),
        ("algo: 3", "not a configuration of HARL"),
        ("algo: {clip_param: 0.2}", "add --algo"),
        ('{"main_args": {"algo": "hasac"}, "algo_args": {"algo": {}}}', "leave --load_config out"),
        ('{"main_args": {"algo": "had3qn"}, "algo_args": {"algo": {}}}', "train with upstream"),
        ('{"main_args": {"algo": "hapo"}, "algo_args": {"algo": {}}}', "did you mean happo"),
        ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ],
)
def test_bad_files(text: str, said: str, tmp_path, capsys) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert train.main(["--load_config", str(file), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"train": {"episode_length": 0}}, "train.episode_length"),
        ({"train": {"num_env_steps": "x"}}, "train.num_env_steps"),
        ({"model": {"activation_func": "swish"}}, "swish"),
        ({"algo": {"gamma": math.nan}}, "algorithm.gamma: must be a number"),
        ({"seed": {"seed": "x"}}, "runner.seed: must be a whole number, not 'x'"),
        ({"train": {"log_interval": 0}}, "logger.interval: must be at least 1"),
        (
            {
                "train": {"episode_length": 4, "n_rollout_threads": 1},
                "model": {"use_recurrent_policy": True},
            },
            "must be a multiple of network.chunk_length (10)",
        ),
    ],
)
def test_bad_values(sections: dict, said: str, tmp_path, capsys) -> None:
    file = write_config(tmp_path / "config.json", **sections)
    assert train.main(["--load_config", str(file), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        harl_files.read("nowhere.json")


def test_a_run_under_harls_settings(tmp_path, capsys) -> None:
    file = write_config(
        tmp_path / "config.json",
        train={
            "num_env_steps": 16,
            "n_rollout_threads": 2,
            "episode_length": 4,
            "eval_interval": 1,
        },
        model={"hidden_sizes": [8], "lr": 1e-3},
        env_args={"episode_length_s": 0.1},
    )
    assert (
        train.main(["--load_config", str(file), "--out", str(tmp_path / "run"), "--device", "cpu"])
        == 0
    )
    said = capsys.readouterr().out
    assert "not honoured" not in said
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["16", "8"]
    weights = read_tensors(tmp_path / "run" / "checkpoints" / "16" / "actor_agent1.pt")
    assert list(weights) == [
        *(
            "base.feature_norm.weight",
            "base.feature_norm.bias",
            "base.mlp.fc.0.weight",
            "base.mlp.fc.0.bias",
        ),
        *("base.mlp.fc.2.weight", "base.mlp.fc.2.bias", "act.action_out.log_std"),
        *("act.action_out.fc_mean.weight", "act.action_out.fc_mean.bias"),
    ]
    normalizer = read_tensors(tmp_path / "run" / "checkpoints" / "16" / "value_normalizer.pt")
    assert {name: tuple(value.shape) for name, value in normalizer.items()} == {
        "running_mean": (1,),
        "running_mean_sq": (1,),
        "debiasing_term": (),
    }


# Models


def test_upstreams_models_act_as_they_do_upstream(tmp_path) -> None:
    record = recorded()
    folder = checkpoint.resolve(str(upstream_folder(tmp_path / "run")))
    cfg, _ = config.resolve(checkpoint.read_config(folder), {})
    assert (cfg.env.num_agents, cfg.network.hidden_sizes, cfg.task.observation) == (
        2,
        (6, 4),
        "reference",
    )

    class Env:
        num_envs = 4
        num_agents = 2
        spec = TeamSpec((8, 8), (3, 3), 17, "EP")
        device = torch.device("cpu")

    team = policy.load_team(folder, Env())  # type: ignore[arg-type]
    obs = torch.stack([rows[0] for rows in record["stages"][1]["buffer"]["obs"]], dim=1)
    weights = record["stages"][1]["post"]["actor"][1]

    def mean_of(x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        def tensors(name: str) -> tuple[Tensor, Tensor]:
            return weights[f"{name}.weight"], weights[f"{name}.bias"]

        x = nn.functional.layer_norm(x, (8,), *tensors("base.feature_norm"))
        for k, size in ((0, 6), (3, 4)):
            x = torch.relu(nn.functional.linear(x, *tensors(f"base.mlp.fc.{k}")))
            x = nn.functional.layer_norm(x, (size,), *tensors(f"base.mlp.fc.{k + 2}"))
        return nn.functional.linear(x, *tensors("act.action_out.fc_mean"))

    mean = mean_of(obs[:, 1], weights)
    exact = mean_of(obs[:, 1].double(), {name: w.double() for name, w in weights.items()})
    bound = rounding(mean, exact)
    assert torch.allclose(team(obs)[:, 1], mean, rtol=0.0, atol=bound)


@pytest.mark.parametrize("what", ["run", "run/models", "run/models with its own config.json"])
def test_the_calculator_measures_upstreams_models(what: str, tmp_path, capsys) -> None:
    models = upstream_folder(tmp_path / "run", object="cuboid")
    if what.endswith("own config.json"):
        (tmp_path / "run" / "config.json").rename(models / "config.json")
    out = tmp_path / "figures.json"
    argv = [
        "--checkpoint",
        str(tmp_path / what.split(" ")[0]),
        "--num_envs",
        "2",
        "--device",
        "cpu",
    ]
    assert test.main([*argv, "--set", "task.episode_length_s=0.1", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["num_episodes"] == 2


def test_upstreams_folders_that_cannot_be_used(tmp_path, capsys) -> None:
    def complaint(what: Path, *argv: str) -> str:
        capsys.readouterr()
        assert (
            test.main(["--checkpoint", str(what), "--num_envs", "1", "--device", "cpu", *argv]) == 2
        )
        return capsys.readouterr().err

    models = upstream_folder(tmp_path / "run")
    assert "does not fit" in complaint(models, "--set", "task.observation=sincos")
    assert "config.json" in complaint(models, "--set", "task.observation=sincos")
    (models / "actor_agent0.pt").rename(tmp_path / "kept.pt")
    assert "lacks actor_agent0.pt" in complaint(models)

    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").touch, ())

    torch.save({"weight": Trap()}, models / "actor_agent0.pt")
    assert "damaged" in complaint(models)
    assert not (tmp_path / "sprung").exists()
    (tmp_path / "kept.pt").rename(models / "actor_agent0.pt")
    (tmp_path / "run" / "config.json").unlink()
    assert "lacks config.yaml" in complaint(models)


@pytest.mark.parametrize("observation", ["sincos", "reference"])
@pytest.mark.parametrize("num_agents", [1, 2, 3, 4])
def test_sizes_tell_which_observation_a_policy_has(
    observation: str, num_agents: int, tmp_path
) -> None:
    size = make_task(num_agents=num_agents, observation=observation).spec.obs_size
    file = write_config(tmp_path / "config.json", model={})
    assert harl_files.models_config(file, num_agents, size)["task"]["observation"] == observation
    named = write_config(tmp_path / "named.json", env_args={"observation": "sincos"}, model={})
    assert harl_files.models_config(named, num_agents, size)["task"]["observation"] == "sincos"


def off_policy_folder(path: Path, algo: str, weights: dict) -> Path:
    path.mkdir()
    for agent in range(2):
        torch.save(weights, path / f"actor_agent{agent}.pt")
    write_config(
        path / "config.json",
        named=algo,
        model={"activation_func": "relu", "final_activation_func": "tanh"},
    )
    return path


class Small:
    """Two agents with one observation and one action each."""

    num_envs = 1
    num_agents = 2
    spec = TeamSpec((1, 1), (1, 1), 1, "EP")
    device = torch.device("cpu")


def layer(name: str, weight: float, bias: float) -> dict:
    return {f"{name}.weight": tensor([[weight]]), f"{name}.bias": tensor([bias])}


def test_deterministic_actors(tmp_path) -> None:
    folder = off_policy_folder(
        tmp_path / "m", "hatd3", layer("pi.mlp.0", 2.0, 1.0) | layer("pi.mlp.2", 0.5, -1.0)
    )
    team = policy.make_team(folder, Small())  # type: ignore[arg-type]
    obs = tensor([[[0.5], [-3.0]]])
    expected = [math.tanh(0.5 * 2.0 - 1.0), math.tanh(-1.0)]  # relu(2 x 0.5 + 1) = 2, relu(-5) = 0
    assert team(obs).flatten().tolist() == pytest.approx(expected)


def test_squashed_gaussian_actors(tmp_path) -> None:
    weights = layer("net.mlp.0", 1.0, 0.0) | layer("net.mlp.2", 2.0, 0.0)
    weights |= layer("mu_layer", 3.0, 0.5) | layer("log_std_layer", 9.0, 9.0)
    folder = off_policy_folder(tmp_path / "m", "hasac", weights)
    team = policy.make_team(folder, Small())  # type: ignore[arg-type]
    assert team(tensor([[[0.3], [-1.0]]])).flatten().tolist() == pytest.approx(
        [math.tanh(3.0 * math.tanh(0.6) + 0.5), math.tanh(0.5)]
    )


def test_off_policy_actors_that_do_not_fit(tmp_path) -> None:
    folder = off_policy_folder(tmp_path / "m", "hatd3", layer("pi.mlp.0", 1.0, 0.0))

    class Larger(Small):
        spec = TeamSpec((2, 2), (1, 1), 1, "EP")

    with pytest.raises(ConfigError, match="1 inputs and 1 outputs, and robot 0 2 and 1"):
        policy.make_team(folder, Larger())  # type: ignore[arg-type]
    torch.save(layer("else", 1.0, 0.0), folder / "actor_agent0.pt")
    with pytest.raises(ConfigError, match="no off-policy actors of HARL"):
        policy.make_team(folder, Small())  # type: ignore[arg-type]


def test_our_own_checkpoints_are_not_taken_for_upstreams(tmp_path) -> None:
    folder = upstream_folder(tmp_path / "run")
    assert checkpoint.format_of(folder).owner == "HARL's"
    (folder / "config.yaml").write_text("env: {num_agents: 2}\n")
    assert checkpoint.format_of(folder) is OURS
    assert checkpoint.read_config(folder) == load_yaml(folder / "config.yaml")


# Runs that start from upstream's networks


def test_a_run_with_one_actor_for_all_does_not_start_from_upstreams_actors_of_their_own(
    tmp_path, capsys
) -> None:
    models = upstream_folder(tmp_path / "harl")
    share = ("--set", "algorithm.compat=harl", "--set", "algorithm.share_param=true")
    argv = ["--preset", "smoke", "--init_from", str(models), *share, "--out", str(tmp_path / "run")]
    assert train.main(argv) == 2
    assert (
        "has an actor of its own for each robot, and this run has one for all"
        in capsys.readouterr().err
    )


def test_upstreams_actors_name_the_arithmetic_that_they_go_with(tmp_path, capsys) -> None:
    argv = ["--preset", "smoke", "--init_from", str(upstream_folder(tmp_path / "harl"))]
    argv += ["--set", "algorithm.share_param=false", "--out", str(tmp_path / "run")]
    assert train.main(argv) == 2
    error = capsys.readouterr().err
    assert error.endswith("it learned with --algo happo --set algorithm.compat=harl\n")
    assert error.count("\n") == 1
