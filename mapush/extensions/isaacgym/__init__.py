"""Simulators in a process of their own, Isaac Gym among them."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.isaacgym.engines",))
