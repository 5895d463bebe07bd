"""Gaits for Unitree's controllers."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.unitree.unitree",),
)
