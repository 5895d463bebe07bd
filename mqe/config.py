"""Checked settings: YAML becomes frozen dataclasses, and code inside trusts them.

A dataclass is the schema. ``option`` declares a field with its range, and ``build`` checks plain
values against it. Every error is one line with the key, the value, the allowed values and a hint.
"""

import dataclasses
import difflib
import errno
import functools
import importlib
import math
import os
import re
import types
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from mqe.project import install as install  # the way out in messages about a missing extra

_T = TypeVar("_T")
_LARGEST = 2**63 - 1  # largest whole number for libraries
# Bounds of a magnitude in tensors of 32 bits.
_LARGEST_FLOAT = 3.4e38
_SMALLEST_FLOAT = 1.2e-38
_LEAST_LIKENESS = 0.6  # least likeness of a word and its misspelling, in [0, 1]
_LARGEST_YAML = 2**20  # characters
_MOST_VALUES = 100_000  # most values in a file of settings
_LARGEST_TEXT = 16 * 2**20  # bytes of a file of settings, some KiB for a run's
_LONGEST = 2000  # longest message, values included [characters]


class ConfigError(ValueError):
    """A user's mistake in one line: key, value, allowed values, hint. Long parts are cut."""

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} [...] {message[-_LONGEST // 4 :]}"
        super().__init__(message)


def option(
    default: Any,
    help: str = "",
    *,
    min: float | None = None,
    above: float | None = None,
    max: float | None = None,
    choices: Iterable[Any] | None = None,
) -> Any:
    """Declare a dataclass field with a default and its allowed values.

    ``min`` and ``max`` are inclusive, ``above`` is an exclusive lower bound. All of them, and
    ``choices``, hold for every element of a tuple, list or section. If ``choices`` is a mapping,
    its keys count at the time of the check, since a user's module may add some. A list, dict, set
    or dataclass type as default is called for each instance.
    """
    allowed = choices if choices is None or isinstance(choices, Mapping) else tuple(choices)
    bounds = {"help": help, "min": min, "above": above, "max": max, "choices": allowed}
    metadata = {key: value for key, value in bounds.items() if value is not None}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    if isinstance(default, (list, dict, set)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def reason_of(error: Exception) -> str:
    """Return an error's reason in one line: the system's word, the message, or the type."""
    line = " ".join(str(error).split())
    return getattr(error, "strerror", None) or line or type(error).__name__


def import_extra(module: str, extra: str, user: str) -> Any:
    """Import a module of the package's extra ``extra``. Raise ConfigError if it is missing.

    ``user`` is what needs it, at the message's start.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{user} needs {module} ({error}); {install(extra)}") from None


def parse_yaml(text: str, where: str = "YAML") -> Any:
    """Parse YAML text. ``5e-4`` is a number, ``on`` and ``12:30`` are strings, a duplicate key is
    an error.
    """
    if len(text) > _LARGEST_YAML:
        raise ConfigError(f"{where}: larger than {_LARGEST_YAML >> 20} MiB, so no file of settings")
    try:
        values = yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f", line {mark.line + 1}" if mark else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{where}{at}: not valid YAML ({reason})") from None
    except RecursionError:
        raise ConfigError(f"{where}: too many values inside one another") from None
    except (ValueError, TypeError, KeyError, AttributeError):  # !!bool maybe, !!map [1]
        reason = "a value of another kind than its tag, or too long a number"
        raise ConfigError(f"{where}: not valid YAML ({reason})") from None
    _check_number(values, where)
    return values


def _check_number(values: Any, where: str) -> None:
    """Raise ConfigError for too many values. An alias counts at every repetition."""
    number = 0
    ahead = [values]
    while ahead:
        value = ahead.pop()
        number += 1
        if number > _MOST_VALUES:
            raise ConfigError(f"{where}: more than {_MOST_VALUES:,} values, so no file of settings")
        if isinstance(value, dict):
            ahead += value.values()
        elif isinstance(value, list):
            ahead += value


def read_text(path: Path) -> str:
    """Return a settings file's text. Raise OSError for a pipe, a device or a huge file.

    Without this check a reader would wait for a pipe's writer, or read a device for ever.
    """
    if path.exists() and not path.is_dir():
        if not path.is_file():
            raise OSError(errno.EINVAL, "a pipe, socket or device, not a file", str(path))
        if path.stat().st_size > _LARGEST_TEXT:
            raise OSError(errno.EFBIG, f"larger than {_LARGEST_TEXT >> 20} MiB", str(path))
    return path.read_text(encoding="utf-8")


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML file's keys on top of its ``base: other.yaml``, a path relative to the file."""
    return _load_with_bases(Path(path), ())


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Return YAML text for ``parse_yaml``, or any other reader, to read back unchanged."""
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``over`` laid on ``base``, section by section. Both stay unchanged."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        else:
            merged[key] = value
    return merged


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values' leaves by their dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def assignment(text: str) -> dict[str, Any]:
    """Parse ``section.key=value`` into nested values. The value is read as YAML."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) < 2 or not all(keys):
        raise ConfigError(
            f"--set {text!r}: must have the form section.key=value, for instance env.num_envs=64"
        )
    return nested(".".join(keys), parse_yaml(value, f"--set {path.strip()}"))


def nested(name: str, value: object) -> dict[str, Any]:
    """Return a value under its dotted name as nested values."""
    values = value
    for key in reversed(name.split(".")):
        values = {key: values}
    assert isinstance(values, dict)
    return values


def build(cls: type[_T], values: Mapping[str, Any] | None, where: str) -> _T:
    """Build a dataclass from plain values. Raise ConfigError for an unknown key, a wrong type or a
    value out of range.

    Errors call the dataclass ``where``, for instance ``task``. Ints pass for floats and ``1e6`` for
    an int, lists for tuples, but never a bool for a number.
    """
    checked = check_values(cls, values, where)
    try:
        return cls(**checked)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    except TypeError:
        needed = [
            name
            for name, field in _fields(cls).items()
            if name not in checked and _is_required(field)
        ]
        raise ConfigError(f"{where}: {', '.join(needed)} must be given") from None


def check_ranges(cfg: Any, section: str) -> None:
    """Raise ConfigError for a range in descending order among the settings of ``section``."""
    for field in dataclasses.fields(cfg):
        match getattr(cfg, field.name):
            case (int() | float() as low, int() | float() as high) if low > high:
                raise ConfigError(
                    f"{section}.{field.name}: [{low}, {high}] must be a range in ascending order; "
                    f"say [{high}, {low}]"
                )


def check_values(cls: type, values: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return the values, each checked by itself. Raise ConfigError as ``build`` does."""
    values = {} if values is None else values
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: must be a section of keys, not {values!r}")
    fields = _fields(cls)
    hints = type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(
                unknown("key", _join(where, key), [_join(where, name) for name in fields])
            )
    return {
        key: _check(value, hints[key], fields[key], _join(where, key))
        for key, value in values.items()
    }


def to_dict(instance: Any) -> Any:
    """Convert a dataclass to plain values for ``build``: sections, lists and scalars."""
    if dataclasses.is_dataclass(instance) and not isinstance(instance, type):
        return {
            f.name: to_dict(getattr(instance, f.name))
            for f in dataclasses.fields(instance)
            if f.init
        }
    if isinstance(instance, Mapping):
        return {key: to_dict(value) for key, value in instance.items()}
    if isinstance(instance, (list, tuple)):
        return [to_dict(value) for value in instance]
    return instance


def checked(instance: _T, where: str) -> _T:
    """Check a dataclass made in Python. Raise ConfigError as ``build`` does."""
    return build(type(instance), to_dict(instance), where)


def nearest(word: Any, allowed: Collection[Any]) -> str | None:
    """Return the allowed word most similar to ``word``, None if none is similar.

    A dotted word's end counts most. Capitals and the dashes of flags do not count.
    """
    word = str(word)[:100].lstrip("-").lower()
    end = word.rpartition(".")[2]

    def likeness(candidate: str) -> tuple[float, float]:
        name = candidate.lstrip("-").lower()
        of_end = difflib.SequenceMatcher(None, end, name.rpartition(".")[2]).ratio()
        return of_end, difflib.SequenceMatcher(None, word, name).ratio()

    best = max((str(candidate) for candidate in allowed), key=likeness, default=None)
    if best is None:
        return None
    # "clip" is no misspelling of "clip_param", but a part of it.
    is_part = len(end) > 2 and end in re.split(r"[._-]", best.lower())
    return best if is_part or likeness(best)[0] >= _LEAST_LIKENESS else None


def suggestion(word: Any, allowed: Collection[Any]) -> str:
    """Format a question with the nearest allowed word, empty if none is similar."""
    best = nearest(word, allowed)
    return "" if best is None else f"; did you mean {best}?"


def unknown(kind: str, name: Any, allowed: Collection[Any], *, is_open: bool = False) -> str:
    """Format the error for an unknown name: a similar known name, and all known names.

    ``is_open`` if a user's module can add names.
    """
    meant = suggestion(name, allowed)
    names = ", ".join(str(candidate) for candidate in allowed)
    hint = "; one of your own needs --import MODULE" if is_open else ""
    return f"unknown {kind} {str(name)!r}{meant} (allowed: {names or 'none'}){hint}"


def printable(line: str) -> str:
    """Return a line for a terminal. Escape sequences, for instance in file names, become text."""
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in line
    )


def at_home(text: str) -> str:
    """Return a text, with the user's home folder in place of a leading ``~/``."""
    return os.path.expanduser(text) if text.startswith("~/") else text


# Types and ranges


def _check(value: Any, hint: Any, field: dataclasses.Field, where: str) -> Any:
    converted = _convert(value, hint, where)
    items = converted if isinstance(converted, (tuple, list)) else [converted]
    for item in items:
        _check_range(item, field.metadata, where)
    if isinstance(converted, dict):
        for key, item in converted.items():
            _check_range(item, field.metadata, _join(where, key))
    return converted


def _check_range(value: Any, limits: Mapping[str, Any], where: str) -> None:
    if value is None:
        return
    choices = limits.get("choices")
    if choices is not None and value not in choices:
        is_open = isinstance(choices, Mapping)
        raise ConfigError(f"{where}: {unknown('value', value, choices, is_open=is_open)}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return
    is_small = value < limits.get("min", value) or ("above" in limits and value <= limits["above"])
    if is_small or value > limits.get("max", value):
        words = {"min": "at least", "above": "above", "max": "at most"}
        allowed = " and ".join(f"{words[key]} {limits[key]}" for key in words if key in limits)
        raise ConfigError(f"{where}: must be {allowed}, not {value}")


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), where)
    if origin in (tuple, list) or hint in (tuple, list):
        return _convert_sequence(value, hint, where)
    if origin is dict or hint is dict:
        return _convert_dict(value, get_args(hint), where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return value if isinstance(value, hint) else build(hint, value, where)
    return _convert_scalar(value, hint, where)


def _convert_scalar(value: Any, hint: Any, where: str) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: must be a finite number, not {value}")
    if is_number and (hint is int or isinstance(value, int)) and abs(value) > _LARGEST:
        raise ConfigError(f"{where}: must be at most {_LARGEST} in size, not {str(value):.40}")
    if hint is float and is_number:
        if abs(value) > _LARGEST_FLOAT or 0 < abs(value) < _SMALLEST_FLOAT:
            raise ConfigError(
                f"{where}: must be 0 or {_SMALLEST_FLOAT} to {_LARGEST_FLOAT} in size, not {value}"
            )
        return float(value)
    if hint is int and is_number and value == int(value):
        return int(value)
    if hint in (bool, str) and isinstance(value, hint):
        if isinstance(value, str) and not _is_text(value):
            raise ConfigError(
                f"{where}: must be text without null bytes or halves of characters, not {value!r}"
            )
        return at_home(value) if isinstance(value, str) else value
    if hint is str and value is not None and not isinstance(value, (list, dict)):
        hint_of_quotes = "; put it in quotes"
    else:
        hint_of_quotes = ""
    raise ConfigError(f"{where}: must be {_name(hint)}, not {value!r}{hint_of_quotes}")


def _convert_union(value: Any, members: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in members:
        return None
    members = tuple(member for member in members if member is not type(None))
    if len(members) == 1:
        return _convert(value, members[0], where)
    if type(value) in members:  # 3 stays an int in int | float, with errors about the int
        return _convert(value, type(value), where)
    for member in members:
        with suppress(ConfigError):
            return _convert(value, member, where)
    raise ConfigError(
        f"{where}: must be {' or '.join(_name(member) for member in members)}, not {value!r}"
    )


def _convert_sequence(value: Any, hint: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where}: must be {_name(hint)}, not {value!r}")
    kind = get_origin(hint) or hint
    members = get_args(hint)
    if kind is tuple and members and members[-1] is not Ellipsis:
        if len(value) != len(members):
            raise ConfigError(f"{where}: must have {len(members)} values, not {list(value)!r}")
    else:
        members = (members[0] if members else Any,) * len(value)
    return kind(
        _convert(item, member, f"{where}[{i}]")
        for i, (item, member) in enumerate(zip(value, members, strict=True))
    )


def _convert_dict(value: Any, members: tuple[Any, ...], where: str) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: must be a section of keys, not {value!r}")
    member = members[1] if members else Any
    return {key: _convert(item, member, _join(where, key)) for key, item in value.items()}


def _name(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    kind = get_origin(hint) or hint
    if kind in (tuple, list):
        members = [member for member in get_args(hint) if member is not Ellipsis]
        return f"a list of {names.get(members[0], 'values')[2:]}s" if members else "a list"
    return names.get(hint, getattr(hint, "__name__", str(hint)))


@functools.cache
def _fields(cls: type) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


@functools.cache
def type_hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name."""
    return get_type_hints(cls)


def _is_text(value: str) -> bool:
    """Return whether a string can be written to a file and used as a name."""
    try:
        return b"\0" not in value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False


def _is_required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


@contextmanager
def errors_of(where: str) -> Iterator[None]:
    """Context manager: put ``where`` in front of the messages of ConfigErrors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


# Files


def _load_with_bases(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    try:
        # Path.resolve() raises RuntimeError for a link to itself; reading it is an OSError.
        path = Path(os.path.realpath(path))
        text = read_text(path)
    except (OSError, ValueError) as error:  # ValueError: not text, or a name with a null byte
        reason = getattr(error, "strerror", None) or (
            "not text" if isinstance(error, UnicodeError) else "no file name"
        )
        hint = "check the path"
        inside = sorted(path.glob("*.yaml")) if path.is_dir() else []
        if inside:
            hint = f"name a file in it, such as {ascii(str(inside[0]))[1:-1]}"
        raise ConfigError(
            f"{ascii(str(path))[1:-1]}: cannot be read as a YAML file ({reason}); {hint}"
        ) from None
    values = parse_yaml(text, str(path))
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold keys and values, not {type(values).__name__}")
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base: must be the name of another file, not {base!r}")
    if path in seen:
        raise ConfigError(f"{path}: is its own base; remove one of the `base:` lines")
    return merge(_load_with_bases(path.parent / base, (*seen, path)), values)


# libyaml's loader is ten times as fast, its dumper four times, if PyYAML is built with it.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SafeDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Loader(_SafeLoader):
    """A YAML loader for plain values only, with YAML 1.2's scalars and Python's numbers."""

    yaml_implicit_resolvers: dict[Any, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        values = super().construct_mapping(node, deep)
        if len(values) < len(node.value):
            keys = [self.construct_object(name, deep=True) for name, _ in node.value]
            double = next(key for key, number in Counter(keys).items() if number > 1)
            raise yaml.constructor.ConstructorError(
                None, None, f"{double!r} is given twice", node.start_mark
            )
        return values


class _Dumper(_SafeDumper):
    """A YAML dumper with quotes around every string similar to a number or a bool."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_FLOAT = re.compile(
    r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
)
_INT = re.compile(r"[-+]?\d[\d_]*$")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"(?:~|null|Null|NULL|)$")

for _tag, _pattern, _first in (
    ("int", _INT, "-+0123456789"),
    ("float", _FLOAT, "-+.0123456789"),
    ("bool", _BOOL, "tTfF"),
    ("null", _NULL, ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, list(_first))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
_Loader.add_constructor(
    "tag:yaml.org,2002:float", lambda _, node: float(re.sub(r"\.(?=[inIN])", "", node.value))
)
_Dumper.add_representer(
    str,
    lambda dumper, data: dumper.represent_scalar(
        "tag:yaml.org,2002:str",
        data,
        # Readers take these for ends of lines, unless they are escaped.
        style='"' if any(character in data for character in "\x85\u2028\u2029") else None,
    ),
)
_Dumper.add_representer(
    list,
    lambda dumper, data: dumper.represent_sequence(
        "tag:yaml.org,2002:seq",
        data,
        flow_style=not any(isinstance(item, (list, dict)) for item in data),
    ),
)
