"""mqe.config: allowed values, and the errors for others."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest
import yaml

from mqe.config import (
    ConfigError,
    assignment,
    build,
    dump_yaml,
    load_yaml,
    merge,
    nearest,
    option,
    parse_yaml,
    to_dict,
)


@dataclass(frozen=True)
class Inner:
    factor: float = option(0.5, "a share", min=0, max=1)


@dataclass(frozen=True)
class Sample:
    num_envs: int = option(8, "worlds", min=1)
    learning_rate: float = option(5e-4, above=0)
    use_clip: bool = True
    name: str = option("box", choices=("box", "ball"))
    mode: str = option("fast", choices=("fast", "slow"))
    sizes: tuple[int, ...] = option((64, 64), min=1)
    point: tuple[float, float] = (0.0, 1.0)
    limit: float | None = None
    weights: dict[str, float] = option({})
    inner: Inner = option(Inner)

    def __post_init__(self) -> None:
        if self.num_envs == 13:
            raise ValueError("num_envs: 13 worlds bring bad luck; take 12")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("algorithm.clip_parm", "algorithm.clip_param"),
        ("clip", "algorithm.clip_param"),
        ("env.clip_param", "algorithm.clip_param"),
        ("--sed", "--seed"),
        ("--log_interval", None),
        ("algorithm.nothing", None),
    ],
)
def test_a_word_is_near_by_its_end(word: str, meant: str | None) -> None:
    names = ["algorithm.clip_param", "algorithm.gamma", "--seed", "--n_rollout_threads"]
    assert nearest(word, names) == meant
    assert nearest(word, []) is None


def test_defaults_and_values() -> None:
    made = build(
        Sample,
        {"learning_rate": 1, "num_envs": 1e3, "sizes": [3, 4, 5], "inner": {"factor": 1}},
        "sample",
    )
    assert made == Sample(num_envs=1000, learning_rate=1.0, sizes=(3, 4, 5), inner=Inner(1.0))
    assert type(made.learning_rate) is float
    assert type(made.num_envs) is int
    assert build(Sample, None, "sample") == Sample()
    with pytest.raises(FrozenInstanceError):
        made.num_envs = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_env": 3}, "unknown key 'sample.num_env'; did you mean sample.num_envs?"),
        ({"inner": {"facto": 1}}, "did you mean sample.inner.factor?"),
        ({"num_envs": 0}, "sample.num_envs: must be at least 1, not 0"),
        (
            {"num_envs": 1e30},
            "sample.num_envs: must be at most 9223372036854775807 in size, not 1e+30",
        ),
        ({"num_envs": -(10**400)}, "sample.num_envs: must be at most 9223372036854775807 in size"),
        (
            {"num_envs": -1e30},
            "sample.num_envs: must be at most 9223372036854775807 in size, not -1e+30",
        ),
        (
            {"num_envs": 2**63},
            "sample.num_envs: must be at most 9223372036854775807 in size, not 9223372036854775808",
        ),
        (
            {"learning_rate": 10**400},
            "sample.learning_rate: must be at most 9223372036854775807 in size",
        ),
        ({"num_envs": 2.5}, "sample.num_envs: must be a whole number, not 2.5"),
        ({"num_envs": True}, "sample.num_envs: must be a whole number, not True"),
        ({"num_envs": None}, "sample.num_envs: must be a whole number, not None"),
        ({"num_envs": "8"}, "must be a whole number, not '8'"),
        ({"learning_rate": 0}, "sample.learning_rate: must be above 0, not 0.0"),
        ({"learning_rate": float("nan")}, "must be a finite number"),
        (
            {"inner": {"factor": 2}},
            "sample.inner.factor: must be at least 0 and at most 1, not 2.0",
        ),
        ({"use_clip": 1}, "must be true or false, not 1"),
        ({"name": "bal"}, "unknown value 'bal'; did you mean ball? (allowed: box, ball)"),
        ({"name": 5}, "must be a string, not 5; put it in quotes"),
        ({"name": "\ud800"}, "sample.name: must be text without null bytes or halves"),
        ({"mode": "slo"}, "did you mean slow? (allowed: fast, slow)"),
        ({"sizes": [3, "x"]}, "sample.sizes[1]: must be a whole number, not 'x'"),
        ({"sizes": [3, 0]}, "sample.sizes: must be at least 1, not 0"),
        ({"sizes": 3}, "sample.sizes: must be a list of whole numbers, not 3"),
        ({"point": [1]}, "sample.point: must have 2 values"),
        ({"limit": "x"}, "sample.limit: must be a number"),
        ({"weights": {"reach": "x"}}, "sample.weights.reach: must be a number"),
        ({"inner": 3}, "sample.inner: must be a section of keys, not 3"),
        ({"num_envs": 13}, "bad luck"),
        ([1], "sample: must be a section of keys"),
    ],
)
def test_complaints_are_one_line(values: dict, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(Sample, values, "sample")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_scalars() -> None:
    text = (
        "[5e-4, 1E6, -.5, 1., 1_000, 010, 12:30, on, true, ~, 1e400, .inf, '5e-4', 2026-01-01, a]"
    )
    expected = [
        5e-4,
        1e6,
        -0.5,
        1.0,
        1000,
        10,
        "12:30",
        "on",
        True,
        None,
        float("inf"),
        float("inf"),
    ]
    assert parse_yaml(text) == [*expected, "5e-4", "2026-01-01", "a"]
    assert parse_yaml("") is None


def test_yaml_never_builds_objects() -> None:
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_yaml("!!python/object/apply:os.getcwd []")


@pytest.mark.parametrize("text", ["a: [1", "a: 1\na: 2", "a:\n\t- b", "a: " + 5000 * "["])
def test_broken_yaml_is_one_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "file.yaml")
    assert str(caught.value).startswith("file.yaml")
    assert "\n" not in str(caught.value)


def test_base_files(tmp_path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "root.yaml").write_text("env: {num_envs: 4, num_agents: 2}\nrunner: {seed: 1}\n")
    (tmp_path / "deep" / "middle.yaml").write_text("base: ../root.yaml\nenv: {num_envs: 5}\n")
    (tmp_path / "deep" / "leaf.yaml").write_text("base: middle.yaml\nrunner: {seed: 7}\n")
    assert load_yaml(tmp_path / "deep" / "leaf.yaml") == {
        "env": {"num_envs": 5, "num_agents": 2},
        "runner": {"seed": 7},
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: loop.yaml", "its own base"),
        ("base: none.yaml", "cannot be read"),
        ("- 1", "keys"),
        ("base: 3", "base"),
    ],
)
def test_bad_files(tmp_path, text: str, said: str) -> None:
    (tmp_path / "loop.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_yaml(tmp_path / "loop.yaml")


def test_dump_comes_back_for_any_reader() -> None:
    values = to_dict(build(Sample, {"learning_rate": 1e-5, "weights": {"reach": 10}}, "sample"))
    values["words"] = ["5e-4", "on", "1:30", "null", "1", "true", "x"]
    assert parse_yaml(dump_yaml(values)) == values
    assert yaml.safe_load(dump_yaml(values)) == values
    assert build(Sample, to_dict(Sample()), "sample") == Sample()


def test_assignment() -> None:
    assert assignment("task.weights.reach=5e-1") == {"task": {"weights": {"reach": 0.5}}}
    assert assignment("logger.exp_name=a=b") == {"logger": {"exp_name": "a=b"}}
    assert assignment("network.hidden_sizes=[64, 64]") == {"network": {"hidden_sizes": [64, 64]}}
    for text in ("num_envs=3", "env.num_envs", "env.=3", ".x=3", "=3", ""):
        with pytest.raises(ConfigError, match="section.key=value"):
            assignment(text)


def test_merge_leaves_its_arguments() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}}
    assert merge(base, {"a": {"c": [3]}, "d": 4}) == {"a": {"b": 1, "c": [3]}, "d": 4}
    assert base == {"a": {"b": 1, "c": [1, 2]}}


def test_a_file_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        load_yaml(tmp_path / "nowhere.yaml")


def test_huge_settings_are_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        parse_yaml("a: 1 # " + "x" * 2**20)
    lines = ["a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]"]
    for level in range(1, 9):
        aliases = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{aliases}]")
    with pytest.raises(ConfigError, match="^YAML: more than 100,000 values"):
        parse_yaml("\n".join(lines))
    assert parse_yaml("a: &a [1]\nb: [*a, *a]") == {"a": [1], "b": [[1], [1]]}
