"""A world as a PettingZoo environment."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.pettingzoo.entry",),
    members={"push_v0": "mapush.extensions.pettingzoo.push_v0"},
)
