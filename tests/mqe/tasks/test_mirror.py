"""The push task's mirror image: observations, states, rewards and motion of a mirrored scene are
mirrored.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, tensor

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.algorithms.off_policy import OffPolicy
from harl_mapush.collectors.remote_env import RemoteEnvSpec
from harl_mapush.learning.off_policy.replay_buffer import Batch
from harl_mapush.learning.settings import NetworkCfg
from mqe.config import ConfigError
from mqe.sim.mujoco_batch import MujocoBatchSimulator
from mqe.tasks.push.observations import OBSERVATIONS
from mqe.tasks.push.rewards import REWARDS
from mqe.tasks.push.task import PushTask
from mqe.tasks.terms import ObservationTerm
from mqe.vec_env import Image, Symmetries, TeamImage, TeamSpec
from mqe.world.objects import OBJECTS, GeomCfg
from mqe.world.scene import build_scene
from mqe.world.state import SceneState
from tests.support.pushing import CPU, make_task, plain_env
from tests.support.scenes import make_scene_state
from tests.support.term_scenes import mirrored_joints
from tests.support.toy import ToyEnv

PLACE = tensor([1.0, -1.0, 1.0])
QUAT = tensor([1.0, -1.0, 1.0, -1.0])
TURN = tensor([-1.0, 1.0, -1.0])
SYMMETRIC = [name for name, obj in OBJECTS.items() if obj.mirror_signs is not None]
# Places [m] of two robots behind an object that they can move, by object.
STARTS = {"cuboid": -0.95, "tblock": -0.75, "cylinder": -1.85, "beam": -0.5, "tower": -0.55}


def image_of(task: PushTask) -> TeamImage:
    assert task.symmetries.mirror is not None
    return task.symmetries.mirror


def random_quats(*size: int) -> Tensor:
    return torch.nn.functional.normalize(
        torch.randn(*size, 4) * tensor([1.0, 0.2, 0.2, 1.0]), dim=-1
    )


def turned(quat: Tensor, kind: str) -> Tensor:
    """Return the orientation for an object's mirror image, with a half turn if its symmetry axis is
    y.
    """
    if OBJECTS[kind].mirror_signs == (1.0, -1.0):
        return quat
    w, x, y, z = quat.unbind(-1)
    return torch.stack((-z, y, -x, w), dim=-1)  # times (0, 0, 0, 1)


def scenes(kind: str, num_agents: int) -> tuple[SceneState, SceneState]:
    """Return 50 random worlds and their images in the plane y = 0. The task ignores legs, so they
    hang.
    """
    n = 50
    a = num_agents
    pos = torch.randn(n, a, 3)
    quat = random_quats(n, a)
    linvel = torch.randn(n, a, 3)
    angvel = torch.randn(n, a, 3)
    object_pos = torch.randn(n, 3)
    object_quat = random_quats(n)
    object_linvel = torch.randn(n, 3)
    goal = 2.0 * torch.randn(n, 3)
    forces = torch.randn(n, a + a * (a - 1) // 2, 3)

    def scene(positions: Tensor, quats: Tensor, turn: Tensor, object_quat: Tensor) -> SceneState:
        return make_scene_state(
            pos * positions,
            robot_quat=quat * quats,
            robot_linvel=linvel * positions,
            robot_angvel_b=angvel * turn,
            object_pos=object_pos * positions,
            object_quat=object_quat,
            object_linvel=object_linvel * positions,
            goal_pos=goal * positions,
            forces=(forces * positions).flatten(1),
        )

    one = torch.ones(())
    return scene(one, one, one, object_quat), scene(
        PLACE, QUAT, TURN, turned(object_quat * QUAT, kind)
    )


@pytest.mark.parametrize("state_type", ["EP", "FP"])
@pytest.mark.parametrize("kind", SYMMETRIC)
def test_agents_and_critic_see_the_mirror_image_of_a_mirrored_scene(kind, state_type):
    torch.manual_seed(0)
    more = {"more_observations": ("own_velocity", "object_velocity")}
    if state_type == "EP":
        more["more_state"] = ("object_velocity",)
    task = make_task(50, 3, object=kind, state_type=state_type, **more)
    (obs, state), (mirrored_obs, mirrored_state) = (
        task.observe(x, task.memory) for x in scenes(kind, 3)
    )
    image = image_of(task)
    assert image.state is not None
    torch.testing.assert_close(image.obs(obs), mirrored_obs, rtol=0.0, atol=2e-5)
    torch.testing.assert_close(image.state(state), mirrored_state, rtol=0.0, atol=2e-5)
    assert torch.equal(image.obs(image.obs(obs)), obs)
    assert not torch.equal(image.obs(obs), obs)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_rewards_endings_and_metrics_are_the_same_in_the_mirror(kind):
    """All rewards except ocb terms: the nearest edge of a corner is one of two."""
    torch.manual_seed(0)
    by_edge = ("ocb",)
    weights = {name: 1.0 for name in REWARDS if not name.startswith(by_edge)} | {"exception": -1.0}
    outcomes = []
    for state, prev in zip(scenes(kind, 2), scenes(kind, 2), strict=True):
        outcomes.append(make_task(50, object=kind, weights=weights).evaluate(state, prev))
    torch.testing.assert_close(outcomes[0].rewards, outcomes[1].rewards, rtol=1e-4, atol=1e-4)
    assert torch.equal(outcomes[0].terminations, outcomes[1].terminations)
    torch.testing.assert_close(outcomes[0].measures, outcomes[1].measures)


@pytest.mark.parametrize("kind", STARTS)
def test_the_simulator_does_in_the_mirror_what_it_does_in_front_of_it(kind):
    """Two robots run into the object, and the second world mirrors the first. Contacts amplify
    rounding.

    A Go1 is not quite symmetric (its trunk's centre of mass is 4 mm to the left), so the test
    symmetrises it.
    """
    task = make_task(2, object=kind, decision_period=5)
    scene = build_scene(2, OBJECTS[kind])
    for number in range(scene.model.nbody):
        if scene.model.body(number).name.endswith(("trunk", "calf")):
            scene.model.body_ipos[number, 1] = 0.0
            scene.model.body_iquat[number] = (1.0, 0.0, 0.0, 0.0)
    env = plain_env(MujocoBatchSimulator(scene.model, 2, 1), scene, task)
    env.reset()
    qpos = env.sim.data.qpos[0]
    qvel = env.sim.data.qvel[0]
    behind = STARTS[kind]
    for robot, (y, yaw) in enumerate(((0.25, 0.15), (-0.4, 0.3))):
        heading = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        qpos[19 * robot :][:7] = tensor([behind - 0.02 * robot, y, 0.28, *heading])
        qvel[18 * robot :][:18] = tensor([1.0] + [0.0] * 17)
    qpos[41:45] = tensor([1.0, 0.0, 0.0, 0.0])  # of the object
    env.sim.data.mocap_pos[1] = env.sim.data.mocap_pos[0] * PLACE
    env.sim.data.qpos[1], env.sim.data.qvel[1] = mirrored_worlds(qpos, qvel, kind)
    actions = torch.zeros(2, 2, 3)
    image = image_of(task)
    env.step(actions)
    moved = qpos[38:40].clone()
    step = env.step(actions)
    assert float((qpos[38:40] - moved).norm()) > 0.01  # the object was pushed
    assert image.state is not None
    torch.testing.assert_close(image.obs(step.obs[0]), step.obs[1], rtol=0.0, atol=1e-3)
    torch.testing.assert_close(image.state(step.state[0]), step.state[1], rtol=0.0, atol=1e-3)
    torch.testing.assert_close(step.reward[0], step.reward[1], rtol=0.0, atol=2e-3)
    env.close()


def mirrored_worlds(qpos: Tensor, qvel: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return positions and velocities of two robots and an object, reflected in the plane y = 0."""
    legs = mirrored_joints()
    places = []
    speeds = []
    for q, v in zip(qpos[:38].split(19), qvel[:36].split(18), strict=True):
        places += [q[:3] * PLACE, q[3:7] * QUAT, legs(q[7:])]
        speeds += [v[:3] * PLACE, v[3:6] * TURN, legs(v[6:])]
    places += [qpos[38:41] * PLACE, turned(qpos[41:] * QUAT, kind)]
    speeds += [qvel[36:39] * PLACE, torch.zeros(3)]
    assert not qvel[39:].any()
    return torch.cat(places), torch.cat(speeds)


def test_tasks_whose_mirror_image_is_no_change_of_signs_have_none(monkeypatch):
    assert make_task(object="tblock").symmetries.mirror is not None
    # An angle in [0, 2 pi) is more than a sign away.
    assert make_task(observation="reference").symmetries.mirror is None
    height = ObservationTerm("height", lambda step: step.state.robot_pos[..., 2:])
    monkeypatch.setitem(OBSERVATIONS, "own_height", height)
    assert make_task(more_observations=("own_height",)).symmetries.mirror is None
    monkeypatch.setitem(
        OBSERVATIONS, "own_height", dataclasses.replace(height, mirror_signs=(1.0,))
    )
    assert make_task(more_observations=("own_height",)).symmetries.mirror is not None
    monkeypatch.setitem(
        OBSERVATIONS, "own_height", dataclasses.replace(height, mirror_signs=(1.0, 1.0, 1.0))
    )
    with pytest.raises(
        ConfigError,
        match="own_height: mirror_signs has 3 signs, and the term 1",
    ):
        make_task(more_observations=("own_height",))
    hook = dataclasses.replace(
        OBJECTS["tblock"],
        geoms=(*OBJECTS["tblock"].geoms, GeomCfg("box", (0.1, 0.1, 0.5), 0.1, (0.4, 0.4, 0.0))),
    )
    monkeypatch.setitem(OBJECTS, "tblock", hook)
    assert make_task(object="tblock").symmetries.mirror is None


MIRROR = TeamImage(
    Image.of((0, 1, 2), (1.0, -1.0, -1.0), CPU),
    Image.of((1, 0), (1.0, 1.0), CPU),
    Image.of(range(5), (-1.0, 1.0, 1.0, 1.0, 1.0), CPU),
)


def team_of(name: str, spec: TeamSpec, **settings: Any) -> OffPolicy:
    entry: Any = ALGORITHMS[name]
    cfg = entry.cfg(**{"symmetries": ("mirror",), **settings})
    return entry.cls(cfg, NetworkCfg((8,)), spec)


def test_every_other_transition_of_a_batch_is_replaced_by_its_mirror_image(monkeypatch):
    spec = ToyEnv(4).spec._replace(symmetries=Symmetries(MIRROR))
    team = team_of("hasac", spec, warmup=0, batch_size=64, buffer_size=64)
    experience = team.make_experience(1, 4)
    env = ToyEnv(4)
    obs, state = env.reset()
    experience.start(obs, state)
    for _ in range(8):
        decision = team.act(obs)
        step = env.step(decision.actions)
        experience.add(0, obs, decision, step)
        obs = step.obs
    batches: list[Batch] = []
    monkeypatch.setattr(team, "learn", lambda batch: batches.append(batch) or {})
    generator = team.generator.get_state()
    team.learn(*team.draw(experience.replay, 1))
    team.generator.set_state(generator)
    plain = experience.replay.sample(64)
    (seen,) = batches
    for name in ("active", "returns", "discount"):
        assert torch.equal(getattr(seen, name), getattr(plain, name))
    for name, image in (("obs", MIRROR.obs), ("actions", MIRROR.action), ("state", MIRROR.state)):
        mirrored = [
            getattr(seen, name),
            *([getattr(seen, f"next_{name}")] if name != "actions" else []),
        ]
        usual = [
            getattr(plain, name),
            *([getattr(plain, f"next_{name}")] if name != "actions" else []),
        ]
        assert image is not None
        for ours, theirs in zip(mirrored, usual, strict=True):
            assert torch.equal(ours[1::2], theirs[1::2])
            assert torch.equal(ours[::2], image(theirs[::2]))
            assert not torch.equal(ours[::2], theirs[::2])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"symmetries": Symmetries(MIRROR._replace(state=None))},
            "this task defines no image of observations and states for mirror",
        ),
        ({"obs_sizes": (3, 2)}, "agents differ in their observations"),
    ],
)
def test_what_cannot_be_mirrored_is_refused_in_one_line(change, said):
    spec = ToyEnv(4).spec._replace(symmetries=Symmetries(MIRROR))
    with pytest.raises(
        ValueError, match=rf"symmetries must not be \[mirror\]: {said}.*; set .*=\[\]$"
    ):
        team_of("hasac", spec._replace(**change))


def test_a_symmetry_that_is_named_twice_is_refused():
    spec = ToyEnv(4).spec._replace(symmetries=Symmetries(MIRROR))
    with pytest.raises(ValueError, match=r"one is named twice; set .*=\[mirror\]$"):
        team_of("hasac", spec, symmetries=("mirror", "mirror"))


def test_a_learner_beside_collectors_has_the_mirror_and_the_period_as_well():
    settings = {
        "algorithm": {"name": "hasac"},
        "env": {"num_envs": 2},
        "task": {"decision_period": 5},
    }
    cfg, _ = config.resolve(settings, {})
    worlds = RemoteEnvSpec(cfg, CPU)
    assert worlds.spec.symmetries.mirror is not None
    assert worlds.decision_period == 5
