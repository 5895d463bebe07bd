"""Rules across modules: import directions, and the command line's flags."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from harl_mapush import config, test, train
from harl_mapush.algorithms.algorithm import Algorithm
from harl_mapush.callback import Callback
from harl_mapush.config.other_names import SETTINGS_FILES, TEST_FLAGS, TRAIN_FLAGS
from harl_mapush.evaluation import command as evaluation_command
from mqe.controllers import Controller
from mqe.sim.simulator import Simulator
from mqe.tasks.task import Task
from mqe.vec_env import VecEnv
from tools import core_alone, structure

ROOT = Path(__file__).parent.parent
EXTENSIONS = ROOT / "mapush" / "extensions"
SOURCES = sorted(
    path for package in ("mqe", "harl_mapush", "mapush") for path in (ROOT / package).rglob("*.py")
)
ALLOWED = {
    "mqe": {"mqe"},
    "harl_mapush": {"mqe", "harl_mapush"},
    "mapush": {"mqe", "harl_mapush", "mapush"},
}
LEARNER = (
    "harl_mapush/runner.py",
    "harl_mapush/algorithms/algorithm.py",
    "harl_mapush/algorithms/",
    "harl_mapush/learning/",
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file's syntax tree."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports_of_types(path: Path) -> frozenset[int]:
    """Return the ids of the nodes seen by type checkers only."""
    blocks = [
        node
        for node in nodes(path)
        if isinstance(node, ast.If) and getattr(node.test, "id", None) == "TYPE_CHECKING"
    ]
    return frozenset(id(node) for block in blocks for node in ast.walk(block))


@functools.cache
def graph_of_imports() -> dict[str, set[str]]:
    """Return each module's imports, those for type checkers included."""
    return structure.imports(structure.modules())


def rooms_that_it_imports(path: Path) -> set[str]:
    """Return a file's imported rooms within its package: folders or single modules."""
    package, room, *_ = path.relative_to(ROOT).with_suffix("").parts
    seen_by_none = imports_of_types(path)
    modules = set()
    for node in nodes(path):
        if id(node) in seen_by_none:
            continue
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [module.split(".") for module in modules]
    return {part[1] for part in parts if part[0] == package and len(part) > 1} - {room}


def of_every(paths: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """Make one test from a rule for files. It names every violating file."""
    files = list(paths)

    def of_all(rule: Callable[[Path], None]) -> Callable[[], None]:
        def check() -> None:
            assert files
            broken = {}
            for path in files:
                try:
                    rule(path)
                except AssertionError as error:
                    broken[name(path)] = str(error)
            assert not broken

        check.__doc__ = rule.__doc__
        return check

    return of_all


@pytest.mark.parametrize("package", ALLOWED)
def test_rooms_import_each_other_in_no_circle(package: str) -> None:
    ahead: dict[str, set[str]] = {}
    for path in SOURCES:
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] == package:
            ahead.setdefault(parts[1], set()).update(rooms_that_it_imports(path))
    while ahead:
        last = {room for room, rooms in ahead.items() if not rooms & set(ahead)}
        assert last, f"a circle among {sorted(ahead)}"
        ahead = {room: rooms for room, rooms in ahead.items() if room not in last}


@functools.cache
def imports(path: Path) -> frozenset[str]:
    """Return a file's imported names, with their modules."""
    modules = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(modules)


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers count as well."""
    assert structure.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [{"b", "c"}]
    assert structure.circles(graph_of_imports()) == []


def test_no_module_imports_many_others() -> None:
    numbers = {module: len(others) for module, others in graph_of_imports().items()}
    assert numbers["harl_mapush.algorithms.on_policy"] > 5
    assert not {
        module: number for module, number in numbers.items() if number > structure.MOST_IMPORTS
    }


def test_the_runner_loads_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules are those that ``structure.loaded_by`` finds in a new process."""

    def loaded() -> list[str]:
        return [module for module in sys.modules if module.partition(".")[0] in ALLOWED]

    with monkeypatch.context() as patch:
        for module in loaded():
            patch.delitem(sys.modules, module)
        importlib.import_module("harl_mapush.runner")
        modules = loaded()
        for module in modules:
            del sys.modules[module]
    assert "mqe.vec_env" in modules
    assert len(modules) <= 40


@of_every(SOURCES)
def test_packages_import_in_one_direction(path: Path) -> None:
    ours = {module.split(".")[0] for module in imports(path)} & set(ALLOWED)
    assert ours <= ALLOWED[path.relative_to(ROOT).parts[0]]


