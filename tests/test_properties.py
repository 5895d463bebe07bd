"""Properties for every parser input: files, settings, command lines and manifests.

A test tries the same 50 inputs in each run. ``HYPOTHESIS_PROFILE=many`` tries the same 500,
``hour`` 40,000 random ones (about an hour for all tests).
"""

from __future__ import annotations

import functools
import json
import math
import os
import string
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st

from harl_mapush import config
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.config.command_line import Parser, add_flags, add_other_flags, flag_values
from harl_mapush.runs.run_folder import parse_step_name, step_name
from mqe.config import (
    ConfigError,
    assignment,
    build,
    check_values,
    dump_yaml,
    flatten,
    merge,
    nearest,
    parse_yaml,
    printable,
    to_dict,
)
from mqe.manifest import MANIFEST, damage, read_manifest, renew_manifest
from mqe.registry import TASKS

hypothesis.settings.register_profile("quick", max_examples=50, derandomize=True, database=None)
hypothesis.settings.register_profile("many", max_examples=500, derandomize=True, database=None)
hypothesis.settings.register_profile("hour", max_examples=40_000, database=None)
# Files are written anew for each input. Other processes may slow a single one down.
SETTINGS = hypothesis.settings(
    hypothesis.settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick")),
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)

CLASSES = [
    *config.SECTION_CLASSES.values(),
    *(entry.cfg for entry in (*TASKS.values(), *ALGORITHMS.values())),
]
# All characters of UTF-8, without a search for them
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SHORT_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False))
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, TEXT)
KEYS = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(SHORT_TEXT, inner, max_size=3)
    ),
    max_leaves=8,
)
SECTIONS = st.dictionaries(KEYS, st.one_of(SCALARS, st.dictionaries(KEYS, PLAIN, max_size=3)))
# Two of these often have keys in common.
FEW_KEYS = st.sampled_from(["a", "b"])
OVERLAPPING = st.dictionaries(
    FEW_KEYS, st.one_of(SCALARS, st.dictionaries(FEW_KEYS, PLAIN, max_size=2)), max_size=2
)
# Text that looks like YAML more often than random characters do.
YAML_WORDS = st.sampled_from(
    "- |? |: |a|1e5|.nan|12:30|\n|  |[|]|{|}|,|&a |*a|'|\"|#|---\n|...\n|\t|_|\\|<<: |>".split("|")
    + "%YAML 9.9\n|2001-13-77|0o9|0x|!!int |!!bool |!!map |!!set |!!omap |!!binary ".split("|")
    + ["| ", "!!timestamp "]
)
YAML = st.one_of(TEXT, st.lists(YAML_WORDS, max_size=12).map("".join))


@functools.cache
def keys_of(cls: type) -> Any:
    """Return a strategy for a class's settings, with occasional other names."""
    return st.one_of(st.sampled_from([field.name for field in fields(cls)]), KEYS)


def refusal(call: Callable[[], Any]) -> str:
    """Return the message of a call's ConfigError, empty without one."""
    try:
        call()
    except ConfigError as error:
        return str(error)
    return ""


@SETTINGS
@hypothesis.given(YAML)
def test_any_text_is_plain_values_or_one_line(text: str) -> None:
    message = refusal(lambda: parse_yaml(text, "file.yaml"))
    assert message == "" or message.startswith("file.yaml")


@SETTINGS
@hypothesis.given(SECTIONS)
@hypothesis.example({"section": {"key": "two\u2028lines\x85"}})
def test_values_come_back_from_yaml(values: dict[str, Any]) -> None:
    assert parse_yaml(dump_yaml(values)) == values


