"""The report of push episodes: the calculator's metrics, the progress line, and a film's words for
an ending.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from mqe.tasks.episode_report import (
    TEAM_OUTCOMES,
    Metrics,
    Report,
    mean,
    rate,
    wilson_interval,
    with_interval,
)
from mqe.tasks.push.metrics import DEFAULT_METRICS, METRICS
from mqe.tasks.push.terminations import TERMINATIONS


def summarize(episodes: Mapping[str, Tensor], time_limit_s: float, step_dt: float) -> Metrics:
    """Turn the metrics (N,) of N episodes into the calculator's, beside the rates of ``REPORT``.

    A robot may collapse, or robots be tangled, with any end of the episode. Metrics without any
    episode to count are None. The keys:

    - ``num_episodes``, ``num_successes``, ``num_broken``
    - ``timeout_rate``
    - ``lost_at_spawn_rate``: the episode ended by a collision at its first control step
    - ``success_rate_spawned``, ``success_spawned_ci95``, ``num_spawned``: over the other episodes
    - ``time_given_success_s``
    - ``finished_time_s``: a failure counts as the time limit
    - ``collaboration_degree``, ``collaboration_degree_reference``: means over successes
    - per agent, over all episodes: its share of the contact impulse on the object. The impulse sums
      the force's magnitude at every control step's end, in any direction. The share of the useful
      impulse is another metric.
    - ``lesser_contact_share``: the mean over episodes of the least agent's share

    Every rate ``NAME_rate`` over all episodes has its 95 % Wilson interval ``NAME_ci95`` beside it.

    Every episode is a success, a collision, a fall, a collapse (unless ``task.collapse_ends`` is
    off), a time-out or broken. In rare cases two of the first four happen in the same control step.
    Then both count.
    """
    is_broken = episodes["broken"].cpu()
    columns = {name: values.cpu().double() for name, values in episodes.items() if name != "broken"}
    is_success = (columns["success"] > 0.5) & ~is_broken
    is_collision = (columns["collision"] > 0.5) & ~is_broken
    is_fall = (columns["fall"] > 0.5) & ~is_broken
    time = columns["episode_time_s"]
    # Ends by a collapse, and by terminations that a user added.
    ended_early = time < time_limit_s - 0.5 * step_dt
    is_cut_short = is_success | is_collision | is_fall | ended_early | is_broken
    num_episodes = len(time)
    num_successes = int(is_success.sum())
    is_lost_at_spawn = is_collision & (time < 1.5 * step_dt)
    num_spawned = int((~is_lost_at_spawn).sum())
    num_successes_spawned = int((is_success & ~is_lost_at_spawn).sum())
    metrics: Metrics = {
        "num_episodes": num_episodes,
        "num_successes": num_successes,
        **rate("lost_at_spawn", is_lost_at_spawn),
        "num_spawned": num_spawned,
        "success_rate_spawned": num_successes_spawned / num_spawned if num_spawned else None,
        "success_spawned_ci95": list(wilson_interval(num_successes_spawned, num_spawned))
        if num_spawned
        else None,
        "time_given_success_s": mean(time[is_success]),
        "finished_time_s": mean(torch.where(is_success, time, time_limit_s)),
        **rate("timeout", ~is_cut_short),
        "num_broken": int(is_broken.sum()),
        "collaboration_degree": mean(columns["collaboration_degree"][is_success]),
        "collaboration_degree_reference": mean(
            columns["collaboration_degree_reference"][is_success]
        ),
    }
    shares = [values for name, values in columns.items() if name.startswith("contact_share_agent")]
    metrics["lesser_contact_share"] = mean(torch.stack(shares).amin(dim=0)[~is_broken])
    averaged = [
        name
        for name in columns
        if name.startswith("contact_share_agent") or name in further_metrics(columns)
    ]
    return metrics | {name: mean(columns[name][~is_broken]) for name in averaged}


def further_metrics(names: Iterable[str]) -> list[str]:
    """Return the user's own metrics among ``names``, and counts of ends by
    ``task.more_terminations``.
    """
    further = {*METRICS, *TERMINATIONS}.difference(DEFAULT_METRICS)
    return [name for name in names if name.partition("_agent")[0] in further]


def describe(metrics: Metrics) -> str:
    """Format the calculator's metrics for a person, one a line."""

    def formatted(name: str, unit: str = "") -> str:
        value = metrics[name]
        return "-" if value is None else f"{value:.3f}{unit}"

    event = partial(with_interval, metrics)
    spawned = event("success_rate_spawned")
    rows = [
        ("success rate", f"{event('success_rate')}, 95 % interval, n = {metrics['num_episodes']}"),
        (
            "time of the successes",
            f"{formatted('time_given_success_s', ' s')}, n = {metrics['num_successes']}",
        ),
        ("finished time, failures as the limit", formatted("finished_time_s", " s")),
        ("collisions", event("collision_rate")),
        ("collisions at spawn", event("lost_at_spawn_rate")),
        ("success rate, lost at spawn left out", f"{spawned}, n = {metrics['num_spawned']}"),
        ("falls", event("fall_rate")),
        ("time-outs", event("timeout_rate")),
        ("collapses", event("collapse_rate")),
        ("tangles", event("tangle_rate")),
        ("collaboration degree", formatted("collaboration_degree")),
        ("collaboration degree, reference's", formatted("collaboration_degree_reference")),
    ]
    agents = [
        name.removeprefix("contact_share_") for name in metrics if name.startswith("contact_share_")
    ]
    rows += [
        (agent, f"{formatted(f'contact_share_{agent}')} of the contact impulse") for agent in agents
    ]
    rows.append(("the least contact share, mean", formatted("lesser_contact_share")))
    if metrics["num_broken"]:
        rows.append(("broken simulations, no successes", str(metrics["num_broken"])))
    return "".join(f"{label:<40}{value}\n" for label, value in rows)


REPORT = Report(
    rates=("success", "collision", "fall", "collapse", "tangle"),
    headline=(("Success", "success_rate"), ("Collision", "collision_rate")),
    outcomes=TEAM_OUTCOMES,
    summarize=summarize,
    describe=describe,
)
