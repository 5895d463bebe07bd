"""Unitree's controllers and models."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=(
        "mapush.extensions.unitree.mjcf",
        "mapush.extensions.unitree.unitree",
    ),
)
