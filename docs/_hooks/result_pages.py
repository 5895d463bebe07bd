"""Tables of results, generated from ``benchmarks/results/``.

A page has each table between the lines ``<!-- table: NAME -->`` and ``<!-- end -->``.
``python docs/_hooks/result_pages.py`` writes all of them. ``machines.yaml`` has tables that come
from a machine's own figures, and the sources of the numbers in the sentences of the pages.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
from reference_pages import table

from harl_mapush import test
from harl_mapush.config import flag_values, load_suite
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import load_yaml
from mqe.tasks.episode_report import wilson_interval

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "benchmarks" / "results"
STATING = (DOCS.parent / "README.md", *sorted((DOCS / "results").glob("*.md")))  # pages of results
COMPARED = ("algorithms.json", "cores.json")  # records of learning algorithms
SHIPPED = "pretrained:"
ANY = "pretrained:any"
SCRIPT = "scripted_walk"
SHORT = ("separated", "independent", "within 0.5 m", "mass x3", "friction x0.5")
PUSHING = {  # metrics of how a team pushes, and their heads
    "lesser_useful_share": "least useful share",
    "simultaneous_share": "all push at once",
    "touch_share_of_phase": "a robot in contact",
    "push_ahead_share": "impulse ahead",
}
TEAM_SUITES = ("team2", "team3", "team4", "team6", "team8", "heavy", "lost")
OBJECTS = {"cuboid": "box", "tblock": "T-block", "cylinder": "cylinder", "beam": "beam"}
FRONT = tuple(map(tuple, load_yaml(RESULTS / "front.yaml")["cells"]))
FRONT_HEAD = ("robots", "object", "force, mass", "team, `any`", "one robot fewer, script")
GRIP = "env.foot_friction=[0.8]"  # notes of rows
MINUTE = "task.episode_length_s=60"
ROBUSTNESS = {"any,robustness": ANY, "robustness": None}  # suites, and their team
STRAINS = ("strain", "rough")
ARENAS = ("two_cubes", "scattered", "doors", "u_turn")
PLANNED = {  # names of policies among obstacles, by policy and planner
    ("planner", "task.planner=goal"): "no high level",
    ("walk", ""): "no mid level",
}
SPACE = "\u00a0"  # a space at which no line breaks
OF_ROWS = "rows of "  # a source in rows.jsonl, before the name of a suite
NUMBER = re.compile(r"(?<![\d.,])\d\.\d{2,4}(?!\d|\.\d)")
_WITHOUT_NUMBERS = re.compile(  # tables, code, targets of links
    r"<!-- table: .*?<!-- end -->|```.*?```|`[^`]*`|\]\([^)]*\)|^\|.*?$",
    flags=re.MULTILINE | re.DOTALL,
)
_MARKED = re.compile(r"^<!-- table: (\w+) -->\n.*?^<!-- end -->$", flags=re.MULTILINE | re.DOTALL)

Row = dict[str, Any]


def fill(markdown: str) -> str:
    """Return a page with its tables written anew."""
    return _MARKED.sub(
        lambda match: f"<!-- table: {match[1]} -->\n\n{_table(match[1])}\n\n<!-- end -->",
        markdown,
    )


def main() -> None:
    """Write the tables of every page."""
    for page in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            page.write_text(filled, encoding="utf-8")


def _table(name: str) -> str:
    """Return a table, of rows or of a machine's figures with their origin."""
    if name in TABLES:
        return TABLES[name]()
    figures = machines()["tables"][name]
    return f"{figures['text']}\n{_origin(figures)}"


def _origin(figures: Mapping[str, Any]) -> str:
    commits = ", ".join(f"`{commit}`" for commit in figures["commits"])
    return f"*Machine: {figures['machine']}. Recorded in {commits}.*"


def machines() -> dict[str, Any]:
    """Return the figures of machines."""
    return load_yaml(RESULTS / "machines.yaml")


def typed_numbers(page: Path) -> list[str]:
    """Return the numbers with two decimals or more in the sentences of a page."""
    text = _WITHOUT_NUMBERS.sub("", page.read_text(encoding="utf-8"))
    return NUMBER.findall(text)


