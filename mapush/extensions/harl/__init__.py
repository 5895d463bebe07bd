"""HARL's files, formulas and command line."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.harl.harl_format",))
