"""Collectors on the machines of a Ray cluster."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.ray.entry",))