def without_origin() -> Iterator[str]:
    """Yield numbers in sentences without a source in ``machines.yaml``, sources without a number
    on their page, and figures of machines without a machine or a commit.
    """
    sources = machines()["sentences"]
    for page in STATING:
        name = page.relative_to(DOCS.parent).as_posix()
        stated = set(typed_numbers(page))
        known = {number for line in sources.get(name, {}).values() for number in line.split()}
        yield from (f"{name}: {number} has no source" for number in sorted(stated - known))
        yield from (f"{name}: {number} is not stated" for number in sorted(known - stated))
        for source, line in sources.get(name, {}).items():
            if source.startswith(OF_ROWS):
                measured = _rates(source.removeprefix(OF_ROWS))
                others = [number for number in line.split() if number not in measured]
                yield from (f"{name}: {number} is not in the {source}" for number in others)
    for name in MACHINES:
        for row in _read(name):
            if not (row.get("machine") or row.get("device")) or not row.get("commit"):
                yield f"{name}: no machine or no commit: {row}"
    for name, figures in {**machines()["tables"], **machines()["runs"]}.items():
        if not figures.get("machine") or not figures.get("commits"):
            yield f"machines.yaml: {name} has no machine or no commit"


def _rates(suite: str) -> set[str]:
    """Return the rates of a suite's rows, their bounds and the rates' mean, with two and three
    decimals.
    """
    rows = [row for row in _rows() if row["suite"] == suite]
    values = []
    for row in rows:
        counts = (row["num_successes"], row["num_episodes"])
        values += [counts[0] / counts[1], *wilson_interval(*counts)]
    values.append(np.mean([values[3 * k] for k, row in enumerate(rows) if not row["note"]]))
    return {f"{value:.{digits}f}" for value in values for digits in (2, 3)}


def readme() -> str:
    """Return the table of the first page, with the command of each row."""
    return table((*FRONT_HEAD, "command"), _front())


def home() -> str:
    """Return the table of the first page, without commands."""
    return table(FRONT_HEAD, [row[:-1] for row in _front()])


def _front() -> list[tuple[str, ...]]:
    """Return the rows of the first page."""
    whole_teams = {(row["suite"], row["object"]): row for row in _suites()}
    fewer = {
        (row["suite"], row["object"]): row
        for row in _rows()
        if row["policy"] == SCRIPT and _is_fewer(row) and row["note"] in ("", GRIP)
    }
    rows = []
    for key in FRONT:
        row = whole_teams[key]
        suite, name = key
        command = f"mapush test {ANY} --suite {suite} --object {name}"
        command += f" --num_episodes {row['num_episodes']} --seed 2000"
        arguments = test.make_parser().parse(shlex.split(command)[2:])
        folder = checkpoint.resolve(arguments.team)
        cfg = evaluation_worlds.settings(folder, flag_values(arguments))
        worlds = evaluation_worlds.contents(cfg)
        force = f"{worlds['sliding_force_n']:.0f} N, {worlds['object_mass_kg']:.0f} kg"
        rows.append(
            (
                f"{row['robots']}",
                OBJECTS[row["object"]],
                force,
                _counted(row),
                _counted(fewer[key]),
                f"`{command}`",
            )
        )
    return rows


def teams() -> str:
    """Return the table of trained teams."""
    counts = {
        (row["policy"], row["condition"]): (row["num_successes"], row["num_episodes"])
        for row in _rows()
        if row["suite"] == "robustness"
    }
    rows = []
    for row in _read("teams.jsonl"):
        commands = [f"<br>`{part.strip()}`" for part in row["command"].split(";") if part]
        minutes = row["minutes"]
        took = f"{minutes:g} min" if minutes < 100 else f"{minutes / 60:.1f} h"
        is_shipped = row["team"].startswith(SHIPPED)
        if is_shipped:
            count = counts[row["team"], row["condition"]]
        else:
            count = (row["num_successes"], row["num_episodes"])
        rows.append(
            (
                (f"`{row['team']}`" if is_shipped else row["team"]) + "".join(commands),
                row["machine"],
                f"`{row['commit']}`",
                f"{row['env_steps'] / 1e6:g} M",
                took,
                f"`{row['condition']}`",
                f"{_share(*count)} of{SPACE}{count[1]:,}",
            )
        )
    heads = ("team and command", "machine", "commit", "env steps", "time", "spawn")
    return table((*heads, "success rate (95 %)"), rows)


