"""Objects against masses, inertias and distances worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import tensor

from mqe.config import ConfigError
from mqe.world.objects import (
    OBJECTS,
    ROBOT_FLOOR_FRICTION,
    Footprint,
    GeomCfg,
    ObjectCfg,
    object_floor_friction,
    robot_object_friction,
)
from mqe.world.shapes import common_object, held_out_shapes
from tests.support.pushing import make_task
from tests.support.rounding import FEW_STEPS

PHYSICAL = {
    # A twelfth of the mass times 1.2^2 + 0.5^2 and 1.2^2 + 1.2^2
    "cuboid": (4.0, (0.0, 0.0, 0.0), (0.563333, 0.563333, 0.96)),
    # Bar 2/12 (0.5, 1.25, 1.25), stem 1/12 (0.5, 0.5, 0.5); half a metre apart, so 2/3 kg 0.25 m^2
    # about x and z
    "tblock": (3.0, (0.0, 0.5 / 3, 0.0), (0.291667, 0.25, 0.416667)),
    # A twelfth of the mass times 3 1.5^2 + 0.5^2, half of it times 1.5^2
    "cylinder": (10.0, (0.0, 0.0, 0.0), (5.833333, 5.833333, 11.25)),
}
REFERENCE = {
    "cuboid": (4.0, (0.0, 0.0, 0.0), (0.25, 0.25, 0.25)),
    "tblock": (3.0, (0.0, 0.5 / 3, 0.0), (0.186667, 0.02, 0.186667)),
    "cylinder": (10.0, (0.0, 0.0, 0.0), (0.0833, 0.0833, 0.0417)),
}


@pytest.mark.parametrize("name", PHYSICAL)
@pytest.mark.parametrize(("kind", "table"), [("physical", PHYSICAL), ("reference", REFERENCE)])
def test_inertia_by_hand(name: str, kind: str, table: dict) -> None:
    mass, com, inertia = OBJECTS[name].inertia(kind)
    expected_mass, expected_com, expected_inertia = table[name]
    assert mass == expected_mass == OBJECTS[name].mass
    np.testing.assert_allclose(com, expected_com, atol=1e-12)
    np.testing.assert_allclose(inertia, np.diag(expected_inertia), atol=FEW_STEPS)


@pytest.mark.parametrize("cfg", OBJECTS.values(), ids=OBJECTS)
def test_inertia_is_one_that_a_body_can_have(cfg) -> None:
    mass, _, inertia = cfg.inertia()
    moments = np.linalg.eigvalsh(inertia)
    assert mass == pytest.approx(cfg.mass)
    assert moments[0] > 0.0
    assert moments[0] + moments[1] >= moments[2] - 1e-9


@pytest.mark.parametrize("cfg", OBJECTS.values(), ids=OBJECTS)
def test_is_listed_under_its_name_and_slides(cfg) -> None:
    assert OBJECTS[cfg.name] is cfg
    assert 0.0 <= cfg.friction[0] <= cfg.friction[1]


def test_an_object_without_reference_inertia() -> None:
    plain = ObjectCfg(
        "plain",
        (GeomCfg("box", (1.0, 1.0, 0.5), 3.0),),
        OBJECTS["cuboid"].outline,
        (0.5, 0.6),
        0.28,
        0.0,
    )
    assert plain.inertia()[2][2][2] == pytest.approx(0.5)
    with pytest.raises(
        ConfigError, match=r"task.inertia=reference: object 'plain'.*task.inertia=physical"
    ):
        plain.inertia("reference")


@pytest.mark.parametrize("cfg", OBJECTS.values(), ids=OBJECTS)
def test_outline_is_convex_and_counter_clockwise(cfg) -> None:
    vertices = np.array(cfg.outline)
    edge = np.roll(vertices, -1, axis=0) - vertices
    following = np.roll(edge, -1, axis=0)
    assert (edge[:, 0] * following[:, 1] - edge[:, 1] * following[:, 0] > 0).all()


@pytest.mark.parametrize("cfg", OBJECTS.values(), ids=OBJECTS)
def test_spawns_above_the_floor_and_clear_of_robots(cfg) -> None:
    reach = np.linalg.norm(np.array(cfg.outline), axis=1).max()
    lowest = min(geom.pos[2] - geom.size[-1] / 2 for geom in cfg.geoms)
    assert cfg.spawn_height + lowest > 0.0
    assert cfg.spawn_ring[0] > reach
    for num_agents in range(1, 5):
        make_task(1, num_agents, object=cfg.name, spawn="separated")


@pytest.mark.parametrize(
    ("name", "friction", "height", "tilt", "ring", "collision_distance", "num_agents"),
    [
        ("cuboid", (0.5, 0.6), 0.28, 0.01, (1.2, 1.3), 0.25, 2),
        ("tblock", (0.6, 0.7), 0.28, 0.01, (1.2, 1.3), 0.27, 2),
        ("cylinder", (0.3, 0.4), 0.33, 0.0, (2.0, 2.5), 0.25, 3),
    ],
)
def test_numbers_of_the_references_tasks(
    name, friction, height, tilt, ring, collision_distance, num_agents
) -> None:
    cfg = OBJECTS[name]
    assert (cfg.friction, cfg.spawn_ring, cfg.collision_distance) == (
        friction,
        ring,
        collision_distance,
    )
    assert (cfg.spawn_height, cfg.spawn_tilt, cfg.num_agents) == (
        pytest.approx(height),
        tilt,
        num_agents,
    )


@pytest.mark.parametrize(
    ("name", "corners", "area", "perimeter"),
    [
        ("cuboid", 4, 1.44, 4.8),
        ("tblock", 4, 0.75, 1.5 + 2.0 * math.hypot(0.25, 1.0)),
        ("cylinder", 6, 2.6 * (1.5 + 3.0) / 2.0, 3.0 + 4.0 * math.hypot(0.75, 1.3)),
    ],
)
def test_the_rewards_polygons_are_the_references(name, corners, area, perimeter) -> None:
    points = np.array(OBJECTS[name].outline)
    following = np.roll(points, -1, axis=0)
    assert len(points) == corners
    cross = points[:, 0] * following[:, 1] - points[:, 1] * following[:, 0]
    assert cross.sum() / 2.0 == pytest.approx(area)
    assert np.linalg.norm(following - points, axis=1).sum() == pytest.approx(perimeter)
    assert points[:, 0].sum() == pytest.approx(0.0)  # the left is the right's mirror image


def test_an_object_in_the_floor_is_refused() -> None:
    leg = GeomCfg("box", (0.1, 0.1, 0.4), 1.0, (0.0, 0.0, -0.25))
    with pytest.raises(
        ConfigError, match="object cuboid: spawned at .* raise spawn_height to 0.45 m"
    ):
        replace(OBJECTS["cuboid"], geoms=(*OBJECTS["cuboid"].geoms, leg))


@pytest.mark.parametrize(
    ("ring", "num_agents"), [((0.5, 0.6), 4), ((0.38, 0.5), 2), ((0.38, 0.5), 1)]
)
def test_a_ring_that_is_too_narrow_for_the_team_is_refused(
    ring, num_agents: int, monkeypatch
) -> None:
    monkeypatch.setitem(OBJECTS, "cuboid", replace(OBJECTS["cuboid"], spawn_ring=ring))
    with pytest.raises(
        ConfigError, match=f"spawn_ring begins at {ring[0]} m, where {num_agents} robots cannot"
    ):
        make_task(1, num_agents, spawn="separated")
    make_task(1, num_agents, spawn="independent")


@pytest.mark.parametrize(
    ("name", "points", "distances"),
    [
        ("cuboid", [[1.1, 0.0], [0.9, -1.0], [0.5, 0.1]], [0.5, 0.5, 0.0]),
        ("tblock", [[0.0, 1.0], [0.45, 0.6], [0.5, 0.3], [-0.2, 0.7]], [0.25, 0.2, 0.05, 0.0]),
        ("cylinder", [[2.0, 0.0], [1.2, 1.6], [0.0, 1.4]], [0.5, 0.5, 0.0]),
    ],
)
def test_distance_to_the_true_outline(name: str, points: list, distances: list) -> None:
    torch.testing.assert_close(Footprint(OBJECTS[name]).distance(tensor(points)), tensor(distances))


def test_push_direction_through_the_trapezoid() -> None:
    # Its right side runs from (0.5, -0.25) to (0.25, 0.75): the way in is (-1, -0.25) /
    # sqrt(1.0625).
    footprint = Footprint(OBJECTS["tblock"])
    directions = footprint.push_direction(tensor([[0.0, -1.0], [1.5, 0.5], [0.0, 2.0]]))
    torch.testing.assert_close(
        directions, tensor([[0.0, 1.0], [-0.970143, -0.242536], [0.0, -1.0]])
    )


def test_friction_pairs_average_two_materials() -> None:
    assert pytest.approx(0.55) == ROBOT_FLOOR_FRICTION
    assert object_floor_friction(0.55) == pytest.approx(0.325)
    assert robot_object_friction(0.55) == pytest.approx(0.775)
    # [N] to slide, friction in the middle of its range.
    expected = {
        "cuboid": 12.8,
        "tblock": 11.0,
        "cylinder": 22.1,
    }
    for name, force in expected.items():
        cfg = OBJECTS[name]
        assert object_floor_friction(sum(cfg.friction) / 2) * cfg.mass * 9.81 == pytest.approx(
            force, rel=5e-3
        )


def test_a_wider_object_keeps_its_mass_and_is_met_further_out() -> None:
    wide = OBJECTS["tblock"].with_width(2.0)
    assert [geom.size for geom in wide.geoms] == [(1.0, 1.0, 0.5), (0.5, 1.0, 0.5)]
    assert wide.geoms[1].pos == (0.0, 1.0, 0.0)
    assert wide.mass == OBJECTS["tblock"].mass
    assert wide.outline[2] == (0.25, 1.5)
    reach = math.hypot(0.25, 1.5) - math.hypot(0.25, 0.75)
    assert wide.spawn_ring == pytest.approx((1.2 + reach, 1.3 + reach))

    drum = OBJECTS["cylinder"].with_width(2.0)
    assert drum.geoms[0].size == (3.0, 0.5)
    assert drum.outline[5] == (-3.0, 0.0)
    assert drum.spawn_ring == pytest.approx((3.5, 4.0), abs=1e-3)


SQUARE = ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))
PENTAGRAM = tuple((math.cos(a), math.sin(a)) for a in (0.0, 2.513, 5.027, 1.257, 3.770))


def crate(**changes) -> ObjectCfg:
    """Return a box of one metre with some numbers changed."""
    numbers = {
        "name": "crate",
        "geoms": (GeomCfg("box", (1.0, 1.0, 0.5), 4.0),),
        "outline": SQUARE,
        "friction": (0.5, 0.6),
        "spawn_height": 0.28,
        "spawn_tilt": 0.01,
    }
    return ObjectCfg(**(numbers | changes))


def box(*size: float, mass: float = 4.0, **more) -> tuple[GeomCfg]:
    return (GeomCfg("box", size, mass, **more),)


def test_a_clockwise_outline_is_turned_round() -> None:
    assert crate(outline=SQUARE[::-1]).outline == SQUARE
    for k in range(4):
        turned = (*SQUARE[k:], *SQUARE[:k])
        outline = crate(outline=turned[::-1]).outline
        assert outline == turned
        points = torch.tensor([[2.0, 0.1], [0.1, 2.0], [-2.0, 0.1], [0.1, -2.0]])
        directions = Footprint(crate(outline=turned[::-1])).push_direction(points)
        torch.testing.assert_close(
            directions, torch.tensor([[-1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [0.0, 1.0]])
        )


@pytest.mark.parametrize(
    ("point", "normal"),
    [
        ([0.0, -1.0], [0.0, 1.0]),
        ([1.0, 0.2], [-1.0, 0.0]),
        ([0.3, 5.0], [0.0, -1.0]),
        ([-0.9, -0.5], [1.0, 0.0]),
        ([0.1, -0.3], [0.0, 1.0]),  # inside
        ([1.0, 0.9], [-1.0, 0.0]),  # nearest to the corner of edges 1 and 2: the first wins
        ([-1.0, -0.7], [0.0, 1.0]),  # the corner of edges 3 and 0
    ],
)
def test_nearest_edge_of_a_square(point: list[float], normal: list[float]) -> None:
    footprint = Footprint(OBJECTS["cuboid"])
    torch.testing.assert_close(footprint.push_direction(tensor([point])), tensor([normal]))


def test_nearest_edge_of_a_slanted_side() -> None:
    # A right triangle: its long side faces (1, 1), so that the way in is (-1, -1).
    triangle = Footprint(crate(outline=((0.0, 0.0), (2.0, 0.0), (0.0, 2.0))))
    points = tensor([[[2.0, 2.0], [1.0, -1.0]], [[-3.0, 1.0], [0.9, 0.9]]])
    slanted = [-math.sqrt(0.5), -math.sqrt(0.5)]
    expected = tensor([[slanted, [0.0, 1.0]], [[1.0, 0.0], slanted]])
    torch.testing.assert_close(triangle.push_direction(points), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"geoms": ()}, "its parts have 0 kg together"),
        ({"geoms": box(1.0, 1.0, 0.5, mass=0.0)}, "its parts have 0 kg together"),
        ({"geoms": box(1.0, 1.0, 0.5, mass=1e-30)}, "its parts have 1e-30 kg together"),
        ({"friction": (0.6, 0.5)}, "friction: .* ascending order"),
        ({"friction": (0.5, 1e300)}, "friction"),
        ({"friction": (0.5, math.nan)}, "friction"),
        ({"friction": (0.5,)}, "friction"),
        ({"spawn_ring": (1.5, 1.2)}, "spawn_ring: .* ascending order"),
        ({"spawn_ring": (-1.0, 1.2)}, "spawn_ring"),
        ({"spawn_height": math.nan}, "spawn_height: must be a finite number"),
        ({"spawn_tilt": -0.1}, "spawn_tilt: must be at least 0.0"),
        ({"collision_distance": math.inf}, "collision_distance: must be a finite number"),
        ({"outline": SQUARE[:2]}, "its outline has no area"),
        ({"outline": ()}, "its outline has no area"),
        ({"outline": (*SQUARE[:3], (math.nan, 0.0))}, "outline.* must be a finite number"),
        ({"outline": (*SQUARE[:3], (1.0,))}, "outline.* must have 2 values"),
        ({"name": "\ud800"}, "name: must be text"),
    ],
)
def test_an_object_that_cannot_be_is_one_line(changes, message) -> None:
    with pytest.raises(ConfigError, match=f"^object .*{message}") as caught:
        crate(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (("box", (1.0, 1.0, 0.5), 5e-324), "mass: must be 0 or"),
        (("box", (1.0, 1.0, 0.5), 1e300), "mass"),
        (("box", (1.0, 1.0, 0.5), math.nan), "mass"),
        (("box", (1.0, 1.0, 0.5), -1.0), "mass"),
        (("sphere", (0.5, 0.5, 0.5), 4.0), "type: unknown value 'sphere'"),
        (("cylinder", (0.5, 0.5, 0.5), 4.0), "a cylinder has 2 lengths"),
        (("box", (1.0, 1.0), 4.0), "a box has 3 lengths"),
        (("box", (-1.0, 1.0, 0.5), 4.0), "size: must be at least"),
        (("box", (1.0, 1.0, math.inf), 4.0), "size"),
        (("box", (1.0, 1.0, 0.5), 4.0, (0.0, 0.0)), "pos: must have 3 values"),
    ],
)
def test_a_part_that_cannot_be_is_one_line(part, message) -> None:
    with pytest.raises(ConfigError, match=f"^object part.*{message}") as caught:
        GeomCfg(*part)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"friction": (0.0, 0.0)},
        {"friction": (0.5, 0.5)},
        {"geoms": (*box(1.0, 1.0, 0.5), GeomCfg("box", (0.1, 0.1, 0.1), 0.0))},
        {"outline": (*SQUARE[:2], (0.5, 0.0), *SQUARE[2:])},  # a corner that does not turn
        {"outline": tuple((100.0 * x, 100.0 * y) for x, y in SQUARE)},
    ],
)
def test_odd_objects_that_can_be_are_taken(changes) -> None:
    assert crate(**changes).mass == 4.0


def test_all_objects_but_the_loaded_one_are_their_own_mirror_images() -> None:
    asymmetric = [name for name, obj in OBJECTS.items() if obj.mirror_signs is None]
    assert asymmetric == ["loaded"]


@pytest.mark.parametrize(
    ("name", "start", "end", "is_crossed"),
    [
        ("cuboid", (-2.0, 0.0), (2.0, 0.0), True),
        ("cuboid", (-2.0, 0.0), (-0.6, 0.3), False),  # a point of the near side
        ("cuboid", (-2.0, 0.0), (0.6, 0.3), True),  # a point of the far side
        ("cuboid", (-2.0, 0.6), (2.0, 0.6), False),  # along a side
        ("cuboid", (-2.0, 0.0), (-0.7, 0.0), False),
        ("cuboid", (-2.0, 0.0), (-3.0, 0.0), False),
        ("cuboid", (-2.0, 2.0), (2.0, 2.0), False),
        ("tblock", (-1.0, 0.6), (1.0, 0.6), True),  # the stem
        ("tblock", (-1.0, 0.9), (1.0, 0.9), False),
        ("tblock", (0.5, 1.0), (0.25, 0.5), False),  # into the corner of bar and stem
        ("cylinder", (-2.0, 0.0), (-1.5, 0.0), False),
        ("cylinder", (-2.0, 0.0), (1.5, 0.0), True),
        ("cylinder", (-2.0, 1.4), (2.0, 1.4), True),
        ("cylinder", (-2.0, 1.5), (2.0, 1.5), False),
    ],
)
def test_which_straight_lines_cross_an_object(name, start, end, is_crossed) -> None:
    footprint = Footprint(OBJECTS[name])
    assert footprint.is_crossed(tensor([start]), tensor([end])).tolist() == [is_crossed]


def test_lines_of_sight_know_the_object_of_each_world() -> None:
    shapes = held_out_shapes()[:2]
    both = Footprint(common_object(shapes), "cpu", shapes)
    lines = torch.rand(2, 30, 2, 2, generator=torch.Generator().manual_seed(0)) * 3.0 - 1.5
    crossed = both.is_crossed(lines[:, :, 0], lines[:, :, 1])
    for world, shape in enumerate(shapes):
        alone = Footprint(shape).is_crossed(lines[world, :, 0], lines[world, :, 1])
        assert torch.equal(crossed[world], alone)
    assert crossed.any()
    assert not crossed.all()
