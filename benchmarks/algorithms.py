"""Learning algorithms side by side: ``algorithms.py OUT [--devices cuda:0 cuda:1] [--seeds 1 2]``.

Trains every algorithm in algorithms.yaml on every task with every seed, one process a run and
``--side_by_side`` processes a device, and measures each checkpoint on the CPU meanwhile. A command
that was stopped goes on where it was: whole runs stay, begun ones resume. Then it writes, beside
the runs,

- ``algorithms.json``: success by step and seed, in the format of marl-eval (Gorsane et al., 2022),
- ``algorithms.md``: tables by algorithm, and for pairs the probability of improvement,
- ``tasks.png``: success in training against env steps, a panel for each task,
- ``TASK.png``, ``TASK_training.png``: success against env steps and wall clock, by the test and in
  the last 1,000 training episodes,
- ``TASK_profile.png``: the fraction of runs above every level of success.

Aggregates are those in Agarwal et al., *Deep Reinforcement Learning at the Edge of the Statistical
Precipice* (NeurIPS 2021).
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import say
from who_wins import SUCCESS, TABLE, draw, read

from harl_mapush.runs import run_folder
from mapush.extensions.report.bootstrap import bootstrap_interval, interquartile_mean
from mapush.extensions.report.figure_style import COLORS, figure_style, panels
from mapush.extensions.report.run_logs import Curve, Group, RunLog, band
from mapush.extensions.sweep.child import wait_until_saved
from mqe.config import load_yaml

SPEC = Path(__file__).with_suffix(".yaml")
TRAIN = (sys.executable, "-m", "mapush.extensions.sweep.child")
TEST = (sys.executable, "-m", "mapush", "test")
NUM_PROFILE_POINTS = 51
FEWEST_RUNS = 2  # of a task, for an interval and for a comparison of two algorithms
TRAINING = "mapush/success_rate"  # of the last 1,000 training episodes
# Metrics of the records, with their curves and the most points of each
METRICS = (("success_rate", SUCCESS, 100), ("training_success", TRAINING, 6))

P_VALUE = 0.05  # largest of a difference in bold
# Pairs of algorithms that differ in one rule
CONTRASTS = {
    "sequential updates against simultaneous ones, on-policy": (("happo", "mappo"),),
    "the same off-policy": (("hasac", "masac"), ("hatd3", "matd3")),
    "a critic of the state against one of observations": (("mappo", "ippo"),),
    "a clip against a trust region": (("happo", "hatrpo"),),
    "an entropy bonus against deterministic actors": (("hasac", "hatd3"), ("masac", "matd3")),
}

# Last successes of two algorithms, (R,) and (Q,), by task
Strata = Sequence[tuple[np.ndarray, np.ndarray]]
Records = dict[str, Any]  # success by environment, task, algorithm, seed and step


@dataclass(frozen=True)
class Job:
    """One training and its test."""

    task: str
    algorithm: str
    seed: int
    folder: Path
    train: tuple[str, ...]  # arguments of ``mapush train``, without imports
    test: tuple[str, ...]  # arguments of ``mapush test``, without imports and the run
    imports: tuple[str, ...]  # flags of both, for an algorithm in a module of one's own
    num_env_steps: int
    minutes: float  # of a device, beside other runs

    @property
    def is_done(self) -> bool:
        """Whether the run is trained and measured."""
        return (self.folder / TABLE).is_file()


def jobs(spec: dict[str, Any], arguments: argparse.Namespace) -> Iterator[Job]:
    """Yield the chosen jobs, with all algorithms for one seed before the next seed."""
    for task_name, task in spec["tasks"].items():
        if arguments.tasks and task_name not in arguments.tasks:
            continue
        test = ["--suite", task["suite"], "--num_episodes", str(spec["num_episodes"])]
        test += ["--team_only", *_set(task["test"])]
        for seed in arguments.seeds or spec["seeds"]:
            for family_name, family in spec["families"].items():
                settings = family["settings"] | task["settings"] | task["budgets"][family_name]
                for algorithm in family["algorithms"]:
                    if arguments.algorithms and algorithm not in arguments.algorithms:
                        continue
                    train = ["--preset", family["preset"], "--algo", algorithm]
                    train += ["--seed", str(seed), *_set(settings)]
                    train += _set(family.get("exceptions", {}).get(algorithm, {}))
                    for text in arguments.set:
                        train += ["--set", text]
                    folder = arguments.out / task_name / f"{algorithm}_{seed}"
                    module = spec["imports"].get(algorithm)
                    imports = ("--import", module) if module else ()
                    yield Job(
                        task_name,
                        algorithm,
                        seed,
                        folder,
                        tuple(train),
                        tuple(test),
                        imports,
                        settings["runner.num_env_steps"],
                        task["minutes"],
                    )


def _set(settings: dict[str, Any]) -> list[str]:
    """Return ``--set`` flags."""
    flags = []
    for key, value in settings.items():
        flags += ["--set", f"{key}={json.dumps(value)}"]
    return flags


def cost(todo: Sequence[Job], num_devices: int) -> str:
    """Return the env steps and the hours of the runs that are still to do, as a line."""
    left = [job for job in todo if not job.is_done]
    env_steps = sum(job.num_env_steps for job in left) / 1e6
    hours = sum(job.minutes for job in left) / 60.0
    return (
        f"{len(left)} of {len(todo)} runs are to do: {env_steps:.0f} M env steps, some "
        f"{hours:.1f} hours of a device, {hours / num_devices:.1f} hours on {num_devices}"
    )


def train(job: Job, device: str) -> None:
    """Do what is left of one training. Raise CalledProcessError if it fails."""
    if job.is_done:
        return
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    environment = os.environ.copy()
    if device.startswith("cuda"):
        environment["CUDA_VISIBLE_DEVICES"] = device.partition(":")[2] or "0"
        device = "cuda"
    if (job.folder / run_folder.CONFIG).is_file():
        wait_until_saved(job.folder)
        words = ("--resume", str(job.folder))
    else:
        words = (*job.train, "--out", str(job.folder))
    call(job, environment, *TRAIN, *words, *job.imports, "--device", device)


def test(job: Job) -> None:
    """Measure a trained run on the CPU, once. Raise CalledProcessError if it fails."""
    if job.is_done:
        return
    table = job.folder / TABLE
    partial = table.with_suffix(".partial.csv")
    where = ("--device", "cpu", "--csv", str(partial))
    call(job, None, *TEST, str(job.folder), "--all_checkpoints", *job.test, *job.imports, *where)
    partial.rename(table)


def call(job: Job, environment: dict[str, str] | None, *words: str) -> None:
    """Run a command into the job's log. Raise CalledProcessError if it fails.

    A training ends when its pipe closes, also by the end of this process.
    """
    with (
        job.folder.with_suffix(".log").open("a") as log,
        subprocess.Popen(
            [*words], stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
        ) as child,
    ):
        code = child.wait()
    if code:
        raise subprocess.CalledProcessError(code, child.args)


def run_all(todo: Sequence[Job], devices: Sequence[str], side_by_side: int) -> list[Job]:
    """Work through the jobs on all devices. Return the failed ones.

    A device trains the next job while the CPU measures the last one.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    trained: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
    for job in todo:
        waiting.put(job)
    failed = []
    is_over = threading.Event()

    def attempt(step: Callable[[], None], job: Job) -> bool:
        try:
            step()
        except subprocess.CalledProcessError as error:
            failed.append(job)
            say(f"{job.folder}: exit code {error.returncode}; see {job.folder.name}.log")
            return False
        return True

    def trainer(device: str) -> None:
        while not is_over.is_set():
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                break
            if attempt(functools.partial(train, job, device), job):
                say(f"{job.folder}: trained on {device}")
                trained.put(job)
        trained.put(None)

    def tester() -> None:
        while not is_over.is_set() and (job := trained.get()) is not None:
            if attempt(functools.partial(test, job), job):
                say(f"{job.folder}: measured")

    slots = [device for device in devices for _ in range(side_by_side)]
    threads = [threading.Thread(target=trainer, args=(slot,), daemon=True) for slot in slots]
    threads += [threading.Thread(target=tester, daemon=True) for _ in slots]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        is_over.set()
    return failed


