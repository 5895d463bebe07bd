"""Every setting has bounds: infinities, tiny ends and other types are refused."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

from harl_mapush import config, train
from harl_mapush.algorithms.entries import ALGORITHMS
from mqe.config import ConfigError, build, check_values, to_dict
from mqe.registry import TASKS, SimCfg, make_env
from tests.support.error_lines import error_line

CLASSES = [
    *config.SECTION_CLASSES.items(),
    *((f"task {name}", entry.cfg) for name, entry in TASKS.items()),
    *((f"algorithm {name}", entry.cfg) for name, entry in ALGORITHMS.items()),
]
types_of = functools.cache(get_type_hints)
# Their own bounds name more than a range, or the machine's memory.
BOUNDED_ELSEWHERE = {"goal_distance", "episode_length_s"}


def classes() -> Iterator[tuple[str, type]]:
    """Yield each settings class once, nested ones too."""
    seen = []
    for where, cls in CLASSES:
        for inner in (cls, *(t for t in types_of(cls).values() if hasattr(t, "__mro__"))):
            if hasattr(inner, "__dataclass_fields__") and inner not in seen:
                seen.append(inner)
                yield f"{where} {inner.__name__}", inner


def leaves(hint: Any) -> set[type]:
    """Return the scalar types in a type."""
    members = [member for member in get_args(hint) if member is not Ellipsis]
    return set().union(*map(leaves, members)) if members else {hint}


def shaped(value: Any) -> list[Any]:
    """Return the value alone, and in sequences of two and three."""
    return [value, [value] * 2, [value] * 3, [value], {"a": value}]


NUMBERS = [
    (where, cls, name, field)
    for where, cls in classes()
    for name, field in cls.__dataclass_fields__.items()
    if field.init and leaves(types_of(cls)[name]) & {int, float}
]


@pytest.mark.parametrize(
    ("cls", "name", "field"),
    [pytest.param(*number[1:], id=f"{number[0]}.{number[2]}") for number in NUMBERS],
)
def test_a_number_has_bounds_and_refuses_nonsense(cls, name, field) -> None:
    limits = field.metadata
    least = limits.get("min", limits.get("above"))
    assert least is not None or name in BOUNDED_ELSEWHERE
    assert "max" in limits or name in BOUNDED_ELSEWHERE
    wrong: list[Any] = [math.inf, -math.inf, math.nan, -1e30, True, [[1.0]]]
    if str in leaves(types_of(cls)[name]):  # a number in words, read with the other settings
        for text in ("abc", "-3 N", "nan N", "1e40 N"):
            with pytest.raises(ConfigError, match=name):
                build(cls, {name: text}, "section")
    else:
        wrong.append("abc")
    if "max" in limits:
        wrong.append(1e30)
    if limits.get("min", 0.0) > 0.0 or ("above" in limits and name not in BOUNDED_ELSEWHERE):
        wrong.append(1e-37)
    for value in wrong:
        for given in shaped(value):
            with pytest.raises(ConfigError, match=name):
                check_values(cls, {name: given}, "section")


def test_defaults_of_settings_lie_within_their_bounds() -> None:
    for _, cls in classes():
        instance = cls()
        values = {name: getattr(instance, name) for name in to_dict(instance)}
        given = config_values(values)
        assert check_values(cls, given, "section").keys() == given.keys()


def config_values(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not hasattr(value, "__mro__")}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("task.roll_limit=1e-37", "task.roll_limit: must be at least 0.01"),
        ("task.goal_heading=1e30", "task.goal_heading: must be at least -6.28"),
        ("network.mean_bound=1e30", "network.mean_bound: must be at least 0.001 and at most 1000"),
        ("network.gain=1e30", "network.gain: must be at least 1e-06 and at most 100.0"),
        ("network.gain=1e-37", "network.gain: must be at least 1e-06 and at most 100.0"),
        ("task.episode_length_s=1e-37", "task.episode_length_s: must be at least 0.02"),
        ("task.action_scale=[0.5, 0.5, 1e-37]", "task.action_scale: must be at least 0.001"),
        ("algorithm.clip_param=1e5", "algorithm.clip_param: must be at least 0.0001 and at most"),
        ("task.weights.approach=1e30", "task.weights"),
        ("env.foot_friction=[0]", "no robot walks on a floor with the friction 0; say 0.05"),
        ("task.object_mass=1e-3", "task.object_mass: must be at least 0.1 and at most 1000"),
        ("task.object_mass=1e4", "task.object_mass: must be at least 0.1 and at most 1000"),
        ("task.object_mass=0.01 N", "task.object_mass=0.01 N: must be at least 0.1 N"),
        ("task.success_rest_s=1e6", "is too long for task.episode_length_s=20"),
        ("env.randomize.payload=-3", "env.randomize.payload: -3 kg is more than half of the trunk"),
        ("env.randomize.freeze_time=100", "freeze_time: 100 s are longer than an episode; say 20"),
    ],
)
def test_nonsense_is_refused_by_name(setting: str, said: str, capsys) -> None:
    assert train.main(["--preset", "laptop", "--set", setting]) == 2
    assert said in error_line(capsys)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("algorithm.critic_warmup=1000", "critic_warmup=1000: the run has about 0 updates"),
        ("task.object=tblock", "algorithm.symmetries: turn changes nothing"),
        ("env.robots=[go1,go2]", "algorithm.symmetries: numbers changes nothing"),
    ],
)
def test_a_setting_without_effect_is_named(setting: str, said: str, tmp_path, capsys) -> None:
    words = ["--preset", "smoke", "--algo", "hasac", "--device", "cpu", "--num_env_steps", "1"]
    words += ["--num_envs", "1", "--out", str(tmp_path / "run"), "--set", setting]
    for quick in (
        "runner.num_steps=1",
        "algorithm.symmetries=[turn, numbers]",
        "network.hidden_sizes=[8]",
    ):
        words += ["--set", quick]
    assert train.main(words) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "left out: set" not in line]
    assert [line for line in notes if line.startswith("Note: ") and said in line]


def test_the_usual_push_has_no_setting_without_effect() -> None:
    for name in ("laptop_hasac", "team2"):
        cfg = config.resolve(config.load_preset(name), {"env": {"num_envs": 1}})[0]
        env = make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, 1)
        assert cfg.algorithm.idle_settings(env.spec, 10**7) == []
        (line,) = cfg.algorithm.idle_settings(env.spec, 10**7, num_ranks=4)
        assert line.startswith("4 ranks: hasac learns")
        env.close()


@pytest.mark.parametrize("section", ["task", "algorithm", "sim"])
@pytest.mark.parametrize("name", [[], {}, 3])
def test_a_name_that_is_no_text_is_one_line(section: str, name: object) -> None:
    with pytest.raises(ConfigError, match=section):
        config.resolve({}, {section: {"name": name}})
