"""Pages and figures about runs."""

from mapush.built_in import Extension
from mapush.commands import Command

EXTENSION = Extension(
    commands={
        "report": Command(
            "mapush.extensions.report.command:main", "a page about runs, or their curves"
        )
    },
    former_commands={"plot": "mapush report RUN ... --out FILE.png"},
)
