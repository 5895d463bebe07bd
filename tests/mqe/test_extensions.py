"""Registries and their extension packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from mapush import built_in
from mqe import extensions
from mqe.config import ConfigError
from mqe.extensions import Registry, load_extensions


def test_a_member_is_found_by_its_name():
    shapes: Registry[int] = Registry("shape")
    assert shapes.register("box", 6) == 6
    assert dict(shapes) == {"box": 6}
    assert shapes.find("box", "task.shape") == 6


def test_an_unknown_name_is_an_error_with_the_nearest():
    shapes: Registry[int] = Registry("shape")
    shapes.register("box", 6)
    with pytest.raises(ConfigError, match=r"task.shape: unknown shape 'bax'; did you mean box\?"):
        shapes.find("bax", "task.shape")


@pytest.mark.parametrize("name", ["", "two words", "1st", "a-b", "größe!"])
def test_names_can_be_written_in_settings(name):
    with pytest.raises(ConfigError, match="letters, digits and _"):
        Registry[int]("shape").register(name, 1)


def test_a_name_stands_for_one_member():
    shapes: Registry[int] = Registry("shape")
    shapes.register("box", 6)
    shapes.register("box", 6)
    with pytest.raises(ConfigError, match="shape 'box': the name is taken"):
        shapes.register("box", 7)


MEMBERS: Registry[str] = Registry("member")


def add() -> None:
    MEMBERS.register("added", "by an entry point")


def fail() -> None:
    raise ValueError("of its\nown")


def installed(monkeypatch, function: str) -> None:
    """Let a package list a function of this file as an extension."""
    entry = EntryPoint("mine", f"{__name__}:{function}", extensions.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [entry])
    load_extensions.cache_clear()


@pytest.fixture(autouse=True)
def forget():
    MEMBERS.clear()
    yield
    load_extensions.cache_clear()


def test_an_entry_point_is_loaded_once(monkeypatch):
    installed(monkeypatch, "add")
    load_extensions()
    assert MEMBERS == {"added": "by an entry point"}
    MEMBERS.clear()
    load_extensions()
    assert MEMBERS == {}


def test_a_failing_extension_is_an_error_that_names_the_package(monkeypatch):
    installed(monkeypatch, "fail")
    with pytest.raises(ConfigError, match=r"extension 'mine' .*ValueError: of its own"):
        load_extensions()


def test_our_own_extensions_need_no_present_installation(monkeypatch):
    """A checkout may be newer than the entry points of its installation."""
    registered = []
    monkeypatch.setattr(built_in, "register", lambda: registered.append(True))
    monkeypatch.setattr(extensions, "entry_points", lambda group: [])
    load_extensions.cache_clear()
    load_extensions()
    assert registered == [True]
