"""Registration of the onboard senses, their observation terms, suites and preset."""

from __future__ import annotations

from pathlib import Path

from harl_mapush.config.presets import register_preset
from harl_mapush.config.suites import register_suite

# Imported for its observation terms.
from mapush.extensions.onboard import observations as observations
from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.recollection import Recollection
from mapush.extensions.onboard.settings import OnboardCfg
from mqe.tasks.push.senses import SENSES, SensesEntry

_FOLDER = Path(__file__).parent

SENSES.register("onboard", SensesEntry(OnboardCfg, Recollection.num_columns, OnboardSenses))
for _file in sorted((_FOLDER / "suites").glob("*.yaml")):
    register_suite(_file)
for _file in sorted((_FOLDER / "presets").glob("*.yaml")):
    register_preset(_file)
