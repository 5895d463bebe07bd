"""Worlds as a TorchRL environment."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.torchrl.entry",))
