"""Push around obstacles: maps, planners, learning leaders."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.navigate.entry",),
    gymnasium_ids={"mapush/Navigate-v0": "go1push_upper"},
    members={
        "Problem": "mapush.extensions.navigate.planners.problem:Problem",
        "register_planner": "mapush.extensions.navigate.planners.entries:register_planner",
    },
)
