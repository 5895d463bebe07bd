"""MuJoCo's Studio as a live viewer."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.studio.viewer",))