def finals(group: Group) -> np.ndarray:
    """Return the success (R,) of each run's last checkpoint."""
    return np.array([log.curves[SUCCESS].values[-1] for log in group.runs])


def probability_of_improvement(ours: np.ndarray, others: np.ndarray) -> float:
    """Return the probability that a run in ``ours`` (R,) beats one in ``others`` (Q,).

    Ties count half. This is the Mann-Whitney statistic over R Q.
    """
    difference = ours[:, None] - others[None, :]
    return float((np.sign(difference) * 0.5 + 0.5).mean())


def improvement(strata: Strata) -> float:
    """Return the probability of improvement, averaged over tasks."""
    return float(np.mean([probability_of_improvement(*pair) for pair in strata]))


def chance(strata: Strata) -> float:
    """Return the two-sided p-value of ``improvement`` by an exact permutation test.

    Equal algorithms could have had each other's runs, within every task. The bootstrap interval of
    three runs is too short to tell.
    """
    sums = np.zeros(1)
    counts = np.ones(1)
    for ours, others in strata:
        values = np.concatenate([ours, others])
        differences = []
        for chosen in itertools.combinations(range(len(values)), len(ours)):
            is_ours = np.isin(np.arange(len(values)), chosen)
            share = probability_of_improvement(values[is_ours], values[~is_ours])
            differences.append(share - 0.5)
        # Equal sums of the strata are counted, since all of them would be too many.
        all_sums = np.add.outer(sums, differences).round(9).ravel()
        sums, index = np.unique(all_sums, return_inverse=True)
        counts = np.bincount(index, np.repeat(counts, len(differences)))
    observed = abs(improvement(strata) - 0.5) * len(strata)
    return float(counts[np.abs(sums) >= observed - 1e-8].sum() / counts.sum())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values corrected for their number by Holm's method."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, k in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, p_values[k] * (len(p_values) - rank)))
        adjusted[k] = largest
    return adjusted


