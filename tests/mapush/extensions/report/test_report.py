"""Reports about runs: parsing, groups of runs, and a self-contained page."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harl_mapush import train
from harl_mapush.callbacks.curves import Curves
from harl_mapush.runs.provenance import ORIGIN
from harl_mapush.runs.run_folder import write_config
from mapush import cli
from mapush.extensions.report.bootstrap import bootstrap_interval, interquartile_mean
from mapush.extensions.report.run_logs import Curve, Group, RunLog, band, groups, read_run
from mqe.config import ConfigError
from tests.support.lazy_modules import LazyModule
from tests.support.paths import ROOT
from tests.support.tiny_runs import TINY

figures: Any = LazyModule("mapush.extensions.report.figures")


def make_run(folder: Path, seed: int, clip: float, values: list[float]) -> Path:
    """Write a run's files, with one point every 100 env steps."""
    folder.mkdir(parents=True)
    # Which change nothing that is learned.
    limits = f"max_wall_time: {seed}m\n  checkpoint_interval: {100 * seed}"
    write_config(
        folder,
        f"runner:\n  seed: {seed}\n  {limits}\nalgorithm:\n  name: happo\n  clip_param: {clip}\n",
    )
    points = Curves(folder, lambda line: None)
    for i, value in enumerate(values):
        points.add({"mapush/return": value}, 100 * (i + 1))
    points.flush()
    return folder


def test_a_band_is_over_the_seeds_and_ends_with_the_shortest(tmp_path) -> None:
    names: Any = (
        ("a", 1, 0.2, [0.0, 2.0, 4.0]),
        ("b", 2, 0.2, [2.0, 4.0]),
        ("c", 1, 0.1, [9.0, 9.0]),
    )
    logs = [read_run(make_run(tmp_path / name, *more)) for name, *more in names]
    first, second = groups(logs)
    assert (first.name, second.name) == ("happo, clip_param=0.2", "happo, clip_param=0.1")
    assert (first.label, second.label) == ("happo, clip_param=0.2 (2 runs)", second.name)
    drawn = band(first, "mapush/return", "env_steps")
    assert drawn is not None
    assert (drawn.x[0], drawn.x[-1]) == (100.0, 200.0)
    np.testing.assert_allclose((drawn.mean[0], drawn.low[0], drawn.high[0]), (1.0, 0.0, 2.0))
    np.testing.assert_allclose((drawn.mean[-1], drawn.low[-1], drawn.high[-1]), (3.0, 2.0, 4.0))
    assert band(first, "mapush/none", "env_steps") is None


def test_an_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    assert interquartile_mean(np.array([9.0, 1.0, 2.0, 100.0])) == 5.5
    # With up to three runs nothing is left out.
    np.testing.assert_allclose(interquartile_mean(np.array([[1.0, 2.0, 6.0]])), [3.0])


def test_a_bootstrap_draws_from_each_stratum_by_itself() -> None:
    # Strata of equal runs: every resample has the same two values in each.
    easy = np.array([[1.0, 1.0]])
    hard = np.array([[0.0, 0.0]])
    low, high = bootstrap_interval([easy, hard])
    assert (low.item(), high.item()) == (0.5, 0.5)
    # As one stratum, resamples have from no to four easy runs.
    low, high = bootstrap_interval([np.concatenate([easy, hard], axis=1)])
    assert (low.item(), high.item()) == (0.0, 1.0)
    # Of many runs, the interval is that of the normal distribution: 1.96 * sigma / sqrt(n) of the
    # mean, 1.1 times wider for this trimmed mean.
    runs = np.random.default_rng(1).normal(size=(1, 400))
    low, high = bootstrap_interval([runs])
    assert (high - low).item() / 2.0 == pytest.approx(1.96 * 1.1 / 20.0, rel=0.15)


@pytest.mark.parametrize(
    "command, label",
    [
        ("mapush train --preset laptop_hasac --seed 2", "happo, laptop_hasac"),
        ("mapush train --config=my/push.yaml", "happo, push"),
        ("mapush train --seed 2", "happo"),
        ("mapush train --preset 'laptop", "happo, 'laptop"),
    ],
)
def test_a_curve_is_named_by_algorithm_and_preset(tmp_path, command, label) -> None:
    run = make_run(tmp_path / "run", 1, 0.2, [1.0])
    (run / ORIGIN).write_text(json.dumps({"run_id": "1", "starts": [{"command": command}]}))
    assert read_run(run).label == label


def test_success_has_the_axis_of_a_share(tmp_path) -> None:
    curve = Curve(np.array([0.0, 2e6]), np.array([0.0, 60.0]), np.array([0.1, 0.2]))
    group = Group("a", (RunLog(tmp_path, {}, {figures.SUCCESS: curve}),))
    figure = figures.curves([group], {figures.SUCCESS: "success rate"})
    assert figure is not None
    assert figure.axes[0].get_ylim() == (0.0, 1.0)


