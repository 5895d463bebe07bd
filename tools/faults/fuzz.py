"""Seeded nonsense for command lines, files of all kinds, settings and Python calls: each must end
in one line.

``python tools/faults/fuzz.py --cases 20000`` prints a table. It exits with 1 if a case ended with a
traceback, took more than five seconds of a core, had an exit code other than 0 or 2, or wrote a
file. Nothing is trained or simulated.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import torch
import yaml
from websockets.datastructures import Headers

import mapush
from harl_mapush import config, experiment, test, train
from harl_mapush.algorithms.entries import ALGORITHMS
from harl_mapush.clients.flat_settings import KEYS, parse_settings
from harl_mapush.config.other_names import SETTINGS_FILES
from harl_mapush.distributed import launch
from harl_mapush.runs import checkpoint, evaluation_worlds, run_folder
from mapush import cli
from mapush.extensions.studio import page_guard
from mqe import control_groups, cores, host_memory
from mqe.config import ConfigError, build
from mqe.extensions import load_extensions
from mqe.pretrained import pretrained_folder
from mqe.registry import TASKS
from mqe.tasks.push.senses import SENSES

_TOO_LONG_S = 5.0
_HANGS_S = 60.0
_SCALARS = (
    *(
        "",
        " ",
        "0",
        "-1",
        "1",
        "2",
        "1.5",
        "1e39",
        "-1e39",
        "1e-40",
        "1e-37",
        "1e30",
        "-1e30",
        "1e400",
        ".inf",
        ".nan",
        "9" * 30,
        "9" * 5000,
    ),
    *(
        "true",
        "no",
        "~",
        "null",
        "abc",
        "auto",
        "cpu",
        "cuda",
        "cuda:99",
        "mps",
        "banana",
        "happo",
        "go1_velocity",
        "cylinder",
    ),
    *(
        "[]",
        "[1]",
        "[a]",
        "[[1]]",
        "[1, 2, 3]",
        "[50, 60]",
        "{}",
        "{a: 1}",
        "{[1]: 2}",
        "? x",
        "- 1",
        "a: b: c",
    ),
    *(
        "!!bool maybe",
        "!!timestamp abc",
        "!!map [1]",
        "!!int x",
        "!!float y",
        "!!binary z",
        "!!python/x y",
    ),
    *(
        '"a\\0b"',
        '"\\ud800"',
        '"\\x07"',
        "\udcff",
        "\u202e",
        "x" * 5000,
        "../../x",
        "/",
        "/dev/null",
        "/dev/zero",
        ".x",
        "../x:y",
        "\x1b[31m",
        ".",
        "&a [*a]",
    ),
    *(
        "pretrained:cuboid",
        "pretrained:../x",
        "pretrained:",
        "%s",
        "{0}",
        "'",
        '"',
        "\t",
        "[" * 600,
        "3h50m",
        "=0",
    ),
)
_WORDS = (
    "--resume",
    "--config",
    "--preset",
    "--load_config",
    "--import",
    "--policy",
    "--help",
    "--",
    "-x",
    "--nonsense",
    "--se",
    "laptop",
)


def main() -> int:
    """Print the table and return 1 after an improper answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    return 0 if run_cases(arguments.cases, arguments.seed) else 1


def run_cases(num_cases: int, seed: int) -> bool:
    """Try ``num_cases`` cases, from all kinds in turn, and print the results. Return whether all
    were answered.
    """
    draw = random.Random(seed)
    signal.signal(signal.SIGALRM, _interrupt)
    experiment.run = lambda cfg, start: _stop_before_training(cfg)
    test._play = lambda cfg, folder, *_: 0
    load_extensions()
    kinds = (
        command_line,
        run_file,
        *((harl_file,) if "load_config" in SETTINGS_FILES else ()),
        checkpoint_folder,
        settings,
        python_call,
        special_file,
        page_request,
        named_file,
        control_group,
        environment,
        suite_file,
        policy_file,
        robot_file,
        registered_id,
        notebook,
        fork,
    )
    tallies = {kind.__name__: Counter[str]() for kind in kinds}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        files = Path(folder) / "files"
        empty.mkdir()
        os.chdir(empty)
        try:
            for i in range(num_cases):
                shutil.rmtree(files, ignore_errors=True)
                files.mkdir()
                kind = kinds[i % len(kinds)]
                case, what = kind(draw, files)
                verdict = judge(case, f"case {i}, {kind.__name__}: {what!r:.500}")
                if any(empty.iterdir()):
                    verdict = "wrote a file"
                    sys.stderr.write(f"case {i} wrote {list(empty.iterdir())}: {what!r:.500}\n")
                    shutil.rmtree(empty)
                    empty.mkdir()
                    os.chdir(empty)
                tallies[kind.__name__][verdict] += 1
        finally:
            os.chdir(before)
    names = ("accepted", "one line", "traceback", "over 5 s", "wrote a file")
    print_row("kind", "cases", *names)
    for name, tally in tallies.items():
        print_row(name, sum(tally.values()), *(tally[verdict] for verdict in names))
    return all(set(tally) <= {"accepted", "one line"} for tally in tallies.values())


