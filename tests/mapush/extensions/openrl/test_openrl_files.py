"""MAPush's policies (OpenRL's module.pt): read without running anything, and the same team in our
form.
"""

from __future__ import annotations

import json
import random
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harl_mapush import test
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.formats import FORMATS
from harl_mapush.runs.policy import make_team
from mapush import cli
from mapush.extensions.openrl import mapush_policies, openrl_files
from mqe.config import ConfigError, load_yaml
from mqe.vec_env import TeamSpec
from tests.support import mapush_files

STEPS = "rl_model_20000000_steps"


@pytest.fixture
def team(tmp_path) -> Path:
    """A MAPush checkpoint's folder."""
    return mapush_files.save(
        tmp_path / "results" / "checkpoints" / STEPS / "module.pt", mapush_files.module()
    ).parent


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        mapush_policies.convert(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_pointer_of_git_lfs_in_place_of_a_policy_is_named(tmp_path, capsys) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 213456\n"
    (tmp_path / "module.pt").write_text(pointer)
    assert test.main([str(tmp_path / "module.pt")]) == 2
    error = capsys.readouterr().err
    assert "a pointer of git-lfs, and not the file; git lfs pull fetches it" in error


# The same team


@pytest.mark.parametrize(("num_agents", "layer_n"), [(2, 1), (3, 1), (2, 2), (2, 4)])
def test_the_imported_teams_actions_are_half_of_openrls(
    tmp_path, num_agents: int, layer_n: int
) -> None:
    module = mapush_files.module(num_agents, layer_n=layer_n)
    imported = mapush_policies.convert(mapush_files.save(tmp_path / "module.pt", module))
    obs = 2.0 * torch.randn(500, 2 + 3 * num_agents)
    policy = module.models["policy"]
    with torch.no_grad():
        theirs = mapush_files.mean(policy, obs, policy.act.action_out.fc_mean)
        ours = imported.actor(obs)
    assert torch.allclose(ours, 0.5 * theirs, rtol=1e-5, atol=1e-5)
    assert ours.abs().max() > 5.0
    assert imported.sections["env"]["num_agents"] == num_agents


def test_the_second_layer_never_meets_its_relu(tmp_path) -> None:
    actor = mapush_policies.convert(
        mapush_files.save(tmp_path / "module.pt", mapush_files.module())
    ).actor
    layers = actor.base.mlp["fc"]  # type: ignore[union-attr, index]
    with torch.no_grad():
        assert (layers[:4](100.0 * torch.randn(5_000, 8)) >= -1e-4).all()  # type: ignore[operator, index]


def test_the_task_is_the_reference(tmp_path, team) -> None:
    sections = mapush_policies.convert(team / "module.pt").sections
    task = sections["task"]
    assert (task["observation"], task["decision_period"], task["action_scale"]) == (
        "reference",
        1,
        [0.5] * 3,
    )
    assert (task["object"], task["pitch_limit"], task["collapse_ends"]) == ("cuboid", 1.6, False)
    assert sections["algorithm"]["share_param"] is True
    named = mapush_files.save(
        tmp_path / "named" / "module.pt", mapush_files.module(exp_name="Tblock")
    )
    assert mapush_policies.convert(named).sections["task"]["object"] == "tblock"


def test_a_folder_of_mapush_is_measured_as_it_is(team, gait, tmp_path, capsys) -> None:
    brief = [
        "--set",
        f"task.gait={gait}",
        "--set",
        "task.episode_length_s=0.1",
        "--json",
        str(tmp_path / "a.json"),
    ]
    assert test.main(["--checkpoint", str(team), "--num_envs", "2", "--device", "cpu", *brief]) == 0
    assert json.loads((tmp_path / "a.json").read_text())["num_episodes"] == 2
    assert checkpoint.format_of(team) is FORMATS["openrl"]
    assert checkpoint.resolve(team / "module.pt") == team
    assert "error" not in capsys.readouterr().err


def test_a_policy_under_any_file_name_is_a_checkpoint(tmp_path, gait) -> None:
    file = mapush_files.save(tmp_path / "Tblock.pt", mapush_files.module(exp_name="cuboid"))
    assert checkpoint.resolve(str(file)) == file
    sections = checkpoint.read_config(file)
    assert sections == mapush_policies.convert(file).sections
    assert sections["task"]["object"] == "tblock"  # by its name
    brief = f"--set task.gait={gait} --set task.episode_length_s=0.1 --num_envs 2 --device cpu"
    report = tmp_path / "a.json"
    assert test.main(["--checkpoint", str(file), *brief.split(), "--json", str(report)]) == 0
    assert json.loads(report.read_text())["num_episodes"] == 2
    torch.save({"weight": torch.zeros(2)}, tmp_path / "actor.pt")
    with pytest.raises(ConfigError, match="holds no PPOModule of OpenRL; a state dict of HARL"):
        checkpoint.resolve(str(tmp_path / "actor.pt"))


def test_a_whole_run_of_mapush_means_its_last_policy(team, tmp_path) -> None:
    run = team.parent.parent
    for steps in ("rl_model_9000000_steps", "rl_model_100000000_steps", "best"):
        mapush_files.save(team.parent / steps / "module.pt", mapush_files.module())
    (team.parent / "rl_model_200000000_steps").mkdir()  # interrupted before its file
    assert checkpoint.resolve(str(run)) == team.parent / "rl_model_100000000_steps"
    saved_steps = [9_000_000, 20_000_000, 100_000_000]
    assert [steps for steps, _ in checkpoint.all_checkpoints(run)] == saved_steps
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        checkpoint.resolve(str(tmp_path / "empty"))


def test_a_folder_of_mapushs_runs_is_refused_and_listed(team, tmp_path, capsys) -> None:
    assert test.main([str(tmp_path)]) == 2
    assert f"mapush list {tmp_path} lists the runs" in capsys.readouterr().err
    assert cli.main(["list", str(tmp_path)]) == 0
    listed = " ".join(capsys.readouterr().out.split())
    assert listed.startswith(f"{tmp_path / 'results'}: without config.yaml; checkpoints {STEPS} ")


class _Env:
    spec = TeamSpec((8, 8), (3, 3), 17, "EP")
    num_envs = 5
    num_agents = 2
    device = torch.device("cpu")


@pytest.mark.parametrize("source", ["a run", "a folder", "a file"])
def test_directly_and_exported_the_team_acts_alike(source: str, team, tmp_path) -> None:
    if source == "a run":
        team = team.parent.parent
    elif source == "a file":
        team = (team / "module.pt").rename(tmp_path / "Tblock.pt")
    out = tmp_path / "policy"
    assert cli.main(["export", str(team), str(out), "--for", "policy"]) == 0
    folder = checkpoint.resolve(str(out))
    direct_folder = checkpoint.resolve(str(team))
    cfg = evaluation_worlds.settings(folder, {})
    assert cfg.task == evaluation_worlds.settings(direct_folder, {}).task
    assert load_yaml(out / "config.yaml")["algorithm"]["name"] == "ippo"
    direct = make_team(direct_folder, _Env())  # type: ignore[arg-type]
    exported = make_team(folder, _Env())  # type: ignore[arg-type]
    obs = torch.randn(5, 2, 8)
    assert torch.equal(direct(obs), exported(obs))
    # A training starts from it.
    actor = mapush_policies.convert(direct_folder).actor
    torch.nn.init.zeros_(actor.act["action_out"].fc_mean.weight)  # type: ignore[arg-type]
    checkpoint.load(folder, {"actor_agent0": actor, "actor_agent1": actor})
    with torch.no_grad():
        torch.testing.assert_close(actor(obs), direct(obs))


def test_a_mean_of_mapushs_checkpoints_is_refused(team, tmp_path, capsys) -> None:
    words = ["export", str(team), str(tmp_path / "policy"), "--for", "policy", "--last", "2"]
    assert cli.main(words) == 2
    assert "--last 2:" in capsys.readouterr().err
    assert not (tmp_path / "policy").exists()


def test_the_former_command_names_the_present_ones(capsys) -> None:
    assert cli.main(["import", "openrl", "module.pt"]) == 2
    assert (
        "import is now: mapush export FOLDER OUT --for policy; docs/guides/migrate.md"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"obs_size": 26, "action_size": 2}, "has 26 inputs and 2 outputs")],
)
def test_what_is_no_team_of_ours_is_one_line(tmp_path, changes: dict, says: str) -> None:
    assert says in refused(
        mapush_files.save(tmp_path / "module.pt", mapush_files.module(**changes))
    )