def test_a_rate_of_zero_is_drawn_over_the_axis(tmp_path) -> None:
    curve = Curve(np.array([0.0, 2e6]), np.array([0.0, 60.0]), np.array([0.0, 0.0]))
    group = Group("a", (RunLog(tmp_path, {}, {figures.SUCCESS: curve}),))
    figure = figures.curves([group], {figures.SUCCESS: "success rate"})
    assert figure is not None
    panel = figure.axes[0]
    line = panel.lines[0]
    assert not line.get_clip_on()
    assert line.get_zorder() > panel.spines["bottom"].get_zorder()


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
    metrics = {"success_rate": 0.5, "success_ci95": [0.1, 0.9], "num_episodes": 2}
    script = {"success_rate": 0.25, "success_ci95": [0.0, 0.5], "num_episodes": 4}
    metrics["baselines"] = {"scripted_solo": script}
    (tmp_path / "run" / "evaluation.json").write_text(json.dumps(metrics))
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(page)]) == 0
    text = page.read_text()
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "<p>There is one run.</p>" in text
    assert re.findall("<h2>(.*?)</h2>", text)[2:] == ["Reward terms"]
    assert text.count("data:image/png;base64,") == 1
    assert "<td>success</td><td>0.500 (0.100 to 0.900)</td><td>2</td>" in text
    folder = str(tmp_path / "run").replace("/", "/<wbr>")
    rate = "<td>success</td><td>0.250 (0.000 to 0.500)</td><td>4</td>"
    assert f"<td>scripted_solo, on the starts of {folder}</td>{rate}" in text
    bare = make_run(tmp_path / "bare", 1, 0.2, [])
    points = Curves(bare, lambda line: None)
    points.add({"walking/falls": 0.0}, 100)
    points.flush()
    assert cli.main(["report", str(bare), "--out", str(tmp_path / "c.png")]) == 2
    assert "has none of the curves" in capsys.readouterr().err


def test_curves_alone(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0, 2.0])
    assert cli.main(["report", str(run), "--out", str(tmp_path / "c.svg")]) == 0
    assert (tmp_path / "c.svg").read_text().lstrip().startswith("<?xml")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["module://nothing", "nonsense"])
def test_every_figure_of_a_process_is_drawn_whatever_the_backend(backend: str, tmp_path) -> None:
    """Matplotlib refuses nonsense in MPLBACKEND when it is imported."""
    program = f"""
import os
from mapush.extensions.report.figure_style import figure_style, panels

for path in ({str(tmp_path / "a.png")!r}, {str(tmp_path / "b.pdf")!r}):
    with figure_style():
        figure, _ = panels(1, 1, 5.4, 3.2)
        figure.savefig(path)
assert os.environ["MPLBACKEND"] == "{backend}"
"""
    environment = os.environ | {"MPLBACKEND": backend, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "b.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_among_the_curves_is_one_line(tmp_path, capsys, kind) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0, 2.0])
    path = run / "events.out.tfevents.9"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert cli.main(["report", str(run), "--out", str(tmp_path / "c.svg")]) == 2
    assert "events.out.tfevents.9 is no regular file" in capsys.readouterr().err


def test_names_of_files_cannot_steer_the_terminal(tmp_path, capsys) -> None:
    run = make_run(tmp_path / "\x1b[31mrun", 3, 0.2, [1.0, 2.0])
    assert cli.main(["report", str(run), "--out", str(tmp_path / "\x1b]0;c.svg")]) == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\\x1b]0;c.svg" in output


@pytest.mark.parametrize(
    "argv, words",
    [
        (("report", "{none}"), "is no run"),
        (("report", "{run}", "--out", "x.doc"), "must end in .html, or .png"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, argv, words) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0])
    assert cli.main([word.format(none=tmp_path, run=run) for word in argv]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_place_that_cannot_be_written_is_refused_before_a_run_is_read(tmp_path, capsys) -> None:
    (tmp_path / "x.html").mkdir()
    assert cli.main(["report", "no/such/run", "--out", str(tmp_path / "x.html")]) == 2
    assert "x.html' cannot be written (Is a directory)" in capsys.readouterr().err


def test_without_the_extra_a_line_names_it(tmp_path, capsys, monkeypatch) -> None:
    run = make_run(tmp_path / "run", 3, 0.2, [1.0])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["report", str(run), "--out", str(tmp_path / "c.png")]) == 2
    assert "pip install '.[report]'" in capsys.readouterr().err


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
    curve = who_wins.measured(tmp_path / "checkpoints.csv", clock)
    assert curve.env_steps.tolist() == [100.0, 200.0, 300.0]
    assert curve.seconds.tolist() == [10.0, 20.0, 30.0]
    assert curve.values.tolist() == [0.3, 0.7, 0.9]
    (tmp_path / "empty.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="empty.csv has no success rates of checkpoints"):
        who_wins.measured(tmp_path / "empty.csv", clock)
    log = RunLog(tmp_path, {}, {who_wins.SUCCESS: curve})
    assert who_wins.reached(log, 0.6, "env_steps") == pytest.approx(175e-6)
    assert who_wins.reached(log, 0.2, "seconds") == pytest.approx(10.0 / 60.0)
    assert who_wins.reached(log, 0.95, "seconds") is None
