# ruff: noqa: I001, one import for each module
"""The members of ``import mapush``, for type checkers and for ``__init__.py``."""

from harl_mapush.algorithms.happo import (
    Happo as Happo,
    HappoCfg as HappoCfg,
)
from harl_mapush.clients import (
    MAPushEnv as MAPushEnv,
    register_with_harl as register_with_harl,
)
from harl_mapush.clients.entries import (
    load_team as load_team,
    make as make,
)
from harl_mapush.config.suites import (
    register_suite as register_suite,
)
from harl_mapush.evaluation.calculator import (
    evaluate as evaluate,
)
from harl_mapush.machine import (
    check_devices as check_devices,
)
from harl_mapush.runs.checkpoint import (
    resolve as find_checkpoint,  # noqa: F401, a name of ``import mapush``
)
from mapush.registration import (
    register_algorithm as register_algorithm,
    register_callback as register_callback,
    register_client as register_client,
    register_command as register_command,
    register_format as register_format,
    register_object as register_object,
    register_robot as register_robot,
    register_simulator as register_simulator,
    register_task as register_task,
)
from mapush.term_registration import (
    register_metric as register_metric,
    register_observation as register_observation,
    register_reward as register_reward,
    register_state as register_state,
    register_termination as register_termination,
)
from mqe.config import (
    option as option,
)
from mqe.controllers.gait import (
    GaitController as GaitController,
    load_team_gait as load_team_gait,
)
from mqe.tasks.episode_report import (
    Report as Report,
)
from mqe.tasks.push import (
    PushCfg as PushCfg,
)
from mqe.tasks.push.features import (
    StepFeatures as StepFeatures,
)
from mqe.tasks.terms import (
    MeasureTerm as MeasureTerm,
    Memory as Memory,
    MetricTerm as MetricTerm,
    ObservationTerm as ObservationTerm,
    RewardTerm as RewardTerm,
    TerminationTerm as TerminationTerm,
    Worlds as Worlds,
)
from mqe.tasks.walking import (
    WalkingCfg as WalkingCfg,
    WalkingFeatures as WalkingFeatures,
    WalkingTask as WalkingTask,
)
from mqe.viewer.video import (
    record as record,
)
from mqe.world.objects import (
    GeomCfg as GeomCfg,
    ObjectCfg as ObjectCfg,
)
from mqe.world.robots import (
    RobotCfg as RobotCfg,
)
from mqe.world.scene import (
    sliding_force as sliding_force,
)
from mqe.world.things import (
    Thing as Thing,
)

__version__: str