def judge(case: Callable[[], int], what: str) -> str:
    """Return a case's ending, and write problems to stderr."""
    out = io.StringIO()
    err = io.StringIO()
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_REAL, _HANGS_S)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = case()
    except SystemExit as error:  # --help
        code = error.code
    except BaseException:
        sys.stderr.write(f"{what}\n{traceback.format_exc(limit=-4)}\n")
        return "traceback"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    if time.process_time() - begun > _TOO_LONG_S:
        sys.stderr.write(f"{what}\ntook {time.process_time() - begun:.1f} s\n")
        return "over 5 s"
    if code == 0:
        return "accepted"
    if code == 2 and err.getvalue().count("\n") == 1 and len(err.getvalue()) < 3000:
        return "one line"
    sys.stderr.write(f"{what}\nexit code {code}: {err.getvalue()[:500]}\n")
    return "traceback"


def command_line(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a command line of train or test."""
    words: list[str] = []
    for _ in range(draw.randrange(1, 5)):
        if draw.random() < 0.6:
            words += ["--set", f"{key(draw)}{draw.choice(('=', '=', '=', '', '=='))}{scalar(draw)}"]
        elif draw.random() < 0.7:
            words += [draw.choice([*config.FLAGS]), scalar(draw)]
        else:
            words += [draw.choice(_WORDS), scalar(draw)]
    if draw.random() < 0.3:
        return lambda: test.main(["--checkpoint", "pretrained:cuboid", *words]), words
    return lambda: train.main(words), words


def run_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a run file: valid YAML with nonsense in it, or nonsense."""
    path = files / "run.yaml"
    lines = [
        f"{section}:\n" + "".join(f"  {name}: {scalar(draw)}\n" for name in names)
        for section, names in some_keys(draw)
    ]
    lines += (
        [f"{draw.choice(('base', 'x', '? [a]'))}: {scalar(draw)}\n"] if draw.random() < 0.3 else []
    )
    content = "".join(lines).encode("utf-8", "surrogateescape")
    if draw.random() < 0.2:
        content = damaged(draw, content)
    path.write_bytes(content)
    return lambda: train.main(["--config", str(path)]), content


def harl_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a HARL configuration with some impossible values."""
    content: dict[str, Any] = {
        "main_args": {"algo": "happo", "env": "mapush"},
        "algo_args": {},
        "env_args": {},
    }
    defaults = importlib.import_module("tests.support.upstream_folders").upstream_file("happo", {})
    content["algo_args"] = {name: dict(values) for name, values in defaults.items()}
    for _ in range(draw.randrange(1, 4)):
        section = draw.choice([*defaults])
        content["algo_args"][section][draw.choice([*defaults[section], "x"])] = value(draw)
    if draw.random() < 0.4:
        content[draw.choice([*content])] = value(draw)
    if draw.random() < 0.4:
        content["env_args"] = {
            draw.choice(("task", "object", "n_threads", "seed", "sim.x", "x")): value(draw)
        }
    text = json.dumps(content)
    path = files / draw.choice(("config.json", "happo.yaml", "x"))
    path.write_bytes(damaged(draw, text.encode()) if draw.random() < 0.2 else text.encode())
    return lambda: train.main(["--load_config", str(path)]), content


def checkpoint_folder(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a checkpoint with nonsense in its settings or in an actor."""
    # Else any damage is noticed by it.
    seal = shutil.ignore_patterns("manifest.json") if draw.random() < 0.8 else None
    shutil.copytree(pretrained_folder("cuboid"), files / "saved", ignore=seal)
    path = files / "saved" / "config.yaml"
    actor = files / "saved" / "actor_agent0.pt"
    what: Any
    if draw.random() < 0.5:
        content = yaml.safe_load(path.read_text())
        section = draw.choice([*content])
        what = (section, draw.choice([*content[section]]), value(draw))
        content[what[0]][what[1]] = what[2]
        path.write_text(yaml.safe_dump(content))
    elif draw.random() < 0.5:
        what = draw.choice((path, actor))
        what.write_bytes(damaged(draw, what.read_bytes()))
    else:
        tensors = torch.load(actor, weights_only=True)
        what = (draw.choice([*tensors, 3, (1, 2)]), strange_tensor(draw))
        torch.save({**tensors, what[0]: what[1]}, actor)
    return lambda: test.main(
        ["--checkpoint", str(files / "saved"), "--num_envs", "2", "--device", "cpu"]
    ), what


def settings(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a section from Python with impossible values."""
    registries = (TASKS, ALGORITHMS, SENSES)
    classes = [entry.cfg for registry in registries for entry in registry.values()]
    classes += config.SECTION_CLASSES.values()
    cls = draw.choice(classes)
    names = [field.name for field in fields(cls)]
    values = {draw.choice([*names, "x", 3]): value(draw) for _ in range(draw.randrange(1, 4))}

    return lambda: attempt(lambda: build(cls, values, "section")), (cls.__name__, values)


def python_call(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a call from Python with impossible values."""
    cls = draw.choice([entry.cfg for entry in TASKS.values()])
    names = [field.name for field in fields(cls)]
    values = {draw.choice(names): value(draw) for _ in range(draw.randrange(1, 3))}
    section = draw.choice([*config.SECTIONS, "x"])
    over = draw.choice(
        ({section: values}, {section: value(draw)}, {section: {"name": value(draw)}}, {})
    )
    flat = {draw.choice([*KEYS, *names, "env.num_envs", "x.y", 3]): value(draw) for _ in range(2)}
    team = pretrained_folder("cuboid")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: cls(**values),
        lambda: evaluation_worlds.settings(team, over),
        lambda: config.resolve({}, parse_settings(flat)),
        lambda: checkpoint.resolve(str(over)),
    )
    call = draw.randrange(len(calls))
    return lambda: attempt(calls[call]), (call, cls.__name__, values, over, flat)


def special_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a checkpoint with a non-file or an endless file in place of one of its files."""
    folder = files / draw.choice(("saved", "\x1b[31mred", "two\nlines"))
    shutil.copytree(pretrained_folder("cuboid"), folder)
    names = [path.name for path in folder.iterdir() if path.is_file()]
    path = folder / draw.choice(names)
    path.unlink()
    kind = draw.choice(("fifo", "/dev/zero", "itself", "nowhere", "folder", "brackets", "empty"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("brackets", "empty"):
        path.write_text("[" * 100_000 if kind == "brackets" else "")
    else:
        path.symlink_to({"itself": path, "nowhere": files / "nowhere"}.get(kind, Path(kind)))
    words = draw.choice(
        (
            ["test", str(folder), "--num_envs", "2", "--device", "cpu"],
            ["train", "--resume", str(folder)],
            ["train", "--config", str(folder / "config.yaml")],
            ["list", str(files)],
            ["report", str(folder)],
        )
    )
    return lambda: cli.main(words), (kind, path.name, words)


def page_request(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a request to the viewer's page, from this machine's own page or another one."""
    hosts = ("127.0.0.1", "localhost", "LOCALHOST", "[::1]")
    signs = ("", ":8080", "@", "#", "?", "/", "\\", ".", ":", "[", "]", "%00", "\t", "evil.example")
    host = draw.choice(hosts) + "".join(draw.choices(signs, k=draw.randrange(4)))
    if draw.random() < 0.3:
        host = "".join(draw.choices((*signs, *hosts), k=3))
    origin = draw.choice(("", f"http://{host}", "null", f"http://{host}.evil.example", "evil"))
    headers = Headers({"Host": host} | ({"Origin": origin} if origin else {}))
    guard = page_guard.PageGuard(8080)
    path = draw.choice(("/", "/drop", "/drop?x", "/ws", "//drop", "/\0"))
    path += draw.choice(("", f"?token={guard.token}", "?token=evil"))

    def ask() -> None:
        if guard.refusal(path, headers) is None:
            assert "evil" not in host + origin
            assert origin in ("", f"http://{host}")

    return lambda: attempt(ask), (host, origin, path)


def named_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a file of maps, with nonsense inside."""
    path = files / "maps.yaml"
    arena_map: dict[str, Any] = {"start": [-1.5, 0], "goal": [1.5, 0]}
    arena_map["obstacles"] = [{"box": [0, 0, 1, 1]}]
    arena_map[draw.choice([*arena_map, "x"])] = value(draw)
    content = {"arena": draw.choice(([8, 8], value(draw))), "maps": [arena_map]}
    path.write_text(yaml.safe_dump(content), encoding="utf-8", errors="surrogatepass")
    if draw.random() < 0.2:
        path.write_bytes(damaged(draw, path.read_bytes()))

    def read() -> None:
        importlib.import_module("mapush.extensions.navigate.maps.arena_map").read_maps(path)

    return lambda: attempt(read), content


def control_group(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make control groups with nonsense in their limits."""
    texts = ("max", "", "-1", "0", "1", str(2**40), "9" * 30, "abc", "max 100000", "50000 100000")
    names = (
        "memory.max",
        "memory.current",
        "memory.stat",
        "cpu.max",
        "memory/memory.limit_in_bytes",
    )
    what = {name: draw.choice((*texts, "inactive_file 5\nx")) for name in names}
    for name, text in what.items():
        (files / name).parent.mkdir(exist_ok=True)
        (files / name).write_text(text, encoding="utf-8")
    own = files / "own"
    own.write_text(draw.choice(("0::/", "0::/a/b", "4:memory:/x", ":", "x", "0::/../..")))

    def ask() -> None:
        before = control_groups.OWN_GROUPS, control_groups.GROUPS
        control_groups.OWN_GROUPS, control_groups.GROUPS = own, files
        try:
            available = host_memory.host_memory()
            assert available is None or available >= 0
            assert cores.num_cores() >= 1
        finally:
            control_groups.OWN_GROUPS, control_groups.GROUPS = before

    return lambda: attempt(ask), what


def environment(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make environment variables with nonsense in them, around a command."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    others = ("MPLBACKEND", "COLUMNS", "HARL_PATH", "RAY_ADDRESS", "XDG_CACHE_HOME", "NO_COLOR")
    texts = ("", "0", "1", "-1", "\u00b2", "abc", "9" * 30, "/", "x" * 300)
    names = ranks if draw.random() < 0.5 else draw.sample(others, 2)
    what = {name: draw.choice(texts) for name in names}
    words = draw.choice((["list"], ["settings", "task."], ["test", "nowhere"]))

    def run() -> int:
        before = dict(os.environ)
        os.environ.update(what)
        try:
            launch.Launch.of_environment()
            return cli.main(words)
        finally:
            os.environ.clear()
            os.environ.update(before)

    return run, (what, words)


def suite_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a suite's file with nonsense inside."""
    content: dict[Any, Any] = {"task": {"object": "cuboid"}, "watchers": ["pushing"], "seeds": [0]}
    section, names = draw.choice(some_keys(draw))
    layer = {section: {draw.choice(names or ["x"]): value(draw)}}
    content |= draw.choice((layer, {"conditions": {"a": layer}}, {}))
    keys = ("watchers", "policies", "episodes", "seeds", "conditions", "examination", "help")
    content |= {draw.choice(keys): value(draw)}
    path = files / "suite.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8", errors="surrogatepass")
    if draw.random() < 0.2:
        path.write_bytes(damaged(draw, path.read_bytes()))
    words = ["test", "pretrained:cuboid", "--suite", str(path), "--num_envs", "2"]
    return lambda: cli.main(words), content


def policy_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a policy's folder with nonsense in its description or manifest, without settings."""
    for name in ("policy.yaml", "actor_agent0.pt", "manifest.json"):
        shutil.copy(pretrained_folder("cuboid") / name, files)
    name = draw.choice(("policy.yaml", "manifest.json"))
    content = yaml.safe_load((files / name).read_text())
    place = content
    for _ in range(draw.randrange(3)):
        inner = [entry for entry in place.values() if isinstance(entry, dict) and entry]
        place = draw.choice(inner) if inner else place
    place[draw.choice([*place, "x"])] = value(draw)
    write = json.dumps if name == "manifest.json" else yaml.safe_dump
    (files / name).write_text(write(content), encoding="utf-8", errors="surrogatepass")
    if name == "policy.yaml":
        (files / "manifest.json").unlink()
    words = draw.choice((["test", str(files), "--num_envs", "2"], ["train", "--init_from"]))
    return lambda: cli.main([*words, str(files)] if words[0] == "train" else words), (name, place)


def robot_file(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a maker's robot file with nonsense in an attribute or an element."""
    text = importlib.import_module("tests.support.vendor_mjcf").vendor_xml()
    attributes = [*re.finditer(r'(\w+)="([^"]*)"', text)]
    what = [(draw.choice(attributes)[0], scalar(draw)) for _ in range(draw.randrange(3))]
    for attribute, content in what:
        quoted = content.replace('"', "'")
        text = text.replace(attribute, f'{attribute.partition("=")[0]}="{quoted}"', 1)
    more = ('<include file="{}"/>', '<replicate count="{}"><geom size="1"/></replicate>', "<{}/>")
    if draw.random() < 0.3:
        what.append((draw.choice(more), scalar(draw)))
        text = text.replace("<worldbody>", f"<worldbody>{what[-1][0].format(what[-1][1])}", 1)
    content = text.encode("utf-8", "surrogateescape")
    path = files / draw.choice(("robot.xml", "robot.urdf"))
    path.write_bytes(damaged(draw, content) if draw.random() < 0.2 else content)
    return lambda: cli.main(["robot", str(path)]), (path.name, what)


def registered_id(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make worlds by their name in Gymnasium, with impossible options."""
    options: dict[str, Any] = {"settings": {"task.episode_length_s": 0.1, "sim.device": "cpu"}}
    names = ("num_envs", "seed", "settings", "output", "autoreset_mode")
    options |= {draw.choice(names): value(draw) for _ in range(draw.randrange(3))}
    name = "mapush.gymnasium_ids:mapush/" + draw.choice(("Push-v0", "Velocity-v0"))
    make = draw.choice((gymnasium.make, gymnasium.make_vec))
    if make is gymnasium.make:
        options.pop("num_envs", None)
        options.pop("autoreset_mode", None)
    return lambda: attempt(lambda: make(name, **options).close()), (name, make.__name__, options)


_WORLDS: list[Any] = []  # of notebooks and forks, made once


def worlds() -> Any:
    """Return open worlds, the same for all notebooks."""
    if not _WORLDS or _WORLDS[0]._is_closed:
        sim = {"sim.device": "cpu", "sim.num_threads": 2, "env.num_envs": 2}
        _WORLDS[:] = [mapush.make("go1push_mid", settings=sim)]
        _WORLDS[0].reset()
    return _WORLDS[0]


def notebook(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make cells that misuse open worlds, in any order. The worlds must step afterwards."""
    tensors = (
        torch.zeros(2, 2, 3),
        torch.zeros(2, 2, 4),
        torch.zeros(0),
        torch.full((2, 2, 3), torch.nan),
        torch.zeros(2, 2, 3, dtype=torch.int64),
        torch.zeros(2, 2, 3, requires_grad=True),
        [[0.0] * 3] * 2,
        None,
    )
    cells: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("reset", lambda env: env.reset()),
        ("step", lambda env: env.step(draw.choice(tensors))),
        ("restore", lambda env: env.load_state_dict(env.state_dict())),
        ("close", lambda env: env.close()),
        ("make", lambda env: mapush.make(value(draw), settings={"env.num_envs": value(draw)})),
    )
    chosen = [draw.choice(cells) for _ in range(draw.randrange(1, 4))]

    def run() -> int:
        codes = (attempt(partial(cell, worlds())) for _, cell in chosen)
        code = next(filter(None, codes), 0)
        worlds().reset()
        worlds().step(torch.zeros(2, 2, 3))
        return code

    return run, [name for name, _ in chosen]


def fork(draw: random.Random, files: Path) -> tuple[Callable[[], int], Any]:
    """Make a fork of a process with open worlds. Its child uses them, or makes its own."""
    uses: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("reset", lambda env: env.reset()),
        ("step", lambda env: env.step(torch.zeros(2, 2, 3))),
        ("save", lambda env: env.state_dict()),
        ("close", lambda env: env.close()),
        ("forget", lambda env: (_WORLDS.clear(), gc.collect())),
        ("evaluate", lambda env: checkpoint.read_actors(pretrained_folder("cuboid"))),
    )
    name, use = draw.choice(uses)

    def run() -> int:
        env = worlds()
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)  # a child that hangs ends by a signal
            code = 1
            with contextlib.suppress(BaseException):
                code = attempt(partial(use, env))
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        worlds().step(torch.zeros(2, 2, 3))
        if code == 2:
            sys.stderr.write("the fork's line\n")
        return code

    return run, name


