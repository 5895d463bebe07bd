"""Training and examination of gaits."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.gait.entry", "mapush.extensions.gait.gait_suite"))
