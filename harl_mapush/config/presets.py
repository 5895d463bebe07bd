"""Run files, and the presets among them: those in the package."""

import itertools
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from harl_mapush.config.sections import RunCfg
from mqe.config import ConfigError, build, load_yaml
from mqe.extensions import Registry
from mqe.registry import SimCfg, resolve_sim

DEFAULT_PRESET = "laptop"
GPU_WORLDS = 1024  # least number of worlds in a preset for GPUs
GPU_PRESET = "cuboid"
OUR_SIMULATORS = ("mujoco", "warp")
CPU_PRESET = "laptop_hasac"


def configs_folder() -> Path:
    """Return the folder with presets and suites: a checkout's ``configs/``, or the installed
    package.
    """
    checkout = Path(__file__).parents[2] / "configs"
    if (checkout / "smoke.yaml").is_file():
        return checkout
    return Path(str(files("harl_mapush.configs")))


PRESETS: Registry[Path] = Registry(
    "preset", {path.stem: path for path in configs_folder().glob("*.yaml")}
)


def preset_summaries() -> dict[str, str]:
    """Return the first sentence of each preset's leading comment, by the preset's name."""
    summaries = {}
    for name, path in sorted(PRESETS.items()):
        text = path.read_text(encoding="utf-8")
        comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        words = " ".join(line.removeprefix("#").strip() for line in comment)
        words = re.sub(r" \(docs/[^)]*\)", "", words)
        summaries[name] = words.partition(". ")[0].removesuffix(".")
    return summaries


def load_preset(name: str | Path) -> dict[str, Any]:
    """Return the settings of a preset or in another run file. Raise ConfigError for neither."""
    is_file = Path(name).suffix or os.path.exists(name)  # False for an impossible file name
    if name in PRESETS or not is_file:
        name = PRESETS.find(str(name), "--preset")
    return load_yaml(name)


def machine_preset(over: Mapping[str, Any], num_ranks: int = 1) -> tuple[str, str]:
    """Return the preset for a training without one on this machine, and the reason for the choice.

    ``over`` is the command line's settings. A chosen task or learner, or a user's module, may not
    suit the best presets, so such a command line gets the most general one.
    """
    task = over.get("task") or {}
    env = over.get("env") or {}
    sim = over.get("sim") or {}
    name = sim.get("name", "auto")
    has_own_parts = "name" in task or "imports" in env or name not in ("auto", *OUR_SIMULATORS)
    if has_own_parts or "algorithm" in over or "network" in over:
        return DEFAULT_PRESET, "it suits the settings of the command line"
    chosen = {key: sim[key] for key in ("name", "device") if key in sim}
    _, device = resolve_sim(build(SimCfg, chosen, "sim"))
    if device.type == "cuda":
        return GPU_PRESET, f"the device is {device}"
    if num_ranks > 1:
        return DEFAULT_PRESET, f"the device is a CPU and the run has {num_ranks} ranks"
    return CPU_PRESET, "the device is a CPU"


def check_preset(name: str, cfg: RunCfg) -> None:
    """Raise ConfigError if a preset for GPUs would run on a CPU without ``--device cpu``."""
    if name not in PRESETS or cfg.env.num_envs < GPU_WORLDS or cfg.sim.device != "auto":
        return
    _, device = resolve_sim(cfg.sim)
    if device.type != "cpu":
        return
    smaller = f"laptop_{name}"
    if smaller not in PRESETS:
        smaller = DEFAULT_PRESET
    raise ConfigError(
        f"--preset {name}: {cfg.env.num_envs} worlds are meant for a GPU, and none can be used "
        f"here; say --preset {smaller}, or --device cpu to run them all the same"
    )
