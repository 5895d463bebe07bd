"""Push forces of a team's robots over an episode: ``push_forces.py TEAM [TEAM ...] [--suite NAME]
[--figure FILE] [--film FILE]``.

The figure has a row for each team: each robot's force on the object along the way to the goal, at
every physics step (200 Hz), with one second enlarged. The film shows the first team's episode at
quarter speed above its forces, with a line at the present moment.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush.config import load_suite
from harl_mapush.evaluation.policies import load_policy
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import merge
from mqe.env.observer import Observer, PhysicsStep
from mqe.registry import make_env
from mqe.viewer.video import record
from mqe.world.scene import PHYSICS_DT
from mqe.world.state import SceneState

SPEED = 0.25  # of the film
PLOT_HEIGHT = 220  # [pixels] below the film
SIZE = (880, 440)  # [pixels] of the film
CLOSE = 1.0  # [s] that are drawn larger
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red")


class ForceTrace(Observer):
    """Records each robot's useful force in the first world, up to its episode's end."""

    needs_physics_steps = True

    def __init__(self) -> None:
        self.forces: list[list[float]] = []  # [N] of each physics step and robot
        self.is_over = False

    def on_physics_step(self, step: PhysicsStep) -> None:
        """Keep the forces along the direction from the object to the goal."""
        if not self.is_over:
            state = step.state
            force = state.contact_force[0, :, :2]
            self.forces.append((force @ state.goal_direction[0]).tolist())

    def on_control_step(self, state: SceneState, live: Tensor) -> None:
        """Stop at the first invalid control step."""
        self.is_over |= not bool(live[0])


@dataclass(frozen=True)
class Push:
    """The forces (T, A) [N] of a team's episode, and its film."""

    team: str
    forces: NDArray[np.float64]
    film: Path

    def busiest(self) -> int:
        """Return the first physics step of the second with the team's largest push."""
        pushed = np.concatenate(([0.0], np.cumsum(np.abs(self.forces).sum(axis=1))))
        length = round(CLOSE / PHYSICS_DT)
        return int(np.argmax(pushed[length:] - pushed[:-length]))


def play(team: str, suite: str, film: Path, mass: str | None) -> Push:
    """Play a team's first episode twice, the same one: for its forces and for its film.

    The object has ``mass``, or that of the suite.
    """
    folder = checkpoint.resolve(team)
    over = merge(load_suite(suite).worlds, {"env": {"num_envs": 1}, "sim": {"device": "cpu"}})
    if mass is not None:
        over["task"]["object_mass"] = mass
    cfg = evaluation_worlds.settings(folder, over, num_envs=1, with_suite=True)
    trace = ForceTrace()

    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    policy = load_policy(folder, cfg, env)
    with env.observed_by(trace):
        obs = env.reset()[0]
        while not trace.is_over:
            obs = env.step(policy(obs)).obs
    env.close()

    env = make_env(cfg.env, cfg.sim, cfg.task, cfg.runner.seed)
    policy = load_policy(folder, cfg, env)
    record(env, policy, film, episodes=1, size=SIZE, speed=SPEED, title=team)
    env.close()
    return Push(team, np.array(trace.forces), film)


def draw(axes: Axes, push: Push, begin: int, end: int) -> None:
    """Draw the forces between two physics steps."""
    times = PHYSICS_DT * np.arange(begin, end)
    for robot, force in enumerate(push.forces[begin:end].T):
        axes.plot(times, force, color=COLOURS[robot], linewidth=0.8, label=f"robot {robot}")
    axes.axhline(0.0, color="grey", linewidth=0.5)
    axes.set_xlim(times[0], times[-1])
    axes.set_xlabel("time [s]")


def figure(pushes: Sequence[Push]) -> Figure:
    """Draw a row for each team: the whole episode, and its busiest second."""
    chart = Figure(figsize=(9.0, 2.4 * len(pushes)), layout="constrained")
    rows = chart.subplots(len(pushes), 2, squeeze=False, width_ratios=(2, 1))
    for (whole, close), push in zip(rows, pushes, strict=True):
        begin = push.busiest()
        draw(whole, push, 0, len(push.forces))
        draw(close, push, begin, begin + round(CLOSE / PHYSICS_DT))
        whole.set_ylabel("force to the goal [N]")
        whole.set_title(push.team, fontsize=10)
        close.set_title("one second", fontsize=10)
        whole.legend(fontsize=8)
    return chart


def film_with_forces(push: Push, path: Path) -> None:
    """Write the film of an episode above its forces."""
    reader = imageio_ffmpeg.read_frames(str(push.film))
    meta = next(reader)
    assert isinstance(meta, dict)
    width, height = meta["size"]
    plot = Figure(figsize=(width / 100, PLOT_HEIGHT / 100), dpi=100, layout="constrained")
    axes = plot.subplots()
    draw(axes, push, 0, len(push.forces))
    axes.set_ylabel("to the goal [N]")
    axes.legend(fontsize=8, loc="upper left")
    canvas = FigureCanvasAgg(plot)
    canvas.draw()
    below = np.asarray(canvas.buffer_rgba())[..., :3]
    ends = axes.transData.transform([(0.0, 0.0), (PHYSICS_DT * len(push.forces), 0.0)])[:, 0]

    def frames() -> Iterator[bytes]:
        for k, pixels in enumerate(reader):
            above = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
            share = min(SPEED * k / meta["fps"] / (PHYSICS_DT * len(push.forces)), 1.0)
            column = round(ends[0] + share * (ends[1] - ends[0]))
            marked = below.copy()
            marked[:, min(column, width - 1)] = (220, 0, 0)
            yield np.concatenate((above, marked)).tobytes()

    size = (width, height + PLOT_HEIGHT)
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=meta["fps"], macro_block_size=2)
    writer.send(None)
    for frame in frames():
        writer.send(frame)
    writer.close()


def main() -> None:
    """Write the requested files, and print the highest and the mean forces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teams", nargs="+", metavar="TEAM")
    parser.add_argument("--suite", default="team2")
    parser.add_argument("--object_mass", help="in place of the suite's, such as '70 N'")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--film", type=Path, help="film of the first team, an .mp4")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        films = [Path(folder) / f"{k}.mp4" for k in range(len(arguments.teams))]
        recorded = [
            play(team, arguments.suite, film, arguments.object_mass)
            for team, film in zip(arguments.teams, films, strict=True)
        ]
        for push in recorded:
            mean = push.forces.mean(axis=0).round(1).tolist()
            seconds = PHYSICS_DT * len(push.forces)
            sys.stdout.write(f"{push.team}: {seconds:.1f} s, mean force {mean} N\n")
        if arguments.figure is not None:
            figure(recorded).savefig(arguments.figure, dpi=80)
        if arguments.film is not None:
            film_with_forces(recorded[0], arguments.film)


if __name__ == "__main__":
    main()
