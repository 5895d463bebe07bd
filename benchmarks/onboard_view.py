"""Pictures from above of one robot's sight: field of view, hidden ground, detections and memory.

``python benchmarks/onboard_view.py --figure docs/onboard_view.webp`` lets a script with exact
observations move the robots of a suite, and draws a moment for sensors of 90 and of 360 degrees.
``--policy RUN --figure film.webp`` films a trained team, one picture beside the other for each
robot.
"""

from __future__ import annotations

import argparse
import io
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from PIL import Image
from torch import Tensor

from harl_mapush import config
from harl_mapush.config.suites import load_suite
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.policy import load_team
from mapush.extensions.pivoting.exact_observations import ExactObservations
from mqe.config import merge
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import load_extensions
from mqe.registry import TASKS, SimCfg, make_env
from mqe.world.geometry import axes_along, in_frame

CELL = 0.025  # [m] of the ground's grid
REACH = 2.6  # [m] from the robot to the picture's edge
INTERVAL = 0.6  # [s] between pictures of a film
# Corners of a rectangle, then a mark at its nose
CORNERS = torch.tensor([[1, 1], [1, -1], [-1, -1], [-1, 1], [1, 1], [0.3, 0], [1, -1]])
ANGLES = torch.linspace(0.0, 6.28, 33)
CIRCLE = torch.stack((ANGLES.cos(), ANGLES.sin()), dim=-1)
SEEN = "#fff3bf"
UNSEEN = "#d0d4da"
KNOWN = "#c92a2a"


def moment(suite: str, num_agents: int, seed: int, seconds: float) -> MultiAgentEnv:
    """Return one world of a suite after ``seconds`` of a script with exact observations."""
    over = {"env": {"num_envs": 1, "num_agents": num_agents}, "task": {"decision_period": 5}}
    cfg = config.resolve({}, merge(dict(load_suite(suite).worlds), over))[0]
    env = make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, seed)
    exact = ExactObservations(env.task)
    team = TASKS["go1push_mid"].policies["scripted_team"](env)
    _, state = env.reset()
    for _ in range(round(seconds / (env.decision_period * env.step_dt))):
        state = env.step(team(exact(state.unsqueeze(1)))).state
    return env


def film(arguments: argparse.Namespace) -> None:
    """Save a film of a policy's episode, at 2.5 times its speed."""
    folder = checkpoint.resolve(arguments.policy)
    suite = load_suite(arguments.suite).worlds
    over = merge(dict(suite), {"task": {"object": arguments.object}})
    cfg = evaluation_worlds.settings(folder, over, num_envs=1)
    env = make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, arguments.seed)
    team = load_team(folder, env)
    obs, _ = env.reset()
    period = env.decision_period * env.step_dt
    pictures = []
    for decision in range(round(arguments.seconds / period)):
        if decision % round(INTERVAL / period) == 0:
            figure = Figure(figsize=(3.2 * env.num_agents, 3.5), layout="constrained")
            FigureCanvasAgg(figure)
            row = figure.subplots(1, env.num_agents, squeeze=False)[0]
            for robot, axes in enumerate(row):
                draw(axes, env, robot)
                axes.set(xlabel="", ylabel="", xticks=[], yticks=[])
                axes.set_title(f"robot {robot}, {decision * period:.1f} s")
            picture = io.BytesIO()
            figure.savefig(picture, dpi=66, format="png")
            pictures.append(Image.open(picture).convert("RGB"))
        step = env.step(team(obs))
        if bool(step.terminated.any() | step.truncated.any()):
            break
        obs = step.obs
    first, *others = pictures
    first.save(
        arguments.figure,
        save_all=True,
        append_images=others,
        duration=round(400 * INTERVAL),
        loop=0,
        quality=12,
    )


