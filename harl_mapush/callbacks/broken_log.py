"""Records of broken worlds: files with their last states, and films."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harl_mapush import config
from harl_mapush.callback import Callback
from harl_mapush.distributed.ranks import ALONE, Ranks
from harl_mapush.runs import exported as exported  # reads policies of former releases
from mqe.config import ConfigError, parse_yaml
from mqe.registry import SimCfg, make_env
from mqe.viewer.video import Film, film_states
from mqe.world.broken_worlds import BrokenWorld, BrokenWorldRecorder
from mqe.world.randomization import RandomizationCfg
from mqe.world.scene import Scene

FOLDER = "broken"  # in a run's folder
# Parts of a row in SceneState.rows, in order. Obstacles follow the goal.
_PARTS = ("qpos", "qvel", "contact_forces", "goal_pos")


class BrokenLog(Callback):
    """Writes the last states of a run's first broken worlds, and reports the causes."""

    def __init__(
        self,
        recorder: BrokenWorldRecorder,
        run: Path,
        settings: str,
        max_files: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """Write at most ``max_files`` files with states from ``recorder`` into ``broken`` in
        ``run``.

        Each file has the run's ``settings``.
        """
        self._folder = run / FOLDER
        self._settings = settings
        self._ranks = ranks
        self._left = max_files - len(list(self._folder.glob("*.npz")))
        self._recorder = recorder

    def on_broken_worlds(self, env_steps: int) -> str | None:
        """Write the worlds broken in the last iteration. Return the commonest cause and a file.

        With several ranks the first reports all ranks' worlds, and the others return None.
        """
        by_rank = self._ranks.gather_on_first(self._recorder.take_broken())
        broken = [world for worlds in by_rank for world in worlds]
        if not broken:
            return None

        # The causes of two worlds differ by their numbers, so their kinds are counted.
        kinds = Counter(_kind(world) for world in broken)
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
            reason = error.strerror or type(error).__name__
            return f"{words}; {written[-1]} cannot be written ({reason})"
        if not written:
            return words
        return (
            f"{words}; to see it: mapush test --replay {shlex.quote(str(written[0]))} "
            "--record FILE.mp4"
        )

    def _save(self, path: Path, world: BrokenWorld) -> None:
        ends = np.cumsum(_sizes(self._recorder.scene))[:-1]
        parts = dict(zip(_PARTS, np.split(world.rows, ends, axis=1), strict=True))
        texts = {"cause": np.array(world.cause), "settings": np.array(self._settings)}
        np.savez_compressed(path, allow_pickle=False, **parts, **texts)


def replay(path: Path, film: Path) -> tuple[Film, str]:
    """Film a broken world's last states from its file. Return the film and the cause."""
    content = _read(path)
    settings = parse_yaml(str(content["settings"]), str(path))
    if not isinstance(settings, dict):
        raise ConfigError(f"--replay {str(path)!r}: damaged, its settings are no sections")
    cfg, _ = config.resolve(settings, {})
    env = make_env(
        replace(cfg.env, num_envs=1, randomize=RandomizationCfg()),
        SimCfg(name="mujoco", device="cpu"),
        cfg.task,
        seed=0,
    )
    try:
        sizes = _sizes(env.scene)
        if [content[name].shape[1:] for name in _PARTS] != [(size,) for size in sizes]:
            raise ConfigError(
                f"--replay {str(path)!r}: damaged, its states do not fit the scene of its settings"
            )
        cause = str(content["cause"])
        return film_states(env, content["qpos"], content["goal_pos"], film, cause), cause
    finally:
        env.close()


def _sizes(scene: Scene) -> tuple[int, int, int, int]:
    """Return the row counts of a state's parts."""
    model = scene.model
    before_goal = (model.nq, model.nv, scene.num_forces)
    return (*before_goal, scene.num_rows - sum(before_goal))


def _read(path: Path) -> Mapping[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in (*_PARTS, "cause", "settings")}
    except OSError as error:
        raise ConfigError(
            f"--replay {str(path)!r}: cannot be read ({error.strerror or type(error).__name__}); "
            f"name a file of a run's folder {FOLDER}"
        ) from None
    except Exception as error:  # NumPy's readers raise many types, such as BadZipFile
        raise ConfigError(
            f"--replay {str(path)!r}: not the file of a broken world, or damaged "
            f"({type(error).__name__}); name a file of a run's folder {FOLDER}"
        ) from None
    return arrays


def _kind(world: BrokenWorld) -> str:
    return world.cause.partition(" was ")[0]
