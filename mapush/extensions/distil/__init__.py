"""Distillation: a team learns another team's actions."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.distil.entry",),
    former_commands={
        "distil": "mapush train --algo distil --init_from STUDENT --set algorithm.teacher=TEACHER"
    },
)
