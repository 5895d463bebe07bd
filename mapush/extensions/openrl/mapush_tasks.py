"""A reader for MAPush's task configurations (``task/*/config.py``), without executing them.

It supports literals, ``dict(...)`` and derived classes.
"""

from __future__ import annotations

import argparse
import ast
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harl_mapush.config import SETTINGS_FILES, SettingsFile
from harl_mapush.config.other_names import (
    TEST_FLAGS,
    TRAIN_FLAGS,
    OtherFlag,
    SaidByCheckpoint,
)
from harl_mapush.evaluation.tables import TABLES
from mqe.config import ConfigError, flatten, merge
from mqe.tasks.push.rewards import weights_of
from mqe.tasks.push.settings import PRESETS
from mqe.world.objects import OBJECTS

TASK_FILE = Path("task", "config.py")  # in a folder of MAPush's results
MAX_BYTES = 2**18
MAX_VALUES = 10_000  # settings of a task file, of which MAPush's have some 100
_ROOT_CLASS = "Go1Cfg"  # from which task files derive
NUM_NPCS = 2  # object and goal marker
NO_PITCH_LIMIT = 1.6  # [rad] MAPush's limit, which no pitch angle reaches
_FILES = {"SmallBox": "cuboid", "SuperSmallTblock": "tblock", "BigCylinder": "cylinder"}
_SCALES = "rewards.scales."
_TERMINATIONS = "termination.termination_terms"
_WEIGHTS = {
    "target_reward_scale": "target",
    "approach_reward_scale": "approach",
    "collision_punishment_scale": "collision",
    "push_reward_scale": "push",
    "ocb_reward_scale": "ocb",
    "reach_target_reward_scale": "reach",
    "exception_punishment_scale": "exception",
}


class Unread(NamedTuple):
    """Source text of an unsupported expression."""

    text: str


class TaskFile(NamedTuple):
    """A MAPush task configuration, converted to sections for a run file."""

    sections: dict[str, Any]
    unread: list[str]  # keys without effect, with a reason where others of the kind have one


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