def marl_eval(logs: Mapping[Job, RunLog]) -> Records:
    """Return marl-eval's nested records: environment, task, algorithm, seed, step.

    Measured checkpoints have ``success_rate``, points of the training ``training_success``. The
    absolute metrics have ``health`` as well.
    """
    tasks: dict[str, Any] = {}
    for job, log in logs.items():
        points = {}
        for metric, name, most in METRICS:
            curve = log.curves.get(name)
            if curve is None:  # a training too short for its statistics
                continue
            chosen = np.linspace(0, len(curve.values) - 1, min(most, len(curve.values)))
            for k in chosen.astype(int):
                point = points.setdefault(int(curve.env_steps[k]), {})
                point["elapsed_time"] = round(float(curve.seconds[k]), 1)
                point[metric] = [round(float(curve.values[k]), 4)]
        record: dict[str, Any] = {
            f"step_{k}": {"step_count": env_steps, **point}
            for k, (env_steps, point) in enumerate(sorted(points.items()))
        }
        last = float(log.curves[SUCCESS].values[-1])
        record["absolute_metrics"] = {"success_rate": [last], **health(log)}
        seeds = tasks.setdefault(job.task, {}).setdefault(job.algorithm, {})
        seeds[f"seed_{job.seed}"] = record
    return {"mapush": tasks}


def health(log: RunLog) -> dict[str, list[float]]:
    """Return the median and the largest KL divergence [nat] of a run's updates, and its first and
    last standard deviation of the actions, as far as the algorithm logs them.
    """
    metrics = {}
    divergences = [curve.values for tag, curve in log.curves.items() if tag.endswith("/kl")]
    if divergences:
        values = np.concatenate(divergences)
        metrics |= {"median_kl": np.median(values), "largest_kl": np.max(values)}
    if (deviation := log.curves.get("agent0/std")) is not None:
        metrics |= {"first_deviation": deviation.values[0], "last_deviation": deviation.values[-1]}
    return {name: [round(float(value), 4)] for name, value in metrics.items()}


def join(earlier: Records, newer: Records) -> Records:
    """Return both records. A seed that both have is the newer one's."""
    joined: Records = {"mapush": {}}
    for records in (earlier, newer):
        for task, algorithms in records["mapush"].items():
            for algorithm, seeds in algorithms.items():
                joined["mapush"].setdefault(task, {}).setdefault(algorithm, {}).update(seeds)
    return joined


