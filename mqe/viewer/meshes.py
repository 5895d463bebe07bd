"""The robots' own meshes for films, viewers and exported scenes, from MuJoCo Menagerie.

This package contains none. ``prepare`` reads a robot from a Menagerie checkout and reduces its
triangles.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from mqe.config import ConfigError, install
from mqe.world.robots.robot import LEG_JOINTS, LEGS, RobotCfg

TRIANGLES = 16_000  # of a robot, wanted; curved parts keep more
HINT = f"{install('looks')}, or name a checkout of MuJoCo Menagerie (--looks PATH)"
_TRUNK = "trunk"
_LINKS = (_TRUNK, *(f"{leg}_{joint}" for leg in LEGS for joint in LEG_JOINTS))


class Part(NamedTuple):
    """A link's mesh in one colour."""

    link: str  # "trunk", "FL_hip", ...
    vertices: NDArray[np.float32]  # (V, 3) [m] in the link's frame
    faces: NDArray[np.int32]  # (F, 3)
    rgba: tuple[float, float, float, float]

    @property
    def area(self) -> float:
        """Return the triangles' total area [m^2]."""
        a, b, c = (self.vertices[self.faces[:, i]] for i in range(3))
        return float(0.5 * np.linalg.norm(np.cross(b - a, c - a), axis=1).sum())


# Robots' parts by name. Other robots have their simple shapes.
Meshes = Mapping[str, tuple[Part, ...]]
NO_MESHES: Meshes = MappingProxyType({})


def prepare(
    robots: Iterable[RobotCfg], checkout: Path | None = None
) -> dict[str, tuple[Part, ...]]:
    """Return the robots' meshes by robot name.

    ``checkout`` is a Menagerie folder, None for the download by robot_descriptions. Raise
    ConfigError if a mesh or a package is missing.
    """
    made = {}
    for robot in {robot.name: robot for robot in robots}.values():
        if robot.menagerie is None:
            continue
        if checkout is None:
            path = _downloaded(robot.menagerie)
        else:
            path = checkout / robot.menagerie
            if not path.is_file():
                raise ConfigError(
                    f"--looks {checkout}: there is no {robot.menagerie}; name the top folder of a "
                    "checkout of MuJoCo Menagerie"
                )
        made[robot.name] = _reduced(_visual_parts(path))
    return made


def add_looks(parser: Any) -> None:
    """Add the option ``--looks`` to a parser, or to a group in it."""
    parser.add_argument(
        "--looks",
        metavar="LOOKS",
        help="robots' appearance: shapes, meshes (downloaded once, with the extra [looks]), or the "
        "path of a checkout of MuJoCo Menagerie (default: shapes)",
    )


def chosen(looks: str | None, robots: Sequence[RobotCfg]) -> dict[str, tuple[Part, ...]]:
    """Return the meshes for the option ``--looks``: ``shapes``, ``meshes``, or a checkout's
    path.
    """
    if looks is None or looks == "shapes":
        return {}
    return prepare(robots, None if looks == "meshes" else Path(looks))


def _downloaded(menagerie: str) -> Path:
    """Return a robot's file in the checkout by robot_descriptions, cloned at first use."""
    name = f"{Path(menagerie).stem}_mj_description"
    try:
        description = importlib.import_module(f"robot_descriptions.{name}")
    except ImportError as error:
        raise ConfigError(f"--looks meshes: {error}; {HINT}") from None
    except Exception as error:  # no network, no git, a full disk
        words = " ".join(str(error).split())
        raise ConfigError(f"--looks meshes: the download failed ({words})") from error
    return Path(description.MJCF_PATH)


def _visual_parts(path: Path) -> list[Part]:
    """Return a Menagerie robot's meshes without contacts, each in its link's frame."""
    try:
        model = mujoco.MjSpec.from_file(str(path)).compile()
    except ValueError as error:
        words = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read ({words}); name another checkout") from None
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    link_of = _links(model)
    parts = []
    for geom in range(model.ngeom):
        link = link_of[model.geom_bodyid[geom]]
        is_solid = model.geom_contype[geom] or model.geom_conaffinity[geom]
        if link is None or is_solid or model.geom_type[geom] != mujoco.mjtGeom.mjGEOM_MESH:
            continue
        name, body = link
        mesh = model.mesh(model.geom_dataid[geom].item())
        first = mesh.vertadr.item()
        vertices = model.mesh_vert[first : first + mesh.vertnum.item()]
        first = mesh.faceadr.item()
        faces = model.mesh_face[first : first + mesh.facenum.item()]
        in_world = vertices @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom]
        in_link = (in_world - data.xpos[body]) @ data.xmat[body].reshape(3, 3)
        material = model.geom_matid[geom]
        rgba = model.geom_rgba[geom] if material < 0 else model.mat_rgba[material]
        color = tuple(float(value) for value in rgba)
        parts.append(Part(name, in_link.astype(np.float32), faces.copy(), color))  # type: ignore[arg-type]
    missing = {*_LINKS} - {part.link for part in parts}
    if missing:
        raise ConfigError(f"{path}: no meshes of {', '.join(sorted(missing))}")
    return parts


def _links(model: mujoco.MjModel) -> list[tuple[str, int] | None]:
    """Return the link (name and body) of every body: its own, or its parent's."""
    links: list[tuple[str, int] | None] = [None]
    for body in range(1, model.nbody):
        name = model.body(body).name
        parent = model.body_parentid[body]
        if name in _LINKS:
            links.append((name, body))
        elif parent == 0:
            links.append((_TRUNK, body))
        else:
            links.append(links[parent])
    return links


def _reduced(parts: list[Part]) -> tuple[Part, ...]:
    """Return the parts with about ``TRIANGLES`` in all."""
    total = sum(len(part.faces) for part in parts)
    if total <= TRIANGLES:
        return tuple(parts)
    try:
        fast_simplification: Any = importlib.import_module("fast_simplification")
    except ImportError as error:
        raise ConfigError(f"--looks: the meshes cannot be reduced ({error}); {HINT}") from None
    excess = 1.0 - TRIANGLES / total
    smaller = []
    for part in parts:
        # Duplicate vertices, with two normals, would tear.
        vertices, index = np.unique(part.vertices.round(6), axis=0, return_inverse=True)
        faces = index.reshape(-1)[part.faces].astype(np.int32)
        # It removes edges with errors below absolute limits, suitable for centimetres.
        vertices, faces = fast_simplification.simplify(100.0 * vertices, faces, excess, agg=5)
        smaller.append(part._replace(vertices=vertices / 100.0, faces=faces))
    return tuple(smaller)
