"""Distillation: a team learns another team's actions."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.distil.entry",))