def read_groups(records: Records) -> dict[str, list[Group]]:
    """Return a group for each algorithm, by task, from marl-eval's records."""
    return {
        task: [
            Group(algorithm, tuple(_log(seed, record) for seed, record in seeds.items()))
            for algorithm, seeds in algorithms.items()
        ]
        for task, algorithms in records["mapush"].items()
    }


def _log(seed: str, record: Mapping[str, Any]) -> RunLog:
    """Return the curves that a seed's record has."""
    curves = {}
    for metric, name, _ in METRICS:
        steps = [step for step in record.values() if metric in step and "step_count" in step]
        if steps:
            curves[name] = Curve(
                np.array([step["step_count"] for step in steps], dtype=np.float64),
                np.array([step["elapsed_time"] for step in steps]),
                np.array([step[metric][0] for step in steps]),
            )
    return RunLog(Path(seed), {}, curves)


def markdown(runs: dict[str, list[Group]]) -> str:
    """Return the tables of each task, and one over all tasks."""
    lines = []
    for task, task_groups in runs.items():
        lines += [f"### {task}", "", success_table(task_groups), ""]
    lines += ["### All tasks", "", all_tasks_table(runs), ""]
    lines += ["Probability that the row's algorithm beats the column's:", ""]
    return "\n".join([*lines, pair_table(runs), ""])


def success_table(task_groups: Sequence[Group]) -> str:
    """Return a Markdown row for each algorithm, the best first."""
    rows = []
    for group in _best_first(task_groups):
        curves = [_by_million(log) for log in group.runs]
        shared = sorted(set.intersection(*(set(curve) for curve in curves)))
        means = [f"{k} M: {np.mean([curve[k] for curve in curves]):.2f}" for k in shared]
        minutes = np.median([log.curves[SUCCESS].seconds[-1] for log in group.runs]) / 60.0
        rows.append(
            (
                group.name.upper(),
                f"{len(group.runs)}",
                _mean_and_interval([finals(group)[None]]),
                ", ".join(f"{value:.2f}" for value in finals(group)),
                "; ".join(means),
                f"{minutes:.1f}",
            )
        )
    return _table(
        ("", "seeds", "success (95 %)", "each seed", "mean by env steps", "minutes"), rows
    )


def pair_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return the probability that each row's algorithm beats each column's, over all tasks.

    Bold: equal algorithms have as large a difference anywhere in the table once in twenty tables.
    """
    ordered = _of_all_tasks(runs)
    pairs = list(itertools.combinations(ordered, 2))
    strata = {pair: list(zip(*(ordered[name] for name in pair), strict=True)) for pair in pairs}
    values = dict(zip(pairs, holm([chance(strata[pair]) for pair in pairs]), strict=True))
    rows = []
    for row in ordered:
        cells = [row.upper()]
        for column in ordered:
            pair = (row, column) if (row, column) in values else (column, row)
            if row == column:
                cells.append("")
                continue
            share = improvement(strata[pair])
            cell = f"{share if pair[0] == row else 1.0 - share:.2f}"
            cells.append(f"**{cell}**" if values[pair] <= P_VALUE else cell)
        rows.append(cells)
    return _table(("", *(name.upper() for name in ordered)), rows)


def all_tasks_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return each algorithm's interquartile mean over the runs of all tasks, the best first.

    Tasks are the strata of its interval, and weigh equally: only seeds that all of them have count,
    of which there must be two.
    """
    seeds: dict[str, list[set[str]]] = {}
    for task_groups in runs.values():
        for group in task_groups:
            seeds.setdefault(group.name, []).append({str(log.folder) for log in group.runs})
    shared = {
        task: [_with_seeds(group, set.intersection(*seeds[group.name])) for group in task_groups]
        for task, task_groups in runs.items()
    }
    rows = []
    for name, values in _of_all_tasks(shared).items():
        strata = [stratum[None] for stratum in values]
        rows.append((name.upper(), f"{values[0].size}", _mean_and_interval(strata)))
    return _table(("", f"seeds of {', '.join(runs)}", "success (95 %)"), rows)


