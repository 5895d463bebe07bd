"""Robots from their makers' MJCF and URDF files."""

from mapush.built_in import Extension
from mapush.commands import Command

EXTENSION = Extension(
    modules=("mapush.extensions.robot_files.reader", "mapush.extensions.robot_files.collection"),
    commands={
        "robot": Command(
            "mapush.extensions.robot_files.command:main", "a robot from its maker's MJCF or URDF"
        )
    },
)
