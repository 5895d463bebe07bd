"""MAPush's policies and flags."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.openrl.mapush_flags", "mapush.extensions.openrl.openrl_format"),
    former_commands={
        "import": "mapush export FOLDER OUT --for policy; docs/guides/migrate.md has task files"
    },
)