@of_every([path for path in SOURCES if name(path).startswith(LEARNER)])
def test_the_learner_knows_the_environment_by_contract_only(path: Path) -> None:
    allowed = (
        "mqe.vec_env",
        "mqe.config",
        "mqe.cuda_graphs",
        "mqe.extensions",
        "mqe.host_memory",
        "mqe.resumable",
        "mqe.controllers.network",
        "mqe.controllers.set_readers",
    )
    of_mqe = {module for module in imports(path) if module.startswith("mqe.")}
    assert all(module.startswith(allowed) for module in of_mqe), of_mqe


@of_every([path for path in SOURCES if name(path).startswith(LEARNER)])
def test_formulas_are_chosen_where_an_algorithm_is_built(path: Path) -> None:
    """Settings read it too, for HARL's unconditional networks."""
    expected = {
        "harl_mapush/algorithms/team.py": 1,
        "harl_mapush/learning/settings.py": 2,
    }
    reads = [node for node in nodes(path) if getattr(node, "attr", None) == "compat"]
    assert len(reads) == expected.get(name(path), 0)


# Algorithms, those of extensions among them
ALGORITHMS = ("harl_mapush/algorithms/", "mapush/extensions/harl/hatd3.py")


@of_every([path for path in SOURCES if not name(path).startswith(("mqe/", *ALGORITHMS))])
def test_no_module_but_algorithms_asks_which_class_an_off_policy_one_is(path: Path) -> None:
    assert not [
        module for module in imports(path) if module.startswith("harl_mapush.algorithms.off_policy")
    ]


@of_every([path for path in SOURCES if name(path).startswith("harl_mapush/learning/")])
def test_parts_of_algorithms_know_their_contract_alone(path: Path) -> None:
    of_algorithms = [
        module for module in imports(path) if module.startswith("harl_mapush.algorithms")
    ]
    contract = "harl_mapush.algorithms.algorithm"
    assert all(module.startswith(contract) for module in of_algorithms)


@of_every(SOURCES)
def test_nobody_imports_another_extension(path: Path) -> None:
    room = name(path).partition("mapush/extensions/")[2].partition("/")[0]
    named = re.findall(r"mapush\.extensions\.(\w+)", path.read_text())
    assert set(named) <= {room}


# Names in extensions that are words of the core as well
COMMON_WORDS = {"field", "gait", "harl", "report"}


@functools.cache
def names_in_extensions() -> frozenset[str]:
    """Return the names of extensions, and of their tasks, presets, suites and other members."""
    names = {path.parent.name for path in EXTENSIONS.glob("*/__init__.py")}
    names |= {path.stem for path in EXTENSIONS.glob("*/*s/*.yaml")}
    for path in EXTENSIONS.rglob("*.py"):
        for node in nodes(path):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr != "register" or not node.args:
                continue
            # Flags are words of other libraries.
            registry = getattr(node.func.value, "id", "")
            member = getattr(node.args[0], "value", None)
            if isinstance(member, str) and not registry.endswith("_FLAGS"):
                names.add(member)
    return frozenset(names - COMMON_WORDS)


@pytest.mark.skipif(not EXTENSIONS.is_dir(), reason="the core stands alone")
def test_names_in_extensions_have_those_of_tasks_suites_and_algorithms() -> None:
    assert {"isaacgym", "go1push_upper", "u_turn", "hatd3"} <= names_in_extensions()


@of_every([path for path in SOURCES if EXTENSIONS not in path.parents])
def test_the_core_names_no_member_of_an_extension(path: Path) -> None:
    """Strings and docstrings count as well."""
    words = set()
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words |= set(re.findall(r"\w+", node.value))
    assert not words & names_in_extensions()


@pytest.mark.slow
def test_the_core_works_without_the_extensions() -> None:
    """``python tools/core_alone.py`` runs the core's whole suite."""
    tests = ("tests/harl_mapush/test_cli.py", "tests/harl_mapush/runs", "tests/mapush")
    assert core_alone.main(["-q", "-n", "0", *tests]) == 0


