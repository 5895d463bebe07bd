"""Training and examination of gaits."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.gait.entry", "mapush.extensions.gait.gait_suite"),
    gymnasium_ids={"mapush/Velocity-v0": "go1_velocity"},
)
