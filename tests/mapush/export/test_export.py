"""An exported team acts equally in the environment and in plain MuJoCo, without this library or
torch.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportMissingImports=false

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
import torch

from harl_mapush import config, train
from harl_mapush.learning.networks import Actor
from harl_mapush.learning.settings import NetworkCfg
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import load_team
from mapush import cli
from mapush.export import onnx_files, onnx_folder
from mapush.export.description import describe_terminations
from mapush.export.exported_networks import ExportedActor
from mqe.config import merge
from mqe.controllers.network import build_network, declare
from mqe.controllers.set_readers import entities_of
from mqe.registry import EnvCfg, SimCfg, make_env
from mqe.tasks.push import PushCfg
from mqe.tasks.push.keep_apart import CommandLimit
from mqe.vec_env import EntityBlock
from tests.support.paths import ROOT
from tests.support.rounding import FEW_STEPS, in_double, rounding
from tests.support.tiny_runs import TINY

ON_CPU = {
    "env": {"num_envs": 2},
    "sim": {"name": "mujoco", "device": "cpu"},
    "runner": {"seed": 7},
}
NUMBERS = ("present", "x", "y", "sin_yaw", "cos_yaw")  # of another robot in a set
APART = 1.5  # [m] more than there is between robots at their starts
EXAMPLE = ROOT / "examples" / "exported_team.py"
sys.path.insert(0, str(EXAMPLE.parent))

import exported_team  # noqa: E402
import onboard_sensor  # noqa: E402
import onboard_team  # noqa: E402


def make_run(gait: Path, out: Path, *more: str) -> Path:
    sizes = ("--num_env_steps", "1", "--set", f"task.gait={gait}", "--set", "network.gain=1.0")
    assert train.main([*TINY, *sizes, "--out", str(out), *more]) == 0
    return out


@pytest.fixture(scope="module")
def run(gait, tmp_path_factory) -> Path:
    return make_run(gait, tmp_path_factory.mktemp("export") / "run")


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("export") / "team"
    settings = ("--set", "task.decision_period=5", "--set", f"task.keep_apart={APART}")
    assert cli.main(["export", str(run), str(out), *settings, "--seed", "7"]) == 0
    return out


def test_the_example_follows_the_environment_state_by_state(run, exported) -> None:
    folder = checkpoint.resolve(str(run))
    over = {**ON_CPU, "task": {"decision_period": 5, "keep_apart": APART}}
    cfg = evaluation_worlds.settings(folder, over, num_envs=2)
    follow_the_environment(exported, cfg, folder)
    starts = np.load(exported / "starts.npz")
    assert len(starts["qpos"]) == evaluation_worlds.NUM_ENVS


@pytest.mark.slow
def test_so_it_does_with_sets_in_a_suite_and_another_number_of_robots(tmp_path) -> None:
    out = tmp_path / "team"
    words = ["pretrained:any", str(out), "--suite", "any", "--num_agents", "3", "--seed", "7"]
    assert cli.main(["export", *words, "--set", "task.keep_apart=1.2"]) == 0
    folder = checkpoint.resolve("pretrained:any")
    overrides = {**ON_CPU, "env": {"num_envs": 2, "num_agents": 3}, "task": {"keep_apart": 1.2}}
    over = merge(config.load_suite("any").worlds, overrides)
    follow_the_environment(out, evaluation_worlds.settings(folder, over, num_envs=2), folder)


@pytest.mark.parametrize(
    ("suite", "said"),
    [
        ("lost", "--suite lost: env.randomize: no export takes it"),
    ],
)
def test_a_suite_that_cannot_be_exported_is_refused_in_one_line(
    suite, said, tmp_path, capsys
) -> None:
    out = tmp_path / "team"
    assert cli.main(["export", "pretrained:any", str(out), "--suite", suite]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_the_example_refuses_a_success_that_it_does_not_judge(exported, tmp_path) -> None:
    contract = json.loads((exported / "contract.json").read_text())
    task_cfg = PushCfg(success_heading=0.1, goal_heading=0.0, success_rest_s=2.0)
    contract["episode"] = describe_terminations(task_cfg)
    success = contract["episode"]["success"]
    assert (success["heading_error_below_rad"], success["rest_s"]) == (0.1, 2.0)
    with pytest.raises(SystemExit, match="success also asks for heading_error_below_rad"):
        exported_team.World(exported, contract)


def test_the_onboard_example_knows_what_its_sensors_see(exported, monkeypatch) -> None:
    """Without errors and hidden bodies it is the true scene."""
    for name in ("DROPOUT", "LATENCY"):
        monkeypatch.setattr(onboard_sensor, name, (0.0, 0.0))
    for name in ("NOISE", "BIAS", "DRIFT"):
        monkeypatch.setattr(onboard_sensor, name, np.zeros(3))
    contract = json.loads((exported / "contract.json").read_text())
    senses = {"field_of_view": 6.2832, "sight": (0.0, 50.0), "memory_time": 5.0}
    view = SimpleNamespace(**senses, seed=0, messages=None)
    world = onboard_team.SeenWorld(exported, contract, view)
    trained = exported_team.Team(exported, contract).names
    names = [[*of_robot, "load", "object_age"] for of_robot in trained]
    true_names = [of_robot[:-1] for of_robot in names]
    starts = dict(np.load(exported / "starts.npz"))
    world.begin({name: values[1] for name, values in starts.items()})
    assert (world.observations(names)[:, -1] == 1.0).all()  # before the first frame
    for _ in range(12):
        seen = world.observations(names)
    assert (seen[:, -1] < 0.05).all()
    exact = exported_team.World.observations(world, true_names)
    with pytest.raises(SystemExit, match="take onboard_team.py for a team with senses"):
        exported_team.World.observations(world, names)
    is_known = seen[:, :-1] != 0.0
    assert is_known[:, :6].all()
    np.testing.assert_allclose(seen[:, :-1][is_known], exact[is_known], atol=1e-6)


def test_under_motion_capture_robots_know_the_true_scene(exported) -> None:
    contract = json.loads((exported / "contract.json").read_text())
    view = SimpleNamespace(field_of_view=None, seed=0, messages=None)
    world = onboard_team.SeenWorld(exported, contract, view)
    names = exported_team.Team(exported, contract).names
    starts = dict(np.load(exported / "starts.npz"))
    world.begin({name: values[1] for name, values in starts.items()})
    exact = exported_team.World.observations(world, names)
    np.testing.assert_allclose(world.observations(names), exact, atol=1e-6)


def follow_the_environment(exported: Path, cfg: config.RunCfg, folder: Path) -> None:
    """Compare the environment's second world with the example for four decisions."""
    env = make_env(cfg.env, cfg.sim, cfg.task, 7)
    team = load_team(folder, env)
    contract = json.loads((exported / "contract.json").read_text())
    world = exported_team.World(exported, contract)
    other = exported_team.Team(exported, contract)
    starts = dict(np.load(exported / "starts.npz"))
    world.begin({name: values[1] for name, values in starts.items()})

    obs, _ = env.reset()
    np.testing.assert_array_equal(world.data.qpos, env.sim.data.qpos[1])
    np.testing.assert_allclose(world.observations(other.names), obs[1], atol=FEW_STEPS)
    np.testing.assert_allclose(100.0 * world.load, env.task.constants.load[-1], rtol=1e-4)
    for _ in range(4):
        obs = env.step(team(obs)).obs
        for _ in range(5):
            world.step(other.act(world.observations(other.names), world.robots()))
            assert world.outcome(1) is None
    np.testing.assert_allclose(world.data.qpos, env.sim.data.qpos[1], atol=1e-4)
    # Something moved.
    assert float((env.sim.data.qpos[1] - torch.as_tensor(starts["qpos"][1])).abs().max()) > 0.1
    env.close()