def suites() -> str:
    """Return the table of how often trained teams succeed, by suite, team and object."""
    return _by_object(_suites())


def _by_object(rows: Sequence[Row]) -> str:
    """Return a table of success with a column for each object."""
    found: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row["suite"], row["robots"], _policy(row)), {})[row["object"]] = row
    lines = []
    for suite, robots, policy in sorted(found, key=_place):
        here = found[suite, robots, policy]
        cells = [_of(here.get(name)) for name in OBJECTS]
        lines.append((f"`{suite}`", f"{robots}", policy, *cells))
    return table(("suite", "robots", "policy", *OBJECTS.values()), lines)


def pushing() -> str:
    """Return the table of how whole teams push in the suites, where they mostly succeed."""
    measured = [
        row
        for row in _suites()
        if all(name in row for name in PUSHING) and 2 * row["num_successes"] >= row["num_episodes"]
    ]
    rows = [
        (
            f"`{row['suite']}`, {OBJECTS[row['object']]}",
            _policy(row),
            *(f"{row[key]:.2f}" for key in PUSHING),
            f"{row['time_given_success_s']:.1f}",
        )
        for row in measured
    ]
    rows.sort(key=lambda row: (row[0], row[1]))
    return table(("suite, object", "policy", *PUSHING.values(), "seconds"), rows)


def sizes() -> str:
    """Return the table of success by the number of robots."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in _rows():
        is_box = row["suite"] == "any"
        if not row["note"] and (is_box or row["suite"] == "shapes"):
            pushed = "box of 4 kg" if is_box else "20 held-out shapes"
            found.setdefault((row["policy"], pushed), {})[row["robots"]] = row
    rows = [
        (f"`{policy}`", pushed, *(_rate(here.get(robots)) for robots in range(1, 9)))
        for (policy, pushed), here in found.items()
    ]
    return table(("policy", "object", *(f"{robots}" for robots in range(1, 9))), rows)


def algorithms(part: str, *tasks: str, files: Sequence[str] = COMPARED) -> str:
    """Return a table of the comparison of learning algorithms, on one task, some or all."""
    sys.path.append(str(RESULTS.parent))
    comparison = importlib.import_module("algorithms")
    records = [json.loads((RESULTS / file).read_text(encoding="utf-8")) for file in files]
    joined = reduce(comparison.join, records)
    if part == "health_table":
        return comparison.health_table(joined["mapush"][tasks[0]])
    runs = comparison.read_groups(joined)
    if part == "success_table":
        name = tasks[0]
        markdown = comparison.success_table(runs[name])
    else:
        name = Path(files[0]).stem
        markdown = getattr(comparison, part)({task: runs[task] for task in tasks or runs})
    figures = machines()["runs"].get(name)
    return f"{markdown}\n\n{_origin(figures)}" if figures else markdown


def tenth_algorithm() -> str:
    """Return the rows of the guide's algorithm and of the one that it changes."""
    head, line, *rows = algorithms("success_table", "cylinder").splitlines()
    chosen = [row for row in rows if row.startswith(("| HAPPO", "| HASPO"))]
    return "\n".join((head, line, *chosen))


def poses() -> str:
    """Return the table of teams that bring objects to a place and a heading."""
    rows = [
        (OBJECTS[row["object"]], f"{row['robots']}", _policy(row), _of(row))
        for row in _rows()
        if row["suite"] == "pose" and not row["note"]
    ]
    rows.sort(key=lambda row: (row[0], row[2], row[1]))
    return table(("object", "robots", "policy", "success rate (95 %)"), rows)


