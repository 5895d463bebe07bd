"""Maps: families have room for the object, and files are checked before anything runs."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import pytest
import torch
from torch import tensor

from mapush.extensions.navigate.maps.arena_map import ArenaMap, Placed, Room, check_map, read_maps
from mapush.extensions.navigate.maps.families import CUBE, FAMILIES, POST, draw_maps, wall_with_door
from mapush.extensions.navigate.maps.solved import room_of
from mapush.extensions.navigate.maps.table import MapTable, ObstacleShapes, slots_of
from mapush.extensions.navigate.planners import problem
from mapush.extensions.navigate.planners.problem import solve_fields, solve_problem
from mapush.extensions.navigate.settings import NavigateCfg
from mqe.config import ConfigError
from mqe.world.objects import OBJECTS
from mqe.world.obstacles import PARKED_HEIGHT, ObstacleCfg
from tests.mapush.extensions.navigate.navigating import navigate_setup
from tests.support.rounding import FEW_STEPS

CUBOID = Room(0.85, 1.85)


MORE = ("gate", "corridor", "beside", "forest", "across")  # registered by a module of benchmarks
# SHA-256 of the 300 maps of each suite for the box, as a file: what was measured on them holds for
# these maps alone.
PUBLISHED = {
    "reference": "4806e52e5debaf64",
    "scattered": "960da8338c8864b0",
    "doors": "c0986de067392e32",
    "u_turn": "26e896c7a8a768f3",
    "gate": "d4e22cafd5130832",
    "corridor": "db6c18dab24cf70e",
    "beside": "344ebec71a75ba4e",
    "forest": "0302bb70770a982a",
    "across": "d9ff27382499684a",
}


@pytest.mark.parametrize("name", ["cuboid", "cylinder"])
@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_a_family_draws_maps_with_room(family, name, benchmarks):
    room = room_of(OBJECTS[name])
    drawn = draw_maps(family, 3, 10, room)
    assert drawn == draw_maps(family, 3, 10, room)
    assert drawn != draw_maps(family, 4, 10, room)
    for arena_map in drawn:
        check_map(arena_map, room, family)


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("family", ["gate", "across"])
def test_maps_with_one_wall_have_room_for_every_object(family, name, benchmarks):
    room = room_of(OBJECTS[name])
    for arena_map in draw_maps(family, 3, 5, room):
        check_map(arena_map, room, family)


@pytest.mark.parametrize("family", PUBLISHED)
def test_the_maps_of_a_suite_stay_those_that_were_published(family: str, benchmarks) -> None:
    maps = draw_maps(family, 2026, 300, room_of(OBJECTS["cuboid"]))
    assert (
        hashlib.sha256(benchmarks.to_json(maps).encode()).hexdigest().startswith(PUBLISHED[family])
    )


@pytest.mark.parametrize("family", [*FAMILIES, *MORE])
def test_maps_that_were_written_are_read_again(family: str, benchmarks, tmp_path) -> None:
    maps = draw_maps(family, 3, 5, room_of(OBJECTS["cylinder"]))
    path = tmp_path / "maps.json"
    path.write_text(benchmarks.to_json(maps))
    values = read_maps(path)
    assert benchmarks.to_json(values) == benchmarks.to_json(maps)
    for arena_map, written in zip(values, maps, strict=True):
        check_map(arena_map, room_of(OBJECTS["cylinder"]), "map")
        assert arena_map.goal == pytest.approx(written.goal, abs=FEW_STEPS)
        assert arena_map.spawn == written.spawn
        assert slots_of([arena_map]) == slots_of([written])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arena": (2.0, 30.0)}, "each side must be from 3 to 24 m"),
        ({"start": (4.0, 0.0)}, r"the start \(4.00, 0.00\) is 1.00 m from the wall"),
        ({"goal": (1.2, 0.0)}, r"the goal \(1.20, 0.00\) is 0.20 m from the box at \(0.50, 0.00\)"),
    ],
)
def test_a_map_without_room_is_refused(change, words):
    whole = ArenaMap((10.0, 8.0), (-2.8, 0.0), (3.5, 0.0), (Placed(CUBE, 0.5, 0.0),))
    check_map(whole, CUBOID, "map")
    with pytest.raises(ConfigError, match=words):
        check_map(replace(whole, **change), CUBOID, "map")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("maps: []", "must have the key maps with one map at least"),
        (
            "maps: [{start: [0, 0], gaol: [1, 1]}]",
            r"unknown key 'map 0\.gaol'; did you mean map 0\.goal",
        ),
        (
            "arena: [9, 9]\nmaps: [{start: [0, 0], goal: [x, 1]}]",
            r"map 0\.goal\[0\]: must be a number, not 'x'",
        ),
        (
            "arena: [9, 9]\nmaps: [{start: [0, 0], goal: [1, 1], obstacles: [{ball: 1}]}]",
            r"unknown key 'map 0: obstacle 0\.ball'",
        ),
        (
            "arena: [9, 9]\nmaps: [{start: [0, 0], goal: [1, 1], obstacles: [{at: [3, 3]}]}]",
            r"obstacle 0: must be like \{box: \[length, width\], at: \[x, y\], yaw: 0.0\}",
        ),
        (
            "arena: [9, 9]\nmaps: [{start: [0, 0], goal: [1, 1], obstacles: [{post: 1}]}]",
            "obstacle 0: at must be given",
        ),
    ],
)
def test_a_file_that_holds_no_maps_is_refused(text, words, tmp_path):
    path = tmp_path / "maps.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_maps(path)


def test_names_that_are_no_maps_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"task\.map: unknown .* did you mean scattered"):
        NavigateCfg(map="scatered")
    with pytest.raises(ConfigError, match="No such file"):
        read_maps(tmp_path / "none.yaml")


def test_a_goal_that_cannot_be_reached_is_refused(tmp_path):
    path = tmp_path / "closed.yaml"
    path.write_text(
        "arena: [12, 6]\n"
        "maps:\n"
        "  - start: [-4, 0]\n"
        "    goal: [4, 0]\n"
        "    obstacles:\n"
        "      - {box: [0.2, 4.4], at: [0, -0.8]}\n"
    )
    with pytest.raises(ConfigError, match="the object fits through no gap on the way to the goal"):
        navigate_setup(1, map=str(path))


def test_obstacles_have_slots_of_their_shape():
    both = [
        ArenaMap((9.0, 9.0), (0.0, 0.0), (1.0, 1.0), (Placed(CUBE, 1.0, 2.0, 0.5),)),
        ArenaMap((9.0, 9.0), (0.0, 0.0), (1.0, 1.0), (Placed(POST, 3.0, 4.0),)),
    ]
    slots = slots_of(both)
    assert sorted(slot.shape for slot in slots) == ["box", "post"]
    table = MapTable.of(both, slots, "cpu")
    cube = slots.index(CUBE)
    assert table.obstacle_pos[0, cube].tolist() == pytest.approx([1.0, 2.0, 0.3])
    assert table.obstacle_pos[1, cube, 2] == PARKED_HEIGHT
    assert table.obstacle_yaw[0, cube] == 0.5


def test_clearance_is_the_distance_to_the_nearest_obstacle():
    shapes = ObstacleShapes((300.0, 300.0), (CUBE, POST), "cpu")
    pos = tensor([[[0.0, 0.0, 0.3], [5.0, 0.0, 0.3]], [[0.0, 0.0, PARKED_HEIGHT]] * 2])
    yaw = tensor([[torch.pi / 4, 0.0], [0.0, 0.0]])
    points = tensor([[2.0, 0.0], [0.0, 0.0], [4.0, 0.0]])
    values = shapes.clearance(points, pos, yaw)
    corner = 2.0 - 0.5**0.5
    assert values[0].tolist() == pytest.approx([corner, -0.5, 0.85], abs=FEW_STEPS)
    assert values[1].tolist() == [148.0, 150.0, 146.0]  # to the wall


def test_a_door_is_a_gap_in_a_wall_across_the_arena() -> None:
    walls = wall_with_door(1.0, 0.5, 2.4, 8.0)  # a gap from -0.7 to 1.7
    assert [wall.cfg.size[1] for wall in walls] == [2.3, 3.3]
    assert [(wall.x, wall.y) for wall in walls] == [
        (1.0, pytest.approx(2.85)),
        (1.0, pytest.approx(-2.35)),
    ]


def test_a_pipe_is_no_map(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="a pipe, socket or device"):
        read_maps(tmp_path / "pipe.yaml")


def test_maps_of_too_many_sizes_of_obstacles_are_refused() -> None:
    maps = []
    for k in range(20):
        sizes = [ObstacleCfg("box", (0.1 + 0.01 * (20 * k + j), 0.1, 0.6)) for j in range(20)]
        obstacles = tuple(Placed(size, 0.0, 0.0) for size in sizes)
        maps.append(ArenaMap((9.0, 9.0), (0.0, 0.0), (1.0, 1.0), obstacles))
    assert len(slots_of(maps[:12])) == 240
    with pytest.raises(ConfigError, match="of 400 sizes, .* would need 400 .*; 256 at most"):
        slots_of(maps)


@pytest.mark.slow
def test_many_maps_are_planned_a_few_at_a_time(monkeypatch) -> None:
    """A map's intermediate values take a hundred times the memory of its fields."""
    sizes = []

    def solve_few(solver, clearance, *rest):
        sizes.append(len(clearance))
        return solve_fields(solver, clearance, *rest)

    monkeypatch.setattr(problem, "solve_fields", solve_few)
    maps = draw_maps("doors", 1, 20, CUBOID)
    all_maps = solve_problem(tuple(maps), CUBOID.reach, torch.device("cpu"))
    assert sizes == [8, 8, 4]
    one = solve_problem((maps[19],), CUBOID.reach, torch.device("cpu"))
    torch.testing.assert_close(one.fields[0], all_maps.fields[19], rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(one.shortest[0], all_maps.shortest[19], rtol=2e-3, atol=1e-3)


def test_a_map_that_is_no_text_is_named(tmp_path) -> None:
    path = tmp_path / "maps.yaml"
    path.write_bytes(b"maps: [{start: [-1.5, 0], goal: [1.5, 0]}] # \xc7x")
    with pytest.raises(ConfigError, match=r"maps\.yaml: 'utf-8' codec can't decode"):
        read_maps(path)
