"""Result tables: rows added by a command, and their pages."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mqe.tasks.episode_report import wilson_interval

ROOT = Path(__file__).parent.parent


def loaded(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    file = ROOT / path
    monkeypatch.syspath_prepend(str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    return module


def row(suite: str, obj: str, robots: int, policy: str, successes: int) -> dict[str, Any]:
    return {
        "suite": suite,
        "object": obj,
        "robots": robots,
        "policy": policy,
        "condition": "",
        "note": "",
        "num_episodes": 100,
        "num_successes": successes,
    }


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The program with a plan of two measurements and a file of its own."""
    module = loaded("benchmarks/results.py", monkeypatch)
    plan = [
        module.Measurement("team2", "pretrained:any", "cuboid", 2),
        module.Measurement("doors", "planner", note="task.team=pretrained:team2"),
    ]
    monkeypatch.setattr(module, "measurements", lambda: plan)
    monkeypatch.setattr(module, "FILE", tmp_path / "rows.jsonl")
    module.FILE.touch()
    return module


def run(results: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["results.py", "--processes", "1", *words])
    return results.main()


METRICS = {"success_rate": 0.94, "num_episodes": 300, "push_ahead_share": None, "spl": 0.123456}


def test_missing_rows_are_measured_once_and_kept_after_a_kill(
    results: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = []
    is_killed = True

    def measured(job: Any) -> dict[str, Any]:
        commands.append(job.command())
        if len(commands) == 2 and is_killed:
            raise KeyboardInterrupt
        metrics = METRICS | {"num_episodes": job.episodes}
        return results.row_of(metrics, job) | {"seconds": 60.0}

    monkeypatch.setattr(results, "measured", measured)
    monkeypatch.setattr(results, "ThreadPool", SerialPool)
    with pytest.raises(KeyboardInterrupt):
        run(results, monkeypatch)
    assert len(results.read(results.FILE)) == 1
    is_killed = False
    assert run(results, monkeypatch) == 0
    assert commands == [
        "mapush test pretrained:any --suite team2 --object cuboid --num_episodes 300 --seed 2000 "
        "--team_only",
        *2
        * [
            "mapush test planner --suite doors --set task.team=pretrained:team2 "
            "--num_episodes 300 --seed 2000 --team_only"
        ],
    ]
    assert "2 of 2 rows" in capsys.readouterr().out
    assert run(results, monkeypatch) == 0
    assert len(commands) == 3
    assert run(results, monkeypatch, "--again", "--match", "team2 --object", "--episodes", "9") == 0
    assert "--num_episodes 9 " in commands[3]
    assert len(commands) == 4
    assert [row["num_episodes"] for row in results.read(results.FILE)] == [9, 300]
    capsys.readouterr()
    assert run(results, monkeypatch) == 0  # nine episodes of 300 are too few
    assert capsys.readouterr().out.startswith("1 of 2 rows, about 33 minutes of 1 processors")
    team, planner = results.read(results.FILE)
    assert (team["num_successes"], team["spl"]) == (282, 0.12346)
    assert planner["weights"] == results.actor_digest("pretrained:team2")


def test_a_plan_leaves_the_rows_as_they_are(
    results: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_over = dict.fromkeys(results.KEY, "") | {"suite": "a suite that left"}
    text = json.dumps(left_over) + "\n"
    results.FILE.write_text(text)
    assert run(results, monkeypatch, "--plan") == 0
    assert results.FILE.read_text() == text


class SerialPool:
    """A pool of one process, which an interruption ends."""

    def __init__(self, processes: int) -> None:
        assert processes == 1

    def __enter__(self) -> SerialPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    imap_unordered = staticmethod(map)


def test_rows_of_other_weights_worlds_or_plans_are_outdated(
    results: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = [results.row_of(METRICS, job) for job in results.measurements()]
    results.write(fresh)
    assert run(results, monkeypatch, "--quick") == 0
    for changes in ({"weights": "0"}, {"worlds": "0"}, {"note": "task.spawn=independent"}):
        results.write([fresh[0] | changes, fresh[1]])
        assert run(results, monkeypatch, "--quick") == 1
        assert "outdated: team2 cuboid 2 pretrained:any" in capsys.readouterr().out
    form = {"geoms": [], "friction": [0.5, 0.5]}
    monkeypatch.setattr(results, "_form", lambda name: form)
    results.write(fresh)
    assert run(results, monkeypatch, "--quick") == 1
    results.write(fresh[:1])
    monkeypatch.undo()


def test_a_condition_belongs_to_a_rows_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    results = loaded("benchmarks/results.py", monkeypatch)
    names = ("mass x2", "mass x3")
    jobs = [results.Measurement("robustness", "pretrained:cuboid", condition=x) for x in names]
    rows = [results.row_of(METRICS, job) for job in jobs]
    assert rows[0]["worlds"] != rows[1]["worlds"]
    assert jobs[0].command() == (
        "mapush test pretrained:cuboid --suite robustness --only 'mass x2' --num_episodes 300 "
        "--seed 2000"
    )


def test_a_gait_belongs_to_the_rows_of_its_own_robots(monkeypatch: pytest.MonkeyPatch) -> None:
    results = loaded("benchmarks/results.py", monkeypatch)
    jobs = [
        results.Measurement("team2", "pretrained:any", "cuboid", 2),  # by the suite
        results.Measurement("robustness", "pretrained:cuboid_happo"),  # by the policy
        results.Measurement("doors", "planner", note="task.team=pretrained:team2"),  # by its team
        results.Measurement("robustness", "pretrained:cuboid"),
    ]
    rows = [{name: getattr(job, name) for name in results.KEY} for job in jobs]
    before = [results.worlds(row) for row in rows]
    monkeypatch.setattr(results, "actor_digest", lambda name: name.replace("go1_push", "new"))
    pushed = [results.worlds(row) for row in rows]
    monkeypatch.setattr(results, "actor_digest", lambda name: name)
    named = [results.worlds(row) for row in rows]
    assert [a == b for a, b in zip(pushed, named, strict=True)] == [False, False, False, True]
    assert len({*before, *named}) == 2 * len(rows)


def test_an_entry_of_a_leaderboard_states_worlds_rate_and_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    leaderboard = loaded("benchmarks/leaderboard.py", monkeypatch)
    result = {
        "success_rate": 0.96,
        "num_episodes": 300,
        "object_mass_kg": 31.4,
        "sliding_force_n": 100.0,
    }
    files = [tmp_path / "result.json", tmp_path / "entry.json"]
    files[0].write_text(json.dumps(result))
    words = ["mapush", "test", "pretrained:any", "--suite", "team2", "--seeds", "2000"]
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", *map(str, files), *words])
    assert leaderboard.main() == 0
    entry = json.loads(files[1].read_text())
    shown = (ROOT / "docs/guides/compare.md").read_text(encoding="utf-8")
    assert entry["num_successes"] == 288
    assert entry["success_interval"] == [0.9314, 0.977]
    assert (entry["suite"], entry["object"], entry["robots"]) == ("team2", "cuboid", 2)
    assert [key for key in entry if f"`{key}`" not in shown] == []
    files[0].write_text(json.dumps(result | {"num_episodes": 299}))
    with pytest.raises(SystemExit):
        leaderboard.main()


def test_objects_are_columns_of_whole_teams(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = loaded("docs/_hooks/result_pages.py", monkeypatch)
    rows = [
        row("team2", "beam", 1, "pretrained:any", 3),
        row("team2", "beam", 2, "pretrained:any", 90),
        row("team2", "cuboid", 2, "pretrained:any", 95),
        row("any", "cuboid", 8, "pretrained:any", 87),
    ]
    monkeypatch.setattr(pages, "_read", lambda name: rows)
    lines = pages.suites().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[:3] for row in cells] == [["`team2`", "2", "`pretrained:any`"]]
    assert cells[0][3].startswith("0.950 ")
    assert cells[0][6].startswith("0.900 ")
    assert cells[0][4] == ""
    assert "| box of 4 kg |  |  |  |  |  |  |  | 0.870 |" in pages.sizes()


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages_have_their_tables_as_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = loaded("docs/_hooks/result_pages.py", monkeypatch)
    text = path.read_text(encoding="utf-8")
    assert text.count("<!-- table: ") == text.count("<!-- end -->")
    assert pages.fill(text) == text, "python docs/_hooks/result_pages.py writes the tables anew"


RATE = re.compile(r"(\d\.\d{3}) \((\d\.\d{3}) to (\d\.\d{3})\) of ([\d,]+)")


def test_an_interval_is_that_of_its_rate_and_its_episodes() -> None:
    """Prose and tables by hand have rates, too."""
    texts = [page.read_text(encoding="utf-8").replace("\u00a0", " ") for page in PAGES]
    stated = [match for text in texts for match in RATE.finditer(text)]
    assert len(stated) > 100
    for match in stated:
        rate, low, high = map(float, match.groups()[:3])
        episodes = int(match[4].replace(",", ""))
        successes = range(episodes + 1)
        intervals = [wilson_interval(k, episodes) for k in successes if is_near(k / episodes, rate)]
        assert any(is_near(a, low) and is_near(b, high) for a, b in intervals), match[0]


def is_near(value: float, rounded: float) -> bool:
    """Return whether a value rounds to three digits, up to the last bits."""
    return abs(value - rounded) < 0.000501


def test_every_row_is_of_the_shipped_weights_and_the_present_suites(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = loaded("benchmarks/results.py", monkeypatch)
    code = run(results, monkeypatch, "--quick")
    lines = capsys.readouterr().out.splitlines()
    outdated = [line for line in lines if line.startswith("outdated")]
    assert (code, outdated) == (0, []), "make results"


def test_every_number_and_every_figure_of_a_machine_has_a_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = loaded("docs/_hooks/result_pages.py", monkeypatch)
    assert [*pages.without_origin()] == [], "benchmarks/results/machines.yaml has the sources"


def test_a_number_without_a_source_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pages = loaded("docs/_hooks/result_pages.py", monkeypatch)
    page = tmp_path / "page.md"
    text = "It has 0.91 of 100, `--x 0.55`, [a](b0.12.md), 1.2.3 and 6,900.\n\n| 0.77 |\n"
    page.write_text(text, encoding="utf-8")
    assert pages.typed_numbers(page) == ["0.91"]
    sources = {"page.md": {"rows of team2": "0.91 0.92"}}
    figures = {"machine": "an H100", "commits": []}
    everything = {"sentences": sources, "tables": {"a": figures}, "runs": {}}
    rows = [row("team2", "cuboid", 2, "pretrained:any", 50)]
    monkeypatch.setattr(pages, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(pages, "STATING", (page,))
    monkeypatch.setattr(pages, "machines", lambda: everything)
    monkeypatch.setattr(pages, "_read", lambda name: rows)
    monkeypatch.setattr(pages, "MACHINES", ("speed.jsonl",))
    assert [*pages.without_origin()] == [
        "page.md: 0.92 is not stated",
        "page.md: 0.91 is not in the rows of team2",
        "page.md: 0.92 is not in the rows of team2",
        f"speed.jsonl: no machine or no commit: {rows[0]}",
        "machines.yaml: a has no machine or no commit",
    ]
    sources.clear()
    assert "page.md: 0.91 has no source" in pages.without_origin()
