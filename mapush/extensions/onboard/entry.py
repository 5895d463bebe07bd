"""Registration of the onboard senses, their observation terms and suites."""

from pathlib import Path

from harl_mapush.config.suites import register_suite

# Imported for its observation terms.
from mapush.extensions.onboard import observations as observations
from mapush.extensions.onboard.model import OnboardSenses
from mapush.extensions.onboard.recollection import Recollection
from mapush.extensions.onboard.settings import OnboardCfg
from mqe.tasks.push.senses import SENSES, SensesEntry

SENSES.register("onboard", SensesEntry(OnboardCfg, Recollection.num_columns, OnboardSenses))
for _file in sorted(Path(__file__).parent.glob("suites/*.yaml")):
    register_suite(_file)
