"""The settings of evaluation worlds, and their differences from a team's training worlds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harl_mapush import config
from harl_mapush.config import RunCfg
from harl_mapush.config.suites import default_worlds
from harl_mapush.runs import checkpoint, named_files
from mqe.config import ConfigError, merge, to_dict
from mqe.controllers.gait import gait_digest, gait_names
from mqe.env.environment import MultiAgentEnv
from mqe.manifest import packages, read_manifest
from mqe.registry import TASKS
from mqe.world.randomization import RandomizationCfg, Span, bounds
from mqe.world.robots import robots_of

# Settings for an evaluation to change. All others belong to the policy or have no effect on it.
CHANGEABLE = ("task", "env", "sim", "runner.seed")
NUM_ENVS = 300
# Task settings for a team's observations, actions and object. A team trained with other values does
# not know this world. All others only make a world harder or easier.
FAMILIAR = ("object", "decision_period", "observation", "action_scale", "keep_apart", "inertia")
# Settings of later releases. A run without them was trained with their defaults.
ADDED_LATER = ("keep_apart",)


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
    learned = {} if folder is None else checkpoint.read_config(folder)
    try:
        trained, _ = config.resolve(learned, {})
    except ConfigError as error:
        raise _of_a_later_version(folder, error) from None
    config.check_layer(over)
    over = config.with_own_names(over)
    task = trained.task.name
    num_agents = trained.env.num_agents
    if folder is None:
        task = (over.get("task") or {}).get("name", task)
    evaluation: dict[str, Any] = {
        "env": {
            "num_envs": num_envs,
            "randomize": to_dict(RandomizationCfg()),
        },
        "sim": {"name": "auto", "device": "auto"},
        "runner": {"seed": 0},
    }
    if folder is not None:
        evaluation["task"] = dict(TASKS[task].of_policy(trained.task))
    if with_suite:
        evaluation = merge(evaluation, default_worlds(task))
    over = merge(evaluation, {section: content or {} for section, content in over.items()})
    if folder is None:
        return config.resolve(learned, over)[0]

    requested = merge({"task": {}, "env": {}}, over)
    asked_agents = requested["env"].get("num_agents", num_agents)
    if acts_in_teams_of(trained, asked_agents):
        num_agents = asked_agents
    for key, old, new in (
        ("task.name", task, requested["task"].get("name", task)),
        ("env.num_agents", num_agents, asked_agents),
    ):
        if new != old:
            hint = ""
            largest = _largest_team(trained)
            if key == "env.num_agents" and largest is not None:
                hint = f", or take 1 to {largest}, the limit of its observations"
            if key == "task.name" and "team" in TASKS[new].frozen_policies:
                hint = (
                    f", or let it act under a leader: planner --task {new} --set task.team={folder}"
                )
            raise ConfigError(
                f"{key}={new}: checkpoint {folder} was trained with {key}={old}; leave it out{hint}"
            )
    cfg, _ = config.resolve(learned, over)
    _refuse_learning_settings(trained, cfg, over, folder)
    return cfg


def _of_a_later_version(folder: Path | None, error: ConfigError) -> ConfigError:
    """Return the error for a checkpoint with unreadable settings, with the writer's version if
    later.
    """
    present = packages().get("mapush")
    written = None if folder is None else read_manifest(folder).get("packages")
    version = written.get("mapush", present) if isinstance(written, dict) else present
    if folder is None or not str(error).startswith("unknown key") or version == present and written:
        return error
    said = "perhaps of a later version" if not written else f"of mapush {version:.20}"
    unknown_key = str(error).partition(" (allowed")[0]
    return ConfigError(
        f"checkpoint {folder} is {said}, and this is {present}: {unknown_key}; update mapush, or "
        "remove the key from its config.yaml"
    )


def shown(folder: Path | None, over: Mapping[str, Any], suite: str | None) -> RunCfg:
    """Return the settings for a viewer or a film: a suite's worlds, or the team's training
    worlds.
    """
    return settings(folder, over, num_envs=1, with_suite=suite is not None)


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
    """Return a table of the settings in ``cfg`` with other values than in training, or "".

    The policy's settings are left out, since ``load_team`` reports them.
    """
    trained, _ = config.resolve(checkpoint.read_config(folder), {})
    before = to_dict(trained)
    after = to_dict(cfg)
    pairs = [
        (f"task.{key}", before["task"].get(key), value) for key, value in after["task"].items()
    ]
    of_policy = TASKS[trained.task.name].of_policy(trained.task)
    left_out = (*FAMILIAR, *of_policy, "gait")
    pairs = [pair for pair in pairs if pair[0].removeprefix("task.") not in left_out]
    learned_randomization = before["env"]["randomize"]
    randomization = after["env"]["randomize"]
    unused = _without_effect(randomization)
    pairs += [
        (f"env.randomize.{key}", learned_randomization[key], value)
        for key, value in randomization.items()
        if key not in unused
    ]
    changed = [(key, str(old), str(value)) for key, old, value in pairs if value != old]
    if not changed:
        return ""
    head = ("setting", "learned with", "measured with")
    lines = [f"{key:<34}{old:<23}{value}\n" for key, old, value in (head, *changed)]
    return "".join([*lines, "\n"])


def _without_effect(randomization: Mapping[str, Any]) -> list[str]:
    """Return the names of settings disabled by another one."""
    unused = []
    if not randomization["kick_speed"]:
        unused.append("kick_interval")
    if not randomization["lost_robots"]:
        unused += ["lost_share", "lost_time"]
    if not any(randomization["absent_robots"]):
        unused.append("robot_force")
    return unused


def unfamiliar(folder: Path, env: MultiAgentEnv) -> str | None:
    """Return a note on settings of ``env`` unknown to a checkpoint's team, or None."""
    if "task" not in env.settings:  # the environment was not built from settings
        return None
    learned = checkpoint.read_config(folder)
    task = env.settings["task"]
    trained = config.resolve(learned, {})[0]
    given = learned.get("task") or {}
    if trained.task.name != task["name"]:
        return f"the team of {folder} learned task {trained.task.name}, and this is {task['name']}"
    before = to_dict(trained.task)
    pairs = [
        (f"task.{key}", before[key], task[key])
        for key in FAMILIAR
        if key in task and (key in given or key in ADDED_LATER) and key != "object"
    ]
    for key in ("robots", "model"):
        if key in (learned.get("env") or {}):
            pairs.append((f"env.{key}", to_dict(trained.env)[key], env.settings["env"][key]))
    changed = [
        f"{key}={present} (learned with {old})" for key, old, present in pairs if present != old
    ]
    if "object" in given and "object" in task:
        changed = [*_other_object(trained, task), *changed]
    if "gait" in given and TASKS[trained.task.name].gaits is not None:
        old = _shared(_gaits(trained))
        present = _shared(gait_names(task["gait"], env.scene.robots))
        if present != old:
            changed.append(f"task.gait={', '.join(present)} (learned with {', '.join(old)})")
        else:
            note = other_gait(folder, trained)
            if note is not None:
                changed.append(note)
    for name in named_files.changed(folder, trained.task):
        key = name.removeprefix("task.")
        if task[key] == before[key]:
            changed.append(f"{name}={task[key]} (learned with another one of that name)")
    if changed:
        return f"the team of {folder} did not learn in this world: {', '.join(changed)}"
    return None


