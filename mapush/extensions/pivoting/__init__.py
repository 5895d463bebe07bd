"""Mechanics of pushes, and a script that walks heavy objects corner by corner."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.pivoting.scripted_walk",),
    tables={"objects": "mapush.extensions.pivoting.object_table:lines"},
)
