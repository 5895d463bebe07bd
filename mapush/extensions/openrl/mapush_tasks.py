"""A reader for MAPush's task configurations (``task/*/config.py``), without executing them.

It supports literals, ``+ - * /``, ``dict(...)``, ``np.pi``, names in the same class and derived
classes.
"""

from __future__ import annotations

import argparse
import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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
    refused: dict[str, str]  # keys whose values cannot be converted, with the reason of each
    unread: list[str]  # other keys


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


def convert(path: Path) -> TaskFile:
    """Convert a task file to sections. Raise ConfigError for any task other than go1push_mid."""
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
    refused: dict[str, str] = {}
    for key, (section, ours, is_possible) in _COPIED.items():
        if key not in values:
            continue
        if is_possible(values[key]):
            sections[section][ours] = values[key]
        else:
            refused[key] = f"{_show(values[key])}; not a value of {section}.{ours}"
    task |= _rewards(values, name, refused)
    task |= _terminations(values)
    unread = [key for key in values if key not in _CONVERTED and not key.startswith(_SCALES)]
    return TaskFile(sections, refused, unread)


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


def _rewards(values: Mapping[str, Any], name: str, refused: dict[str, str]) -> dict[str, Any]:
    """Return the preset if it has exactly the file's weights, else a preset with the weights."""
    names = dict(_WEIGHTS)
    if values.get("rewards.expanded_ocb_reward") is True:
        names["ocb_reward_scale"] = "ocb_expanded"
    weights = {}
    for key, value in values.items():
        if key.startswith(_SCALES):
            term = names.get(key.rpartition(".")[2])
            if term is None or not _is_number(value):
                refused[key] = f"{_show(value)}; no reward term has this name; see task.weights"
            else:
                weights[term] = float(value)
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
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    bases = {base.id for node in nodes for base in node.bases if isinstance(base, ast.Name)}
    last = next((node for node in nodes if node.name not in bases), None)
    if last is None:
        return {}
    classes: dict[str, Any] = {}
    for node in nodes:
        classes[node.name] = _class(node, classes)
    imported = {}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                imported[alias.asname or alias.name] = (alias.name, statement.module)
    ahead = [last.name]
    by_name = {node.name: node for node in nodes}
    for name in ahead:
        for base in by_name[name].bases if name in by_name else ():
            if not isinstance(base, ast.Name):
                continue
            if base.id in imported and imported[base.id][0] != _ROOT_CLASS:
                raise ConfigError(
                    f"MAPush's file {path}: {name} derives from {base.id} of another task file, "
                    f"{imported[base.id][1]}; give that file, or put both classes into one"
                )
            if base.id not in ahead:
                ahead.append(base.id)
    return classes[last.name]


def _class(node: ast.ClassDef, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a class, in its inner classes and in its bases from ``scope``."""
    values: dict[str, Any] = {}
    for base in reversed(node.bases):
        inherited = _value(base, scope)
        if isinstance(inherited, dict):
            values = merge(values, inherited)
    for statement in node.body:
        if isinstance(statement, ast.ClassDef):
            values[statement.name] = _class(statement, scope)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = _value(statement.value, values)
    _check_size(values)
    return values


def _check_size(values: Any) -> None:
    """Raise ValueError for more than ``MAX_VALUES`` nested values, since names can multiply."""
    ahead = [values]
    for count, value in enumerate(ahead):
        if count > MAX_VALUES:
            raise ValueError("too many values")
        if isinstance(value, dict):
            ahead += value.values()
        elif isinstance(value, list):
            ahead += value


def _value(node: ast.expr, scope: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant():
            return node.value
        case ast.Name(id=name) if name in scope:
            return scope[name]
        case ast.Attribute(value=ast.Name(id="np" | "numpy" | "math"), attr="pi"):
            return math.pi
        case ast.Attribute(value=whole, attr=name):
            members = _value(whole, scope)
            if isinstance(members, dict) and name in members:
                return members[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values = [_value(item, scope) for item in items]
            _check_size(values)
            return values
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand, scope)
            if _is_number(value):
                return -value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            a = _value(left, scope)
            b = _value(right, scope)
            is_division_by_zero = isinstance(op, ast.Div) and b == 0
            if _is_number(a) and _is_number(b) and not is_division_by_zero:
                return _OPERATORS[type(op)](a, b)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            return {
                word.arg: _value(word.value, scope) for word in keywords if word.arg is not None
            }
    return Unread(ast.unparse(node))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _is_range(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(_is_number(number) for number in value)
    )


def _show(value: Any) -> str:
    text = value.text if isinstance(value, Unread) else str(value)
    return " ".join(text.split())[:80]


def _with_unit(duration: str) -> str:
    return f"{duration}s" if duration.isdigit() else duration


_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# Keys that are copied: MAPush's key to our section and key, and a test of the value.
_COPIED: dict[str, tuple[str, str, Callable[[Any], bool]]] = {
    "env.num_agents": ("env", "num_agents", lambda value: type(value) is int),
    "env.episode_length_s": ("task", "episode_length_s", _is_number),
    "goal.random_goal_distance_from_init": ("task", "goal_distance", _is_range),
    "goal.THRESHOLD": ("task", "success_radius", _is_number),
    "termination.roll_kwargs.threshold": ("task", "roll_limit", _is_number),
    "termination.pitch_kwargs.threshold": ("task", "pitch_limit", _is_number),
}
_CONVERTED = {
    "asset.file_npc",
    "rewards.expanded_ocb_reward",
    _TERMINATIONS,
    *_COPIED,
}

TABLES.register("txt", success_rate_lines)

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