def one_fewer(note: str = "") -> str:
    """Return the table of each team suite: the whole team, and one robot fewer, in the suite's
    worlds or with the settings ``note``.
    """
    columns = [(True, ANY), (True, SCRIPT), (False, ANY), (False, SCRIPT)]  # whole team, policy
    cells: dict[tuple[str, str], dict[tuple[bool, str], str]] = {}
    for row in _rows():
        is_whole = not _is_fewer(row)
        notes = (note,) if note or is_whole else ("", GRIP)
        if row["suite"] not in TEAM_SUITES[:3] or row["note"] not in notes:
            continue
        cell = _counted(row)
        if not is_whole and not note:
            cell += f", feet of {0.8 if row['note'] == GRIP else 0.55:g}"
        cells.setdefault((row["suite"], row["object"]), {})[is_whole, row["policy"]] = cell
    rows = []
    for suite, name in sorted(cells, key=lambda key: (key[0], [*OBJECTS].index(key[1]))):
        mass = load_suite(suite).worlds["task"]["object_mass"][name]
        played = [cells[suite, name].get(column, "") for column in columns]
        rows.append((f"`{suite}`", OBJECTS[name], mass, *played))
    heads = ("slides at", "team, `any`", "team, script", "one fewer, `any`", "one fewer, script")
    return table(("suite", "object", *heads), rows)


def _is_fewer(row: Row) -> bool:
    """Return whether a row has fewer robots than its suite."""
    return row["suite"].startswith("team") and row["robots"] < int(row["suite"][4:])


def _counted(row: Row) -> str:
    """Format a row's success rate and its episodes."""
    return f"{row['num_successes'] / row['num_episodes']:.2f} of{SPACE}{row['num_episodes']}"


def _suites() -> list[Row]:
    """Return the rows of whole teams in the suites that need a team."""
    return [
        row
        for row in _rows()
        if row["suite"] in TEAM_SUITES
        and row["object"] in OBJECTS
        and row["policy"] == ANY
        and not row["note"]
        and not _is_fewer(row)
    ]


def _rows() -> list[Row]:
    """Return the rows that a CPU measures."""
    return _read("rows.jsonl")


def _place(key: tuple[str, int, str]) -> tuple[int, int, str]:
    """Return the place of a suite, a number of robots and a policy: whole teams come first."""
    suite, robots, policy = key
    return TEAM_SUITES.index(suite), -robots, policy


def _policy(row: Row) -> str:
    """Format a row's policy and the settings that it was measured with besides those of its
    suite.
    """
    return f"`{row['policy']}`" + (f", `{row['note']}`" if row["note"] else "")


def _of(row: Row | None) -> str:
    """Format a row's success rate, its interval and its number of episodes."""
    if row is None:
        return ""
    share = _share(row["num_successes"], row["num_episodes"])
    return f"{share} of{SPACE}{row['num_episodes']}"


def _rate(row: Row | None) -> str:
    return "" if row is None else f"{row['num_successes'] / row['num_episodes']:.3f}"


def navigation() -> str:
    """Return the table of teams among obstacles, by suite and planner."""
    rows = []
    for row in _rows():
        if row["suite"] not in ARENAS:
            continue
        team = "pretrained:cuboid"
        note = row["note"]
        if note.startswith("task.team="):
            team = note.removeprefix("task.team=")
            note = ""
        planner = note.removeprefix("task.planner=") or "field"
        name = planner if row["policy"] == "planner" else row["policy"]
        name = PLANNED.get((row["policy"], note), name)
        shares = [row.get(f"{who}_contact_share") for who in ("object", "robot")]
        rows.append(
            (
                f"`{row['suite']}`",
                f"`{team}`",
                f"`{name}`",
                _of(row),
                f"{row['spl']:.2f}" if "spl" in row else "",
                f"{row['time_given_success_s']:.0f}" if "time_given_success_s" in row else "",
                *("" if share is None else f"{100.0 * share:.2f} %" for share in shares),
            )
        )
    rows.sort(key=lambda row: (ARENAS.index(row[0].strip("`")), row[1] != "`pretrained:cuboid`"))
    head = ("suite", "team", "policy", "success rate (95 %)", "SPL", "s")
    return table((*head, "object touches", "robots touch"), rows)