def test_the_example_refuses_a_damaged_file(exported, tmp_path) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(exported, folder)
    exported_team.check_files(folder)
    for name in ("actor_agent0.onnx", "contract.json", "starts.npz", "scene.xml"):
        shutil.copytree(exported, folder, dirs_exist_ok=True)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        with pytest.raises(SystemExit, match=f"{name} is damaged; export the policy anew"):
            exported_team.check_files(folder)


def test_an_older_mujoco_reads_the_scene_or_is_named(exported, tmp_path) -> None:
    contract = json.loads((exported / "contract.json").read_text())
    scene = (exported / "scene.xml").read_text()
    assert contract["mujoco_at_least"] == "3.3.5"
    assert "colorspace" not in scene
    assert 'type="directional"' not in scene
    (tmp_path / "scene.xml").write_text(scene.replace("<sensor>", "<sensor><of_tomorrow/>"))
    with pytest.raises(SystemExit, match=r"scene.xml: MuJoCo .* it needs 3.3.5 or later"):
        exported_team.World(tmp_path, contract)


@pytest.mark.slow
def test_the_example_needs_neither_torch_nor_this_library(exported) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import exported_team; "
        f"sys.argv = ['', {str(exported)!r}, '--num_episodes', '1']; exported_team.main(); "
        "assert not {'torch', 'mqe', 'harl_mapush', 'mapush'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "of 1 episodes succeeded" in done.stdout