def reached_from(module: str) -> set[str]:
    """Return the project's modules imported by ``module``, directly or not."""
    project_modules = {
        name(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path
        for path in SOURCES
    }
    reached = set()
    ahead = [module]
    while ahead:
        current = ahead.pop()
        if current in reached or current not in project_modules:
            continue
        reached.add(current)
        names = imports(project_modules[current])
        ahead += [part for imported in names for part in (imported, imported.rpartition(".")[0])]
        ahead.append(current.rpartition(".")[0])
    return reached


@pytest.mark.parametrize("module", ["harl_mapush.runs.checkpoint", "harl_mapush.runs.policy"])
def test_loading_a_checkpoint_imports_neither_harl_nor_the_film(module: str) -> None:
    reached = reached_from(module)
    assert len(reached) > 20
    assert not [
        imported for imported in reached if imported.startswith(("mapush.extensions", "mqe.viewer"))
    ]


@of_every([path for path in SOURCES if name(path).startswith("mqe/")])
def test_the_world_knows_no_parameter_of_a_learner(path: Path) -> None:
    """A controller loads an exported network: weights, and a description with their names."""
    of_learners = ("actor_agent", "critic_agent", "base.mlp", "act.action_out", "fc_mean")
    strings = [
        node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert not [text for text in strings if any(word in text for word in of_learners)]


@of_every(
    [
        path
        for path in SOURCES
        if not name(path).startswith("mqe/")
        and "make_env" in path.read_text()
        and "mqe.registry.make_env" in imports(path)
    ]
)
def test_whoever_builds_worlds_can_read_gaits_of_former_releases(path: Path) -> None:
    module = name(path).removesuffix(".py").replace("/", ".")
    assert "harl_mapush.runs.exported" in reached_from(module)


@of_every([path for path in SOURCES if name(path).startswith("mqe/tasks/")])
def test_tasks_never_see_a_simulator(path: Path) -> None:
    assert not [module for module in imports(path) if module.startswith(("mujoco", "mqe.sim"))]


@of_every([path for path in SOURCES if name(path).startswith("mqe/sim/")])
def test_simulators_know_nothing_of_tasks(path: Path) -> None:
    assert not [
        module
        for module in imports(path)
        if module.startswith(("mqe.tasks.task", "mqe.env.environment", "mqe.registry"))
    ]


@pytest.mark.parametrize(
    ("contract", "at_most"),
    [(Algorithm, 8), (Callback, 4), (Controller, 6), (Simulator, 11), (Task, 12), (VecEnv, 14)],
)
def test_contracts_are_short(contract: type, at_most: int) -> None:
    """A single feature's needs go into an object, requested once."""
    members = {*vars(contract).get("__annotations__", {}), *vars(contract)}
    public = [member for member in members if not member.startswith("_")]
    assert 3 < len(public) <= at_most, public


@of_every(SOURCES)
def test_libraries_do_not_print(path: Path) -> None:
    calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
    assert not [
        call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "print"
    ]


@pytest.mark.parametrize("preset", sorted(config.PRESETS))
def test_every_preset_is_a_valid_run(preset: str) -> None:
    cfg, notices = config.resolve(config.load_preset(preset), {})
    assert cfg.runner.num_env_steps >= 1
    assert notices == []


def flags(parser: config.Parser) -> list[str]:
    return sorted(flag for action in parser._actions for flag in action.option_strings)


def test_train_has_the_flags_that_were_agreed_on_and_no_other() -> None:
    of_extensions = {f"--{flag}" for flag in (*TRAIN_FLAGS, *SETTINGS_FILES)}
    assert sorted({*flags(train.make_parser())} - of_extensions) == sorted(
        "-h --help --config --preset --resume --import --algo --task --object "
        "--num_agents --exp_name "
        "--seed --num_envs --n_rollout_threads --num_env_steps --max_wall_time --init_from "
        "--device --sim --out "
        "--set --suite".split()
    )


def test_test_has_the_flags_that_were_agreed_on_and_no_other() -> None:
    shown = flags(test.make_viewer_parser())
    hidden = {f"--{flag}" for flag in (*evaluation_command.FLAGS, "mode")}
    of_extensions = {f"--{flag}" for flag in TEST_FLAGS}
    given = {*flags(test.make_parser())} - of_extensions
    assert given - {*shown} == hidden
    assert sorted(given) == sorted(
        "-h --help --import --checkpoint --mode --num_envs --n_rollout_threads --seed --device "
        "--sim --set --json "
        "--record --size --camera --speed "
        "--num_episodes --web --host "
        "--seeds --policy "
        "--all_checkpoints --only --team_only --csv --task --object --num_agents "
        "--suite".split()
    )


# Files that rooms of one kind have in common: tasks, commands, families of algorithms, entries.
SHARED_NAMES = {
    *("task", "observations", "rewards", "terminations", "metrics", "features", "episode_report"),
    *("settings", "default_terms", "formulas", "entries", "command"),
    "entry",  # of extensions
}


def test_no_file_name_stands_for_two_things() -> None:
    names: dict[str, list[str]] = {}
    for path in SOURCES:
        if not path.stem.startswith("__"):
            names.setdefault(path.stem, []).append(name(path))
    twice = {stem: paths for stem, paths in names.items() if len(paths) > 1}
    assert twice.keys() <= SHARED_NAMES, twice


def test_areas_of_mutants_name_files_that_exist() -> None:
    areas = tomllib.loads((ROOT / "tools/mutants/areas.toml").read_text(encoding="utf-8"))
    for area in areas.values():
        files = [ROOT / path for path in area["modules"]]
        files += [ROOT / "tests" / path for path in area["tests"]]
        if not EXTENSIONS.is_dir():  # the core stands alone
            files = [path for path in files if "extensions" not in path.parts]
        assert [path for path in files if not path.is_file()] == []
