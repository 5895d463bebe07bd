"""``mapush distil``: one team learns from other teams, into an ordinary checkpoint."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
import torch

from harl_mapush.runs import checkpoint
from mapush import distilling
from mqe.config import dump_yaml
from mqe.manifest import read_manifest
from mqe.tensor_files import read_tensors

BEAMS = {
    "teacher": "pretrained:beam",
    "env": {"num_agents": 2, "model": "physical"},
    "task": {"shapes": None, "object": "beam", "object_mass": "70 N"},
}
BOXES = {"teacher": "pretrained:any", "env": {"num_agents": 1}}


def distil(folder: Path, *lessons: object, argv: tuple[str, ...] = (), name: str = "taught") -> int:
    path = folder / "lessons.yaml"
    path.write_text(dump_yaml({"lessons": list(lessons)}), encoding="utf-8")
    target = str(folder / name)
    worlds = ["--num_envs", "2", "--device", "cpu", "--sim", "mujoco"]
    return distilling.main(
        ["pretrained:any", target, "--lessons", str(path), *worlds, *argv],
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes whenever the time is asked for."""
    seconds = count()
    monkeypatch.setattr(distilling.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(distilling, "NUM_UPDATES", 4)
    monkeypatch.setattr(distilling, "BATCH_SIZE", 64)
    monkeypatch.setattr(distilling, "WARMUP", 4)
    monkeypatch.setattr(distilling, "INTERVAL", 6)
    monkeypatch.setattr(distilling, "AVERAGING", 0.2)


def test_a_student_comes_nearer_to_its_teacher_and_is_a_checkpoint(tmp_path, capsys, clock) -> None:
    assert distil(tmp_path, BOXES, BEAMS, argv=("--max_wall_time", "20s")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("did not learn in this world: task.keep_apart=0.3 (learned with 0.0).")
    assert lines[2] == "2 robots in 2 worlds, taught by beam"
    differences = [line.partition("differences ")[2] for line in lines if "differences" in line]
    boxes, beams = zip(*(map(float, numbers.split()) for numbers in differences), strict=True)
    assert beams[-1] < 0.7 * beams[0]
    assert max(boxes) < min(beams)  # its own teacher
    folder = checkpoint.resolve(tmp_path / "taught")
    manifest = read_manifest(folder)
    assert manifest["taught_by"] == ["pretrained:any", "pretrained:beam"]
    student = checkpoint.resolve("pretrained:any")
    assert manifest["gait_sha256"] == read_manifest(student)["gait_sha256"]
    assert checkpoint.read_config(folder) == checkpoint.read_config(student)
    before, after = (read_tensors(path / "actor_agent0.pt") for path in (student, folder))
    moved = [float((after[key] - before[key]).abs().max()) for key in before]
    assert 0.0 < max(moved) < 0.1
    assert all(torch.isfinite(value).all() for value in after.values())


def test_a_seed_says_what_is_learned(tmp_path, clock) -> None:
    weights = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        argv = ("--max_wall_time", "7s", "--seed", seed)
        assert distil(tmp_path, BEAMS, argv=argv, name=name) == 0
        weights.append(read_tensors(tmp_path / name / "actor_agent0.pt")["mu_layer.weight"])
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_time_that_is_too_short_for_an_update_leaves_no_team(tmp_path, capsys, clock) -> None:
    assert distil(tmp_path, BOXES, argv=("--max_wall_time", "3s")) == 2
    assert "it ended after 2 of the 4 decisions" in capsys.readouterr().err
    assert not (tmp_path / "taught").exists()


@pytest.mark.parametrize(
    ("lessons", "argv", "message"),
    [
        ([], (), "must have the one key 'lessons'"),
        ([{"env": {"num_agents": 2}}], (), "lesson 0: must have a teacher"),
        ([BOXES | {"network": {}}], (), "lesson 0: must have a teacher"),
        ([{"teacher": "pretrained:ani"}], (), "did you mean any?"),
        ([BOXES], ("--max_wall_time", "soon"), "--max_wall_time: 'soon' is no duration"),
        ([{"teacher": "pretrained:cuboid"}], (), "pretrained/cuboid was trained with"),
    ],
)
def test_what_cannot_be_taught_is_refused(lessons, argv, message, tmp_path, capsys) -> None:
    assert distil(tmp_path, *lessons, argv=argv) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "taught").exists()