def test_other_layers_are_refused(tmp_path) -> None:
    module = mapush_files.module()
    module.models["policy"].base = mapush_files.trunk(8, nn.Tanh())
    assert "only ReLU" in refused(mapush_files.save(tmp_path / "module.pt", module))
    module.models["policy"].base.mlp.fc2 = nn.Linear(16, 16)
    assert "it must have only linear layers, without recurrence" in refused(
        mapush_files.save(tmp_path / "module.pt", module)
    )


# What a measurement does not use


def measured(path: Path, obs: Tensor) -> Tensor:
    """Return an imported policy's actions (N, 3)."""
    with torch.no_grad():
        return mapush_policies.convert(path).actor(obs)


def test_the_parsers_path_of_a_file_is_inert(tmp_path) -> None:
    config = [mapush_files.make("Path", _relative="ppo.yaml", _mode="fr")]
    path = mapush_files.save(tmp_path / "module.pt", mapush_files.module(config=config))
    assert mapush_policies.convert(path).notices == []


@pytest.mark.parametrize("change", ["wider", "infinite", "missing", "deviation", "setting"])
def test_what_a_measurement_does_not_use_is_left_out(tmp_path, change: str) -> None:
    obs = torch.randn(20, 8)
    module = mapush_files.module()
    whole = measured(mapush_files.save(tmp_path / "whole.pt", module), obs)
    if change == "wider":  # its critic sees the state of the world
        module.models["critic"].base = mapush_files.trunk(17)
    elif change == "infinite":
        module.models["critic"].v_out.bias.data[:] = torch.inf
    elif change == "deviation":
        bias = module.models["policy"].act.action_out.logstd._bias
        bias.data[:] = torch.tensor([[90.0], [-12.0], [torch.nan]])
    elif change == "setting":
        module.cfg.lr = -1.0
    else:
        del module.models["critic"]
    path = mapush_files.save(tmp_path / "module.pt", module)
    assert torch.equal(measured(path, obs), whole)
    assert mapush_policies.convert(path).notices == []


