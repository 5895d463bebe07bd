"""Examination of gaits: tracking, falls, forces, terrain."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.gait_examination.gait_suite",))
