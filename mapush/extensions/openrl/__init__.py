"""MAPush's policies and task files."""

from mapush.built_in import Extension
from mapush.commands import Command

EXTENSION = Extension(
    modules=(
        "mapush.extensions.openrl.mapush_tasks",
        "mapush.extensions.openrl.openrl_format",
    ),
    commands={
        "import": Command(
            "mapush.extensions.openrl.importing:main",
            "runs and run files from policies and task files of MAPush",
        )
    },
)
