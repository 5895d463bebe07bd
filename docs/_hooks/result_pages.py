"""Tables of results, generated from ``benchmarks/results/``.

A page has each table between the lines ``<!-- table: NAME -->`` and ``<!-- end -->``.
``python docs/_hooks/result_pages.py`` writes all of them.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from reference_pages import table

from harl_mapush import test
from harl_mapush.config import flag_values, load_suite
from harl_mapush.runs import checkpoint, evaluation_worlds
from mapush.extensions.report.bootstrap import bootstrap_interval, interquartile_mean
from mqe.tasks.episode_report import wilson_interval

DOCS = Path(__file__).parents[1]
RESULTS = DOCS.parent / "benchmarks" / "results"
SHIPPED = "pretrained:"
ANY = "pretrained:any"
SCRIPT = "scripted_walk"
SHORT = ("separated", "independent", "within 0.5 m", "mass x3", "friction x0.5")
PUSHING = {  # metrics of how a team pushes, and their heads
    "lesser_useful_share": "least useful share",
    "simultaneous_share": "all push at once",
    "touch_share_of_phase": "a robot in contact",
    "push_ahead_share": "impulse ahead",
    "push_feet_share": "impulse of feet",
}
TEAM_SUITES = ("team2", "team3", "team4", "team6", "team8", "heavy", "lost")
OBJECTS = {"cuboid": "box", "tblock": "T-block", "cylinder": "cylinder", "beam": "beam"}
FRONT = (  # suites and objects on the first page, each with every robot and with one fewer
    ("team2", "cuboid"),
    ("team2", "cylinder"),
    ("team2", "tblock"),
    ("team3", "cylinder"),
    ("team3", "cuboid"),
    ("team4", "cylinder"),
)
FRONT_HEAD = ("robots", "object", "force, mass", "team, `any`", "one robot fewer, script")
SPEEDS = {  # notes of commands of other speeds
    "task.action_scale=[1.0,1.0,1.0]": "1 m/s",
    "task.action_scale=[0.65,0.65,0.65]": "0.65 m/s",
}
# Marks of rows of a former planner.
FORMER = {"before swaying": " (1)", "before turning": " (2)"}
SPACE = "\u00a0"  # a space at which no line breaks
_MARKED = re.compile(r"^<!-- table: (\w+) -->\n.*?^<!-- end -->$", flags=re.MULTILINE | re.DOTALL)

Row = dict[str, Any]


def fill(markdown: str) -> str:
    """Return a page with its tables written anew."""
    return _MARKED.sub(
        lambda match: f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->",
        markdown,
    )


def main() -> None:
    """Write the tables of every page."""
    for page in (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if (filled := fill(text)) != text:
            page.write_text(filled, encoding="utf-8")


def readme() -> str:
    """Return the table of the first page, with the command of each row."""
    return table((*FRONT_HEAD, "command"), _front())


def home() -> str:
    """Return the table of the first page, without commands."""
    return table(FRONT_HEAD, [row[:-1] for row in _front()])


def _front() -> list[tuple[str, ...]]:
    """Return the rows of the first page."""
    whole_teams = {
        (row["suite"], row["object"]): row for row in _suites() if _policy(row) == f"`{ANY}`"
    }
    fewer = {
        (row["suite"], row["object"]): row
        for row in _read("one_fewer.jsonl")
        if row["policy"] == SCRIPT
        and row["robots"] < int(row["suite"].removeprefix("team"))
        and row.get("limit") is None
    }
    rows = []
    for key in FRONT:
        row = whole_teams[key]
        command = row["command"].removesuffix(" --team_only")
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
    rows = []
    for row in _read("teams.jsonl"):
        commands = [f"<br>`{part.strip()}`" for part in row["command"].split(";") if part]
        minutes = row["minutes"]
        took = f"{minutes:g} min" if minutes < 100 else f"{minutes / 60:.1f} h"
        rows.append(
            (
                row["team"] + "".join(commands),
                row["machine"],
                f"{row['env_steps'] / 1e6:g} M",
                took,
                f"`{row['spawn']}`",
                _share(row["num_successes"], row["num_episodes"]),
            )
        )
    head = ("team and command", "machine", "env steps", "time", "spawn", "success rate (95 %)")
    return table(head, rows)


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
        if row["policy"].startswith(SHIPPED)
        and all(name in row for name in PUSHING)
        and 2 * row["num_successes"] >= row["num_episodes"]
    ]
    size = {row["suite"]: row["robots"] for row in sorted(measured, key=lambda row: row["robots"])}
    rows = [
        (
            f"`{row['suite']}`, {OBJECTS[row['object']]}",
            _policy(row),
            *(f"{row[key]:.2f}" for key in PUSHING),
            f"{row['time_given_success_s']:.1f}",
        )
        for row in measured
        if row["robots"] == size[row["suite"]]
    ]
    rows.sort(key=lambda row: (row[0], row[1]))
    return table(("suite, object", "policy", *PUSHING.values(), "seconds"), rows)


def sizes() -> str:
    """Return the table of success by the number of robots."""
    found: dict[tuple[str, str], dict[int, Row]] = {}
    for row in _read("suites.jsonl"):
        is_box = row["suite"] == "any"
        if not row["note"] and (is_box or row["suite"] == "shapes"):
            pushed = "box of 4 kg" if is_box else "20 held-out shapes"
            found.setdefault((row["policy"], pushed), {})[row["robots"]] = row
    rows = [
        (f"`{policy}`", pushed, *(_rate(here.get(robots)) for robots in range(1, 9)))
        for (policy, pushed), here in found.items()
    ]
    return table(("policy", "object", *(f"{robots}" for robots in range(1, 9))), rows)


def algorithms() -> str:
    """Return the table of learning algorithms on the reference's box, from marl-eval's records."""
    text = (RESULTS / "algorithms.json").read_text(encoding="utf-8")
    rows = []
    for name, seeds in json.loads(text)["mapush"]["box"].items():
        curves = [_checkpoints(record) for record in seeds.values()]
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [
            f"{millions} M: {np.mean([curve[millions][0] for curve in curves]):.2f}"
            for millions in shared
        ]
        last = np.array([curve[shared[-1]][0] for curve in curves])
        (low,), (high,) = bootstrap_interval([last[None]])
        minutes = np.mean([curve[shared[-1]][1] for curve in curves]) / 60.0
        rows.append(
            (
                name.upper(),
                f"{len(seeds)}",
                f"{interquartile_mean(last):.2f} ({low:.2f} to {high:.2f})",
                ", ".join(f"{value:.2f}" for value in last),
                "; ".join(means),
                f"{minutes:.1f}",
            )
        )
    rows.sort(key=lambda row: row[2], reverse=True)
    head = ("", "seeds", "success (95 %)", "each seed", "mean by env steps", "minutes")
    return table(head, rows)


def _checkpoints(record: Mapping[str, Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Return success and elapsed time [s] by millions of env steps, from a run's record."""
    steps = [step for key, step in record.items() if key.startswith("step_")]
    return {
        round(step["step_count"] / 1e6): (step["success_rate"][0], step["elapsed_time"])
        for step in steps
    }


