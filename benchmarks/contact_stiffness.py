"""How a team pushes when contacts with the object are softer or stiffer, or time steps shorter.

``python benchmarks/contact_stiffness.py pretrained:any --suite team2`` plays the same episodes in
each world and writes a JSON line for each: a quarter of the contacts' stiffness, four times as much
(the time constant of ``solref`` times 2 and times 0.5), and half of the physics step.
"""

from __future__ import annotations

import argparse
from unittest import mock

import mujoco
from maker_causes import Change, changed
from measuring import emit, say

from harl_mapush import config
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import measure
from harl_mapush.process import limit_threads
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import assignment, merge
from mqe.tasks import push
from mqe.world import scene as scenes

METRICS = (
    "success_rate",
    "time_given_success_s",
    "touch_share_of_phase",
    "simultaneous_share",
    "lesser_useful_share",
    "push_ahead_share",
)


def with_time_constant(factor: float) -> Change:
    """Return the change that multiplies the time constant of contacts with the object."""

    def change(spec: mujoco.MjSpec) -> None:
        for geom in spec.body("object").geoms:
            geom.solref[0] = factor * scenes.SOFT_SOLREF[0]

    return change


def with_half_step(spec: mujoco.MjSpec) -> None:
    """Halve the physics step."""
    spec.option.timestep = 0.5 * scenes.PHYSICS_DT


WORLDS: dict[str, list[Change]] = {
    "as it is": [],
    "a quarter of the stiffness": [with_time_constant(2.0)],
    "four times the stiffness": [with_time_constant(0.5)],
    "half the physics step": [with_half_step],
}


def main() -> None:
    """Measure the team in every world; write one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--suite", default="team2")
    parser.add_argument("--num_episodes", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    limit_threads()
    over = config.load_suite(arguments.suite)
    for text in arguments.set:
        over = merge(over, assignment(text))
    folder = checkpoint.resolve(arguments.checkpoint)
    cfg = evaluation_worlds.settings(folder, over)
    for world, changes in WORLDS.items():
        with mock.patch.object(push, "build_scene", changed(changes)):
            request = Request(cfg, (0,), arguments.num_episodes, folder, measures_pushing=True)
            found = measure(request, 0, say)
        emit(
            policy=arguments.checkpoint,
            suite=arguments.suite,
            world=world,
            num_episodes=found["num_episodes"],
            **{name: round(found[name], 4) for name in METRICS},
        )


if __name__ == "__main__":
    main()
