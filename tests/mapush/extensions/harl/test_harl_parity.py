"""Replayed updates from upstream HARL, and deliberate mistakes for the recordings to catch."""

from __future__ import annotations

import copy
import functools
import importlib
import lzma
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import harl_parity, harl_recording
from tests.support.paths import DATA, ROOT

COPIED = ("harl_mapush", "mapush")  # packages in which mistakes are made
RECORDINGS = sorted((DATA / "harl_parity").glob("*.pt.xz"))
# Each is read and compared once: several tests look at what comes out.
read_once = functools.cache(harl_recording.read)
replayed = functools.cache(harl_parity.replay)


def recording(case: str) -> Path:
    return DATA / "harl_parity" / f"{case}.pt.xz"


MUTATIONS = {  # what goes wrong: file, text, its replacement, the recording that must notice
    "factor ignored": (
        "harl_mapush/algorithms/happo.py",
        "storage.factor[agent] = storage.next_factor",
        "storage.factor[agent] = 1.0",
        "happo_2a_inactive",
    ),
    "factor not cumulative": (
        "harl_mapush/algorithms/happo.py",
        "storage.next_factor.mul_(ratio",
        "storage.next_factor.copy_(ratio",
        "happo_3a_dead",
    ),
    "bad masks ignored": (
        "mapush/extensions/harl/on_policy_formulas.py",
        "if cfg.use_proper_time_limits:",
        "if False:",
        "happo_2a_tightclip",
    ),
    "active masks ignored": (
        "harl_mapush/learning/on_policy/surrogate.py",
        "weights=rows(storage.weights(agent)),",
        "weights=rows(storage.weights(agent) * 0 + 1),",
        "happo_3a_dead",
    ),
    "advantage std unbiased": (
        "harl_mapush/learning/normalization.py",
        "variance = (sum_sq / total)",
        "variance = (sum_sq / (total - 1.0))",
        "happo_2a_inactive",
    ),
    "entropy averaged over dimensions": (
        "harl_mapush/learning/losses.py",
        "torch.log(std)).sum(-1)",
        "torch.log(std)).mean(-1)",
        "happo_2a_inactive",
    ),
    "entropy bonus missing": (
        "harl_mapush/learning/on_policy/surrogate.py",
        "loss - cfg.entropy_coef * entropy",
        "loss",
        "mappo_3a_dead",
    ),
    "value clip off": (
        "harl_mapush/learning/on_policy/value_update.py",
        "cfg.clip_param if cfg.use_clipped_value_loss else None",
        "None",
        "happo_2a_tightclip",
    ),
    "Huber replaced by MSE": (
        "harl_mapush/learning/on_policy/value_update.py",
        "cfg.huber_delta if cfg.use_huber_loss else None",
        "None",
        "happo_2a_tightclip",
    ),
    "gradient clip off": (
        "harl_mapush/learning/optimizer.py",
        "if max_grad_norm > 0.0:",
        "if False:",
        "happo_2a_tightclip",
    ),
    "value normaliser once an iteration": (
        "mapush/extensions/harl/on_policy_formulas.py",
        "        normalizer.update(minibatch.returns, ranks=self.ranks)\n",
        "        if normalizer.debiasing_term == 0.0:\n"
        "            normalizer.update(minibatch.returns, ranks=self.ranks)\n",
        "happo_2a_inactive",
    ),
    "normaliser updated after the step": (
        "mapush/extensions/harl/on_policy_formulas.py",
        "        normalizer.update(minibatch.returns, ranks=self.ranks)\n"
        "        return minibatch._replace(returns=normalizer.normalize(minibatch.returns))\n",
        "        late = minibatch._replace(returns=normalizer.normalize(minibatch.returns))\n"
        "        normalizer.update(minibatch.returns, ranks=self.ranks)\n"
        "        return late\n",
        "happo_2a_inactive",
    ),
    "Adam epsilon 1e-8": (
        "harl_mapush/learning/optimizer.py",
        "        self.eps = eps",
        "        self.eps = 1e-8",
        "happo_2a_inactive",
    ),
    "std = exp(log_std)": (
        "harl_mapush/learning/networks.py",
        "torch.sigmoid(self.log_std / self.std_x_coef) * self.std_range",
        "torch.exp(self.log_std)",
        "happo_2a_inactive",
    ),
    "KL direction": (
        "mapush/extensions/harl/hatrpo.py",
        "(old.double(), std_old.double(), mean.double(), std.double())",
        "(mean.double(), std.double(), old.double(), std_old.double())",
        "hatrpo_2a_reject",
    ),
    "CG damping": (
        "mapush/extensions/harl/hatrpo.py",
        "_CG_DAMPING = 0.1",
        "_CG_DAMPING = 0.0",
        "hatrpo_2a_inactive",
    ),
    "agent order reversed": (
        "harl_mapush/algorithms/happo.py",
        "for agent in order:",
        "for agent in reversed(order):",
        "happo_2a_inactive",
    ),
}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.partition(".")[0])
def test_recording_agrees(path):
    differences = replayed(path)
    assert {d.stage for d in differences} == {0, 1}
    judged = [d for d in differences if d.quantity in harl_parity.JUDGED]
    networks = {"actor weights", "critic weights", "critic Adam", "value normaliser"}
    assert {"returns", "advantages", *networks} <= {d.quantity for d in judged}
    assert ("factors" in {d.quantity for d in judged}) == path.name.startswith("ha")
    assert [d for d in judged if not d.size <= d.tolerance] == []
    assert max(d.size for d in differences if d.quantity == "next value") < 1e-5


