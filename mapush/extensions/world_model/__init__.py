"""HASAC with a learned model of the dynamics."""

from mapush.built_in import Extension

EXTENSION = Extension(modules=("mapush.extensions.world_model.latent_hasac",))
