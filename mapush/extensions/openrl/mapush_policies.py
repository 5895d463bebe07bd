"""MAPush policies trained by OpenRL, converted to our actors.

OpenRL's networks have no activation after their last layer, ours have one after each. Adding a
number to all LayerNorm inputs does not change the output. So a large enough bias keeps the last
layer's output positive. There ReLU is the identity, and the function is the same up to rounding.
The head includes the trainer's factor 0.5 on actions. The environment clips them.

A policy has MAPush's task and observations.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from harl_mapush.learning.networks import Actor
from harl_mapush.learning.settings import NetworkCfg
from mapush.extensions.openrl.openrl_files import LOG_STD, MODULE, OpenRLModule, read
from mqe.config import ConfigError, reason_of, to_dict
from mqe.world.objects import OBJECTS
from mqe.world.scene import MAX_ROBOTS

ACTION_FACTOR = 0.5  # MAPush's trainer halves the policy's output before it clips it to [-1, 1]
_ACTION_SIZE = 3
_TASKS = ("go1push", "go1push_mid")  # MAPush's names of its task
_UNUSED = "base.mlp.fc_h."  # the template of the middle layers
_MEAN = "act.action_out.fc_mean"
_PARTS = ("weight", "bias")


TASK_FILE = Path("task", "config.py")  # in a folder of MAPush's results
MAX_CHARACTERS = 2**18
NUM_NPCS = 2  # object and goal marker
NO_PITCH_LIMIT = 1.6  # [rad] MAPush's limit, which no pitch angle reaches
_FILES = {"SmallBox": "cuboid", "SuperSmallTblock": "tblock", "BigCylinder": "cylinder"}
_SETTING = re.compile(
    r"^\s+(num_agents|num_npcs|file_npc)\s*=\s*[\"']?([^\"'\s#]{1,200})", re.MULTILINE
)


def reference_task(object_name: str) -> dict[str, Any]:
    """Return the section ``task`` with MAPush's training settings, as far as they exist here."""
    return {
        "name": "go1push_mid",
        "object": object_name,
        "observation": "reference",
        "decision_period": 1,
        "action_scale": [0.5, 0.5, 0.5],
        "rewards": "published",
        "spawn": "independent",
        "inertia": "reference",
        "pitch_limit": NO_PITCH_LIMIT,
        "collapse_ends": False,
    }


def values_beside(module: Path) -> dict[str, str]:
    """Return ``num_agents``, ``num_npcs`` and ``file_npc`` from the task file near a policy, as
    text.

    The last assignment in the file counts, as for derived classes. Return {} without a file.
    """
    for folder in list(module.absolute().parents)[:3]:
        path = folder / TASK_FILE
        if path.is_file():
            with suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
                return dict(_SETTING.findall(file.read(MAX_CHARACTERS)))
    return {}


def object_of(values: Mapping[str, str]) -> str | None:
    """Return the pushed object in a task file's values. None without a known object."""
    return _FILES.get(Path(values.get("file_npc", "")).stem)


class Imported(NamedTuple):
    """A MAPush policy, converted to a checkpoint."""

    sections: dict[str, Any]  # of the settings
    actor: Actor  # of every robot
    notices: list[str]  # parts of the file that are left out or changed


def convert(folder: Path) -> Imported:
    """Convert a ``module.pt``, or the one in a folder. Raise ConfigError if it is no MAPush team.

    Critic, deviations and learning settings are left out.
    """
    path = folder if folder.is_file() else folder / MODULE
    task_file = values_beside(path)
    notices: list[str] = []
    try:
        module = read(path)
        num_layers = _num_layers(module)
        hidden_size, obs_size = module.policy["base.mlp.fc1.0.weight"].shape
        num_agents = _team_size(module, obs_size, task_file)
        weights = _trunk(module.policy, num_layers)
        for part in _PARTS:
            weights[f"{_MEAN}.{part}"] = ACTION_FACTOR * module.policy[f"{_MEAN}.{part}"]
        network = NetworkCfg(
            hidden_sizes=(hidden_size,) * num_layers,
            activation="relu",
            use_layer_norm=True,  # compat=harl needs it
        )
        actor = Actor(network, obs_size, len(module.policy[LOG_STD]))
        actor.load_state_dict({**actor.state_dict(), **weights})
    except ConfigError as error:
        raise ConfigError(f"OpenRL's file {path}: {error}") from None
    except (KeyError, RuntimeError, ValueError) as error:
        detail = reason_of(error)[:160]
        raise ConfigError(
            f"OpenRL's file {path}: not a network as MAPush trains it ({detail})"
        ) from None
    algorithm = {"name": "ippo", "compat": "harl", "share_param": True}
    sections = {"network": to_dict(network), "algorithm": algorithm}
    if task_file.get("num_npcs") not in (None, str(NUM_NPCS)):
        notices.append(
            f"the task file beside it has {task_file['num_npcs']:.40} objects and markers, and "
            f"go1push_mid has {NUM_NPCS}"
        )
    task_name = module.settings.get("task", "go1push_mid")
    if task_name not in _TASKS:
        notices.append(f"it learned in the task {task_name!r:.40}, and plays go1push_mid here")
    exp_name = module.settings.get("exp_name")
    object_name = object_of(task_file) or _object(path.stem) or _object(exp_name)
    if object_name is None:
        is_cylinders = num_agents == OBJECTS["cylinder"].num_agents
        object_name = "cylinder" if is_cylinders else "cuboid"
    sections["env"] = {"num_agents": num_agents}
    sections["task"] = reference_task(object_name)
    return Imported(sections, actor, notices)


