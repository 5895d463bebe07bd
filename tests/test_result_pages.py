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
        "note": "",
        "num_episodes": 100,
        "num_successes": successes,
    }


def test_a_command_and_its_result_become_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    results = loaded("benchmarks/results.py", monkeypatch)
    result = {
        "success_rate": 0.94,
        "num_episodes": 50,
        "lesser_useful_share": 0.123456,
        "push_feet_share": None,
        "baselines": {"scripted_solo": {"success_rate": 0.25, "num_episodes": 20}},
    }
    words = "mapush test pretrained:any --suite team2 --object tblock --set sim.num_threads=1"
    team, script = results.rows_of(result, words.split())
    assert not results.is_outdated(team)
    for name in ("weights", "worlds"):
        assert results.is_outdated(team | {name: "0"})
    assert (script["weights"], script["worlds"]) == (None, team["worlds"])
    apart, _ = results.rows_of(result, [*words.split(), "--set", "task.spawn=separated"])
    assert results.key(apart) != results.key(team)
    assert {name: value for name, value in team.items() if name not in ("weights", "worlds")} == {
        "suite": "team2",
        "object": "tblock",
        "robots": 2,
        "policy": "pretrained:any",
        "note": "",
        "command": words,
        "num_episodes": 50,
        "num_successes": 47,
        "lesser_useful_share": 0.1235,
    }
    assert (script["policy"], script["num_successes"], script["num_episodes"]) == (
        "scripted_solo",
        5,
        20,
    )
    assert results.key(script)[:3] == results.key(team)[:3]
    lost = [*words.split(), "--set", "env.randomize.lost_robots=[dead]", "--num_agents", "3"]
    row = next(results.rows_of(result, lost))
    assert (row["robots"], row["note"]) == (3, "env.randomize.lost_robots=[dead]")
    for team_name, suite in (("cuboid", "push"), ("pose", "pose")):  # suites without a flag
        row = next(results.rows_of(result, ["mapush", "test", f"pretrained:{team_name}"]))
        assert row["suite"] == suite


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


def test_objects_are_columns_and_whole_teams_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert [row[:3] for row in cells] == [
        ["`team2`", "2", "`pretrained:any`"],
        ["`team2`", "1", "`pretrained:any`"],
    ]
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
    monkeypatch.setattr(sys, "argv", ["results.py", "--quick"])
    code = results.main()
    assert (code, capsys.readouterr().out) == (0, ""), "make results"
