"""HASAC with a teacher, a script or a trained team. The team begins with the teacher's actions, and
imitates them. Robots with senses have a teacher with exact observations.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.algorithms.hasac import Hasac, HasacCfg
from harl_mapush.learning.off_policy.replay_buffer import Batch
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import TeamPolicy, exported_team, load_team
from mapush.extensions.pivoting.exact_observations import ExactObservations
from mapush.extensions.pivoting.pressing_script import PressingScript
from mapush.registration import register_algorithm
from mqe.config import ConfigError, errors_of, option
from mqe.controllers.gait import from_anywhere
from mqe.tasks.push.task import PushTask
from mqe.vec_env import TeamSpec

# Standard deviation of the noise on the teacher's actions during the warm-up
_TEACHER_NOISE = 0.2


@dataclass(frozen=True)
class TaughtHasacCfg(HasacCfg):
    """Settings of HASAC with a teacher."""

    name: str = option("hasac_taught", "name of the learning algorithm")
    share_param: bool = option(True, "one actor shared by all agents; always true here")
    all_at_once: bool = option(
        True, "one update of the shared actor by all agents' new actions; always true here"
    )
    teacher: str = option(
        "",
        "team whose actions are imitated, with the same observations, or exact ones under "
        "task.senses: a checkpoint or pretrained:NAME; empty: the script for a box and two robots",
    )
    teacher_weight: float = option(
        20.0,
        "weight of the squared difference from the teacher's actions at the run's start",
        min=0.0,
        max=1e6,
    )
    teacher_until: float = option(
        1.0, "fraction of the run at whose end that weight is 0", min=1e-3, max=1e6
    )

    def with_absolute_paths(self) -> Self:
        """Return the settings with an absolute path to the teacher."""
        return replace(self, teacher=from_anywhere(self.teacher)) if self.teacher else self

    def team_spec(self, env: Any) -> TeamSpec:
        """Return the team's properties and its teacher. Raise ConfigError for an unfit teacher."""
        spec = env.spec
        task = env.task
        exact = None
        has_senses = isinstance(task, PushTask) and task.constants.senses is not None
        if not self.teacher:
            names = task.obs_names(0)
            if has_senses:
                exact = ExactObservations(task)
                names = exact.names
            teacher = PressingScript(task, names, env.decision_period, env.device)
            return spec._replace(teacher=teacher, teacher_obs=exact)
        with errors_of("algorithm.teacher"):
            folder = checkpoint.resolve(self.teacher)
            if has_senses:
                trained, _ = config.resolve(checkpoint.read_config(folder), {})
                exact = ExactObservations(task, trained.task.more_observations)
                sizes = (exact.size,) * env.num_agents
                team = exported_team(folder, spec._replace(obs_sizes=sizes), env.device)
            else:
                team = load_team(folder, env)
            if not isinstance(team, TeamPolicy) or team.is_recurrent:
                raise ConfigError(
                    f"{self.teacher} is recurrent or of another library; name a team of mapush's "
                    "without recurrence"
                )
        return spec._replace(teacher=team, teacher_obs=exact)


class TaughtHasac(Hasac):
    """HASAC with the imitation of a teacher in the actor's loss."""

    cfg: TaughtHasacCfg

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._weight = torch.tensor(self.cfg.teacher_weight, device=self.device)

    def check_settings(self) -> None:
        """Raise ValueError for contradicting settings."""
        super().check_settings()
        if not self.cfg.all_at_once:
            raise ValueError("hasac_taught updates a shared actor; set algorithm.all_at_once=true")

    def set_progress(self, progress: float) -> None:
        """Set the learning rates, and the weight of the imitation, which falls linearly."""
        super().set_progress(progress)
        left = max(0.0, 1.0 - progress / self.cfg.teacher_until)
        self._weight.fill_(self.cfg.teacher_weight * left)

    def act_untrained(self, obs: Tensor) -> Tensor:
        """Return the teacher's actions (N, A, U) with noise, or random ones without a teacher of
        these observations.
        """
        if self.spec.teacher is None or self.spec.teacher_obs is not None:
            return super().act_untrained(obs)
        actions = self.spec.teacher(obs)
        return (actions + _TEACHER_NOISE * self.noise(*actions.shape)).clamp(-1.0, 1.0)

    def further_losses(self, batch: Batch) -> dict[str, Tensor]:
        """Return the weighted square of the difference from the teacher's actions.

        A robot that does not know the object imitates nobody: it would learn to stand, the mean of
        what the teacher does, where it has to search.
        """
        if self.spec.teacher is None:
            return {}
        exact = self.spec.teacher_obs
        is_taught = batch.active
        if isinstance(exact, ExactObservations):
            is_taught = is_taught * exact.knows(batch.obs)
        with torch.no_grad():
            taught = self.spec.teacher(batch.obs if exact is None else exact(batch.state))
        error = (self.actors[0](batch.obs) - taught).square().mean(dim=-1)
        mean = (error * is_taught).sum() / is_taught.sum().clamp(min=1.0)
        return {"agent0/imitation_loss": self._weight * mean}


register_algorithm("hasac_taught", TaughtHasacCfg, TaughtHasac)