def success_rate_lines(task_name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return metrics of checkpoints in the lines of MAPush's ``success_rate.txt``.

    The best checkpoint's second row, on fresh seeds, is left out. MAPush counts collisions with
    obstacles, and its task has none. Raises ConfigError for another task than MAPush's.
    """
    reference = reference_task("cuboid")["name"]
    if task_name != reference:
        raise ConfigError(
            f"--csv: the lines of MAPush's calculator describe {reference}, not {task_name}; name "
            "a file *.csv"
        )
    lines = []
    for row in rows:
        if row["is_fresh"]:
            continue
        lines += [
            f"Loaded checkpoint from:  {row['checkpoint']}",
            f"success rate: {row['success_rate']}",
            f"finished time: {row['finished_time_s']}",
            "collision degree: 0.0",
            f"collaboration degree: {row['collaboration_degree_reference'] or 0.0}",
            "-" * 53,
        ]
    return "\n".join(lines) + "\n"


def values_beside(module: Path) -> dict[str, Any]:
    """Return the values in the task file near a policy. {} without a readable one."""
    for folder in list(module.absolute().parents)[:3]:
        if (folder / TASK_FILE).is_file():
            with suppress(ConfigError):
                return read_values(folder / TASK_FILE)
    return {}


def apply(
    base: Mapping[str, Any], over: Mapping[str, Any], path: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings ``base`` with the task of a task file, and notices."""
    task_file = convert(Path(path))
    notices = [f"{path}: without effect here: {', '.join(task_file.unread)}"]
    return merge({**base, "task": {}}, task_file.sections), notices


def convert(path: Path) -> TaskFile:
    """Convert a task configuration of MAPush's to sections of a run file.

    Raise ConfigError for any task other than go1push_mid.
    """
    values = read_values(path)
    name = object_of(values)
    if name is None or values.get("env.num_npcs", NUM_NPCS) != NUM_NPCS:
        pushed = values.get("asset.file_npc", "nothing")
        num_npcs = _show(values.get("env.num_npcs", NUM_NPCS))
        raise ConfigError(
            f"MAPush's file {path}: pushes {_show(pushed)} among {num_npcs} objects and markers; "
            f"go1push_mid pushes one of {', '.join(_FILES)} to one goal"
        )
    task = reference_task(name)
    sections = {"task": task, "env": {"num_agents": OBJECTS[name].num_agents}}
    unread = [key for key in values if key not in _CONVERTED and not key.startswith(_SCALES)]
    for key, (section, ours) in _COPIED.items():
        if isinstance(values.get(key), Unread):
            unread.append(f"{key}={_show(values[key])} (no literal)")
        elif key in values:
            sections[section][ours] = values[key]
    task |= _rewards(values, name, unread)
    task |= _terminations(values)
    return TaskFile(sections, unread)


def read_values(path: Path) -> dict[str, Any]:
    """Return the values of the file's first class by dotted names, without executing the file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"MAPush's file {path}: has more than {MAX_BYTES // 2**10} KiB; it is not read"
            )
        # ast reads bytes as Python does: with a byte-order mark, or another encoding's line.
        tree = ast.parse(path.read_bytes())
        values = flatten(_task_class(tree, path))
    except OSError as error:
        raise ConfigError(f"MAPush's file {path}: cannot be read ({error.strerror})") from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"MAPush's file {path}: not Python that can be read ({type(error).__name__})"
        ) from None
    if not any(key.startswith("env.") for key in values):
        raise ConfigError(
            f"MAPush's file {path}: no task configuration (a class with a class env); give "
            "task/*/config.py"
        )
    return values


def _rewards(values: Mapping[str, Any], name: str, unread: list[str]) -> dict[str, Any]:
    """Return the preset if it has exactly the file's weights, else a preset with the weights.

    Weights without a reward term are added to ``unread``.
    """
    names = dict(_WEIGHTS)
    if values.get("rewards.expanded_ocb_reward") is True:
        names["ocb_reward_scale"] = "ocb_expanded"
    weights = {}
    for key, value in values.items():
        if key.startswith(_SCALES):
            term = names.get(key.rpartition(".")[2])
            if term is None or isinstance(value, Unread):
                unread.append(f"{key}={_show(value)} (see task.weights)")
            else:
                weights[term] = value
    for preset in ("published", "repo"):
        if weights == weights_of(preset, name, {}):
            return {"rewards": preset}
    unweighted = [term for term in PRESETS["repo"][name] if term not in weights]
    return {"rewards": "repo", "weights": dict.fromkeys(unweighted, 0.0) | weights}


def _terminations(values: Mapping[str, Any]) -> dict[str, float]:
    """Return limits that no robot reaches for terminations that the file leaves out."""
    terms = values.get(_TERMINATIONS)
    limits = {}
    if isinstance(terms, list) and "roll" not in terms:
        limits["roll_limit"] = 2.0 * math.pi
    if isinstance(terms, list) and "pitch" not in terms:
        limits["pitch_limit"] = NO_PITCH_LIMIT
    return limits


def object_of(values: Mapping[str, Any]) -> str | None:
    """Return the pushed object in a task file's values. None without a known object."""
    name = values.get("asset.file_npc")
    return _FILES.get(Path(name).stem) if isinstance(name, str) else None


def _task_class(tree: ast.Module, path: Path) -> dict[str, Any]:
    """Return the values in the file's first class without a derived class.

    Raise ConfigError if it derives from a class in another task file.
    """
    nodes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    bases = {name: _base_names(node) for name, node in nodes.items()}
    is_base = set().union(*bases.values())
    derived = next((name for name in nodes if name not in is_base), None)
    if derived is None:
        return {}
    classes: dict[str, Any] = {}
    for name, node in nodes.items():
        classes[name] = _class(node, classes)

    imported = {}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            imported |= {alias.name: statement.module for alias in statement.names}
    ahead = [derived]
    for name in ahead:
        if name in imported and name != _ROOT_CLASS:
            raise ConfigError(
                f"MAPush's file {path}: {derived} derives from {name} of another task file, "
                f"{imported[name]}; name that file instead, or put both classes into one file"
            )
        ahead += [base for base in bases.get(name, ()) if base not in ahead]
    return classes[derived]


def _base_names(node: ast.ClassDef) -> list[str]:
    return [base.id for base in node.bases if isinstance(base, ast.Name)]


def _class(node: ast.ClassDef, classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a class, in its inner classes and in its bases from ``classes``."""
    values: dict[str, Any] = {}
    for base in reversed(node.bases):
        values = merge(values, _inherited(base, classes))
    for statement in node.body:
        match statement:
            case ast.ClassDef(name=name):
                values[name] = _class(statement, classes)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                values[name] = _value(value)
    _check_size(values)
    return values


def _inherited(base: ast.expr, classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in the class ``A`` or ``A.inner`` of this file. {} for another class."""
    members = None
    match base:
        case ast.Name(id=name):
            members = classes.get(name)
        case ast.Attribute(value=outer, attr=name):
            members = _inherited(outer, classes).get(name)
    return members if isinstance(members, dict) else {}


def _check_size(values: dict[str, Any]) -> None:
    """Raise ValueError for more than ``MAX_VALUES`` nested values, since classes can multiply."""
    ahead = [values]
    for count, value in enumerate(ahead):
        if count > MAX_VALUES:
            raise ValueError("too many values")
        if isinstance(value, dict):
            ahead += value.values()


def _value(node: ast.expr) -> Any:
    """Return the value of a literal or of a call of ``dict``, and other expressions unread."""
    match node:
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {word.arg: _value(word.value) for word in keywords if word.arg is not None}
    with suppress(ValueError, TypeError):
        return ast.literal_eval(node)
    return Unread(ast.unparse(node))


def _show(value: Any) -> str:
    text = value.text if isinstance(value, Unread) else str(value)
    return " ".join(text.split())[:80]


def _with_unit(duration: str) -> str:
    return f"{duration}s" if duration.isdigit() else duration


# MAPush's keys, and our sections and keys with the same values
_COPIED = {
    "env.num_agents": ("env", "num_agents"),
    "env.episode_length_s": ("task", "episode_length_s"),
    "goal.random_goal_distance_from_init": ("task", "goal_distance"),
    "goal.THRESHOLD": ("task", "success_radius"),
    "termination.roll_kwargs.threshold": ("task", "roll_limit"),
    "termination.pitch_kwargs.threshold": ("task", "pitch_limit"),
}
_CONVERTED = {
    "asset.file_npc",
    "rewards.expanded_ocb_reward",
    _TERMINATIONS,
    *_COPIED,
}

TABLES.register("txt", success_rate_lines)
SETTINGS_FILES.register(
    "load_task",
    SettingsFile("MAPush's task/*/config.py, whose task replaces that of the run file", apply),
)

# MAPush's time steps are control steps of all worlds, as ours, and its duration is in seconds.
TRAIN_FLAGS.register("train_timesteps", OtherFlag(("runner.num_env_steps",)))
TRAIN_FLAGS.register("num_workers", OtherFlag(("runner.collectors",)))
TRAIN_FLAGS.register("run_duration", OtherFlag(("runner.max_wall_time",), _with_unit))
TEST_FLAGS.register("test_mode", {"dest": "mode", "default": argparse.SUPPRESS})
for _name in ("headless", "use_tensorboard"):
    TRAIN_FLAGS.register(_name, OtherFlag())
    TEST_FLAGS.register(_name, {"action": "store_true"})
for _name in ("algo", "train_timesteps", "exp_name", "config"):
    TEST_FLAGS.register(_name, {"action": SaidByCheckpoint})