def poses() -> str:
    """Return the table of teams that bring objects to a place and a heading."""
    rows = [
        (OBJECTS[row["object"]], f"{row['robots']}", _policy(row), _of(row))
        for row in _read("suites.jsonl")
        if row["suite"] == "pose"
    ]
    rows.sort(key=lambda row: (row[0], row[2], row[1]))
    return table(("object", "robots", "policy", "success rate (95 %)"), rows)


def one_fewer(limit: float | None = None) -> str:
    """Return the table of each team suite: the whole team, and one robot fewer, within the suite's
    time or ``limit`` [s].
    """
    columns = [(True, ANY), (True, SCRIPT), (False, ANY), (False, SCRIPT)]  # whole team, policy
    cells: dict[tuple[str, str], dict[tuple[bool, str], str]] = {}
    masses = {}
    for row in _read("one_fewer.jsonl"):
        if row.get("limit") != limit:
            continue
        key = (row["suite"], row["object"])
        is_whole = row["robots"] == int(row["suite"].removeprefix("team"))
        column = (is_whole, row["policy"])
        cell = _counted(row)
        if not is_whole and limit is None:
            cell += f", feet of {row['foot']:g}"
        before = cells.setdefault(key, {}).get(column)
        cells[key][column] = cell if before is None else f"{before}; {cell}"
        masses[key] = row["mass"]
    for row in _suites() if limit is None else ():
        if row["policy"] == ANY and (row["suite"], row["object"]) in cells:
            cells[row["suite"], row["object"]][True, ANY] = _counted(row)
    order = [*OBJECTS, "tank", "girder", "pontoon"]
    rows = []
    for key in sorted(cells, key=lambda key: (key[0], order.index(key[1]))):
        suite, name = key
        played = [cells[key].get(column, "") for column in columns]
        rows.append((f"`{suite}`", OBJECTS.get(name, name), masses[key], *played))
    heads = ("slides at", "team, `any`", "team, script", "one fewer, `any`", "one fewer, script")
    return table(("suite", "object", *heads), rows)