def draw(axes: Axes, env: MultiAgentEnv, robot: int) -> None:
    """Draw what ``robot`` sees and remembers."""
    senses: Any = env.task._senses  # pyright: ignore[reportAttributeAccessIssue]
    constants = senses._constants
    views = senses._views
    state = env.state
    num_agents = env.num_agents
    places = torch.cat((state.body_pos[..., :2], state.frame[..., 0, :]), dim=-1)
    poses = places.unsqueeze(1).expand(-1, num_agents, -1, -1)
    sensor = senses._sensor(places[:, :num_agents])
    middle = places[0, robot, :2]

    # The ground in sight
    line = torch.arange(-REACH, REACH, CELL)
    grid = middle + torch.cartesian_prod(line, line)
    ground = grid.expand(1, num_agents, -1, -1)
    thing = poses[:, :, -1:]
    frames = axes_along(thing[..., 2:])
    starts = in_frame(sensor.origin.unsqueeze(2) - thing[..., :2], frames).expand_as(ground)
    ends = in_frame(ground - thing[..., :2], frames)
    is_hidden = constants.footprint.is_crossed(starts.flatten(1, 2), ends.flatten(1, 2))
    is_hidden = is_hidden.view(1, num_agents, -1)
    crossed = views.trunks.are_crossed(sensor.origin, ground, poses[:, :, :-1])
    crossed[..., torch.arange(num_agents) == robot] = False
    is_seen = sensor.covers(ground) & ~is_hidden & ~crossed.any(dim=-1)
    image = is_seen[0, robot].view(len(line), len(line)).T.float()
    extent = [float(middle[axis]) + side * REACH for axis in (0, 1) for side in (-1, 1)]
    axes.contourf(
        torch.linspace(*extent[:2], len(line)),
        torch.linspace(*extent[2:], len(line)),
        image,
        levels=[-0.5, 0.5, 1.5],
        colors=[UNSEEN, SEEN],
    )

    # True bodies: trunks, and outline points in sight or hidden
    for i in range(num_agents):
        _trunk(axes, views, places[0, i], i, color="#1864ab" if i == robot else "#495057")
    for geom in constants.object.geoms:
        shape = CORNERS[:4] if geom.type == "box" else CIRCLE
        corners = shape * torch.tensor(geom.half_extents) + torch.tensor(geom.pos[:2])
        axes.add_patch(Polygon(_in_world(corners, places[0, -1]), fill=False, edgecolor="#495057"))
    outline = _in_world(constants.footprint.points_of(1)[0], places[0, -1])
    visible, _ = views(sensor, poses)
    for is_visible, face in ((True, "#2b8a3e"), (False, "none")):
        chosen = outline[visible[0, robot] == is_visible]
        axes.plot(*chosen.T, "o", markersize=4, color="#2b8a3e", markerfacecolor=face)

    # The robot's memory, in its odometry's frame
    memory = senses._recollection
    age = (1.0 - memory.freshness[0, robot]) * senses._cfg.memory_time
    for entity, (pose, seconds) in enumerate(zip(memory.entities[0, robot], age, strict=True)):
        if pose[4] <= 0.0:
            continue
        axes.plot(*pose[:2], "x", color=KNOWN)
        label = f"{float(seconds):.1f} s"
        place = {"xytext": (6, 6), "textcoords": "offset points", "clip_on": True}
        axes.annotate(label, pose[:2].tolist(), **place, color=KNOWN).set_in_layout(False)
        if entity:
            other = int(constants.observed[robot, entity])
            _trunk(axes, views, pose, other, color=KNOWN, linestyle="--")
    axes.plot(*state.goal_pos[0, :2], "*", color="#e67700", markersize=12)
    axes.set(aspect="equal", xlim=extent[:2], ylim=extent[2:], xlabel="x [m]", ylabel="y [m]")


def _trunk(axes: Axes, views: Any, pose: Tensor, robot: int, **style: Any) -> None:
    """Draw a trunk's rectangle, with a line to its nose."""
    corners = CORNERS * views.trunks.half_size[robot] + views.trunks.center[robot]
    axes.plot(*_in_world(corners, pose).T, **style)


def _in_world(points: Tensor, pose: Tensor) -> Tensor:
    """Return points (P, 2) in a body's frame in the world. Pose: x, y, the heading's vector."""
    ahead = pose[2:4]
    left = torch.stack((-ahead[1], ahead[0]))
    return pose[:2] + points[:, :1] * ahead + points[:, 1:] * left


def main() -> None:
    """Save the figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--figure", required=True)
    parser.add_argument("--num_agents", type=int, default=3)
    parser.add_argument("--robot", type=int, default=0)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--policy", help="team to film: a run, a checkpoint or pretrained:NAME")
    parser.add_argument("--suite", default="onboard_90", help="suite of the film")
    parser.add_argument("--object", default="cuboid", help="object of the film")
    arguments = parser.parse_args()
    load_extensions()
    torch.set_num_threads(1)
    if arguments.policy is not None:
        film(arguments)
        return
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    both = figure.subplots(1, 2)
    for axes, suite in zip(both, ("onboard_90", "onboard_360"), strict=True):
        env = moment(suite, arguments.num_agents, arguments.seed, arguments.seconds)
        draw(axes, env, arguments.robot)
        axes.set_title(suite)
        env.close()
    figure.savefig(arguments.figure, dpi=100)


if __name__ == "__main__":
    main()
