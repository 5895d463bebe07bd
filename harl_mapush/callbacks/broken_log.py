"""What a run keeps of worlds whose simulation broke: files of their last states, and films of
them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl_mapush import config
from harl_mapush.callbacks.callback import Callback
from harl_mapush.distributed.ranks import ALONE, Ranks
from mqe.config import ConfigError, parse_yaml
from mqe.env.environment import MultiAgentEnv
from mqe.registry import SimCfg, make_env
from mqe.viewer.video import Film, film_states
from mqe.world.broken_worlds import BrokenWorld
from mqe.world.randomization import RandomizationCfg

FOLDER = "broken"  # in a run's folder
# Parts of SceneState.rows, one after the other.
_WHOLE = (
    "qpos",
    "qvel",
    "contact_forces",
    "goal_pos",
)


class BrokenLog(Callback):
    """Writes the last states of a run's first broken worlds, and formats what was wrong with
    them.
    """

    def __init__(
        self, env: MultiAgentEnv, run: Path, settings: str, most: int, ranks: Ranks = ALONE
    ) -> None:
        """Record ``env`` from now on, for at most ``most`` files in ``run``, each with the run's
        ``settings``.
        """
        self._env = env
        self._folder = run / FOLDER
        self._settings = settings
        self._ranks = ranks
        self._left = most - len(list(self._folder.glob("*.npz")))
        env.record_states()

    def on_broken_worlds(self, env_steps: int) -> str | None:
        """Record the worlds that broke in the iteration up to ``env_steps``; return the commonest
        cause and a file.

        With several ranks the first reports the worlds of all, and the others return None.
        """
        broken = [
            world for some in self._ranks.gather_on_first(self._env.take_broken()) for world in some
        ]
        if not broken:
            return None
        kinds = Counter(_kind(world) for world in broken)  # each world has numbers of its own
        kind = max(kinds, key=lambda kind: kinds[kind])
        first = next(world for world in broken if _kind(world) == kind)
        words = f"world {first.world}: {first.cause}"
        written: list[Path] = []
        try:
            for world in broken[: max(self._left, 0)]:
                self._folder.mkdir(exist_ok=True)
                written.append(self._folder / f"{env_steps}-world{world.world}.npz")
                self._save(written[-1], world)
                self._left -= 1
        except OSError as error:
            return (
                f"{words}; {written[-1]} cannot be written "
                f"({error.strerror or type(error).__name__})"
            )
        if not written:
            return words
        return (
            f"{words}; to see it: python -m harl_mapush.test --mode viewer --replay "
            f"{written[0]} --record FILE.mp4"
        )

    def _save(self, path: Path, world: BrokenWorld) -> None:
        model = self._env.scene.model
        ends = np.cumsum((model.nq, model.nv, model.nsensordata))
        parts = dict(zip(_WHOLE, np.split(world.rows, ends, axis=1), strict=True))
        texts = {"cause": np.array(world.cause), "settings": np.array(self._settings)}
        np.savez_compressed(path, allow_pickle=False, **parts, **texts)


def replay(path: Path, film: Path) -> tuple[Film, str]:
    """Film the last states of a world that broke, from its file; return also what was wrong with
    it.
    """
    content = _read(path)
    settings = parse_yaml(str(content["settings"]), str(path))
    if not isinstance(settings, dict):
        raise ConfigError(f"--replay {str(path)!r}: its settings are none; it is damaged")
    cfg, _ = config.resolve(settings, {})
    env = make_env(
        replace(cfg.env, num_envs=1, randomize=RandomizationCfg()),
        SimCfg(name="mujoco", device="cpu"),
        cfg.task,
        seed=0,
    )
    try:
        model = env.scene.model
        sizes = (model.nq, model.nv, model.nsensordata, 3)
        if [content[name].shape[1:] for name in _WHOLE] != [(size,) for size in sizes]:
            raise ConfigError(
                f"--replay {str(path)!r}: its states are not of the scene of its settings; it is "
                "damaged"
            )
        cause = str(content["cause"])
        return film_states(env, content["qpos"], content["goal_pos"], film, cause), cause
    finally:
        env.close()


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in (*_WHOLE, "cause", "settings")}
    except OSError as error:
        raise ConfigError(
            f"--replay {str(path)!r}: cannot be read ({error.strerror or type(error).__name__}); "
            "name a file of a "
            f"run's folder {FOLDER}"
        ) from None
    except Exception as error:  # NumPy's readers raise many types: ValueError, BadZipFile, ...
        raise ConfigError(
            f"--replay {str(path)!r}: no file of a world that broke, or damaged "
            f"({type(error).__name__}); name a file "
            f"of a run's folder {FOLDER}"
        ) from None
    return arrays


def _kind(world: BrokenWorld) -> str:
    return world.cause.partition(" was ")[0]
