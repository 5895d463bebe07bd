"""The gait: observations, actions, the shipped policy, and a short walk."""

import math
import shutil

import pytest
import torch
import yaml

from harl_mapush import train
from mqe.config import ConfigError
from mqe.controllers.frozen_policy import (
    DESCRIPTION,
    describe_policy,
)
from mqe.controllers.gait import load_gait
from mqe.controllers.trot import (
    GAIT_OBS_SIZE,
    LIFT,
    GaitMemory,
    Trot,
    is_moving,
)
from mqe.pretrained import pretrained_folder
from mqe.registry import SimCfg
from mqe.world.geometry import quat_from_rpy
from tests.support.gaits import small_gait
from tests.support.rounding import FEW_STEPS
from tests.support.scenes import DEFAULT_JOINT_POS, make_scene_state, team
from tests.support.tiny_runs import TINY

CPU = torch.device("cpu")
SIM = SimCfg(name="mujoco", device="cpu")
# A copy that may be changed, as releases up to 0.2 wrote it.
UNDESCRIBED = shutil.ignore_patterns("manifest.json", "policy.yaml")


def test_gravity_is_seen_in_the_body_frame():
    # Nose down; upright.
    robots = quat_from_rpy(torch.tensor([[[0.0, math.pi / 2, 0.3], [0.0, 0.0, 2.0]]]))
    state = make_scene_state(torch.zeros(1, 2, 3), robot_quat=robots)
    memory = GaitMemory(torch.zeros(1, 2, GaitMemory.SIZE))
    command = torch.zeros(1, 2, 3)
    gravity = Trot(team(1)).observe(state, command, is_moving(command), memory)[0, :, :3]
    torch.testing.assert_close(
        gravity, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]), atol=FEW_STEPS, rtol=0
    )


def test_the_clock_runs_while_moving_and_stays_at_zero_while_standing():
    memory = GaitMemory(torch.zeros(2, 1, GaitMemory.SIZE))
    command = torch.tensor([[[0.3, 0.0, 0.0]], [[0.0, 0.02, 0.0]]])
    assert is_moving(command)[:, 0].tolist() == [True, False]
    targets = Trot(team(1)).act(memory, torch.zeros(2, 1, 12), is_moving(command))
    # FR and RL swing.
    lift = math.sin(2.0 * math.pi * 0.05) * torch.tensor([0.0] * 3 + list(LIFT) * 2 + [0.0] * 3)
    torch.testing.assert_close(targets[0, 0], torch.tensor(DEFAULT_JOINT_POS) + lift)
    # Who stands lifts nothing.
    torch.testing.assert_close(targets[1, 0], torch.tensor(DEFAULT_JOINT_POS))
    assert memory.phase[:, 0].tolist() == pytest.approx([0.05, 0.0])
    for _ in range(19):
        Trot(team(1)).act(memory, torch.ones(2, 1, 12), is_moving(command))
    assert float(memory.phase[0, 0]) % 1.0 == pytest.approx(0.0, abs=1e-5)
    memory.begin(torch.tensor([True, False]))
    assert not memory.action[0].any()
    assert memory.action[1].all()


def test_the_shipped_gait_is_small():
    folder = pretrained_folder("go1_velocity")
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert size < 1_000_000
    weights = torch.load(folder / "actor_agent0.pt", weights_only=True)
    assert sum(w.numel() for name, w in weights.items() if name.endswith("weight")) <= 50_000


def test_an_unknown_or_foreign_gait_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"go1_trot.*go1_velocity"):
        load_gait("pretrained:go1_trot", CPU)
    with pytest.raises(ConfigError, match="checkpoint"):
        load_gait(str(tmp_path / "nothing"), CPU)


def test_a_gait_named_by_a_relative_path_is_found_from_anywhere(gait, tmp_path, monkeypatch):
    monkeypatch.chdir(gait.parent)
    run = tmp_path / "run"
    words = [*TINY, "--num_env_steps", "1", "--set", f"task.gait=./{gait.name}", "--out", str(run)]
    assert train.main(words) == 0
    monkeypatch.chdir(tmp_path)
    assert train.main(["--resume", str(run), "--num_env_steps", "32"]) == 0


def test_a_gait_of_any_learner_is_a_file_of_weights_and_a_description(tmp_path):
    description = small_gait(tmp_path)
    assert describe_policy(str(tmp_path)) == description
    weights = torch.load(tmp_path / "weights.pt", weights_only=True)
    obs = torch.randn(3, 1, GAIT_OBS_SIZE)
    hidden = torch.tanh(obs @ weights["hidden.weight"].t() + weights["hidden.bias"])
    expected = hidden @ weights["out.weight"].t() + weights["out.bias"]
    torch.testing.assert_close(load_gait(str(tmp_path), CPU)(obs), expected)


HIDDEN = ["linear", "hidden", GAIT_OBS_SIZE, 8]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"observations": {"gait": {"names": ["clock"]}}}, "unlike a gait of this version"),
        ({"actors": ([HIDDEN],)}, "59 inputs and 8 actions, but a gait has 59 and 12"),
        ({"actors": ([HIDDEN, ["linear", "out", 9, 12]],)}, "out.weight has shape .12, 8."),
        ({"actors": ([HIDDEN, HIDDEN],)}, "the sizes of its layers differ"),
        ({"actors": ([HIDDEN, ["linear", "head", 8, 12]],)}, "its weights lack head.weight"),
        ({"actors": ([["linear", "hidden", GAIT_OBS_SIZE, 9]],)}, "has shape .8, 59."),
        ({"actors": ([HIDDEN, ["swish"]],)}, "unknown layer .'swish'"),
        ({"actors": ([["linear", "hidden", 10**6, 8]],)}, "an observation has 1 to 100000 numbers"),
        ({"actors": ([["gru", "hidden", GAIT_OBS_SIZE, 8, "a"]],)}, "layer gru: "),
        ({"actors": ([HIDDEN, ["bound", 0.0]],)}, "layer bound: 0.0 is no bound"),
        ({"actors": ([["sets", "sets", "sorted", 8, 4, []]],)}, "unknown reader of sets 'sorted'"),
        ({"actors": ([[]],)}, "unknown layer"),
        ({"weights": {"actor.pt": "0"}}, "lacks actor.pt"),
        ({"weights": {"weights.pt": "0"}}, "weights.pt is damaged"),
    ],
)
def test_a_description_that_the_weights_contradict_is_refused(changed, message, tmp_path):
    small_gait(tmp_path, **changed)
    with pytest.raises(ConfigError, match=message):
        load_gait(str(tmp_path), CPU)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("weights: {../w.pt: a}", "must be names of files beside policy.yaml"),
        ("weights: {}", "0 files for 1 robots"),
        ("actors: []", "0 lists of layers for 1 files"),
        ("learned_in: {env: 1}", "learned_in.env: must be a section of keys"),
        ("observations: {gait: 1}", "observations.gait: must be a section of keys"),
        ("format_version: 2", "format_version"),
        ("gain: 1", "unknown key"),
    ],
)
def test_a_description_with_a_mistake_is_refused(line, message, tmp_path):
    small_gait(tmp_path)
    key = line.partition(":")[0]
    path = tmp_path / DESCRIPTION
    values = yaml.safe_load(path.read_text()) | {key: yaml.safe_load(line)[key]}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=message):
        load_gait(str(tmp_path), CPU)