def _counted(row: Row) -> str:
    """Format a row's success rate and its episodes."""
    return f"{row['num_successes'] / row['num_episodes']:.2f} of{SPACE}{row['num_episodes']}"


def _suites() -> list[Row]:
    """Return the rows of the suites that need a team."""
    return [row for row in _read("suites.jsonl") if row["suite"] in TEAM_SUITES]


def _place(key: tuple[str, int, str]) -> tuple[int, int, str]:
    """Return the place of a suite, a number of robots and a policy: whole teams come first."""
    suite, robots, policy = key
    return TEAM_SUITES.index(suite), -robots, policy


def _policy(row: Row) -> str:
    """Format a row's policy and the settings that it was measured with besides those of its
    suite.
    """
    note = row["note"]
    if note in SPEEDS:
        return f"`{row['policy']}` at {SPEEDS[note]}"
    return f"`{row['policy']}`" + (f", `{note}`" if note else "")


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
    for row in _read("long_horizon.jsonl"):
        num_successes = round(row["success_rate"] * row["num_episodes"])
        seconds = row["time_given_success_s"]
        former = FORMER.get(row.get("planner", ""), "")
        rows.append(
            (
                f"`{row['suite']}`",
                f"`{row['team']}`",
                f"`{row['policy']}`{former}",
                f"{_share(num_successes, row['num_episodes'])} of{SPACE}{row['num_episodes']}",
                f"{row['spl']:.2f}",
                "" if seconds is None else f"{seconds:.0f}",
                f"{100.0 * row['object_contact_share']:.2f} %",
                f"{100.0 * row['robot_contact_share']:.2f} %",
            )
        )
    head = (
        "suite",
        "team",
        "policy",
        "success rate (95 %)",
        "SPL",
        "s",
        "object touches",
        "robots touch",
    )
    return table(head, rows)


def robustness() -> str:
    """Return the table of the shipped teams under every condition."""
    pooled = _pooled()
    names = [name for name in pooled if name.startswith(SHIPPED)]
    rows = []
    perfect = []
    for condition in load_suite("robustness").conditions:
        found = [pooled[name].get(condition) for name in names]
        if not any(found):  # a condition that is newer than the measurements
            continue
        if all(row is not None and row["success_rate"] == 1.0 for row in found):
            perfect.append(condition)
        else:
            rows.append((condition, *(_cell(row) for row in found)))
    if perfect:
        rows.append((", ".join(perfect), *("1.000 each" for _ in names)))
    return table(("condition", *(_short(name) for name in names)), rows)


def seeds() -> str:
    """Return the table of other trainings under a few conditions."""
    rows = []
    for name, conditions in _pooled().items():
        if not name.startswith(SHIPPED):
            cells = [_cell(conditions.get(condition)) for condition in SHORT]
            share = conditions["separated"].get("lesser_contact_share")
            rows.append((name, *cells, "" if share is None else f"{share:.2f}"))
    return table(("training", *SHORT, "least share of the contact impulse"), rows)


