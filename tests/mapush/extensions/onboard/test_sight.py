"""What a sensor sees in scenes made by hand: field of view, range, occlusion."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, tensor

from mapush.extensions.onboard.sight import Sensor, Trunks, Views
from mqe.world.objects import OBJECTS, Footprint
from mqe.world.robots import ROBOTS, Robots
from tests.support.scenes import team

OBSERVED = {2: [[2, 1], [2, 0]], 3: [[3, 2, 1], [3, 0, 2], [3, 1, 0]]}


def poses_of(*bodies: tuple[float, float, float]) -> Tensor:
    """Return every robot's view (1, A, B, 4) of bodies at x, y [m] with a yaw [rad]."""
    rows = [[x, y, math.cos(yaw), math.sin(yaw)] for x, y, yaw in bodies]
    return tensor(rows).expand(1, len(rows) - 1, -1, -1)


def look(
    *bodies: tuple[float, float, float],
    angle: float = 2.0 * math.pi,
    sight: tuple[float, float] = (0.0, 50.0),
    name: str = "cuboid",
) -> tuple[list[int], list[bool]]:
    """Return the outline points and the other robots that robot 0 sees. The object comes last."""
    num_robots = len(bodies) - 1
    views = Views(Footprint(OBJECTS[name]), team(num_robots), tensor(OBSERVED[num_robots]))
    poses = poses_of(*bodies)
    own = poses[:, range(num_robots), range(num_robots)]
    cosine = torch.full((1, num_robots), math.cos(0.5 * angle))
    outline, others = views(Sensor(own[..., :2], own[..., 2:], cosine, *sight), poses)
    return outline[0, 0].nonzero().flatten().tolist(), others[0, 0].tolist()


BEHIND = (-2.0, 0.0, 0.0)  # two metres behind the object, towards it
BOX = (0.0, 0.0, 0.0)
FAR = (30.0, 30.0, 0.0)


def points_with(axis: int, value: float) -> list[int]:
    """Return the box's outline points on one side."""
    points = Footprint(OBJECTS["cuboid"]).points[0]
    return (points[:, axis] - value).abs().less(1e-4).nonzero().flatten().tolist()


def test_a_robot_sees_the_near_side_of_a_box_alone() -> None:
    outline, _ = look(BEHIND, FAR, BOX)
    assert outline == points_with(0, -0.6)
    assert len(outline) == 4


def test_a_box_corner_hides_a_point_behind_it() -> None:
    """From beyond a corner both sides at it are visible. A step to one side hides one of them."""
    both = sorted({*points_with(0, -0.6), *points_with(1, -0.6)})
    assert look((-2.0, -2.0, 0.8), FAR, BOX)[0] == both
    assert look((-2.0, -0.7, 0.0), FAR, BOX)[0] == both
    assert look((-2.0, -0.5, 0.0), FAR, BOX)[0] == points_with(0, -0.6)


def test_a_box_turned_by_an_eighth_shows_two_sides() -> None:
    turned = (0.0, 0.0, 0.25 * math.pi)
    assert look(BEHIND, FAR, turned)[0] == sorted({*points_with(0, -0.6), *points_with(1, 0.6)})


def test_a_mate_behind_the_object_is_not_seen() -> None:
    assert look(BEHIND, (1.5, 0.0, 0.0), BOX)[1] == [False]
    assert look(BEHIND, (-1.0, 0.2, 0.0), BOX)[1] == [True]
    assert look(BEHIND, (1.5, 2.0, 0.0), BOX)[1] == [True]


def test_the_nose_of_a_mate_beyond_a_corner_is_enough() -> None:
    """The middle of the trunk is hidden, its nose looks past the side of the box."""
    sideways = 0.5 * math.pi
    assert look(BEHIND, (0.3, 0.75, sideways), BOX)[1] == [True]
    assert look(BEHIND, (0.3, 0.65, sideways), BOX)[1] == [False]


def test_a_trunk_hides_the_outline_and_a_mate_behind_it() -> None:
    across = (-1.0, 0.0, 0.5 * math.pi)
    outline, others = look(BEHIND, across, (-0.7, 0.0, 0.0), BOX)
    points = Footprint(OBJECTS["cuboid"]).points[0]
    # At x = -0.6 the shadow of tail and nose ends at y = -0.263 and 0.406.
    assert points[outline, 1].tolist() == pytest.approx([-0.401], abs=1e-3)
    assert others == [False, True]  # the last one and the next one


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_edge_of_the_field_of_view(side: float) -> None:
    """A sensor of 90 degrees with an axis 30 degrees to the left."""
    axis = math.radians(30.0)
    sensor = Sensor(
        tensor([[[-5.0, 2.0]]]),
        tensor([[[math.cos(axis), math.sin(axis)]]]),
        tensor([[math.cos(math.radians(45.0))]]),
        nearest=0.0,
        furthest=9.0,
    )
    for angle, is_seen in ((44.9, True), (45.1, False)):
        bearing = axis + side * math.radians(angle)
        target = tensor([[[[-5.0 + 3.0 * math.cos(bearing), 2.0 + 3.0 * math.sin(bearing)]]]])
        assert sensor.covers(target).item() is is_seen


def test_a_whole_turn_sees_behind() -> None:
    sees = look((-2.0, 0.0, math.pi), (-3.0, 0.1, 0.0), BOX)
    assert sees == (points_with(0, -0.6), [True])
    assert look((-2.0, 0.0, math.pi), (-3.0, 0.1, 0.0), BOX, angle=1.5)[0] == []


def test_the_range_has_two_ends() -> None:
    assert len(look(BEHIND, FAR, BOX, sight=(0.0, 1.45))[0]) == 2
    assert look(BEHIND, FAR, BOX, sight=(0.0, 1.3))[0] == []
    assert look(BEHIND, FAR, BOX, sight=(1.6, 9.0))[0] == []


def test_half_of_a_cylinder_at_most_is_visible() -> None:
    outline, _ = look((-4.0, 0.0, 0.0), FAR, BOX, name="cylinder")
    points = Footprint(OBJECTS["cylinder"]).points[0]
    horizon = -1.5 * 1.5 / 4.0  # where tangents from the robot touch
    assert outline == (points[:, 0] < horizon).nonzero().flatten().tolist()


def test_trunks_have_the_size_of_their_shapes() -> None:
    trunks = Trunks(Robots([ROBOTS["go1"], ROBOTS["go2"]]))
    torch.testing.assert_close(trunks.half_size[0], tensor([0.23905, 0.05]))
    torch.testing.assert_close(trunks.center[0], tensor([0.05095, 0.0]))
    assert trunks.length == pytest.approx(float(2.0 * trunks.half_size[:, 0].min()))


def test_the_marks_of_a_trunk_lie_about_its_shapes_middle() -> None:
    trunks = Trunks(Robots([ROBOTS["go1"]]))
    left = tensor([1.0, 2.0, 0.0, 1.0]).view(1, 1, 1, 4)  # at (1, 2), headed along y
    middle, nose, tail = trunks.marks(left)[0, 0, 0]
    torch.testing.assert_close(middle, tensor([1.0, 2.05095]))
    torch.testing.assert_close(nose, tensor([1.0, 2.29]))
    torch.testing.assert_close(tail, tensor([1.0, 1.8119]))