def _other_object(trained: RunCfg, task: Mapping[str, Any]) -> list[str]:
    """Return a list with one note if a team did not learn with the object in ``task``, else an
    empty list.
    """
    entry = TASKS[trained.task.name]
    before = to_dict(trained.task)
    shapes = entry.replaces.get("object")  # the setting for different objects in different worlds
    has_learned_shapes = shapes is not None and before[shapes] is not None
    if shapes is not None and task[shapes] is not None:
        if has_learned_shapes:
            return []
        return [f"task.{shapes}={task[shapes]} (learned with {before['object']})"]
    pushed = task["object"]
    if not has_learned_shapes:
        learned = before["object"]
        return [] if pushed == learned else [f"task.object={pushed} (learned with {learned})"]
    if pushed in before.get("shape_kinds", ()):
        return []
    objects = entry.objects(trained.task)
    assert objects is not None  # a task with shapes has objects
    return [f"task.object={pushed} (learned with {objects.name})"]


def other_gait(folder: Path, cfg: RunCfg) -> str | None:
    """Return a note if a gait of ``cfg`` was retrained since the team learned with it, or None."""
    digest = read_manifest(folder).get("gait_sha256")
    if digest is None or digest == digest_of_gaits(cfg):
        return None
    return f"task.gait={', '.join(_shared(_gaits(cfg)))} (learned with another one of that name)"


def digest_of_gaits(cfg: RunCfg) -> str | None:
    """Return the SHA-256 of the gaits in ``cfg``. None: the task has no gaits."""
    if TASKS[cfg.task.name].gaits is None:
        return None
    return gait_digest(_gaits(cfg))


def _shared(gaits: list[str]) -> list[str]:
    """Return a team's gaits, or the one gait of all its robots."""
    return gaits[:1] if len(set(gaits)) == 1 else gaits


def _gaits(cfg: RunCfg) -> list[str]:
    assert cfg.env.num_agents is not None  # config.resolve sets it
    robots = robots_of(cfg.env.robots, cfg.env.num_agents, cfg.env.model)
    gaits = TASKS[cfg.task.name].gaits
    assert gaits is not None
    return gait_names(gaits(cfg.task), robots)


def _refuse_learning_settings(
    trained: RunCfg, cfg: RunCfg, over: Mapping[str, Any], folder: Path
) -> None:
    """Raise ConfigError if ``over`` changes a setting of the trained policy."""
    before = to_dict(trained)
    after = to_dict(cfg)
    for section in [name for name in over if name not in CHANGEABLE]:
        for key in over[section]:
            old = before[section].get(key)
            new = after[section][key]
            if new != old and f"{section}.{key}" not in CHANGEABLE:
                raise ConfigError(
                    f"{section}.{key}={new}: checkpoint {folder} was trained with "
                    f"{section}.{key}={old}, and an evaluation cannot change it; leave it out (an "
                    f"evaluation may change {', '.join(CHANGEABLE)})"
                )