def attempt(call: Callable[[], Any]) -> int:
    """Return the exit code of a command with this call."""
    try:
        call()
    except (ConfigError, RuntimeError, ValueError, TypeError) as error:
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        if not isinstance(error, ConfigError) and "/mqe/" not in file:
            raise
        sys.stderr.write(f"{' '.join(str(error).split())}\n")
        return 2
    return 0


def key(draw: random.Random) -> str:
    """Return a setting's key, or a similar text."""
    section, names = draw.choice(some_keys(draw) or [("x", ["y"])])
    name = draw.choice(names or ["y"])
    return draw.choice(
        (
            f"{section}.{name}",
            f"{section}.{name}",
            f"{section}.{name}",
            f"{section}.{name}.z",
            name,
            f".{name}",
        )
    )


def some_keys(draw: random.Random) -> list[tuple[str, list[str]]]:
    """Return some sections with some of their keys."""
    classes = config.SECTION_CLASSES | {
        "task": draw.choice([entry.cfg for entry in TASKS.values()]),
        "algorithm": draw.choice([entry.cfg for entry in ALGORITHMS.values()]),
    }
    sections = draw.sample([*classes], draw.randrange(1, 4))
    keys = []
    for section in sections:
        names = [field.name for field in fields(classes[section])]
        keys.append((section, draw.sample(names, min(len(names), draw.randrange(1, 4)))))
    return keys


