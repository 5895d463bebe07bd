"""Reward terms of one scene worked out by hand, and the reference's typical magnitudes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from mqe.tasks.push import PushCfg, rewards
from mqe.tasks.push.features import Effort, Pairs, PushConstants, StepFeatures, StepMemory, gained
from mqe.tasks.push.rewards import REWARDS
from mqe.tasks.push.settings import PRESETS
from mqe.tasks.terms import Memory, Worlds
from mqe.world.geometry import quat_from_yaw
from mqe.world.objects import OBJECTS
from mqe.world.state import SceneState
from tests.support.paths import ROOT
from tests.support.pushing import weights_of
from tests.support.rounding import FEW_STEPS
from tests.support.scenes import changed, make_scene_state, team


def scene(
    robots: list, box: list, goal: list, box_yaw: float = 0.0, box_vel: tuple = (0.0, 0.0, 0.0)
) -> SceneState:
    return make_scene_state(
        tensor([robots]),
        object_pos=tensor([box]),
        object_quat=quat_from_yaw(tensor([box_yaw])),
        object_linvel=tensor([box_vel]),
        goal_pos=tensor([goal]),
    )


def features(
    state: SceneState, prev: SceneState | None = None, name: str = "cuboid"
) -> StepFeatures:
    cfg = PushCfg(object=name, weights={"shared_progress_ahead": 1.0})
    constants = PushConstants(cfg, state.num_robots)
    memory = Memory(Worlds(1, state.num_robots))
    steps = StepMemory(memory, constants, team(state.num_robots))
    return StepFeatures(state, prev or state, constants, steps)


def term(name: str, step: StepFeatures) -> list[float]:
    return REWARDS[name].function(step).flatten().tolist()


# The goal lies 2.5 m off along (3, 4) / 5. Robot 0 stands 1 m left (west) of the box, robot 1
# stands 2 m above (north).
ROBOTS = [[-1.0, 0.0, 0.28], [0.0, 2.0, 0.28]]
STATE = scene(ROBOTS, [0.0, 0.0, 0.28], [1.5, 2.0, 0.0], box_vel=(0.2, 0.0, -3.0))
PREV = scene(ROBOTS, [-0.3, -0.4, 0.28], [1.5, 2.0, 0.0])


def test_progress_and_target() -> None:
    step = features(STATE, PREV)
    assert step.state.goal_distance.item() == pytest.approx(2.5)
    assert step.prev.goal_distance.item() == pytest.approx(3.0)
    assert term("progress", step) == pytest.approx([0.5])
    assert term("target", step) == pytest.approx([100 * (2 * 0.5 - 0.01 * 2.5)])


def test_target_after_a_reset_has_no_progress() -> None:
    assert term("target", features(STATE, STATE)) == pytest.approx([-2.5])


def test_approach_is_measured_in_space() -> None:
    assert term("approach", features(STATE)) == pytest.approx([-(1.5**2), -(2.5**2)])
    higher = scene([[-3.0, 0.0, 4.0]], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    assert term("approach", features(higher)) == pytest.approx([-(5.5**2)])


def test_collision_sums_over_pairs_in_space() -> None:
    state = scene(
        [[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 0.9, 0.0]], [9.0, 0.0, 0.0], [20.0, 0.0, 0.0]
    )
    near = 1 / (0.02 + 0.3)
    far = 1 / (0.02 + 5 / 3)
    other = 1 / (0.02 + math.sqrt(9 + 0.81 + 16) / 3)
    assert term("collision", features(state)) == pytest.approx(
        [near + far, far + other, near + other]
    )
    assert term(
        "collision", features(scene([[0.0, 0.0, 0.0]], [9.0, 0.0, 0.0], [20.0, 0.0, 0.0]))
    ) == [0.0]


def test_push_is_planar_and_looks_at_speed_only() -> None:
    assert term("push", features(STATE)) == [1.0]
    still = changed(STATE, object_linvel=tensor([[0.06, -0.06, 5.0]]))
    assert term("push", features(still)) == [0.0]


def test_ocb_of_a_straight_box() -> None:
    # West face: push along (1, 0), cosine 0.6. North face: along (0, -1), cosine -0.8.
    assert term("ocb", features(STATE)) == pytest.approx([0.6, -0.8])


def test_ocb_of_a_turned_box() -> None:
    # The box turned by 30 degrees; robot 0 stands before the face whose way in is (cos 30, sin 30).
    turned = scene(
        [[-2 * math.cos(math.pi / 6), -1.0, 0.0]],
        [0.0, 0.0, 0.0],
        [0.0, 2.0, 0.0],
        box_yaw=math.pi / 6,
    )
    assert term("ocb", features(turned)) == pytest.approx([0.5])


def test_expanded_ocb() -> None:
    # No yaw to make up for: only the odd 0.01 m shortens the direction. |(1.51, 2.01)| = 2.514.
    length = math.hypot(1.51, 2.01)
    assert term("ocb_expanded", features(STATE)) == pytest.approx([1.5 / length, -2.0 / length])
    # A box turned by 90 degrees lacks -90: the way to the goal (1, 0) is turned by +45 degrees.
    turned = scene([[0.0, -1.0, 0.0]], [0.0, 0.0, 0.0], [2.0, 0.0, 0.0], box_yaw=math.pi / 2)
    expected = math.sqrt(0.5) * 2.0 / math.hypot(2.01, 0.01)
    assert term("ocb_expanded", features(turned)) == pytest.approx([expected])


def test_remoteness_counts_from_reach() -> None:
    # Robot 0 is 0.4 m from the outline, robot 1 1.4 m.
    assert term("remoteness", features(STATE)) == pytest.approx([0.05, 1.05])


def test_useful_impulse_is_what_pushes_towards_the_goal() -> None:
    state = changed(STATE, contact_force=tensor([[[10.0, 20.0, 99.0], [0.0, -5.0, 0.0]]]))
    assert term("useful_impulse", features(state)) == pytest.approx([22 * 0.02, -4 * 0.02])


def test_impulses_ahead_and_astray_go_by_the_nose() -> None:
    # Noses point along x. Robot 0 pushes along the goal's direction, 53 degrees off its nose;
    # robot 1 pushes along y, 90 degrees off.
    force = tensor([[[3.0, 4.0, 99.0], [0.0, 5.0, 0.0]]])
    step = features(changed(STATE, contact_force=force))
    assert term("impulse_ahead", step) == pytest.approx([5.0 * 0.6 * 0.02, 0.0])
    assert term("impulse_astray", step) == pytest.approx([0.0, 5.0 * 0.02])
    # The pushes add up to (3, 9), of 5 + 5 N.
    assert term("impulse_in_concert", step) == pytest.approx([5.0 * 0.6 * 0.90 * 0.02, 0.0])
    nothing = features(changed(STATE, contact_force=torch.zeros(1, 2, 3)))
    assert term("impulse_astray", nothing) == [0.0, 0.0]
    assert term("impulse_in_concert", nothing) == [0.0, 0.0]


def test_crowding_and_time() -> None:
    close = scene(
        [[0.0, 0.0, 0.0], [0.3, 0.0, 0.0], [0.0, 0.48, 0.0]], [9.0, 0.0, 0.0], [20.0, 0.0, 0.0]
    )
    gap = 1 - math.hypot(0.3, 0.48) / 0.6
    assert term("crowding", features(close)) == pytest.approx(
        [0.5 + 0.2 + 0.0, 0.5 + gap, 0.2 + gap], abs=FEW_STEPS
    )
    assert term("time", features(close)) == [1.0]


def test_contact_counts_the_robots_that_each_robot_touches() -> None:
    apart = scene(
        [[0.0, 0.0, 0.3], [0.3, 0.0, 0.3], [0.6, 0.0, 0.3]], [9.0, 0.0, 0.0], [20.0, 0.0, 0.0]
    )
    assert term("contact", features(apart)) == [0.0, 0.0, 0.0]
    # Pairs 0-1 and 1-2: the middle robot touches two, however hard.
    force = tensor([[[0.0, 0.0, -0.1], [0.0, 0.0, 0.0], [300.0, 0.0, 0.0]]])
    assert term("contact", features(changed(apart, robot_contact_force=force))) == [1.0, 2.0, 1.0]
    assert weights_of("default", "tblock", {})["contact"] == -0.02
    alone = scene([[0.0, 0.0, 0.3]], [9.0, 0.0, 0.0], [20.0, 0.0, 0.0])
    assert term("contact", features(alone)) == [0.0]


def test_typical_magnitudes_of_the_reference() -> None:
    # Cuboid at the repository's scales: robots at 1.25 m, 1.6 m apart, goal 2.25 m off.
    weights = weights_of("repo", "cuboid", {})
    distance = tensor([2.25])
    assert weights["target"] * rewards.target(distance, distance).item() == pytest.approx(
        -0.0073, abs=5e-5
    )
    assert weights["target"] * rewards.target(distance + 0.01, distance).item() == pytest.approx(
        0.0065 - 0.0073, abs=1e-4
    )
    approach = weights["approach"] * rewards.approach(tensor([[[1.25, 0.0, 0.0]]])).item()
    assert approach == pytest.approx(-0.0023, abs=5e-5)
    for gap, expected in ((1.6, -0.0045), (1.0, -0.0071), (0.5, -0.0134)):
        assert weights["collision"] * rewards.proximity(tensor([[gap]])).item() == pytest.approx(
            expected, abs=1e-4
        )


def test_pairs() -> None:
    pairs = Pairs(4)
    assert pairs.robots.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    values = tensor([[1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
    assert pairs.sum(values).tolist() == [[7.0, 25.0, 42.0, 52.0]]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", OBJECTS)
def test_presets_name_terms_that_exist(preset: str, name: str) -> None:
    weights = weights_of(preset, name, {})
    assert set(weights) <= set(REWARDS)
    assert weights["reach"] > 0 > weights["exception"]


def test_every_weight_is_a_term() -> None:
    assert all(term.help for term in REWARDS.values())


def test_published_scales_are_the_repositorys_times_20000() -> None:
    published, repo = (weights_of(preset, "cuboid", {}) for preset in ("published", "repo"))
    published["ocb"] = published.pop("ocb_expanded")
    assert published == pytest.approx({name: 20_000 * weight for name, weight in repo.items()})


@pytest.mark.parametrize(
    ("name", "target", "collision", "ocb"),
    [
        ("cuboid", 65.0, -50.0, 80.0),
        ("tblock", 60.0, -40.0, 80.0),
        ("cylinder", 50.0, -30.0, 120.0),
    ],
)
def test_published_scales(name: str, target: float, collision: float, ocb: float) -> None:
    """As the reference's runs recorded them."""
    scales = {"target": target, "collision": collision, "ocb_expanded": ocb}
    shared = {"approach": 15.0, "push": 30.0, "reach": 200_000.0, "exception": -100_000.0}
    assert weights_of("published", name, {}) == shared | scales


