"""Mechanics of pushes, a script that walks heavy objects corner by corner, and HASAC with a
teacher.
"""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=("mapush.extensions.pivoting.pivoting_team", "mapush.extensions.pivoting.taught_hasac"),
    tables={"objects": "mapush.extensions.pivoting.object_table:lines"},
    former_commands={"distil": "mapush train --algo hasac_taught --set algorithm.teacher=TEAM"},
)