def throughput() -> str:
    """Return the table of env steps per second on a GPU, the latest of each number of worlds."""
    rows: dict[tuple[str, int, str], Sequence[str]] = {}
    for row in _read("gpu_throughput.jsonl"):
        if row["note"] is None:
            speed = row["env_steps_per_s"]
            numbers = [f"{speed[part]:,.0f}" for part in ("physics", "env", "collect", "training")]
            period = "0.1 s" if row.get("as_it_stands", False) else "0.02 s"
            key = (row["device"], row["num_envs"], period)
            rows[key] = (row["device"], f"{row['num_envs']:,}", period, *numbers)
    head = (
        "GPU",
        "worlds",
        "a decision every",
        "physics only",
        "`env.step`",
        "collect",
        "training",
    )
    return table(head, rows.values())


def scaling() -> str:
    """Return the table of several GPUs, compared with one GPU of that kind and 8,192 worlds."""
    rows: dict[tuple[str, int, int], float] = {}
    for row in _read("scaling.jsonl"):
        if row.get("part") != "apart":
            key = (row["device"], row["ranks"], row["num_envs"])
            rows[key] = row["env_steps_per_s"]["training"]
    cells = []
    for (device, ranks, num_envs), speed in sorted(rows.items()):
        share = speed / ranks / rows[device, 1, 8192]
        compared = f"{share:.2f}" if ranks > 1 else ""
        cells.append((device, f"{ranks}", f"{num_envs:,}", f"{speed:,.0f}", compared))
    head = (
        "GPU",
        "number",
        "worlds in all",
        "env steps/s of training",
        "share of as many single GPUs",
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
    found = {}
    for path in sorted(RESULTS.glob("*_examination.json")):
        name = path.stem.removesuffix("_examination")
        found[name] = json.loads(path.read_text(encoding="utf-8"))
    keys = dict.fromkeys(key for metrics in found.values() for key in metrics)
    rows = []
    for key in keys:
        cells = [_number(metrics[key]) if key in metrics else "" for metrics in found.values()]
        rows.append((f"`{key}`", *cells))
    return table(("metric", *(_short(name) for name in found)), rows)


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme,
    "home": home,
    "teams": teams,
    "suites": suites,
    "one_fewer": one_fewer,
    "one_fewer_60": partial(one_fewer, 60.0),
    "pushing": pushing,
    "sizes": sizes,
    "poses": poses,
    "algorithms": algorithms,
    "navigation": navigation,
    "robustness": robustness,
    "seeds": seeds,
    "throughput": throughput,
    "scaling": scaling,
    "learner": learner,
    "gaits": gaits,
}


def _read(name: str) -> list[Row]:
    text = (RESULTS / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line]


def _pooled() -> dict[str, dict[str, Row]]:
    """Return the pooled rows of each team and condition."""
    found: dict[str, dict[str, Row]] = {}
    for row in _read("robustness.jsonl"):
        conditions = found.setdefault(row["checkpoint"], {})
        before = conditions.get(row["condition"])
        conditions[row["condition"]] = row if before is None else _pool(before, row)
    return found


def _pool(one: Row, other: Row) -> Row:
    """Return the mean of two rows, weighted by their episodes."""
    counts = (one["num_episodes"], other["num_episodes"])
    total = sum(counts)
    pooled: Row = {"num_episodes": total}
    for key in ("success_rate", "lesser_contact_share"):
        pooled[key] = (one[key] * counts[0] + other[key] * counts[1]) / total
    if "num_spawned" in one and "num_spawned" in other:
        pooled["num_spawned"] = one["num_spawned"] + other["num_spawned"]
    return pooled


def _cell(row: Mapping[str, Any] | None) -> str:
    """Format the success rate of a row, and that of episodes that were not lost at spawn."""
    if row is None:
        return ""
    num_successes = round(row["success_rate"] * row["num_episodes"])
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
