"""Push around obstacles: maps, planners, leaders that learn."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.navigate.entry",))
