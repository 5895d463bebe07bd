"""HARL's files and formulas, HATRPO and HATD3."""

from mapush.built_in import Extension

EXTENSION = Extension(
    modules=(
        "mapush.extensions.harl.harl_files",
        "mapush.extensions.harl.harl_format",
        "mapush.extensions.harl.hatd3",
        "mapush.extensions.harl.hatrpo",
        "mapush.extensions.harl.off_policy_formulas",
        "mapush.extensions.harl.on_policy_formulas",
    )
)
