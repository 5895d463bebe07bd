"""A client's worlds: settings and environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harl_mapush.config import RunCfg
from harl_mapush.runs import exported as exported  # reads policies of former releases
from mqe.config import ConfigError
from mqe.env.environment import MultiAgentEnv
from mqe.registry import make_env
from mqe.vec_env import TimeStep
from mqe.viewer.camera import cameras
from mqe.viewer.offscreen import SceneRenderer
from mqe.viewer.recording import shown_state


@dataclass(frozen=True)
class Worlds:
    """The settings of a client's worlds."""

    cfg: RunCfg
    has_num_envs: bool = True  # whether the caller set the number of worlds

    def build(self) -> MultiAgentEnv:
        """Build the worlds."""
        return make_env(self.cfg.env, self.cfg.sim, self.cfg.task, self.cfg.runner.seed)

    def with_num_envs(self, num_envs: int) -> Worlds:
        """Return the settings for ``num_envs`` worlds."""
        env = replace(self.cfg.env, num_envs=num_envs)
        return Worlds(replace(self.cfg, env=env))

    def with_seed(self, seed: int) -> Worlds:
        """Return the settings with another seed."""
        runner = replace(self.cfg.runner, seed=seed)
        return replace(self, cfg=replace(self.cfg, runner=runner))

    def single(self, contract: str) -> Worlds:
        """Return the settings of one world. Raise ConfigError if the caller asked for several."""
        num_envs = self.cfg.env.num_envs
        if self.has_num_envs and num_envs != 1:
            raise ConfigError(
                f"num_envs: {contract} has one world, not {num_envs}; leave it out, or take a "
                "client of many worlds, such as gymnasium"
            )
        return self.with_num_envs(1)


WIDTH = 960  # [pixels]
HEIGHT = 540  # [pixels]


class DrawnEnv:
    """An environment whose first world is drawn without a display. The first picture opens a
    renderer.
    """

    env: MultiAgentEnv
    _renderer: SceneRenderer | None = None

    def render(self) -> NDArray[np.uint8]:
        """Return a picture (height, width, 3) of the first world's present state."""
        self.env.check_open()
        if self._renderer is None:
            self._renderer = SceneRenderer(self.env.scene, (WIDTH, HEIGHT))
        state = shown_state(self.env)
        (camera,) = cameras(self.env.scene, [state], 1.0, WIDTH / HEIGHT)
        return self._renderer.draw(state, camera)

    def close(self) -> None:
        """Free the simulator and the renderer."""
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None
        self.env.close()


class ClientEnv(DrawnEnv):
    """An environment for contracts with resets and seeds by the caller.

    Worlds that ended hold the first state of their next episode already. A reset of such a world
    returns this state, so every client plays the same sequence of episodes. A reset
    after a reset draws another episode. A copy or pickle is built anew with the present seed, and
    begins with a reset.
    """

    def __init__(self, worlds: Worlds) -> None:
        """Build the worlds."""
        self._worlds = worlds
        self._has_begun = False
        self.env = worlds.build()
        self.agents = [f"agent_{i}" for i in range(self.env.num_agents)]
        # Worlds without a step since a reset returned their first state
        self._was_reset = self._everywhere()

    def __reduce__(self) -> tuple[type[ClientEnv], tuple[Worlds]]:
        """Return how a copy is built."""
        return ClientEnv, (self._worlds,)

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.env.device

    def reset(self, seed: int | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return obs (N, A, O) and critic state after a reset of all worlds, or those in ``mask``
        (N,).

        A ``seed`` begins another sequence of episodes in all worlds.
        """
        if seed is not None:
            self.use_seed(seed)
        if not self._has_begun:
            self._has_begun = True
            self._was_reset = self._everywhere()
            return self.env.reset()
        if mask is None:
            mask = self._everywhere()
        inputs = self.env.restart(mask, self._was_reset)
        self._was_reset = self._was_reset | mask
        return inputs

    def _everywhere(self) -> Tensor:
        return torch.ones(self.env.num_envs, dtype=torch.bool, device=self.device)

    def use_seed(self, seed: int) -> None:
        """Begin another sequence of episodes at the next reset. Raise ConfigError for an invalid
        seed.

        The worlds are built anew, unless they have this seed and have not begun.
        """
        if seed == self._worlds.cfg.runner.seed and not self._has_begun:
            return
        worlds = self._worlds.with_seed(seed)
        env = worlds.build()
        self.close()
        self.env = env
        self._worlds = worlds
        self._has_begun = False

    def step(self, actions: Tensor) -> TimeStep:
        """Apply actions (N, A, U), clipped to [-1, 1], for one decision."""
        if not self._has_begun:
            raise RuntimeError("reset() comes first")
        self._was_reset = torch.zeros_like(self._was_reset)
        return self.env.step(actions)


def numpy_of(tensor: Tensor) -> NDArray[Any]:
    """Copy a tensor to the host. The next step may overwrite the environment's."""
    return np.array(tensor.detach().cpu().numpy(), order="C")