def scalar(draw: random.Random) -> str:
    """Return a value as a user might write it."""
    if draw.random() < 0.8:
        return draw.choice(_SCALARS)
    return "".join(chr(draw.randrange(1, 300)) for _ in range(6))


def value(draw: random.Random) -> Any:
    """Return a value as Python or JSON has it."""
    choices = (
        -1,
        0,
        1,
        2,
        10**30,
        1.5,
        1e39,
        1e-40,
        float("nan"),
        float("inf"),
        True,
        None,
        "",
        "abc",
        "\ud800",
        "a\0b",
    )
    more: tuple[Any, ...] = (
        [],
        [1],
        [["a"]],
        {},
        {"a": 1},
        {"name": []},
        "x" * 5000,
        "../../x",
        [1, "a"],
        "happo",
        128,
    )
    return draw.choice((*choices, *more))


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Return truncated contents, or contents with some other bytes."""
    offset = draw.randrange(len(content) + 1)
    return (
        content[:offset]
        + draw.randbytes(draw.randrange(4))
        + (content[offset + 1 :] if draw.random() < 0.7 else b"")
    )


def strange_tensor(draw: random.Random) -> Any:
    """Return a possible but wrong entry for a state dict."""
    return draw.choice(
        (
            *(
                torch.eye(2).to_sparse(),
                torch.zeros(2, device="meta"),
                torch.zeros(2, dtype=torch.complex64),
            ),
            *(
                torch.zeros(1).expand(10**12),
                torch.zeros(2).to(torch.float8_e4m3fn),
                torch.full((2,), torch.nan),
            ),
            *(
                torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
                torch.zeros(0),
                [1],
                {"a": 1},
                None,
            ),
        )
    )


def _interrupt(*_: object) -> None:
    raise TimeoutError(f"hangs for {_HANGS_S:g} s")


def _stop_before_training(cfg: Any) -> int:
    run_folder.check_new_run_dir(
        Path(cfg.logger.out_dir) if cfg.logger.out_dir is not None else Path("results")
    )
    return 0


def print_row(*cells: object) -> None:
    """Write one row of the table."""
    sys.stdout.write(
        "".join(f"{cell!s:<{20 if i == 0 else 13}}" for i, cell in enumerate(cells)).rstrip() + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