def contrast_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return the probability that the first of two rules beats the second one, by task and over all
    of them, with the p-value of the latter.
    """
    rows = []
    ends = {
        task: {group.name: finals(group) for group in task_groups}
        for task, task_groups in runs.items()
    }
    for words, pairs in CONTRASTS.items():
        by_task = [
            [(task[ours], task[others]) for ours, others in pairs if {ours, others} <= set(task)]
            for task in ends.values()
        ]
        everything = list(itertools.chain.from_iterable(by_task))
        cells = [f"{improvement(strata):.2f}" if strata else "" for strata in by_task]
        rows.append((words, *cells, *_beaten(everything)))
    return _table(("", *runs, "all", "p"), rows)


def task_pair_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return each algorithm's success in two tasks, the probability that a run in the first one
    beats one in the second, and its p-value; last that of all algorithms.
    """
    first, second = runs
    groups = [{group.name: group for group in runs[task]} for task in (first, second)]
    pairs = {name: (finals(groups[0][name]), finals(groups[1][name])) for name in groups[0]}
    rows = [
        (name.upper(), *(_mean_and_interval([ends[None]]) for ends in pair), *_beaten([pair]))
        for name, pair in pairs.items()
    ]
    rows.append(("all", "", "", *_beaten(list(pairs.values()))))
    return _table(("", first, second, f"{first} beats {second}", "p"), rows)


def _beaten(strata: Strata) -> tuple[str, str]:
    return f"{improvement(strata):.2f}", f"{chance(strata):.3f}"


def equal_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return the mean success of each algorithm that all tasks have, after the env steps and after
    the minutes of a task's shortest run: in training if the records have it, else in the test.
    """
    head = [""]
    cells: dict[str, list[str]] = {}
    names = set.intersection(*({group.name for group in groups} for groups in runs.values()))
    for task, task_groups in runs.items():
        curves = {
            group.name: [log.curves.get(TRAINING, log.curves[SUCCESS]) for log in group.runs]
            for group in task_groups
            if group.name in names
        }
        everything = list(itertools.chain.from_iterable(curves.values()))
        env_steps = min(curve.env_steps[-1] for curve in everything)
        seconds = min(curve.seconds[-1] for curve in everything)
        head += [f"{task}: {env_steps / 1e6:.2g} M", f"{seconds / 60.0:.1f} min"]
        for name, seeds in curves.items():
            at_steps = [_at(env_steps, curve.env_steps, curve.values) for curve in seeds]
            at_seconds = [_at(seconds, curve.seconds, curve.values) for curve in seeds]
            means = [f"{np.mean(values):.2f}" for values in (at_steps, at_seconds)]
            cells.setdefault(name.upper(), []).extend(means)
    return _table(head, [(name, *values) for name, values in cells.items()])


def health_table(algorithms: Mapping[str, Mapping[str, Any]]) -> str:
    """Return how the updates of each algorithm went, from one task's records by seed."""
    rows = []
    for name, seeds in algorithms.items():
        metrics = [seed["absolute_metrics"] for seed in seeds.values()]
        cells = [name.upper(), "", ""]
        if all("median_kl" in metric for metric in metrics):
            median = np.median([metric["median_kl"][0] for metric in metrics])
            largest = max(metric["largest_kl"][0] for metric in metrics)
            cells[1] = f"{median:.3f}, {largest:.3f}"
        if all("first_deviation" in metric for metric in metrics):
            first = metrics[0]["first_deviation"][0]
            last = [f"{metric['last_deviation'][0]:.2f}" for metric in metrics]
            cells[2] = f"{first:.2f} to {', '.join(last)}"
        logs = [_log(seed, record) for seed, record in seeds.items()]
        curves = [log.curves[TRAINING] for log in logs if TRAINING in log.curves]
        for part in (0.5, 1.0):
            values = [_at(part * c.env_steps[-1], c.env_steps, c.values) for c in curves]
            cells.append(", ".join(f"{value:.2f}" for value in values))
        rows.append(cells)
    head = ("", "KL of an update, median and largest [nat]", "deviation of the actions")
    return _table((*head, "success in training, half-way", "last"), rows)


