"""Reports about runs: what is read back, which runs belong together, and a page that needs nothing
else.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from harl_mapush import train
from harl_mapush.callbacks.curves import Curves
from harl_mapush.runs.run_folder import LOGS, write_config
from mapush import cli
from mapush.report.figures import OTHER_COLOR, from_above, outcome_colors
from mapush.report.run_logs import Curve, RunLog, band, groups, read_run
from mapush.report.trajectories import Trajectory
from mqe.config import ConfigError
from mqe.registry import TASKS
from tests.support.paths import ROOT
from tests.support.tiny_runs import TINY


def make_run(folder: Path, seed: int, clip: float, values: list[float]) -> Path:
    """Write what a run leaves, one point every 100 env steps."""
    (folder / LOGS).mkdir(parents=True)
    # Which change nothing that is learned.
    limits = f"max_wall_time: {seed}m\n  checkpoint_interval: {100 * seed}"
    write_config(
        folder,
        f"runner:\n  seed: {seed}\n  {limits}\nalgorithm:\n  name: happo\n  clip_param: {clip}\n",
    )
    curves = Curves(folder / LOGS, lambda line: None)
    for i, value in enumerate(values):
        curves.add({"mapush/return": value}, 100 * (i + 1))
    curves.close()
    return folder


def test_a_band_is_over_the_seeds_and_ends_with_the_shortest(tmp_path) -> None:
    names = (("a", 1, 0.2, [0.0, 2.0, 4.0]), ("b", 2, 0.2, [2.0, 4.0]), ("c", 1, 0.1, [9.0, 9.0]))
    logs = [read_run(make_run(tmp_path / name, *more)) for name, *more in names]
    first, second = groups(logs)
    assert (first.name, second.name) == ("clip_param=0.2 (seed 1, 2)", "clip_param=0.1 (seed 1)")
    drawn = band(first, "mapush/return", "env_steps")
    assert drawn is not None
    x, mean, low, high = drawn
    assert (x[0], x[-1]) == (100.0, 200.0)
    np.testing.assert_allclose((mean[0], low[0], high[0]), (1.0, 0.0, 2.0))
    np.testing.assert_allclose((mean[-1], low[-1], high[-1]), (3.0, 2.0, 4.0))
    assert band(first, "mapush/none", "env_steps") is None


def test_paths_are_turned_towards_the_goal_and_coloured_by_outcome() -> None:
    path = np.array([[1.0, 1.0], [1.0, 2.0], [0.0, 2.0]])
    episodes = [
        Trajectory(path, np.array([1.0, 4.0]), "success", 3.0),
        Trajectory(path, path[2], "time is up", 1.0),
    ]
    lines = from_above("run", episodes).axes[0].get_lines()
    np.testing.assert_allclose(
        lines[0].get_xydata(), [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]], atol=1e-12
    )
    colors = outcome_colors()
    assert [lines[0].get_color(), lines[2].get_color()] == [colors["success"], OTHER_COLOR]
    named = [colors[words] for words in TASKS["go1push_mid"].report.outcomes.values()]
    assert len({*named, OTHER_COLOR}) == len(named) + 1


def test_the_page_is_whole_and_alone(gait, tmp_path, capsys) -> None:
    sizes = (
        "--num_env_steps",
        "1",
        "--set",
        f"task.gait={gait}",
        "--set",
        "task.episode_length_s=0.4",
    )
    assert (
        train.main(
            [*TINY, *sizes, "--set", "task.decision_period=1", "--out", str(tmp_path / "run")]
        )
        == 0
    )
    page = tmp_path / "out" / "page.html"
    assert (
        cli.main(["report", str(tmp_path / "run"), "--out", str(page), "--num_episodes", "2"]) == 0
    )
    text = page.read_text()
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    pictures = {path.name for path in page.parent.glob("*.png")}
    assert pictures == {f"page_{name}.png" for name in ("rewards", "throughput", "from_above_1")}
    assert text.count("data:image/png;base64,") == len(pictures)
    outcome = "<td>time is up</td><td>2 of 2</td><td>1.000 (0.342 to 1.000)</td>"
    assert text.count(outcome) == 3
    for policy in ("scripted_solo", "scripted_team"):
        assert f"<td>{policy}, on the starts of {tmp_path / 'run'}</td>{outcome}" in text
    assert cli.main(["plot", str(gait.parent.parent), "--out", str(tmp_path / "c.png")]) == 2
    assert "has none of the curves" in capsys.readouterr().err


def test_curves_alone(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0, 2.0])
    assert cli.main(["plot", str(run), "--out", str(tmp_path / "c.svg")]) == 0
    assert (tmp_path / "c.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize(
    "argv, words",
    [
        (("report", "{none}"), "is no run"),
        (("report", "{run}", "--out", "x.pdf"), "must end in .html"),
        (("report", "{run}", "--num_episodes", "-1"), "must be 0 or more"),
        (("plot", "{run}", "--out", "x.html"), "must end in .png"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, argv, words) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0])
    assert cli.main([word.format(none=tmp_path, run=run) for word in argv]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_without_the_extra_a_line_names_it(tmp_path, capsys, monkeypatch) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0])
    monkeypatch.delitem(sys.modules, "mapush.report.figures")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["plot", str(run), "--out", str(tmp_path / "c.png")]) == 2
    assert "pip install 'mapush[report]'" in capsys.readouterr().err


def test_a_benchmark_takes_the_calculators_success_of_each_checkpoint(tmp_path) -> None:
    path = ROOT / "benchmarks" / "who_wins.py"
    spec = importlib.util.spec_from_file_location("who_wins", path)
    assert spec is not None
    who_wins = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(who_wins)  # type: ignore[union-attr]
    # The best once more, on fresh seeds.
    rows = [
        "300,False,0.9",
        "100,False,0.3",
        "200,False,0.7",
        "300,True,0.95",
    ]
    (tmp_path / "checkpoints.csv").write_text(
        "\n".join(["env_steps,is_fresh,success_rate", *rows]), encoding="utf-8"
    )
    clock = Curve(np.array([0.0, 400.0]), np.array([0.0, 40.0]), np.zeros(2))
    found = who_wins.measured(tmp_path / "checkpoints.csv", clock)
    assert found.env_steps.tolist() == [100.0, 200.0, 300.0]
    assert found.seconds.tolist() == [10.0, 20.0, 30.0]
    assert found.values.tolist() == [0.3, 0.7, 0.9]
    (tmp_path / "empty.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="empty.csv has no success rates of checkpoints"):
        who_wins.measured(tmp_path / "empty.csv", clock)
    log = RunLog(tmp_path, {}, {who_wins.SUCCESS: found})
    assert who_wins.reached(log, 0.6, "env_steps") == pytest.approx(175e-6)
    assert who_wins.reached(log, 0.2, "seconds") == pytest.approx(10.0 / 60.0)
    assert who_wins.reached(log, 0.95, "seconds") is None