def robustness() -> str:
    """Return the table of the shipped teams under every condition."""
    found: dict[str, dict[str, Row]] = {}
    for row in _rows():
        if row["suite"] in ROBUSTNESS:
            found.setdefault(row["policy"], {})[row["condition"]] = row
    found.pop("pretrained:cuboid_happo", None)
    rows = []
    for condition in load_suite("robustness").conditions:
        measured = [conditions.get(condition) for conditions in found.values()]
        if any(measured):
            rows.append((condition, *(_cell(row) for row in measured)))
    return table(("condition", *(_short(name) for name in found)), rows)


def strain() -> str:
    """Return the table of the box of ``team2`` under strain and on rough ground: the push that each
    robot needs and has, and how often a team and the script succeed.
    """
    found: dict[str, dict[str, Row]] = {}
    for row in _rows():
        if row["suite"] in STRAINS:
            found.setdefault(row["condition"], {})[row["policy"]] = row
    forces = machines()["strain"]
    names = [name for suite in STRAINS for name in load_suite(suite).conditions]
    rows = []
    for name in dict.fromkeys(names):
        rates = [found.get(name, {}).get(policy) for policy in (ANY, SCRIPT)]
        pushes = map(str, forces.get(name, ("", "", "")))
        rows.append((name, *pushes, *("" if row is None else _counted(row) for row in rates)))
    heads = ("sliding it", "least", "a robot can", "`any`", "script")
    return table(("world", *heads), rows)


def cost() -> str:
    """Return the table of the time that all rows take, from the rows that have their time."""
    rows = _rows()
    times = [row["seconds"] for row in rows if row["seconds"]]
    seconds = len(rows) * sum(times) / len(times)
    cells = [f"{max(seconds / cores, *times) / 60:.0f} min" for cores in (2, 64)]
    head = ("rows", "of them timed", "processor time", "two cores", "64 cores")
    hours = f"{seconds / 3600:.1f} h"
    return table(head, [(f"{len(rows)}", f"{len(times)}", hours, *cells)])


def seeds() -> str:
    """Return the table of other trainings under a few conditions."""
    found: dict[str, dict[str, Row]] = {}
    for row in _read("other_seeds.jsonl"):
        found.setdefault(row["training"], {})[row["condition"]] = row
    rows = []
    for name, conditions in found.items():
        first = conditions["separated"]
        cells = [_cell(conditions.get(condition)) for condition in SHORT]
        share = first.get("lesser_contact_share")
        rows.append((name, *cells, "" if share is None else f"{share:.2f}", f"`{first['commit']}`"))
    return table(("training", *SHORT, "least share of the contact impulse", "commit"), rows)


def throughput() -> str:
    """Return the table of env steps per second on a GPU, the latest of each number of worlds."""
    rows: dict[tuple[str, int, str], Sequence[str]] = {}
    for row in _read("gpu_throughput.jsonl"):
        if row["note"] is None:
            speed = row["env_steps_per_s"]
            numbers = [f"{speed[part]:,.0f}" for part in ("physics", "env", "collect", "training")]
            period = "0.1 s" if row.get("as_it_stands", False) else "0.02 s"
            key = (row["device"], row["num_envs"], period)
            commit = f"`{row['commit']}`"
            rows[key] = (row["device"], f"{row['num_envs']:,}", period, *numbers, commit)
    head = (
        "GPU",
        "worlds",
        "a decision every",
        "physics only",
        "`env.step`",
        "collect",
        "training",
        "commit",
    )
    return table(head, rows.values())


def scaling() -> str:
    """Return the table of several GPUs, compared with one GPU of that kind and 8,192 worlds."""
    rows: dict[tuple[str, int, int], Row] = {}
    for row in _read("scaling.jsonl"):
        if row.get("part") != "apart":
            key = (row["device"], row["ranks"], row["num_envs"])
            rows[key] = row
    cells = []
    for device, ranks, num_envs in sorted(rows):
        row = rows[device, ranks, num_envs]
        speed = row["env_steps_per_s"]["training"]
        share = speed / ranks / rows[device, 1, 8192]["env_steps_per_s"]["training"]
        compared = f"{share:.2f}" if ranks > 1 else ""
        commit = f"`{row['commit']}`"
        cells.append((device, f"{ranks}", f"{num_envs:,}", f"{speed:,.0f}", compared, commit))
    head = (
        "GPU",
        "number",
        "worlds in all",
        "env steps/s of training",
        "share of as many single GPUs",
        "commit",
    )
    return table(head, cells)


