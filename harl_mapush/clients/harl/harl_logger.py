"""A task's statistics and reward terms in upstream HARL's logs."""

import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from harl_mapush.callbacks.logger import statistics_line
from harl_mapush.clients.harl.harl_env import HarlEnv
from harl_mapush.config import DEFAULT_TASK


def log_task(env: HarlEnv, writer: Any, env_steps: int) -> None:
    """Write the task's statistics, and its reward terms a control step, to a summary writer and
    one line to stdout.
    """
    statistics = env.get_statistics()
    tagged = {f"mapush/{name}": value for name, value in statistics.items()} | env.take_rewards()
    for tag, value in tagged.items():
        if math.isfinite(value):
            writer.add_scalar(tag, value, env_steps)
    sys.stdout.write(statistics_line(statistics, env.headline) + "\n")
    sys.stdout.flush()


@functools.cache
def make_logger(base: type) -> type:
    """Derive the logger for on-policy runners from HARL's own ``base``.

    It reports on the environment in ``set_envs``, and before that as ``base`` does.
    ``progress.txt`` gets one line ``env steps,mean return`` per evaluation, or else per log
    interval.
    """

    class MAPushLogger(base):  # type: ignore[misc, valid-type]
        """HARL's logger with the metrics of the task's episodes."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.envs: HarlEnv | None = None

        def set_envs(self, envs: HarlEnv) -> None:
            """Report on the task of these environments."""
            self.envs = envs

        def get_task_name(self) -> str:
            return str(self.env_args.get("task") or DEFAULT_TASK)

        def episode_log(self, *arguments: Any) -> None:
            returns = list(self.done_episodes_rewards)
            super().episode_log(*arguments)
            if self.envs is not None:
                log_task(self.envs, self.writter, self.total_num_steps)
            if returns and not self.algo_args["eval"]["use_eval"]:
                self.log_file.write(f"{self.total_num_steps},{np.mean(returns)}\n")
                self.log_file.flush()

    return MAPushLogger


def bound_logger(logger: type, training_env: Callable[[], HarlEnv]) -> type:
    """Derive a logger with the present training environment."""

    class BoundLogger(logger):  # type: ignore[misc, valid-type]
        """The logger class for upstream's runners."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.set_envs(training_env())

    return BoundLogger


def attach_logger(runner: Any) -> None:
    """Make an off-policy runner, which has no logger, log the task's metrics at every save."""
    save = runner.save
    env = runner.envs
    logged = [0]

    def save_and_log() -> None:
        save()
        if env.num_decisions > logged[0]:
            logged[0] = env.num_decisions
            log_task(env, runner.writter, env.num_decisions * env.n_threads)

    runner.save = save_and_log