@SETTINGS
@hypothesis.given(OVERLAPPING, OVERLAPPING)
def test_merging_lays_one_over_the_other(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = merge(base, over)
    assert {**flatten(merged), **flatten(over)} == flatten(merged)
    assert set(merged) == set(base) | set(over)
    assert merge(merged, over) == merged
    assert merge({}, over) == over
    assert merge({"in": base}, {"in": over}) == {"in": merged}


@SETTINGS
@hypothesis.given(KEYS, KEYS, SCALARS)
def test_an_assignment_is_what_its_value_is_in_yaml(section: str, key: str, value: Any) -> None:
    text = dump_yaml({"x": value}).partition(":")[2]
    hypothesis.assume(assignment(f"{section}.{key}=0") == {section: {key: 0}})  # no former name
    assert assignment(f"{section}.{key}={text}") == {section: {key: value}}


@SETTINGS
@hypothesis.given(TEXT)
def test_any_assignment_is_nested_values_or_one_line(text: str) -> None:
    message = refusal(lambda: assignment(text))
    if message:
        assert message.startswith("--set")
    else:
        assert "=" in text
        assert len(assignment(text)) == 1


@SETTINGS
@hypothesis.given(st.data())
def test_settings_are_refused_or_keep_their_values(data: Any) -> None:
    cls = data.draw(st.sampled_from(CLASSES))
    values = data.draw(st.dictionaries(keys_of(cls), PLAIN, max_size=3))
    message = refusal(lambda: build(cls, values, "section"))
    if message:
        assert message.startswith(("section", "unknown", "task.", "env."))
        assert len(message) <= 2000
    else:
        built = build(cls, values, "section")
        assert build(cls, to_dict(built), "section") == built
        assert build(cls, parse_yaml(dump_yaml(to_dict(built))), "section") == built


@SETTINGS
@hypothesis.given(st.data(), st.floats())
def test_a_number_within_bounds_is_kept_and_one_beyond_is_refused(data: Any, number: float) -> None:
    cls = data.draw(st.sampled_from(CLASSES))
    bounded = [field for field in fields(cls) if type(field.default) is float and field.init]
    hypothesis.assume(bounded)
    field = data.draw(st.sampled_from(bounded))
    limits = field.metadata
    is_within = (
        math.isfinite(number)
        and (number == 0.0 or abs(number) >= 1.2e-38)
        and abs(number) <= 3.4e38
        and number >= limits.get("min", -math.inf)
        and number > limits.get("above", -math.inf)
        and number <= limits.get("max", math.inf)
    )
    message = refusal(lambda: check_values(cls, {field.name: number}, "section"))
    assert is_within == (not message), message
    if is_within:
        checked = check_values(cls, {field.name: number}, "section")
        assert checked == {field.name: number}


@SETTINGS
@hypothesis.given(st.data())
def test_a_command_line_is_settings_or_one_line(data: Any) -> None:
    cls = data.draw(st.sampled_from(CLASSES))
    flag = st.sampled_from([*config.FLAGS, "--set", "--suite", "--lr", "--headless", "--nonsense"])
    setting = st.tuples(
        st.sampled_from([*config.SECTIONS]), keys_of(cls), st.one_of(SCALARS.map(str), YAML)
    ).map(lambda parts: f"{parts[0]}.{parts[1]}={parts[2]}")
    words = data.draw(st.lists(st.one_of(flag, setting, YAML), max_size=5))
    hypothesis.assume(not any(word in ("-h", "--help") for word in words))
    parser = Parser(prog="train")
    add_flags(parser, [*config.FLAGS])
    add_other_flags(parser)

    def read() -> None:
        values = flag_values(parser.parse(words))
        config.check_layer(values)
        assert set(values) <= {*config.SECTIONS}

    assert len(refusal(read)) <= 2000


@SETTINGS
@hypothesis.given(TEXT, st.lists(TEXT.filter(bool), min_size=1))
def test_a_suggestion_is_one_of_the_allowed_words(word: str, allowed: list[str]) -> None:
    assert nearest(word, allowed) in {None, *allowed}


@SETTINGS
@hypothesis.given(TEXT)
def test_printed_text_cannot_steer_a_terminal(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


@SETTINGS
@hypothesis.given(st.integers(0, 10**15))
def test_a_checkpoints_name_is_its_env_steps(env_steps: int) -> None:
    assert parse_step_name(step_name(env_steps)) == env_steps


@SETTINGS
@hypothesis.given(TEXT)
def test_any_name_of_a_checkpoint_is_env_steps_or_none(name: str) -> None:
    env_steps = parse_step_name(name)
    assert env_steps is None or env_steps >= 0


@SETTINGS
@hypothesis.given(PLAIN, st.binary(max_size=40), st.booleans())
def test_any_manifest_is_read_or_damaged(
    tmp_path: Path, content: Any, noise: bytes, is_json: bool
) -> None:
    (tmp_path / "actor.pt").write_bytes(b"weights")
    written = json.dumps({"format_version": 1, "files": content}).encode() if is_json else noise
    (tmp_path / MANIFEST).write_bytes(written)
    assert isinstance(read_manifest(tmp_path), dict)
    assert "\n" not in (damage(tmp_path, ["actor.pt"]) or "damaged")
    assert "\n" not in (damage(tmp_path) or "")


@SETTINGS
@hypothesis.given(st.binary(min_size=1, max_size=60), st.data())
def test_another_byte_of_a_listed_file_is_damage(tmp_path: Path, content: bytes, data: Any) -> None:
    path = tmp_path / "actor.pt"
    path.write_bytes(content)
    renew_manifest(tmp_path)
    assert damage(tmp_path) is None
    offset = data.draw(st.integers(0, len(content) - 1))
    other = data.draw(st.integers(1, 255))
    path.write_bytes(content[:offset] + bytes([content[offset] ^ other]) + content[offset + 1 :])
    assert damage(tmp_path) == f"actor.pt: damaged (its SHA-256 is not the one in {MANIFEST})"