@pytest.mark.parametrize("case", ["happo_2a_gru_rest", "hatrpo_2a_inactive", "mappo_noshare_2a"])
def test_learning_again_from_the_same_start_ends_alike(case):
    """Like on a GPU, with graphs captured on the third pass."""
    assert harl_parity.replay(recording(case), num_passes=3) == replayed(recording(case))


def test_an_order_stands_in_for_an_agent_that_was_never_alive():
    """Upstream draws no permutation for it. A captured update takes one for every agent."""
    record = harl_recording.read(recording("happo_2a_inactive"))
    stage = record["stages"][1]
    algorithm, storage = harl_parity.prepare(record, 1, torch.device("cpu"))
    harl_parity.load_rollout(storage, stage)
    order = stage["computed"]["agent_order"]
    (idle,) = [agent for agent in order if not storage.weights(agent).any()]
    epochs = algorithm.cfg.num_epochs
    filled = harl_parity.with_idle_agents(stage["randperm"], algorithm, storage, order)
    first = 1 + epochs * order.index(idle)
    assert len(filled) == 1 + 3 * epochs
    assert all(
        torch.equal(permutation, torch.arange(15)) for permutation in filled[first : first + epochs]
    )
    del filled[first : first + epochs]
    assert all(ours is theirs for ours, theirs in zip(filled, stage["randperm"], strict=True))


def test_a_device_that_is_not_there_exits_2(capsys):
    for name in ("cuda:99", "tpu"):
        with pytest.raises(SystemExit) as ending:
            harl_parity.main(["--device", name, "absent.pt"])
        assert ending.value.code == 2
        assert f"--device {name}: there is none here" in capsys.readouterr().err


def test_settings_that_a_recording_leaves_out_are_named(altered, capsys):
    def leave_out(record):
        for section, key in (("train", "use_valuenorm"), ("model", "gain"), ("algo", "clip_param")):
            del record["config"][section][key]

    assert harl_parity.main([altered(leave_out)]) == 2
    absent = "missing settings, under config: algo.clip_param, model.gain, train.use_valuenorm"
    assert absent in capsys.readouterr().err


