"""Episodes independent from neighbouring worlds, and their metrics."""

from __future__ import annotations

import csv
import json
import math
import shutil
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from harl_mapush import test
from harl_mapush.config import Suite
from harl_mapush.evaluation.command import as_csv
from harl_mapush.evaluation.episodes import Request, play_request
from harl_mapush.evaluation.measuring import measure
from harl_mapush.evaluation.suite_player import Player
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import TeamPolicy
from mqe.controllers.blocks import SIZE, ActiveWorlds, Blocks
from mqe.controllers.gait import GaitNetwork
from mqe.tasks.episode_report import format_metric, rate, wilson_interval

SHORT = {
    "task": {"episode_length_s": 0.2},
    "sim": {"name": "mujoco", "device": "cpu", "num_threads": 1},
}


def request_of(
    num_episodes: int, seeds: tuple[int, ...] = (0,), num_envs: int | None = None, **over
) -> Request:
    folder = checkpoint.resolve("pretrained:cuboid")
    worlds = SHORT | {"env": {"num_envs": num_envs or 300}}
    return Request(evaluation_worlds.settings(folder, worlds), seeds, num_episodes, folder, **over)


def forwards(obs: Tensor) -> Tensor:
    return obs.new_tensor([1.0, 0.0, 0.0]).expand(len(obs), 2, 3)


def of_one_agent(obs: Tensor) -> Tensor:
    return obs.new_zeros(len(obs), 1, 3)


def noting(
    own: Callable[[Any, Tensor], Tensor], sizes: set[int]
) -> Callable[[Any, Tensor], Tensor]:
    def noted(self: Any, obs: Tensor) -> Tensor:
        sizes.add(len(obs))
        return own(self, obs)

    return noted


@pytest.mark.whole_blocks
def test_an_episode_is_the_same_alone_and_among_others_bit_for_bit(monkeypatch) -> None:
    sizes: set[int] = set()
    for cls, name in ((GaitNetwork, "forward"), (TeamPolicy, "__call__")):
        monkeypatch.setattr(cls, name, noting(getattr(cls, name), sizes))
    requests = [request_of(1), request_of(SIZE + 2, num_envs=1), request_of(SIZE + 2, (1, 0))]
    alone, many, others = (play_request(each) for each in requests)
    assert [len(columns["broken"]) for columns in (alone[0], many[0], others[0], others[1])] == [
        1,
        34,
        34,
        34,
    ]
    for name, values in many[0].items():
        torch.testing.assert_close(others[0][name], values, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(alone[0][name], values[:1], rtol=0, atol=0, equal_nan=True)
    # Another seed.
    assert (others[1]["return"] != many[0]["return"]).all()
    assert len(set(many[0]["return"])) == SIZE + 2
    assert sizes == {SIZE}


def test_blocks_compute_active_worlds_only_each_at_its_own_place() -> None:
    seen = []

    def double(rows: Tensor) -> Tensor:
        seen.append(rows[:, 0].tolist())
        return 2 * rows

    resting = torch.zeros(12, dtype=torch.bool)
    rows = torch.arange(1.0, 13.0).view(12, 1)
    blocks = Blocks(double, ActiveWorlds(resting, 4))
    assert torch.equal(blocks(rows), 2 * rows)
    assert seen == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]

    seen.clear()
    resting[[0, 1, 3, 6, 7, 9]] = True  # worlds 4 and 8, 5, 2 and 10, 11 are left at places 0 to 3
    computed = blocks(rows)
    assert seen == [[5, 6, 3, 12], [9, 2, 11, 4]]
    assert torch.equal(computed[~resting], 2 * rows[~resting])

    seen.clear()
    resting.zero_()
    assert torch.equal(blocks(rows), 2 * rows)
    assert len(seen) == 3


def test_seeds_are_pooled_and_shown_each() -> None:
    pooled = measure(request_of(3, (4, 7)))
    assert pooled["num_episodes"] == 6
    assert list(pooled["per_seed"]) == ["4", "7"]
    assert pooled["per_seed"]["7"] == measure(request_of(3, (7,)))
    assert pooled["finished_time_s"] == pytest.approx(
        sum(seed_metrics["finished_time_s"] for seed_metrics in pooled["per_seed"].values()) / 2
    )


@pytest.mark.parametrize(
    ("share", "trials"), [(0.5, 20), (0.9, 60), (0.95, 300), (0.99, 300), (0.995, 1500)]
)
def test_intervals_cover_the_true_rate_as_often_as_they_say(share: float, trials: int) -> None:
    # Exactly, over every number of successes: the mean over shares nearby, for coverage of counts
    # goes up and down.
    covered = []
    for near in torch.linspace(
        max(share - 0.02, 0.5 * (3 * share - 1)), min(share + 0.02, 0.5 * (share + 1)), 41
    ):
        counts = (
            torch.distributions.Binomial(trials, near.double())
            .log_prob(torch.arange(trials + 1.0).double())
            .exp()
        )
        holds = [
            low <= float(near) <= high
            for low, high in (wilson_interval(k, trials) for k in range(trials + 1))
        ]
        covered.append(float((counts * torch.tensor(holds)).sum()))
    assert sum(covered) / len(covered) == pytest.approx(0.95, abs=0.012)


