"""The player for suites: a team, its comparisons, its conditions, or all checkpoints in a run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harl_mapush import config
from harl_mapush.config import RunCfg, Suite
from harl_mapush.config.suites import ONE_FEWER, SCRIPTS
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import headline, measure, report_of
from harl_mapush.process import say
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import ConfigError, flatten, merge, unknown
from mqe.extensions import Registry
from mqe.registry import TASKS
from mqe.tasks.episode_report import Metrics, interval_key, with_interval
from mqe.world.robots import ROBOTS

# Episodes of each seed for a policy to compare with. A failed script takes the whole time limit,
# and a team about a third of it, so that two scripts on a third of the starts take about as long.
NUM_COMPARED = 100


class Examination(NamedTuple):
    """A measurement that builds its own worlds."""

    # From a checkpoint's settings, its folder, a device and a function that reports progress.
    measure: Callable[[RunCfg, Path, torch.device, Callable[[str], None]], dict[str, Any]]
    settings: tuple[str, ...] = ()  # dotted names in ``env`` and ``task`` that it takes


EXAMINATIONS: Registry[Examination] = Registry("examination")  # named by suites


@dataclass(frozen=True)
class Player:
    """A suite with a team: the checkpoint in ``folder``, unless ``function`` names a policy."""

    suite: Suite
    over: Mapping[str, Any]  # settings of the command line, without those of the suite
    folder: Path | None
    function: str | None
    seeds: tuple[int, ...]
    num_episodes: int

    def request(self, changes: Mapping[str, Any] | None = None) -> Request:
        """Return a request for the team's episodes in the suite's worlds, with ``changes``."""
        settings = merge(merge(self.suite.worlds, changes or {}), self.over)
        return Request(
            evaluation_worlds.settings(self.folder, settings),
            seeds=self.seeds,
            num_episodes=self.num_episodes,
            folder=self.folder if self.function is None else None,
            function=self.function,
            is_watched=bool(self.suite.watchers),
        )

    def compare(self, request: Request) -> dict[str, Metrics]:
        """Return the success of the suite's other policies from a request's first initial layouts.

        The metrics are the task's headline metric, its interval and ``num_episodes``. A policy
        unable to act in these worlds gets a note.
        """
        compared: dict[str, Metrics] = {}
        if not report_of(request.cfg).headline:
            return compared
        name = headline(request.cfg)
        for policy in self._policies(request):
            try:
                metrics = measure(self._other(request, policy))
            except ConfigError as error:
                say(f"Note: {policy} is left out: {error}")
                continue
            keys = (name, interval_key(name), "num_episodes")
            compared[policy] = {key: metrics[key] for key in keys if key in metrics}
            label = f"{policy}, on the same starts"
            count = metrics["num_episodes"]
            say(f"{label:<39} {with_interval(metrics, name)}, n = {count}")
        return compared

    def _policies(self, request: Request) -> list[str]:
        """Return the names of the policies to compare with."""
        names: list[str] = []
        for policy in self.suite.policies:
            if policy == SCRIPTS:
                names += TASKS[request.cfg.task.name].policies
            elif policy != ONE_FEWER:
                names.append(policy)
            elif self._takes_fewer(request):
                names += self._fewer(request)
        return [name for name in names if name != request.function]

    def _fewer(self, request: Request) -> dict[str, dict[str, Any]]:
        """Return the settings ``env`` of the team with one robot fewer, by name.

        A mixed team plays once without each kind of robot.
        """
        env = request.cfg.env
        assert env.num_agents is not None  # config.resolve sets it
        fewer = {"num_agents": env.num_agents - 1}
        if isinstance(env.robots, str):
            return {ONE_FEWER: fewer}
        teams = {}
        for kind in dict.fromkeys(env.robots):
            robots = list(env.robots)
            robots.remove(kind)
            name = ROBOTS.find(kind, "env.robots").name
            teams[f"without {name}"] = {**fewer, "robots": robots}
        return teams

    def _takes_fewer(self, request: Request) -> bool:
        """Return whether the team can act with one robot fewer."""
        fewer = (request.cfg.env.num_agents or 0) - 1
        if request.folder is None or fewer == 0:
            return fewer > 0
        trained, _ = config.resolve(checkpoint.read_config(request.folder), {})
        return evaluation_worlds.acts_in_teams_of(trained, fewer)

    def _other(self, request: Request, policy: str) -> Request:
        """Return a request for another policy from the same first initial layouts."""
        fewer = self._fewer(request) if ONE_FEWER in self.suite.policies else {}
        if policy in fewer:
            other = replace(self, over=merge(self.over, {"env": fewer[policy]})).request()
        else:
            other = replace(request, folder=None, function=policy)
        num_episodes = min(NUM_COMPARED, request.num_episodes)
        return replace(other, num_episodes=num_episodes, is_watched=False)

    def conditions(self, only: Sequence[str] | None) -> Iterator[dict[str, Any]]:
        """Measure the team under the suite's conditions and yield a row of metrics for each.

        ``only`` names the conditions to measure (None: all). Raises ConfigError for an unknown
        name, and if a condition changes a setting of the command line.
        """
        for name in only or ():
            if name not in self.suite.conditions:
                raise ConfigError(f"--only: {unknown('condition', name, self.suite.conditions)}")
        conditions = {name: self.suite.conditions[name] for name in only or self.suite.conditions}
        flags = flatten(self.over)
        for name, changes in conditions.items():
            for key, value in flatten(changes).items():
                if key in flags and flags[key] != value:
                    raise ConfigError(
                        f"{key}={flags[key]}: condition {name!r} sets {value}; leave it out"
                    )
        requests = [self.request(changes) for changes in conditions.values()]
        metric = headline(requests[0].cfg)
        count = self.num_episodes * len(self.seeds)
        say(f"{metric}, n = {count} for each condition, 95 % intervals")
        for name, request in zip(conditions, requests, strict=True):
            metrics = measure(request)
            say(f"  {name:<33} {with_interval(metrics, metric)}")
            yield {"condition": name, "seeds": list(self.seeds), **metrics}

    def checkpoints(self, run: Path) -> Iterator[dict[str, Any]]:
        """Measure all of a run's checkpoints, then the best again on fresh seeds. Yield a row each.

        Rows follow the order of training. Luck helps the best of many checkpoints, so only fresh
        episodes measure it without bias.
        """
        request = replace(self.request(), is_watched=False)
        name = headline(request.cfg)
        folders = checkpoint.all_checkpoints(run)
        requests = [replace(request, folder=folder) for _, folder in folders]
        shares: list[float] = []
        say(f"{'env steps':>14}  {name}, n = {self.num_episodes * len(self.seeds)}")
        for (env_steps, folder), one in zip(folders, requests, strict=True):
            metrics = measure(one)
            say(f"{env_steps:>14,}  {with_interval(metrics, name)}")
            shares.append(metrics[name] or 0.0)
            yield _row(folder, env_steps, False, metrics)

        best = max(range(len(shares)), key=lambda k: (shares[k], k))
        env_steps, folder = folders[best]
        first = max(self.seeds) + 1
        fresh = tuple(range(first, first + len(self.seeds)))
        again = measure(replace(requests[best], seeds=fresh))
        seeds = " ".join(map(str, fresh))
        say(
            f"{env_steps:>14,}  {with_interval(again, name)}  the best again, on fresh seeds "
            f"({seeds})"
        )
        yield _row(folder, env_steps, True, again)


def _row(
    folder: Path, env_steps: int, is_fresh: bool, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    return {"checkpoint": folder.name, "env_steps": env_steps, "is_fresh": is_fresh, **metrics}
