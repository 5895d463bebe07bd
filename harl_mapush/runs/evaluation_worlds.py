"""The settings of evaluation worlds, and their differences from a team's training worlds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.config.suites import measured_suite
from harl_mapush.runs import checkpoint, named_files
from mqe.config import ConfigError, merge, to_dict
from mqe.env.environment import MultiAgentEnv
from mqe.manifest import packages, read_manifest
from mqe.registry import TASKS
from mqe.world.randomization import RandomizationCfg, Span, bounds

# Settings for an evaluation to change. All others belong to the policy or have no effect on it.
CHANGEABLE = ("task", "env", "sim", "runner.seed")
NUM_ENVS = 300
# Settings of a policy's observations and commands. Its networks depend on them.
INTERFACE = (
    "decision_period",
    "observation",
    "replaced_observations",
    "more_observations",
    "action_scale",
    "keep_apart",
)
# A team trained with other values does not know this world. All other settings only make a world
# harder or easier.
FAMILIAR = (
    *(f"task.{key}" for key in INTERFACE),
    "task.name",
    "task.object",
    "task.shapes",
    "task.inertia",
    "task.senses",
    named_files.GAIT,
    "env.robots",
    "env.model",
)


def settings(
    folder: Path | None,
    over: Mapping[str, Any],
    *,
    num_envs: int = NUM_ENVS,
    with_suite: bool = True,
) -> RunCfg:
    """Return the settings for an evaluation or a film with the checkpoint in ``folder``.

    The checkpoint's own settings (without a checkpoint, the defaults) come first, then ``num_envs``
    worlds and the task's default suite, then ``over``, with sections and keys like a run file.
    Without the suite, starts, goals and success stay those of the training. Raises ConfigError for
    changes to the policy.
    """
    config.check_layer(over)
    over = {name: content or {} for name, content in over.items()}
    learned = {} if folder is None else checkpoint.read_config(folder)
    try:
        trained, _ = config.resolve(learned, {})
    except ConfigError as error:
        raise error if folder is None else _unreadable(folder, error) from None
    task = trained.task.name
    evaluation: dict[str, Any] = {
        "env": {"num_envs": num_envs, "ground": "flat", "randomize": to_dict(RandomizationCfg())},
        "sim": {"name": "auto", "device": "auto"},
        "runner": {"seed": 0},
    }
    if folder is None:
        task = over.get("task", {}).get("name", task)
        TASKS.find(task, "task.name")
    else:
        evaluation["task"] = dict(TASKS[task].of_policy(trained.task))
        _refuse_learning_settings(over, folder)
        _refuse_other_team(trained, over, folder)
    if with_suite:
        evaluation = merge(evaluation, measured_suite(task, None).worlds)
    return config.resolve(learned, merge(evaluation, over))[0]


def _unreadable(folder: Path, error: ConfigError) -> ConfigError:
    """Return the error for a checkpoint's settings, with the version that wrote them."""
    written = read_manifest(folder).get("packages")
    version = written.get("mapush") if isinstance(written, dict) else None
    present = packages().get("mapush")
    return ConfigError(
        f"checkpoint {folder}, written by mapush {version or 'of an unknown version'} and read by "
        f"{present}: {error}"
    )


def _refuse_other_team(trained: RunCfg, over: Mapping[str, Any], folder: Path) -> None:
    """Raise ConfigError if ``over`` has a task or a team size unknown to the policy."""
    task = over.get("task", {}).get("name", trained.task.name)
    if task != trained.task.name:
        hint = ""
        entry = TASKS.find(task, "task.name")
        if "team" in entry.frozen_policies:
            script = next(iter(entry.policies))
            hint = f", or let it follow sub-goals: {script} --task {task} --set task.team={folder}"
        raise ConfigError(
            f"task.name={task}: checkpoint {folder} was trained with task.name="
            f"{trained.task.name}; leave it out{hint}"
        )
    num_agents = over.get("env", {}).get("num_agents", trained.env.num_agents)
    if not acts_in_teams_of(trained, num_agents):
        largest = _largest_team(trained)
        hint = "" if largest is None else f", or take 1 to {largest}, the limit of its observations"
        raise ConfigError(
            f"env.num_agents={num_agents}: checkpoint {folder} was trained with env.num_agents="
            f"{trained.env.num_agents}; leave it out{hint}"
        )


def acts_in_teams_of(trained: RunCfg, num_agents: Any) -> bool:
    """Return whether a policy with these settings can act in teams of ``num_agents`` robots."""
    if num_agents == trained.env.num_agents:
        return True
    largest = _largest_team(trained)
    return largest is not None and num_agents in range(1, largest + 1)


def _largest_team(trained: RunCfg) -> int | None:
    """Return the largest team for such a policy. None: only its own."""
    if not getattr(trained.algorithm, "share_param", False):
        return None
    return TASKS[trained.task.name].largest_team(trained.task)


def contents(cfg: RunCfg) -> dict[str, Any]:
    """Return each world's number of robots, and the object's name, mass [kg] and sliding force [N].

    A value with a range between worlds is a list: minimum and maximum.
    """
    pushed = TASKS[cfg.task.name].objects(cfg.task)
    if pushed is None:
        return {"num_robots": cfg.env.num_agents}
    randomize = cfg.env.randomize
    mass = _scaled(pushed.mass, randomize.object_mass)
    force = _scaled(
        pushed.sliding_force,
        randomize.object_mass,
        randomize.object_friction,
        randomize.ground_friction,
    )
    return {
        "num_robots": pushed.num_robots or cfg.env.num_agents or pushed.usual_team,
        "object": pushed.name,
        "object_mass_kg": mass,
        "sliding_force_n": force,
    }