def test_weights_can_be_replaced_and_switched_off() -> None:
    weights = weights_of("repo", "tblock", {"ocb": 0.0, "progress": 3.0, "reach": 1.0})
    assert "ocb" not in weights
    assert (weights["progress"], weights["reach"], weights["target"]) == (3.0, 1.0, 0.00325)


def test_nothing_depends_on_where_the_arena_is() -> None:
    def shift(vectors: Tensor) -> Tensor:
        return vectors + tensor([3.0, -2.0, 0.0])

    moved = changed(
        STATE,
        robot_pos=shift(STATE.robot_pos),
        object_pos=shift(STATE.object_pos),
        goal_pos=shift(STATE.goal_pos),
    )
    original = features(STATE)
    there = features(moved)
    for name, reward in REWARDS.items():
        if name in ("reach", "exception"):
            continue
        function = reward.function
        torch.testing.assert_close(
            function(original), function(there), msg=name, atol=1e-4, rtol=1e-4
        )


def test_efforts_are_pushes_towards_the_goal_of_about_the_last_second() -> None:
    effort = Effort(torch.zeros(1, 3))
    push = tensor([[10.0, -10.0, 5.0]])
    effort.add(push)
    assert effort.values[0].tolist() == pytest.approx([0.2, 0.0, 0.1])
    for _ in range(49):
        effort.add(push)
    assert effort.values[0, 0].item() == pytest.approx(10.0 * (1.0 - 0.98**50), rel=1e-4)
    assert effort.equality().tolist() == [0.0]  # one of the three does nothing


