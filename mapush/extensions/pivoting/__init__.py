"""A script that walks heavy objects corner by corner."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.pivoting.scripted_walk",))
