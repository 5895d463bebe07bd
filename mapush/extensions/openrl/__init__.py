"""MAPush's policies and task files."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=(
        "mapush.extensions.openrl.mapush_tasks",
        "mapush.extensions.openrl.openrl_format",
    ),
    former_commands={
        "import": "mapush train --load_task FILE, or mapush export FOLDER OUT --for policy"
    },
)
