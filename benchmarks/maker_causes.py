"""Success of a team in a maker's world with one property of ours, and in ours with one of theirs.

``python benchmarks/maker_causes.py unitree_mujoco pretrained:team2 --suite team2`` plays Go2s and
writes a JSON line for each property. A property is changed in the compiled scene; all else stays.
``--only theirs "feet: sliding friction + physics step"`` changes these two.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import mujoco
from measuring import emit, lines_of_simulators, say

from harl_mapush import config
from harl_mapush.evaluation.episodes import Request
from harl_mapush.evaluation.measuring import headline, measure
from harl_mapush.process import limit_threads
from harl_mapush.runs import checkpoint, evaluation_worlds
from mqe.config import assignment, merge
from mqe.controllers.gait import gait_names
from mqe.tasks import push
from mqe.world import scene as scenes
from mqe.world.objects import ROBOT_FLOOR_FRICTION
from mqe.world.robots import robots_of
from mqe.world.robots.build import add_motor_inertia, make_dc_motor
from mqe.world.robots.go2 import GO2
from mqe.world.robots.robot import LEG_JOINTS
from mqe.world.scene import Scene

THEIR_FRICTION = (0.4, 0.02, 0.01)  # of the Go2's feet: sliding, torsion [m], rolling [m]
THEIR_SUBSTEPS = 3  # of their physics for one of ours

Change = Callable[[mujoco.MjSpec], None]


def _feet(spec: mujoco.MjSpec) -> list[mujoco.MjsGeom]:
    return [geom for geom in spec.geoms if geom.name.endswith("_foot")]


def _our_friction(spec: mujoco.MjSpec) -> None:
    for foot in _feet(spec):
        foot.friction[0] = ROBOT_FLOOR_FRICTION


def _no_rolling(spec: mujoco.MjSpec) -> None:
    for foot in _feet(spec):
        foot.condim = 3


def _our_step(spec: mujoco.MjSpec) -> None:
    spec.option.timestep = scenes.PHYSICS_DT
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST


def _our_impratio(spec: mujoco.MjSpec) -> None:
    spec.option.impratio = 1.0


def _our_joints(spec: mujoco.MjSpec) -> None:
    assert GO2.physical is not None
    assert GO2.physical.motors is not None
    for joint in spec.joints:
        kind = joint.name.rpartition("_")[2]
        if kind in LEG_JOINTS:
            add_motor_inertia(joint, GO2.physical.motors[LEG_JOINTS.index(kind)])


def _our_motors(spec: mujoco.MjSpec) -> None:
    assert GO2.physical is not None
    assert GO2.physical.motors is not None
    for actuator in spec.actuators:
        kind = actuator.name.rpartition("_")[2]
        make_dc_motor(actuator, GO2.physical, GO2.physical.motors[LEG_JOINTS.index(kind)])


def _our_object(spec: mujoco.MjSpec) -> None:
    for geom in spec.body("object").geoms:
        geom.solref[:2] = scenes.SOFT_SOLREF
        geom.solimp[:] = scenes.SOFT_SOLIMP
        geom.solmix = scenes.SOFT_SOLMIX


def _our_contacts(spec: mujoco.MjSpec) -> None:
    for geom in spec.geoms:
        geom.solref[:2] = scenes.CONTACT_SOLREF


def _rough_bodies(spec: mujoco.MjSpec) -> None:
    for geom in spec.geoms:
        geom.condim = max(geom.condim, 3)


def _their_friction(spec: mujoco.MjSpec) -> None:
    spec.geom("floor").friction[0] = THEIR_FRICTION[0]


def _their_feet(spec: mujoco.MjSpec) -> None:
    spec.geom("floor").priority = 0
    for foot in _feet(spec):
        foot.friction = THEIR_FRICTION
        foot.condim = 6
        foot.priority = 1


def _their_step(spec: mujoco.MjSpec) -> None:
    spec.option.timestep = scenes.PHYSICS_DT / THEIR_SUBSTEPS
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER


def _their_impratio(spec: mujoco.MjSpec) -> None:
    spec.option.impratio = 100.0


def _nothing(spec: mujoco.MjSpec) -> None:
    """Change nothing."""


IN_THEIRS: dict[str, Change] = {
    "nothing": _nothing,
    "feet: sliding friction": _our_friction,
    "feet: no torsion, no rolling friction": _no_rolling,
    "physics step": _our_step,
    "impratio": _our_impratio,
    "joints": _our_joints,
    "motors": _our_motors,
    "contacts of the object": _our_object,
    "time constant of contacts": _our_contacts,
    "friction of trunk and legs": _rough_bodies,
}
IN_OURS: dict[str, Change] = {
    "nothing": _nothing,
    "feet: sliding friction": _their_friction,
    "feet: all of their friction": _their_feet,
    "physics step": _their_step,
    "impratio": _their_impratio,
}
AND = " + "  # between names of properties that are changed together


def main() -> None:
    """Measure every change; write one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a checkout of unitree_mujoco")
    parser.add_argument("checkpoint")
    parser.add_argument("--suite")
    parser.add_argument("--num_episodes", type=int, default=100)
    parser.add_argument(
        "--only", nargs=2, metavar=("WORLD", "NAMES"), help="the world and what to change in it"
    )
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    limit_threads()
    folder = checkpoint.resolve(arguments.checkpoint)
    over = {} if arguments.suite is None else config.load_suite(arguments.suite)
    for text in ("env.robots=go2", *arguments.set):
        over = merge(over, assignment(text))
    ours = evaluation_worlds.settings(folder, over)
    assert ours.env.num_agents is not None  # config.resolve sets it
    gaits = gait_names(ours.task.gait, robots_of("go2", ours.env.num_agents, ours.env.model))
    theirs = {"env": {"model": arguments.model}, "task": {"gait": gaits}}
    worlds = {
        "theirs": (evaluation_worlds.settings(folder, merge(over, theirs)), IN_THEIRS),
        "ours": (ours, IN_OURS),
    }
    with lines_of_simulators():
        every = [(world, name) for world, (_, changes) in worlds.items() for name in changes]
        for world, names in [tuple(arguments.only)] if arguments.only else every:
            cfg, changes = worlds[world]
            chosen = [changes[name] for name in names.split(AND)]
            with mock.patch.object(push, "build_scene", changed(chosen)):
                metrics = measure(Request(cfg, (0,), arguments.num_episodes, folder), 0, say)
            rate = headline(cfg)
            interval = metrics[f"{rate.removesuffix('_rate')}_ci95"]
            emit(world=world, changed=names, **{rate: metrics[rate]}, interval=interval)


def changed(changes: Sequence[Change]) -> Callable[..., Scene]:
    """Return ``build_scene`` with changes of what it builds."""

    def build(*args: Any, **options: Any) -> Scene:
        scene = scenes.build_scene(*args, **options)
        assert scene.spec is not None
        spec = scene.spec.copy()
        for change in changes:
            change(spec)
        model = spec.compile()
        substeps = round(scenes.PHYSICS_DT / model.opt.timestep)
        return replace(scene, model=model, spec=spec, substeps=substeps)

    return build


if __name__ == "__main__":
    main()