def test_equality_is_one_where_all_push_alike_and_the_least_share_in_between() -> None:
    effort = Effort(tensor([[20.0, 20.0], [30.0, 10.0], [0.1, 0.1]]))
    # A third team that hardly touches the object has 0.2 N of the 1 N that shares begin with.
    assert effort.equality().tolist() == pytest.approx([1.0, 0.5, 0.2])


def test_nobody_waits_for_the_push_of_a_robot_that_is_out() -> None:
    effort = Effort(tensor([[20.0, 20.0, 0.0], [30.0, 10.0, 9.0], [5.0, 5.0, 5.0]]))
    is_out = tensor([[False, False, True]] * 2 + [[True] * 3])
    assert effort.equality(is_out).tolist() == pytest.approx([1.0, 0.5, 0.0])


def test_only_new_ground_is_gained() -> None:
    nearest = tensor([math.inf])
    ground = [
        gained(nearest, tensor([before]), tensor([after])).item()
        for before, after in ((3.0, 2.9), (2.9, 3.2), (3.2, 2.9), (2.9, 2.7))
    ]
    assert ground == pytest.approx([0.1, 0.0, 0.0, 0.2], abs=FEW_STEPS)


def make_steps() -> tuple[Memory, StepMemory]:
    """Return a memory of two worlds with two robots, and what a push task keeps in it."""
    constants = PushConstants(PushCfg(weights={"shared_progress_ahead": 1.0}), 2)
    memory = Memory(Worlds(2, 2))
    return memory, StepMemory(memory, constants, team(2))


