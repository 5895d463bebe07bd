"""The client ``benchmarl``: a BenchMARL task, played in the client ``torchrl``.

Import this module, and say ``mapush.make(task, client="benchmarl")``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarl.environments import TaskClass  # pyright: ignore[reportMissingImports]
from torchrl.data import Composite  # pyright: ignore[reportMissingImports]
from torchrl.envs import EnvBase  # pyright: ignore[reportMissingImports]

import mapush
from harl_mapush.clients.worlds import Worlds
from mapush.extensions.torchrl.torchrl_env import TorchRLEnv
from mqe.config import to_dict


class BenchMARLTask(TaskClass):
    """A task for ``benchmarl.experiment.Experiment(task=...)``.

    BenchMARL chooses the number of worlds and the seed, ``mapush.make`` all other settings. With
    ``state_type`` FP the critic has no separate state.
    """

    def __init__(self, worlds: Worlds) -> None:
        """Keep the settings until BenchMARL builds the worlds."""
        super().__init__(worlds.cfg.task.name, to_dict(worlds.cfg.task))
        self._worlds = worlds

    def get_env_fun(
        self, num_envs: int, continuous_actions: bool, seed: int | None, device: Any
    ) -> Callable[[], EnvBase]:
        """Return a function to build ``num_envs`` worlds on ``device``."""
        worlds = self._worlds.with_num_envs(num_envs)
        if seed is not None:
            worlds = worlds.with_seed(seed)
        return lambda: TorchRLEnv(worlds, device)

    def supports_continuous_actions(self) -> bool:
        """Return True: actions are velocities."""
        return True

    def supports_discrete_actions(self) -> bool:
        """Return False."""
        return False

    def max_steps(self, env: Any) -> int:
        """Return an episode's time limit in decisions."""
        return env.max_decisions

    def has_render(self, env: Any) -> bool:
        """Return True: the first world can be drawn."""
        return True

    def group_map(self, env: Any) -> dict[str, list[str]]:
        """Return the one group of all agents."""
        return env.group_map

    def observation_spec(self, env: Any) -> Composite:
        """Return the spec of the agents' observations."""
        spec = env.full_observation_spec_unbatched.clone()
        for key in [key for key in spec.keys(True, True) if key[-1] != "observation"]:
            del spec[key]
        return spec

    def info_spec(self, env: Any) -> Composite | None:
        """Return None: there are no infos."""
        return None

    def state_spec(self, env: Any) -> Composite | None:
        """Return the spec of the critic's state, if the agents share one."""
        state = env.full_observation_spec_unbatched.get("state", None)
        return None if state is None else Composite({"state": state})

    def action_spec(self, env: Any) -> Composite:
        """Return the spec of actions."""
        return env.full_action_spec_unbatched

    def action_mask_spec(self, env: Any) -> Composite | None:
        """Return None: all actions are always available."""
        return None

    @staticmethod
    def env_name() -> str:
        """Return the environment's name."""
        return "mapush"


mapush.register_client("benchmarl", BenchMARLTask)