def in_words(cfg: RunCfg, suite: str | None) -> str:
    """Format the worlds' contents as one line, after the suite's name."""
    worlds = contents(cfg)
    robots = "1 robot" if worlds["num_robots"] == 1 else f"{worlds['num_robots']} robots"
    title = "worlds" if suite is None else f"suite {suite}"
    if "object" not in worlds:
        return f"{title}: {robots}\n"
    mass = _span_words(worlds["object_mass_kg"], ".3g")
    force = _span_words(worlds["sliding_force_n"], ".0f")
    return f"{title}: {robots}, {worlds['object']} of {mass} kg, sliding at {force} N\n"


def _scaled(span: tuple[float, float], *factors: Span) -> float | list[float]:
    """Return a range times the ranges of factors."""
    low, high = span
    for factor in factors:
        least, largest = bounds(factor)
        low *= least
        high *= largest
    return low if low == high else [low, high]


def _span_words(span: float | list[float], digits: str) -> str:
    return " to ".join(f"{x:{digits}}" for x in (span if isinstance(span, list) else [span]))


def differences(folder: Path, cfg: RunCfg) -> str:
    """Return a table of the settings in ``cfg`` with other values than in training, or ""."""
    changed = _changes(folder, to_dict(cfg))
    if not changed:
        return ""
    rows = [("setting", "learned with", "measured with")]
    rows += [(key, str(old), str(present)) for key, (old, present) in changed.items()]
    lines = [f"{key:<33} {old:<22} {present}\n" for key, old, present in rows]
    return "".join([*lines, "\n"])


def unfamiliar(folder: Path, env: MultiAgentEnv) -> str | None:
    """Return a note on settings of ``env`` unknown to a checkpoint's team, or None."""
    if "task" not in env.settings:  # the environment was not built from settings
        return None
    changed = [
        f"{key}={present} (learned with {old})"
        for key, (old, present) in _changes(folder, env.settings).items()
        if key in FAMILIAR
    ]
    if changed:
        return f"the team of {folder} did not learn in this world: {', '.join(changed)}"
    return None


def _changes(folder: Path, present: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return settings with other values than in a checkpoint's training: old and present value.

    ``present`` has nested settings of an environment. Settings without an effect are left out.
    """
    trained, _ = config.resolve(checkpoint.read_config(folder), {})
    before = to_dict(trained)
    entry = TASKS[trained.task.name]
    keys = [f"task.{key}" for key in before["task"] if key in present["task"]]
    keys += ["env.robots", "env.model", "env.ground"]
    keys += [f"env.randomize.{key}" for key in before["env"]["randomize"]]
    left_out = _without_effect(present["env"]["randomize"])
    left_out += [f"task.{key}" for key in entry.of_policy(trained.task)]
    shapes = entry.replaces.get("object")  # the setting for different objects in different worlds
    learned_shapes = None if shapes is None else before["task"][shapes]
    if learned_shapes is not None:
        left_out.append(f"task.{shapes}")  # this team knows many
    if _value(present, named_files.GAIT) is None:  # the robots' own
        left_out.append(named_files.GAIT)

    pairs = {key: (_value(before, key), _value(present, key)) for key in keys}
    if learned_shapes is not None and "task.object" in pairs:
        pushed = pairs["task.object"][1]
        has_shapes = present["task"].get(shapes) is not None
        is_known = has_shapes or pushed in before["task"].get("shape_kinds", ())
        pairs["task.object"] = (pushed if is_known else learned_shapes, pushed)
    changed = {
        key: pair for key, pair in pairs.items() if pair[0] != pair[1] and key not in left_out
    }
    for key in named_files.changed(folder, trained):
        old, value = pairs.get(key, (None, None))
        if value is not None and value == old:
            changed[key] = ("another one of that name", value)
    return changed


def _value(settings: Mapping[str, Any], key: str) -> Any:
    """Return a value of nested settings, None for a missing one."""
    value: Any = settings
    for name in key.split("."):
        value = value.get(name)
    return value


def _without_effect(randomization: Mapping[str, Any]) -> list[str]:
    """Return the names of settings disabled by another one."""
    unused = []
    if not randomization["kick_speed"]:
        unused.append("kick_interval")
    if not randomization["lost_robots"]:
        unused += ["lost_share", "lost_time"]
    if not any(randomization["absent_robots"]):
        unused.append("robot_force")
    return [f"env.randomize.{name}" for name in unused]


def _refuse_learning_settings(over: Mapping[str, Any], folder: Path) -> None:
    """Raise ConfigError if ``over`` has a setting of the trained policy."""
    for section in over:
        for key in over[section]:
            if section not in CHANGEABLE and f"{section}.{key}" not in CHANGEABLE:
                raise ConfigError(
                    f"{section}.{key}={over[section][key]}: belongs to the training of {folder}, "
                    "and an evaluation cannot change it; leave it out "
                    f"(it may change {', '.join(CHANGEABLE)})"
                )