def _num_layers(module: OpenRLModule) -> int:
    """Return the number of layers. Raise ConfigError for an unknown architecture."""
    num_middle = sum(
        re.fullmatch(r"base\.mlp\.fc2\.\d+\.0\.weight", name) is not None for name in module.policy
    )
    num_layers = num_middle + 2
    names = {f"{theirs}.{part}" for theirs in (*_layers(num_layers), _MEAN) for part in _PARTS}
    used = {name for name in module.policy if not name.startswith(_UNUSED)}
    other = sorted(used ^ (names | {LOG_STD}))
    if other:
        raise ConfigError(
            f"not a network as MAPush trains it ({other[0]}); it must have only linear layers, "
            "without recurrence"
        )
    if set(module.activations) != {"ReLU"}:
        raise ConfigError(
            f"has the activations {sorted(set(module.activations))}; only ReLU is supported "
            "(activation_id=1)"
        )
    return num_layers


def _team_size(module: OpenRLModule, obs_size: int, task_file: Mapping[str, str]) -> int:
    """Return the number of robots. Raise ConfigError for a policy without a MAPush task.

    ``task_file`` has the values from the task file beside the policy.
    """
    num_agents, rest = divmod(obs_size - 2, 3)
    num_actions = len(module.policy[LOG_STD])
    if rest or not 1 <= num_agents <= MAX_ROBOTS or num_actions != _ACTION_SIZE:
        raise ConfigError(
            f"has {obs_size} inputs and {num_actions} outputs; a policy of go1push_mid has 2 + 3 "
            f"for each robot and {_ACTION_SIZE} (policies of MAPush's high level are not read; "
            "train one with --task go1push_upper)"
        )
    # One agent is OpenRL's default, which says nothing.
    for source, expected in (
        ("the task file beside it says", task_file.get("num_agents")),
        ("its own settings say", module.settings.get("num_agents")),
    ):
        number = str(expected)
        if number.isdecimal() and int(number) not in (1, num_agents):
            raise ConfigError(
                f"has {obs_size} inputs, as a team of {num_agents} has in go1push_mid, but "
                f"{source} {expected} robots; its task observes something else, and cannot be "
                "played here"
            )
    return num_agents


def _layers(num_layers: int) -> dict[str, str]:
    """Return OpenRL's names for each linear layer and its norm, with ours, from first to last."""
    theirs = ["fc1.0", "fc1.2"]
    for i in range(num_layers - 2):
        theirs += [f"fc2.{i}.0", f"fc2.{i}.2"]
    theirs += ["fc3.0", "fc3.1"]
    return {
        f"base.mlp.{name}": f"base.mlp.fc.{3 * (i // 2) + 2 * (i % 2)}"
        for i, name in enumerate(theirs)
    }


def _trunk(weights: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Return the trunk under our names. Its last bias makes ReLU the identity.

    A LayerNorm's output is scale * n + bias with sum(n) = 0 and |n|^2 <= H. Row by row, W times
    this output is at least W bias - sqrt(H) |W scale, less its mean|.
    """
    names = _layers(num_layers)
    *_, norm, last, _ = names
    scale, norm_bias = (weights[f"{norm}.{part}"].double() for part in _PARTS)
    matrix, bias = (weights[f"{last}.{part}"].double() for part in _PARTS)
    spread = matrix * scale
    spread = (spread - spread.mean(dim=1, keepdim=True)).norm(dim=1)
    lowest = matrix @ norm_bias + bias - len(scale) ** 0.5 * spread
    layers = {
        f"{ours}.{part}": weights[f"{theirs}.{part}"]
        for theirs, ours in names.items()
        for part in _PARTS
    }
    layers[f"{names[last]}.bias"] = (bias - lowest.min().clamp(max=0.0)).float()
    return layers


def _object(name: object) -> str | None:
    """Return the object in a file's or an experiment's name, or None."""
    lower = str(name).lower()
    return lower if lower in OBJECTS else None
