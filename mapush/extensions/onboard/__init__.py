"""Onboard senses: each robot knows the part of the scene that its own sensor has seen."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.onboard.entry",))