def hours_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return each task's runs: their number, env steps and minutes of one, env steps and hours of
    all.
    """
    rows = []
    for task, task_groups in runs.items():
        ends = [log.curves[SUCCESS] for group in task_groups for log in group.runs]
        env_steps = [curve.env_steps[-1] / 1e6 for curve in ends]
        minutes = [curve.seconds[-1] / 60.0 for curve in ends]
        budgets = ", ".join(f"{value:g}" for value in sorted({_rounded(x) for x in env_steps}))
        rows.append(
            (
                task,
                f"{len(ends)}",
                f"{budgets} M",
                f"{np.median(minutes):.1f}",
                f"{_rounded(sum(env_steps)):g} M",
                f"{sum(minutes) / 60.0:.1f}",
            )
        )
    head = ("task", "runs", "env steps of a run", "minutes", "env steps", "hours of runs")
    return _table(head, rows)


def trials_table(runs: Mapping[str, Sequence[Group]]) -> str:
    """Return a row for each algorithm: the setting that its trials vary, its values, and each
    seed's success in training, by trial.
    """
    spec = load_yaml(SPEC.with_name("tuning.yaml"))
    cells: dict[str, list[str]] = {}
    for task_groups in runs.values():
        for group in task_groups:
            values = [log.curves[TRAINING].values[-1] for log in group.runs]
            seeds = ", ".join(f"{value:.2f}" for value in values)
            cells.setdefault(group.name, [_trials(spec, group.name)]).append(seeds)
    rows = [(name.upper(), *values) for name, values in cells.items()]
    return _table(("", "setting", *runs), rows)


def _trials(spec: Mapping[str, Any], algorithm: str) -> str:
    """Return the first setting in which an algorithm's trials differ, with its values."""
    (family,) = (
        name for name, family in spec["families"].items() if algorithm in family["algorithms"]
    )
    budgets = [task["budgets"][family] for task in spec["tasks"].values()]
    for key in budgets[0]:
        values = [budget[key] for budget in budgets]
        if len(set(values)) > 1:
            return f"`{key}`: {', '.join(f'{value:g}' for value in values)}"
    raise ValueError(f"the trials of {algorithm} are equal")


def _at(place: float, places: np.ndarray, values: np.ndarray) -> float:
    """Return a curve's value, by lines between its points and from zero to the first one."""
    return float(np.interp(place, [0.0, *places], [0.0, *values]))


def _with_seeds(group: Group, seeds: set[str]) -> Group:
    runs = tuple(log for log in group.runs if str(log.folder) in seeds)
    return Group(group.name, runs)


def _of_all_tasks(runs: Mapping[str, Sequence[Group]]) -> dict[str, list[np.ndarray]]:
    """Return the last successes (R,) in each task of every algorithm with runs enough of all tasks,
    the best first.
    """
    values: dict[str, list[np.ndarray]] = {}
    for task_groups in runs.values():
        for group in task_groups:
            values.setdefault(group.name, []).append(finals(group))
    whole = [
        name
        for name, strata in values.items()
        if len(strata) == len(runs) and _smallest(strata) >= FEWEST_RUNS
    ]
    whole.sort(key=lambda name: -interquartile_mean(np.concatenate(values[name])[None])[0])
    return {name: values[name] for name in whole}


def _smallest(strata: Sequence[np.ndarray]) -> int:
    return min(len(stratum) for stratum in strata)


def _mean_and_interval(strata: Sequence[np.ndarray]) -> str:
    """Return the interquartile mean over all runs, and its 95 % interval if there are enough."""
    values = np.concatenate(strata, axis=1)
    mean = f"{interquartile_mean(values)[0]:.2f}"
    if min(stratum.size for stratum in strata) < FEWEST_RUNS:
        return mean
    (low,), (high,) = bootstrap_interval(strata)
    return f"{mean} ({low:.2f} to {high:.2f})"


def _by_million(log: RunLog) -> dict[float, float]:
    """Return a run's success by million env steps, whole ones above one."""
    curve = log.curves[SUCCESS]
    return {
        _rounded(env_steps / 1e6): float(value)
        for env_steps, value in zip(curve.env_steps, curve.values, strict=True)
    }