def test_efforts_and_ground_begin_anew_and_resume_where_they_were_saved() -> None:
    memory, first = make_steps()
    other, second = make_steps()
    assert first.effort_ahead is not None
    first.effort.add(tensor([[5.0, 3.0], [1.0, 9.0]]))
    first.effort_ahead.add(tensor([[2.0, 3.0], [1.0, 4.0]]))
    gained(first.nearest, tensor([2.0, 3.0]), tensor([1.9, 3.1]))
    other.load_state_dict(memory.state_dict())
    assert second.effort_ahead is not None
    assert torch.equal(first.effort.values, second.effort.values)
    assert torch.equal(first.effort_ahead.values, second.effort_ahead.values)
    assert second.nearest.tolist() == pytest.approx([1.9, 3.0])
    memory.reset(tensor([True, True]))
    assert not first.effort.values.any()
    assert not first.effort_ahead.values.any()
    assert first.nearest.isinf().all()


def test_shared_progress_counts_a_control_step_once() -> None:
    step = features(STATE, PREV)
    assert torch.equal(step.shared_progress, step.shared_progress)
    assert term("shared_progress", step) == [0.0]  # nobody pushes


@pytest.mark.parametrize(("yaw", "is_ahead"), [(0.0, True), (math.pi, False)])
def test_a_push_with_the_tail_is_shared_but_not_ahead(yaw: float, is_ahead: bool) -> None:
    robots = [[-0.8, 0.3, 0.28], [-0.8, -0.3, 0.28]]
    state, before = (scene(robots, [x, 0.0, 0.28], [3.0, 0.0, 0.0]) for x in (0.1, 0.0))
    state.robot_quat[:] = quat_from_yaw(tensor([yaw]))
    state.contact_force[..., 0] = 50.0  # towards the goal
    step = features(state, before)
    shared = step.shared_progress.item()
    assert shared > 0.0
    ahead = shared if is_ahead else 0.0
    assert step.shared_progress_ahead.item() == pytest.approx(ahead, abs=1e-6)


def test_a_robot_near_the_object_faces_its_nearest_edge_or_pays() -> None:
    robots = [[-0.9, 0.0, 0.28], [0.0, 0.9, 0.28], [0.9, 0.0, 0.28], [1.4, 0.0, 0.28]]
    step = features(scene(robots, [0.0, 0.0, 0.28], [3.0, 0.0, 0.0]))
    # All look east. The last one is further than 0.7 m from the edge.
    assert term("turned_away", step) == pytest.approx([0.0, 0.5, 1.0, 0.0], abs=1e-5)


def test_the_default_rewards_pay_for_sharing() -> None:
    for name in OBJECTS:
        assert weights_of("default", name, {})["shared_progress"] > 0.0


def test_the_documents_say_what_the_default_weights_are() -> None:
    text = " ".join((ROOT / "docs/background/push_task.md").read_text().split())
    weights = weights_of("default", "cuboid", {})
    assert weights["progress"] == weights["shared_progress"] == 10.0
    for name in weights.keys() - {"progress", "shared_progress"}:
        assert f"`{name}` {weights[name]:g}" in text