def test_inputs_that_contradict_the_task_file_are_refused(tmp_path) -> None:
    run = tmp_path / "run"
    path = run / "checkpoints" / STEPS / "module.pt"
    mapush_files.save(path, mapush_files.module(num_agents=3))
    task = run / "task" / "config.py"
    task.parent.mkdir()
    text = "class A(Go1Cfg):\n    class env(Go1Cfg.env):\n        num_agents = {}\n"
    task.write_text(text.format(2))
    said = refused(path)
    assert (
        "has 11 inputs, as a team of 3 has in go1push_mid, but the task file beside it says" in said
    )
    assert "says 2 robots" in said
    task.write_text(text.format(3) + "        num_npcs = 5\n")
    (notice,) = mapush_policies.convert(path).notices
    assert notice.startswith("the task file beside it has 5 objects and markers")
    task.write_text("class")  # a damaged file says nothing
    assert mapush_policies.convert(path).sections["env"]["num_agents"] == 3


def test_inputs_that_contradict_the_policys_own_settings_are_refused(tmp_path) -> None:
    module = mapush_files.module(num_agents=3)
    for num_agents, is_refused in ((1, False), (3, False), (2, True)):
        module.cfg.num_agents = num_agents
        path = mapush_files.save(tmp_path / f"{num_agents}.pt", module)
        if is_refused:
            assert "but its own settings say 2 robots" in refused(path)
        else:
            assert mapush_policies.convert(path).sections["env"]["num_agents"] == 3


def test_a_policy_of_another_task_is_named(tmp_path, capsys) -> None:
    module = mapush_files.module(task="go1multiobject")
    make_team(mapush_files.save(tmp_path / "module.pt", module), _Env())  # type: ignore[arg-type]
    said = "it learned in the task 'go1multiobject', and plays go1push_mid here"
    assert said in capsys.readouterr().err


# Nothing is run


@pytest.mark.parametrize(
    "name",
    [
        "posix\nsystem",
        "builtins\nexec",
        "__builtin__\neval",
        "torch\nload",
        "openrl.modules.ppo_module\nOther",
    ],
)
def test_a_file_that_asks_for_more_does_nothing(tmp_path, name: str) -> None:
    bait = f"echo > {tmp_path}/ran" if "posix" in name else f"open({str(tmp_path / 'ran')!r}, 'w')"
    call = (
        b"\x80\x02c"
        + name.encode()
        + b"\nX"
        + len(bait).to_bytes(4, "little")
        + bait.encode()
        + b"\x85R."
    )
    path = mapush_files.archive(tmp_path / "module.pt", call)
    # torch itself reads no name of a system's module.
    said = "damaged (UnpicklingError)" if "posix" in name else "holds no PPOModule"
    assert said in refused(path)
    assert not (tmp_path / "ran").exists()