def test_a_recording_with_one_wrong_bit_exits_2(tmp_path, capsys):
    contents = bytearray(lzma.decompress(recording("hatrpo_2a_inactive").read_bytes()))
    weight = harl_recording.read(recording("hatrpo_2a_inactive"))["stages"][0]["buffer"][
        "share_obs"
    ]
    contents[contents.index(weight.numpy().tobytes())] ^= 1
    path = tmp_path / "flipped.pt"
    path.write_bytes(contents)
    assert harl_parity.main([str(path)]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("at", [8, 1000, -8], ids=["header", "data", "footer"])
def test_a_damaged_compressed_recording_exits_2(tmp_path, capsys, at):
    contents = bytearray(recording("hatrpo_2a_inactive").read_bytes())
    contents[at] ^= 1
    path = tmp_path / "flipped.pt.xz"
    path.write_bytes(contents)
    assert harl_parity.main([str(path)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_a_recording_is_the_same_compressed_or_not(tmp_path):
    path = tmp_path / "happo_2a_tightclip.pt"
    path.write_bytes(lzma.decompress(recording("happo_2a_tightclip").read_bytes()))
    plain = harl_parity.replay(path)
    compressed = replayed(recording("happo_2a_tightclip"))
    assert [d[1:] for d in plain] == [d[1:] for d in compressed]


def test_all_recordings_are_here():
    assert len(RECORDINGS) == 11


@pytest.fixture(scope="module")
def copied_package(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("mutated")
    # Compiled files come along: copies have the times of their sources.
    ignored = shutil.ignore_patterns("*.pt", "assets", "configs")
    for package in COPIED:
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
    return root


@pytest.mark.parametrize("mistake", MUTATIONS)
def test_mistake_is_caught(mistake, copied_package, monkeypatch, capsys):
    name, old, new, case = MUTATIONS[mistake]
    path = copied_package / name
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        # Most mistakes show in the first stage.
        codes = (
            run_copy(copied_package, monkeypatch, [str(recording(case))], num_stages)
            for num_stages in (1, 2)
        )
        assert next((code for code in codes if code), 0) == 1
    finally:
        shutil.copy2(ROOT / name, path)
    assert "DO NOT agree" in capsys.readouterr().out.splitlines()[-1]


def test_unmutated_copy_agrees(copied_package, monkeypatch):
    recordings = [str(recording(name)) for name in ("happo_2a_tightclip", "hatrpo_2a_reject")]
    assert run_copy(copied_package, monkeypatch, recordings) == 0


def run_copy(root: Path, monkeypatch, arguments: list[str], num_stages: int = 2) -> int:
    """Run the parity command of the package under ``root`` in this process, leaving the real one
    as it was.
    """
    with monkeypatch.context() as patch:
        for module in ours():
            patch.delitem(sys.modules, module)
        patch.syspath_prepend(root)
        patch.setattr(sys, "dont_write_bytecode", True)
        copied = importlib.import_module("tests.support.harl_parity")
        package_file = sys.modules["harl_mapush"].__file__
        assert package_file is not None
        assert Path(package_file).is_relative_to(root)
        patch.setattr(copied, "read", read_once)
        patch.setattr(copied, "NUM_STAGES", num_stages)
        code = copied.main(arguments)
        for module in ours():
            del sys.modules[module]
    return code


def ours() -> list[str]:
    """Return the names of the parity command's loaded modules."""
    replay = ("tests.support.harl_parity", "tests.support.harl_recording")
    return [name for name in sys.modules if name.split(".")[0] in COPIED or name in replay]


def test_last_line_names_the_worst(capsys):
    assert (
        harl_parity.main([str(recording("happo_2a_tightclip")), str(recording("mappo_3a_dead"))])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("happo_2a_tightclip.pt.xz: ")
    assert lines[-1].startswith("worst ")
    assert "2 files agree" in lines[-1]


def without_normalizer(record) -> None:
    """Mark the recording as one without a normaliser, a valid case."""
    record["config"]["train"]["use_valuenorm"] = False
    for stage in record["stages"]:
        stage["pre"]["value_norm"] = stage["post"]["value_norm"] = None


@pytest.fixture
def altered(tmp_path, monkeypatch) -> Callable[[Callable[[dict[str, Any]], object]], str]:
    """A function to change a recording and return the changed file's path."""
    path = tmp_path / "altered.pt"
    record = copy.deepcopy(read_once(recording("happo_2a_inactive")))
    read_file = harl_recording.read_file

    def change_it(change: Callable[[dict[str, Any]], object]) -> str:
        change(record)
        return str(path)

    monkeypatch.setattr(
        harl_recording,
        "read_file",
        lambda file: record if file == path else read_file(file),
    )
    return change_it


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["stages"][0]["post"]["actor"][0]["base.mlp.fc.0.bias"].add_(1e-5),
        lambda record: record["stages"][1]["post"]["critic_optim"]["exp_avg"]["v_out.bias"].add_(
            1e-5
        ),
        lambda record: record["stages"][1]["post"]["value_norm"]["running_mean"].add_(1e-5),
        lambda record: record["stages"][0]["computed"]["returns"][3, 2].add_(1e-2),
        lambda record: record["stages"][0]["computed"]["advantages_norm"][1][4].add_(1e-5),
        lambda record: record["stages"][1]["computed"]["factor"][0][2].add_(1e-5),
        lambda record: record["stages"][0]["post"]["critic"]["v_out.bias"].fill_(float("nan")),
        lambda record: record["stages"][0]["post"]["actor_optim"][0].update(step=6),
        lambda record: record["stages"][1]["post"].update(
            actor_optim=record["stages"][0]["pre"]["actor_optim"]
        ),
        lambda record: without_normalizer(record),
    ],
    ids=[
        "weight",
        "moment",
        "normaliser",
        "returns",
        "advantages",
        "factor",
        "nan",
        "step",
        "no step of the actors",
        "another configuration",
    ],
)
def test_disagreement_exits_1(altered, change, capsys):
    assert harl_parity.main([altered(change)]) == 1
    assert "DO NOT agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(format="harl-parity-2"),
        lambda record: record.pop("stages"),
        lambda record: record["stages"][0].pop("buffer"),
        lambda record: record["stages"][0]["pre"]["critic"].pop("v_out.bias"),
        lambda record: record["meta"].update(algo="hasac"),
        lambda record: record["env"].update(T=21),
        lambda record: record["stages"][0]["post"].pop("critic"),
        lambda record: record["stages"][0].update(randperm=[]),
        lambda record: record["stages"][0]["computed"].pop("returns"),
        lambda record: record.update(config=3),
        lambda record: record.update(stages=[]),
        lambda record: record.update(stages=record["stages"][:1]),
        lambda record: record["meta"].update(algo=["happo"]),
        lambda record: record["config"]["train"].pop("num_env_steps"),
        lambda record: record["config"]["train"].update(num_env_steps="many"),
        lambda record: record["config"]["train"].update(num_env_steps=0),
        lambda record: record["config"]["model"].update(activation_func="none"),
        lambda record: record["stages"][0]["pre"]["critic_optim"].update(lr="small"),
        lambda record: record["stages"][0]["post"]["actor_optim"][0].pop("step"),
        lambda record: record["stages"][0]["post"]["actor_optim"][0].update(exp_avg={}),
        lambda record: record["stages"][0]["post"].update(actor_optim=[]),
        lambda record: record["stages"][0]["post"].update(actor={}),
        lambda record: record["stages"][0]["post"].update(value_norm=None),
        lambda record: record["stages"][0]["post"]["critic"].update({"v_out.bias": torch.zeros(4)}),
        lambda record: record["stages"][0]["buffer"].update(rewards=torch.zeros(1, 1, 1)),
        lambda record: record["stages"][0]["computed"].update(returns=None),
        lambda record: record["stages"][0]["computed"].update(returns=torch.zeros(3)),
        lambda record: record["stages"][0]["computed"].update(factor=None),
        lambda record: record["stages"][0]["computed"].update(agent_order=[0, 0]),
        lambda record: record["stages"][0]["computed"]["advantages_norm"].pop(),
        lambda record: record["stages"][0].update(randperm=None),
        lambda record: record["stages"][0].update(randperm=[1, 2]),
        lambda record: record["stages"][0]["randperm"][1].add_(1000),
    ],
)
def test_another_layout_exits_2(altered, change, capsys):
    assert harl_parity.main([altered(change)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "altered.pt" in captured.err


def test_no_recording_at_all_exits_2(tmp_path, capsys):
    text = tmp_path / "text.pt"
    text.write_text("no tensors here")
    for path in (text, tmp_path / "absent.pt", tmp_path):
        assert harl_parity.main([str(path)]) == 2
        said = capsys.readouterr().err
        assert str(path) in said
        assert "weights_only" not in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    "change", [lambda record: None, without_normalizer], ids=["agrees", "disagrees"]
)
def test_a_bad_file_does_not_hide_the_others(altered, tmp_path, change, capsys):
    absent = str(tmp_path / "absent.pt")
    good = altered(change)
    assert harl_parity.main([absent, good, absent]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("absent.pt: cannot be read") == 2
    table, verdict = captured.out.splitlines()
    assert table.startswith("altered.pt: ")
    assert ("DO NOT agree" in verdict) == (change is without_normalizer)
    assert verdict.startswith("worst ")
    assert verdict.endswith("; 2 of another layout not compared")
