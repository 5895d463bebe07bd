"""A run's settings: sections, layers, presets, and the command line.

Later layers win: defaults, a run file or preset, HARL's file, flags, ``--set``.
"""

from harl_mapush.config.command_line import (
    FLAGS,
    Arguments,
    Parser,
    add_flags,
    add_import,
    add_other_flags,
    add_other_test_flags,
    check_writable,
    command,
    exit_code,
    flag_values,
)
from harl_mapush.config.layers import check_layer, resolve
from harl_mapush.config.other_names import SETTINGS_FILES, SettingsFile
from harl_mapush.config.presets import (
    DEFAULT_PRESET,
    PRESETS,
    check_preset,
    load_preset,
    machine_preset,
    preset_summaries,
)
from harl_mapush.config.sections import (
    DEFAULT_TASK,
    SECTION_CLASSES,
    SECTIONS,
    LoggerCfg,
    RunCfg,
    RunnerCfg,
    all_classes,
)
from harl_mapush.config.suites import (
    SUITES,
    Suite,
    load_suite,
    measured_suite,
    register_suite,
    suite_of_policy,
    suite_summaries,
)
from harl_mapush.config.user_modules import import_modules

__all__ = [
    "DEFAULT_PRESET",
    "DEFAULT_TASK",
    "FLAGS",
    "PRESETS",
    "SECTIONS",
    "SECTION_CLASSES",
    "SETTINGS_FILES",
    "SUITES",
    "Arguments",
    "LoggerCfg",
    "Parser",
    "RunCfg",
    "RunnerCfg",
    "SettingsFile",
    "Suite",
    "add_flags",
    "add_import",
    "add_other_flags",
    "add_other_test_flags",
    "all_classes",
    "check_layer",
    "check_preset",
    "check_writable",
    "command",
    "exit_code",
    "flag_values",
    "import_modules",
    "load_preset",
    "load_suite",
    "machine_preset",
    "measured_suite",
    "preset_summaries",
    "register_suite",
    "resolve",
    "suite_of_policy",
    "suite_summaries",
]