def test_a_rate_has_its_interval() -> None:
    metrics = rate("fall", torch.tensor([True, False, False, False]))
    assert metrics == {"fall_rate": 0.25, "fall_ci95": list(wilson_interval(1, 4))}


def test_a_function_of_ones_own_is_measured(tmp_path, capsys) -> None:
    out = tmp_path / "figures.json"
    words = [
        "--num_envs",
        "2",
        "--device",
        "cpu",
        "--set",
        "task.episode_length_s=0.5",
        "--json",
        str(out),
    ]
    assert test.main(["--policy", "test_measuring:forwards", *words]) == 0
    assert json.loads(out.read_text())["num_episodes"] == 2
    assert test.main(["--policy", "test_measuring:of_one_agent", *words]) == 2
    assert "must" not in (error := capsys.readouterr().err)
    assert (
        "returned (4, 1, 3) for observations (4, 2, 10); return a tensor of shape (4, 2, 3)"
        in error
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--policy nowhere:f", "--policy nowhere: there is no such module"),
        ("--policy test_measuring:f", "module test_measuring has no function f"),
        ("--policy forwards", "must have the form MODULE:FUNCTION"),
        ("--policy test_measuring:forwards --all_checkpoints", "exclude each other"),
        (
            "--checkpoint pretrained:cuboid --num_episodes 0",
            "--num_episodes 0: must be at least 1",
        ),
        ("--checkpoint pretrained:cuboid --num_episodes 3000000000000", "must be at most 1000000"),
        (
            "--checkpoint pretrained:cuboid --seeds 1 1",
            "--seeds 1 1: must be different whole numbers from 0 on",
        ),
        (
            "--checkpoint pretrained:cuboid --seeds 1 --seed 1",
            "--seed (runner.seed) and --seeds exclude each other",
        ),
        (
            "--checkpoint pretrained:cuboid --seeds 1 --set runner.seed=2",
            "and --seeds exclude each other",
        ),
        (
            "--checkpoint pretrained:cuboid --seeds -1",
            "--seeds -1: must be different whole numbers",
        ),
        ("--checkpoint pretrained:cuboid --csv a.csv", "add --all_checkpoints"),
        ("--checkpoint pretrained:cuboid --all_checkpoints", "is not in a run folder"),
        ("--checkpoint pretrained:cuboid --mode viewer --seeds 1", "belongs to --mode calculator"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(words: str, message: str, capsys) -> None:
    assert test.main(words.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_all_checkpoints_are_measured_and_the_best_on_fresh_seeds(
    tmp_path, monkeypatch, capsys
) -> None:
    rates = {"100": 0.9, "300": 0.9, "200": 0.7}  # of equals the later counts
    for name in rates:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    measured_requests = []

    def measured(request):
        measured_requests.append((request.folder.name, request.seeds))
        share = rates[request.folder.name] - 0.1 * (request.seeds[0] > 1)
        return {
            "success_rate": share,
            "success_ci95": [share - 0.1, share + 0.1],
            "per_seed": {},
        }

    monkeypatch.setattr("harl_mapush.evaluation.suite_player.measure", measured)
    player = Player(Suite(), {}, None, "zero", (0, 1), 10)
    rows = list(player.checkpoints(tmp_path))
    assert measured_requests == [("100", (0, 1)), ("200", (0, 1)), ("300", (0, 1)), ("300", (2, 3))]
    assert [(row["env_steps"], row["is_fresh"]) for row in rows] == [
        (100, False),
        (200, False),
        (300, False),
        (300, True),
    ]
    assert (
        capsys.readouterr().out.splitlines()[-1].split()
        == "300 0.800 (0.700 to 0.900) the best again, on fresh seeds (2 3)".split()
    )
    table = list(csv.DictReader(as_csv(rows).splitlines()))
    assert table[1]["success_ci95_low"] == str(0.7 - 0.1)
    assert math.isclose(float(table[3]["success_rate"]), 0.8)


def test_a_measurement_of_checkpoints_that_is_stopped_keeps_its_rows(tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    for name in ("100", "200"):
        shutil.copytree(checkpoint.resolve("pretrained:cuboid"), run / "checkpoints" / name)

    def stopped(request):
        if request.folder.name == "200":
            signal.raise_signal(signal.SIGINT)
        return {"success_rate": 0.5, "success_ci95": [0.4, 0.6]}

    monkeypatch.setattr("harl_mapush.evaluation.suite_player.measure", stopped)
    words = [str(run), "--all_checkpoints", "--num_episodes", "1", "--device", "cpu"]
    table = tmp_path / "table.csv"
    values = tmp_path / "table.json"
    assert test.main([*words, "--csv", str(table), "--json", str(values)]) == 130
    (row,) = csv.DictReader(table.read_text().splitlines())
    assert (row["checkpoint"], row["success_rate"]) == ("100", "0.5")
    assert [row["env_steps"] for row in json.loads(values.read_text())] == [100]


def test_metrics_are_printed_as_numbers_lists_words_and_nothing() -> None:
    assert [format_metric(value) for value in (0.25, 0, [0.5, -0.51234], "box", None)] == [
        "0.25",
        "0",
        "0.5 -0.5123",
        "box",
        "none",
    ]