def _rounded(millions: float) -> float:
    """Return whole millions, or two decimals below one."""
    return round(millions) if millions >= 1.0 else round(millions, 2)


def _best_first(task_groups: Sequence[Group]) -> list[Group]:
    return sorted(task_groups, key=lambda group: -interquartile_mean(finals(group)[None])[0])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def profile(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Return levels (P,) and the fraction (P,) of runs whose last success is above each level."""
    levels = np.linspace(0.0, 1.0, NUM_PROFILE_POINTS)
    return levels, (finals(group)[None] > levels[:, None]).mean(axis=1)


def draw_profile(task_groups: Sequence[Group]) -> Any:
    """Draw performance profiles, within ``figure_style``."""
    figure, (panel,) = panels(1, 1, 4.5, 3.4)
    for group in task_groups:
        panel.plot(*profile(group), label=group.name, drawstyle="steps-post")
    panel.set(xlabel="success of the last checkpoint", ylabel="fraction of runs above")
    panel.legend()
    return figure


def draw_tasks(runs: Mapping[str, Sequence[Group]]) -> Any:
    """Draw each task's success in training against env steps, within ``figure_style``."""
    figure, axes = panels(len(runs), 3, 3.0, 2.2)
    colors: dict[str, int] = {}
    for panel, (task, task_groups) in zip(axes, runs.items(), strict=False):
        for group in task_groups:
            drawn = band(group, TRAINING, "env_steps") or band(group, SUCCESS, "env_steps")
            assert drawn is not None
            k = colors.setdefault(group.name, len(colors))
            style = "-" if k < len(COLORS) else "--"
            x = drawn.x / 1e6
            panel.plot(x, drawn.mean, style, color=f"C{k}", label=group.name)
            panel.fill_between(x, drawn.low, drawn.high, color=f"C{k}", alpha=0.15, linewidth=0)
        panel.set(title=task, xlabel="env steps [million]", xlim=(0, None), ylim=(0, 1))
    handles = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5)
    return figure


def write(out: Path, records: Records) -> None:
    """Write the JSON, the tables and figures for each task."""
    runs = read_groups(records)
    # A line for each seed
    lines = json.dumps(records, separators=(",", ":")).replace('"seed_', '\n"seed_')
    (out / "algorithms.json").write_text(lines + "\n")
    (out / "algorithms.md").write_text(markdown(runs))
    with figure_style():
        draw_tasks(runs).savefig(out / "tasks.png")
    for task, task_groups in runs.items():
        with figure_style():
            draw(task_groups).savefig(out / f"{task}.png")
            if any(TRAINING in log.curves for group in task_groups for log in group.runs):
                draw(task_groups, TRAINING).savefig(out / f"{task}_training.png")
            draw_profile(task_groups).savefig(out / f"{task}_profile.png")
    say(f"{out}: algorithms.json, algorithms.md and figures of {len(runs)} tasks")


def main() -> int:
    """Run the comparison. Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--spec", type=Path, default=SPEC)
    parser.add_argument("--devices", nargs="+", default=["cuda:0"])
    parser.add_argument("--side_by_side", type=int, default=1, help="runs at once on each device")
    parser.add_argument("--tasks", nargs="+", default=[])
    parser.add_argument("--algorithms", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument(
        "--earlier", type=Path, nargs="+", default=[], help="algorithms.json of other runs to join"
    )
    parser.add_argument(
        "--table_only", action="store_true", help="tables of the runs that are there"
    )
    arguments = parser.parse_args()
    spec = load_yaml(arguments.spec)
    todo = list(jobs(spec, arguments))
    if not todo:
        parser.error(f"{arguments.spec} has no such task with such an algorithm")
    arguments.out.mkdir(parents=True, exist_ok=True)
    say(cost(todo, len(arguments.devices)))
    failed = (
        [] if arguments.table_only else run_all(todo, arguments.devices, arguments.side_by_side)
    )
    logs = {job: read(job.folder) for job in todo if job.is_done}
    earlier = [json.loads(file.read_text()) for file in arguments.earlier]
    write(arguments.out, functools.reduce(join, [*earlier, marl_eval(logs)]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