def test_the_contract_describes_every_tensor_of_every_file(exported) -> None:
    models = json.loads((exported / "contract.json").read_text())["models"]
    assert set(models) == {path.name for path in exported.glob("*.onnx")}
    for name, model in models.items():
        session = onnxruntime.InferenceSession(
            str(exported / name), providers=["CPUExecutionProvider"]
        )
        for kind, tensors in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            assert list(model[kind]) == [tensor.name for tensor in tensors]
            shapes = [described["shape"] for described in model[kind].values()]
            assert [shape[-1] for shape in shapes] == [tensor.shape[-1] for tensor in tensors]


def test_a_command_is_scaled_and_within_its_range(exported) -> None:
    session = onnxruntime.InferenceSession(
        str(exported / "actor_agent0.onnx"), providers=["CPUExecutionProvider"]
    )
    far = np.random.default_rng(0).normal(scale=1e3, size=(50, 10)).astype(np.float32)
    command = session.run(None, {"obs": far})[0]
    assert 0.1 < np.abs(command).max() <= 0.5
    models = json.loads((exported / "contract.json").read_text())["models"]
    _, upper = models["actor_agent0.onnx"]["outputs"]["command"]["range"]
    assert upper == [0.7, 0.7, 0.5]  # a robot may back off by 0.2 m/s more than it asked for


def test_an_actor_that_reads_sets_is_exported_for_any_number_of_robots(tmp_path) -> None:
    sets = (EntityBlock("teammates", 2, 7, 5), EntityBlock("outline", 37, 16, 3))
    learner = Actor(NetworkCfg((8,), set_width=4, gain=1.0), 85, 3, sets)
    declared = declare(learner)
    assert declared is not None
    actor = build_network([declared], [learner.state_dict()]).actor(0)
    x = torch.randn(16, 85)
    for block in sets:
        entities_of(x, block)[..., 0].bernoulli_()
    names = ["own", "number", *(f"teammates{k}_{n}" for k in range(7) for n in NUMBERS)]
    network = ExportedActor(actor, (0.5, 0.5, 0.5), CommandLimit(names, 0.3, 5))
    exported = onnx_files.Exported(network, {"obs": x}, ("command",))
    onnx_files.write(exported, tmp_path / "actor.onnx")
    (command,) = network(x)
    (exact,) = in_double(network)(x.double())
    bound = rounding(command, exact)
    assert onnx_files.largest_difference(exported, tmp_path / "actor.onnx") < bound


@pytest.mark.parametrize(
    "more, words", [((), ()), (("own_velocity",), tuple(f"own_velocity_{k}" for k in range(3)))]
)
@pytest.mark.parametrize("observation", ["sincos", "reference"])
def test_every_number_that_a_robot_sees_has_a_name(observation, more, words) -> None:
    task = PushCfg(observation=observation, more_observations=more)
    env = make_env(EnvCfg(num_envs=1, num_agents=3), SimCfg(name="mujoco", device="cpu"), task, 0)
    names = env.task.obs_names(2)
    env.close()
    assert len(set(names)) == env.spec.obs_sizes[2]
    assert names[:4] == ("goal_x", "goal_y", "object_x", "object_y")
    assert names[len(names) - len(words) :] == words


@pytest.mark.slow
def test_a_recurrent_team_carries_its_memory(gait, tmp_path) -> None:
    layers = (
        "network.use_recurrent_policy=true",
        "network.num_recurrent_layers=2",
        "network.chunk_length=2",
    )
    run = make_run(gait, tmp_path / "run", *(word for layer in layers for word in ("--set", layer)))
    assert cli.main(["export", str(run), str(tmp_path / "team")]) == 0
    contract = json.loads((tmp_path / "team" / "contract.json").read_text())
    assert contract["models"]["actor_agent1.onnx"]["inputs"]["hidden"]["shape"] == ["batch", 16]
    starts = dict(np.load(tmp_path / "team" / "starts.npz"))
    world = exported_team.World(tmp_path / "team", contract)
    team = exported_team.Team(tmp_path / "team", contract)
    world.begin({name: values[0] for name, values in starts.items()})
    first, second = (team.act(world.observations(team.names), world.robots()) for _ in range(2))
    assert np.abs(first - second).max() > 0.0


@pytest.mark.parametrize(("model", "version"), [("reference", "3.3.5"), ("physical", "3.12.0")])
def test_a_scene_names_the_oldest_mujoco_with_its_motors(model, version, tmp_path) -> None:
    env = make_env(EnvCfg(num_envs=1, model=model), SimCfg("mujoco", "cpu", 1), PushCfg(), 0)
    onnx_folder.write_scene(env, tmp_path / "scene.xml")
    env.close()
    assert onnx_folder.least_mujoco(tmp_path / "scene.xml") == version