LONG_NUMBER = b"\x80\x02}r\xff\xff\xff\x7f."
PLACEHOLDER = b"copenrl.modules.ppo_module\nPPOModule\n"
FLOATS = b"ctorch\nFloatStorage\n"
STORAGE = b"(X\x07\x00\x00\x00storage" + FLOATS + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"

TENSOR = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE


@pytest.mark.parametrize(
    ("pickled", "says"),
    [
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "damaged"),
        (b"(S'ls'\niposix\nsystem\n.", "damaged"),
        (b"\x80\x04cposix\nsystem\n(lI1\nb.", "damaged"),
        (b"\x80\x02\x82\x01.", "damaged"),  # a code of the extension registry
        (LONG_NUMBER, "holds no PPOModule"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\x00\x00\x00.", "damaged"),  # 256 TiB of bytes
        (b"\x80\x02cbuiltins\nbytearray\nK\x08\x85R.", "makes a bytearray"),
        (b"\x80\x02" + b")\x85" * 15_000 + b".", "holds no PPOModule"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02}.", "holds no PPOModule"),
        (TENSOR + b"K\x00K\x03\x85K\x01\x85\x89NtR.", "damaged"),  # larger than its storage
        (b"\x80\x02" + STORAGE.replace(b"K\x02t", b"K\x09t") + b".", "damaged"),
        (
            b"\x80\x02ctorch._utils\n_rebuild_parameter\n}X\x08\x00\x00\x00__call__Ns\x86b.",
            "damaged",
        ),
        (b"\x80\x02" + PLACEHOLDER + b"}X\x01\x00\x00\x00xNsb.", "damaged"),
        (b"\x80\x02" + PLACEHOLDER + b")\x81X\x01\x00\x00\x00xa.", "damaged"),
    ],
)
def test_tricks_of_pickles_are_refused(tmp_path, pickled: bytes, says: str) -> None:
    assert says in refused(mapush_files.archive(tmp_path / "module.pt", pickled, {"0": bytes(8)}))


def test_a_number_that_is_repeated_without_end_is_refused(tmp_path) -> None:
    module = mapush_files.module()
    repeated = nn.Parameter(torch.zeros(1).expand(2**40), requires_grad=False)
    module.models["policy"].act.action_out.fc_mean.bias = repeated
    said = refused(mapush_files.save(tmp_path / "module.pt", module))
    assert "its act.action_out.fc_mean.bias is no plain tensor" in said


def test_deep_nesting_is_an_error_and_no_crash(tmp_path) -> None:
    key = b")" + b"\x85" * 19_000  # a dictionary's key: hashing it goes as deep
    assert "holds no PPOModule" in refused(
        mapush_files.archive(tmp_path / "module.pt", b"\x80\x02}" + key + b"Ns.")
    )


def test_a_network_in_itself_ends(tmp_path) -> None:
    module = mapush_files.module()
    module.models["policy"].base.mlp._modules["again"] = module.models["policy"].base
    assert "more than 200 layers" in refused(mapush_files.save(tmp_path / "module.pt", module))


def test_large_and_packed_archives_are_not_read(tmp_path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("module/data.pkl", bytes(2**20))
    assert "not an archive of torch.save" in refused(tmp_path / "packed.pt")
    path = mapush_files.save(tmp_path / "module.pt", mapush_files.module())
    monkeypatch.setattr(openrl_files, "MAX_BYTES", 1000)
    assert "it is not read" in refused(path)


def test_damage_anywhere_is_one_line(tmp_path) -> None:
    whole = mapush_files.save(tmp_path / "module.pt", mapush_files.module()).read_bytes()
    draw = random.Random(1)
    path = tmp_path / "damaged.pt"
    for _ in range(60):
        damaged = bytearray(whole[: draw.randrange(len(whole))] if draw.random() < 0.2 else whole)
        for _ in range(8):
            damaged[draw.randrange(len(damaged) or 1)] = draw.randrange(256)
        path.write_bytes(damaged)
        assert refused(path)  # names the file, in one line


def test_another_teams_size_is_one_line(team) -> None:
    class Three(_Env):
        spec = TeamSpec((11, 11, 11), (3, 3, 3), 17, "EP")

    with pytest.raises(ConfigError, match="8 inputs and 3 outputs, and robot 0 11 and 3"):
        make_team(team, Three())  # type: ignore[arg-type]