def learner() -> str:
    """Return the table of an update beside upstream HARL's."""
    rows = [row for row in _read("cpu_learner.jsonl") if "update_s" in row]
    last = rows[-1]
    return table(
        ("", "seconds for an update"),
        [("mapush", f"{last['update_s']:.2f}"), ("HARL", f"{last['harl_update_s']:.2f}")],
    )


def gaits() -> str:
    """Return the table of the shipped gaits' examinations."""
    found = {row["policy"]: row["metrics"] for row in _rows() if row["suite"] == "gait"}
    keys = dict.fromkeys(key for metrics in found.values() for key in metrics)
    rows = []
    for key in keys:
        cells = [_number(metrics[key]) if key in metrics else "" for metrics in found.values()]
        rows.append((f"`{key}`", *cells))
    return table(("metric", *(_short(name) for name in found)), rows)


# Files of programs that write their own figures
MACHINES = (
    "teams.jsonl",
    "other_seeds.jsonl",
    "gpu_throughput.jsonl",
    "scaling.jsonl",
    "cpu_learner.jsonl",
)
TABLES: dict[str, Callable[[], str]] = {
    "readme": readme,
    "home": home,
    "teams": teams,
    "suites": suites,
    "one_fewer": one_fewer,
    "one_fewer_60": partial(one_fewer, MINUTE),
    "pushing": pushing,
    "sizes": sizes,
    "poses": poses,
    "algorithms": partial(algorithms, "success_table", "box"),
    "algorithms_pairs": partial(algorithms, "pair_table"),
    "algorithms_team2": partial(algorithms, "success_table", "team2"),
    "algorithms_both": partial(algorithms, "all_tasks_table"),
    "algorithms_cylinder": partial(algorithms, "success_table", "cylinder"),
    "algorithms_tenth": tenth_algorithm,
    "algorithms_any": partial(algorithms, "success_table", "any"),
    "algorithms_pose": partial(algorithms, "success_table", "pose"),
    "algorithms_five": partial(algorithms, "all_tasks_table", "cylinder", "any", "pose"),
    "algorithms_leader": partial(algorithms, "success_table", "leader", files=("leader.json",)),
    "algorithms_contrasts": partial(algorithms, "contrast_table"),
    "algorithms_separate": partial(algorithms, "task_pair_table", files=("separate.json",)),
    "algorithms_equal": partial(algorithms, "equal_table"),
    "algorithms_hours": partial(algorithms, "hours_table", files=(*COMPARED, "leader.json")),
    "algorithms_health": partial(algorithms, "health_table", "team2"),
    "algorithms_tuning": partial(algorithms, "trials_table", files=("tuning.json",)),
    "navigation": navigation,
    "robustness": robustness,
    "strain": strain,
    "cost": cost,
    "seeds": seeds,
    "throughput": throughput,
    "scaling": scaling,
    "learner": learner,
    "gaits": gaits,
}


def _read(name: str) -> list[Row]:
    text = (RESULTS / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]


def _cell(row: Mapping[str, Any] | None) -> str:
    """Format the success rate of a row, and that of episodes that were not lost at spawn."""
    if row is None:
        return ""
    num_successes = row["num_successes"]
    text = f"{_share(num_successes, row['num_episodes'])} of{SPACE}{row['num_episodes']:,}"
    num_spawned = row.get("num_spawned", row["num_episodes"])
    if num_spawned < row["num_episodes"]:
        text += f"; {num_successes / num_spawned:.3f} of those not lost at spawn"
    return text


def _share(num_successes: int, num_episodes: int) -> str:
    low, high = wilson_interval(num_successes, num_episodes)
    interval = f"({low:.3f} to {high:.3f})".replace(" ", SPACE)
    return f"{num_successes / num_episodes:.3f} {interval}"


def _short(name: str) -> str:
    """Format the name of a policy that ships for the head of a column."""
    return f"`{name.removeprefix(SHIPPED)}`"


def _number(value: float | Sequence[float] | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, Sequence):
        return ", ".join(_number(each) for each in value)
    return f"{value:.3g}"


if __name__ == "__main__":
    main()
