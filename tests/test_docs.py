"""Commands and Python in the documents work without changes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harl_mapush import config, test, train
from harl_mapush.runs import checkpoint, evaluation_worlds
from harl_mapush.runs.resume import CHANGEABLE_ON_RESUME
from mapush import cli
from mapush.built_in import extensions
from mapush.commands import COMMANDS
from mapush.doctor import command as doctor
from mapush.export import command as export
from mapush.extensions.report import command as report
from mapush.extensions.robot_files import command as robot
from mapush.extensions.sweep import command as sweep
from mqe.pretrained import pretrained_folder, pretrained_names
from tests.support.paths import ROOT
from tests.support.registries import restored_registries
from tests.support.tiny_runs import TINY
from tools.words import MOST_WORDS, pages

for extension in extensions():
    COMMANDS.update(extension.commands)

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", DOCS / "index.md", *sorted(DOCS.glob("*/*.md"))]
OTHERS = (
    "git",
    "cd",
    "export",
    "tensorboard",
    "wait",
    "python3.8",
    "python3.11",
)  # no programs of ours
# Programs that take the flags of another library
OF_UPSTREAM = ("examples/harl_training.py",)
PARSERS: dict[str, Callable[[], config.Parser]] = {
    "train": train.make_parser,
    "test": test.make_parser,
    "play": test.make_viewer_parser,
    "export": export.make_parser,
    "sweep": sweep.make_parser,
    "report": report.make_parser,
    "robot": robot.make_parser,
    "doctor": doctor.make_parser,
}
MODULES = {
    "harl_mapush.train": train.make_parser,
    "harl_mapush.test": test.make_parser,
}
QUICK = ("list", "settings")  # run as they stand


def commands_of(page: Path) -> list[str]:
    """Return the commands in a page's shell blocks, without cluster scripts."""
    text = page.read_text(encoding="utf-8")
    commands = []
    for block in re.findall(r"^```bash\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        if not block.startswith("#!"):
            lines = block.replace("\\\n", " ").splitlines()
            commands += [line for line in lines if line.strip()]
    return commands


def words_of(line: str) -> list[list[str]]:
    """Split a shell line into its commands."""
    line = line.replace("$K", "1")
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|"):
            parts.append([])
        elif word not in ("do", "done"):
            parts[-1].append(word)
    return [part for part in parts if part and part[0] != "for"]


def plain_commands(page: str) -> list[str]:
    """Return a page's commands without comments and extra spaces."""
    return [line.partition("  #")[0].strip() for line in commands_of(DOCS / page)]


FEW_EPISODES = ["--num_envs", "2", "--set", "task.episode_length_s=0.2"]
COMMAND_LINES = [
    pytest.param(words, id=f"{page.stem}: {' '.join(words)[:60]}")
    for page in PAGES
    for line in commands_of(page)
    for words in words_of(line)
]


@pytest.mark.parametrize("words", COMMAND_LINES)
def test_commands_are_understood(words: list[str], tmp_path, monkeypatch, capsys) -> None:
    program, *rest = words
    if program == "uvx":
        assert rest[0] == "--from"
        program, *rest = rest[2:]
    if program == "mapush":
        check_mapush(rest, tmp_path, monkeypatch)
    elif program.endswith("pip"):
        check_extras(rest)
    elif program == "make":
        assert f"\n{rest[0]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    elif program in ("python", "torchrun"):
        check_python(rest)
    else:
        assert program in OTHERS


def check_mapush(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check a subcommand and its arguments."""
    name, *rest = words
    if words == ["--version"]:
        assert cli.main(words) == 0
        return
    assert name in COMMANDS
    if name in QUICK:
        monkeypatch.chdir(tmp_path)
        assert cli.main(words) == 0
    else:
        check_arguments(PARSERS[name](), rest)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_and_ends_with_an_example(name: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    program, command, *rest = shlex.split(text.partition("\nexample: ")[2].partition(">")[0])
    assert (program, command) == ("mapush", name)
    if name in PARSERS:
        check_mapush([name, *rest], tmp_path, monkeypatch)


def check_arguments(parser: config.Parser, words: list[str]) -> None:
    """Parse ``words``, and resolve a training's settings from its preset."""
    arguments, rest = parser.parse_known_args(words)
    assert rest == []
    if getattr(arguments, "imports", ()):
        assert all(
            name in ("MODULE", "own_format")
            or any(
                (ROOT / folder / f"{name}.py").is_file() for folder in ("examples", "benchmarks")
            )
            for name in arguments.imports
        )
        return
    if not hasattr(arguments, "set"):
        return
    over = config.flag_values(arguments)
    is_new_run = hasattr(arguments, "init_from") and hasattr(arguments, "resume")
    if is_new_run and not (arguments.resume or arguments.load_config):
        over.get("sim", {}).pop("device", None)  # of a machine that has one
        config.resolve(config.load_preset(arguments.preset or config.machine_preset(over)[0]), over)


def check_extras(words: list[str]) -> None:
    """Check this package's extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for word in words:
        for extra in re.findall(r"^\.\[([\w,]+)\]$", word):
            assert set(extra.split(",")) <= set(project["optional-dependencies"])


def check_python(words: list[str]) -> None:
    """Check a program in this repository: it exists and accepts the flags."""
    path, *rest = words
    if "mapush" in rest:  # the command of a result
        check_arguments(PARSERS[rest[rest.index("mapush") + 1]](), rest[rest.index("mapush") + 2 :])
        rest = rest[: rest.index("mapush")]
    if words[:2] == ["-m", "pip"]:
        return
    if "-m" in words:
        module, *rest = words[words.index("-m") + 1 :]
        if module in MODULES:
            check_arguments(MODULES[module](), rest)
            return
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    else:
        source = (ROOT / path).read_text(encoding="utf-8")
        if "from measuring import" in source:
            source += (ROOT / "benchmarks/measuring.py").read_text(encoding="utf-8")
    for flag in [word for word in rest if word.startswith("--")]:
        is_setting = flag in ("--set", *config.FLAGS)
        assert is_setting or f'"{flag}"' in source or path in OF_UPSTREAM, flag


BENCHMARKS = [
    path
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "__main__" in path.read_text(encoding="utf-8")
]


@pytest.mark.slow
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_starts_in_a_process_of_its_own(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(path), "--help"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]


def test_benchmarks_name_their_neighbours_as_scripts_do() -> None:
    """A script's folder is on Python's path, but its parent need not be."""
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")]
    assert sources
    assert not any(
        re.search(r"^(from|import) benchmarks\b", text, re.MULTILINE) for text in sources
    )


SHOWN = [
    "object",
    "terms",
    "algorithm",
    "extensions",
    "evaluate",
    pytest.param("python", marks=pytest.mark.slow),
    "harl",
    pytest.param("clients", marks=pytest.mark.slow),
    "any_team",
]
# What this machine need not have: a checkout of HARL, and an environment for BenchMARL.
ELSEWHERE = ("register_with_harl", "import benchmarl", "from benchmarl")
LIBRARIES = {"clients": ("pettingzoo", "torchrl")}


@pytest.mark.parametrize("page", SHOWN)
def test_python_works_as_it_is_shown(page: str, capsys) -> None:
    for library in LIBRARIES.get(page, ()):
        pytest.importorskip(library)
    text = (DOCS / "guides" / f"{page}.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    blocks = [block for block in blocks if not any(word in block for word in ELSEWHERE)]
    assert blocks
    shown: dict[str, Any] = {}
    with restored_registries():
        for block in blocks:
            # Fewer worlds take less time.
            block = block.replace("16", "4").replace("64", "4")
            exec(compile(block, f"{page}.md", "exec"), shown)
    if page == "python":
        assert shown["metrics"]["success_rate"] >= 0.75
        assert shown["step"].reward.shape == (4, 2)


def test_start_trains_resumes_and_measures(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (
        "mapush train",
        "mapush train --preset smoke --out first_run",
        "mapush train --preset laptop --object tblock --algo mappo",
        "mapush train --resume first_run",
        "mapush list",
    ):
        assert line in plain_commands("start/train.md")
        words = shlex.split(line)[1:]
        if words[0] == "train" and "--resume" not in words:
            words += [*TINY, "--num_env_steps", "80", "--device", "cpu"]
        assert cli.main(words) == 0, line
    assert "mapush test first_run" in plain_commands("start/measure.md")
    assert cli.main(["test", "first_run", *FEW_EPISODES]) == 0


MEASURED = [
    line
    for page in ("start/measure.md", "guides/evaluate.md", "background/world.md")
    for line in plain_commands(page)
    if re.match(r"mapush test (pretrained:(cuboid|tblock)|scripted|--policy)", line)
]


@pytest.mark.parametrize("line", MEASURED)
def test_teams_are_measured_as_shown(line: str, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shown = (DOCS / "guides/evaluate.md").read_text(encoding="utf-8")
    block = re.search(r"```python\n(.*?)```", shown, flags=re.DOTALL)
    assert block is not None
    (tmp_path / "my_policies.py").write_text(block[1], encoding="utf-8")
    words = shlex.split(line)[1:]
    more = [*FEW_EPISODES, "--num_episodes", "2"] if "--num_episodes" in words else FEW_EPISODES
    if "rest" in words:  # no longer than an episode
        more = [*more, "--set", "task.success_rest_s=0.1"]
    assert cli.main([*words, *more, "--device", "cpu"]) == 0


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples/tour.ipynb").read_text(encoding="utf-8"))
    smaller = {"16": "4", "range(50)": "range(5)", "range(100)": "range(5)"}
    smaller["episodes=1"] = "seconds=0.2, size=(96, 54)"
    smaller['"separated"'] = '"separated", "task.episode_length_s": 1.0'
    shown: dict[str, Any] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            for words, fewer in smaller.items():
                source = source.replace(words, fewer)
            exec(compile(source, "tour.ipynb", "exec"), shown)
    pyplot.close("all")
    assert shown["metrics"]["num_episodes"] == 4
    assert (tmp_path / "film.mp4").is_file()


def test_documents_import_us_by_one_name() -> None:
    notebook = json.loads((ROOT / "examples/tour.ipynb").read_text(encoding="utf-8"))
    pages = {path: path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    pages[ROOT / "README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
    pages[ROOT / "examples/tour.ipynb"] = "".join(
        "".join([*cell["source"], "\n"]) for cell in notebook["cells"]
    )
    deep = re.compile(r"^ *(?:from|import) (?:mqe|harl_mapush|mapush\.)", flags=re.MULTILINE)
    assert [path.name for path, text in pages.items() if deep.search(text)] == []


def test_every_relative_link_leads_to_a_file_in_the_source() -> None:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    pages += [*DOCS.rglob("*.md"), *(ROOT / "mapush/extensions").glob("*/README.md")]
    dead = []
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path = link.partition("#")[0]
            if (
                path
                and not link.startswith(("http:", "https:"))
                and not (page.parent / path).exists()
            ):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_every_extra_is_on_the_page_of_the_installation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (DOCS / "start/install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \|", page, flags=re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(rows))
    assert {*listed, "test", "mutants"} == set(project["optional-dependencies"])


def test_readme_is_read_in_three_minutes() -> None:
    assert len(README.splitlines()) <= 110
    assert len(README.split()) <= 900
    rows = re.findall(r"^\| \d .*`mapush test .*` \|$", README, flags=re.MULTILINE)
    assert 1 <= len(rows) <= 6
    assert {row.count(" | ") for row in rows} == {5}


def test_documents_are_short() -> None:
    assert sum(pages().values()) <= MOST_WORDS


RESULT_ROWS = re.findall(
    r"^\| (\d) \| ([\w-]+) \| (\d+) N, (\d+) kg \|.*`(mapush test [^`]*)` \|$",
    README,
    flags=re.MULTILINE,
)
NAMES_OF_OBJECTS = {"cuboid": "box", "tblock": "T-block", "cylinder": "cylinder", "beam": "beam"}


@pytest.mark.parametrize("row", RESULT_ROWS, ids=lambda row: row[-1].partition(" --seed")[0])
def test_the_worlds_of_a_result_are_those_of_its_command(row: tuple[str, ...]) -> None:
    robots, pushed, force, mass, line = row
    arguments = test.make_parser().parse(shlex.split(line)[2:])
    folder = checkpoint.resolve(arguments.team)
    cfg = evaluation_worlds.settings(folder, config.flag_values(arguments))
    worlds = evaluation_worlds.contents(cfg)
    assert (int(robots), pushed) == (worlds["num_robots"], NAMES_OF_OBJECTS[worlds["object"]])
    assert int(force) == round(worlds["sliding_force_n"])
    assert int(mass) == round(worlds["object_mass_kg"])


def test_results_are_listed_with_their_worlds() -> None:
    assert len(RESULT_ROWS) == README.count("`mapush test pretrained:")


SHIPPED = {name: checkpoint.read_config(pretrained_folder(name)) for name in pretrained_names()}


def test_pages_say_truly_how_shipped_policies_learned() -> None:
    text = " ".join((DOCS / "background/world.md").read_text(encoding="utf-8").split())
    exceptions = re.search(r"policies that ship learned in it, but for (.*?), which", text)
    assert exceptions is not None
    on_the_reference = {name for name, cfg in SHIPPED.items() if "model" not in cfg["env"]}
    assert set(re.findall(r"`(\w+)`", exceptions[1])) == on_the_reference

    text = " ".join((DOCS / "background/off_policy.md").read_text(encoding="utf-8").split())
    exceptions = re.search(r"all shipped teams but (.*?) are HASAC's", text)
    assert exceptions is not None
    teams = {name for name, cfg in SHIPPED.items() if cfg["task"]["name"] != "go1_velocity"}
    others = {name for name in teams if SHIPPED[name]["algorithm"]["name"] != "hasac"}
    assert set(re.findall(r"`(\w+)`", exceptions[1])) == others


@pytest.mark.parametrize("preset", sorted(config.PRESETS))
def test_the_comment_of_a_preset_states_its_env_steps(preset: str) -> None:
    comment = config.preset_summaries()[preset]
    stated = re.search(r"([\d.]+) (M|k) env steps", comment)
    if stated is not None:
        unit = {"M": 1_000_000, "k": 1_000}[stated[2]]
        cfg = config.resolve(config.load_preset(preset), {})[0]
        assert float(stated[1]) * unit == cfg.runner.num_env_steps


IN_WORDS = {"six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


@pytest.mark.parametrize("preset", ["laptop", "laptop_hasac"])
def test_a_training_on_two_cores_takes_the_minutes_that_are_stated(preset) -> None:
    command = f"mapush train --preset {preset}"
    rows = (ROOT / "benchmarks/results/teams.jsonl").read_text(encoding="utf-8").splitlines()
    row = next(row for row in map(json.loads, rows) if row["command"] == command)
    stated = re.search(r"(\w+) minutes", config.preset_summaries()[preset])
    assert stated is not None
    assert stated[0] in (DOCS / "start/train.md").read_text(encoding="utf-8")
    assert float(IN_WORDS.get(stated[1], stated[1])) == pytest.approx(row["minutes"], rel=0.1)


def test_readme_and_results_state_the_same_of_make_train() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    preset = re.findall(r"^PRESET \?= (\w+)$", makefile, flags=re.MULTILINE)[0]
    results = " ".join((DOCS / "results/minutes.md").read_text(encoding="utf-8").split())
    readme = " ".join(README.split())
    rate = re.findall(r"goal in ([\d.]+) of 300 episodes", readme)[0]
    assert f"`{preset}` has {rate} (" in results
    minutes = re.findall(r"([\d.]+) minutes of training on two cores", readme)[0]
    assert f"{minutes} minutes" in config.preset_summaries()[preset]
    assert f"Trainings of {60 * float(minutes):.0f} s" in results


def test_architecture_names_files_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:configs|mqe|harl_mapush|mapush|tests|examples)/[\w./]*)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_architecture_names_every_room_and_extension() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    rooms = [
        f"{folder.parent.name}/{folder.name}/"
        for package in ("mqe", "harl_mapush")
        for folder in (ROOT / package).iterdir()
        if (folder / "__init__.py").is_file() and folder.name != "configs"
    ]
    assert [room for room in rooms if f"`{room}" not in text] == []
    section = text.partition("## Extensions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    folders = (path.parent.name for path in (ROOT / "mapush/extensions").glob("*/__init__.py"))
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(folders)


def test_what_a_resume_may_change_is_listed() -> None:
    text = (DOCS / "guides/resume.md").read_text(encoding="utf-8")
    listed = text.partition("A resume may change:")[2].partition("Anything else is refused")[0]
    names = set(re.findall(r"`(?:\w+\.)?(\w+)`", listed))
    assert names == {key.rpartition(".")[2] for key in CHANGEABLE_ON_RESUME} | {
        "runner",
        "algorithm",
        "sim",
    }


def test_documents_that_are_named_exist() -> None:
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")]
    for folder in ("mqe", "harl_mapush", "mapush", "configs", "examples", "benchmarks", "tests"):
        files += [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.yaml")]
    for file in files:
        text = file.read_text(encoding="utf-8")
        for name in re.findall(r"\bdocs/[a-z_/]+\.(?:md|webp|svg|png)\b", text):
            assert (ROOT / name).is_file(), f"{file}: {name}"
        if file.suffix == ".md":
            for name in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text):
                assert (ROOT / name).exists(), f"{file}: {name}"


def test_no_page_is_a_laboratory_notebook() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        revision = r"\bcommits? [0-9a-f]{7,}\b|\(([0-9a-f]{7,}, )*[0-9a-f]{7,}\)"
        assert not re.search(revision, text), page
        words = re.sub(r"^\|.*\|$", "", text, flags=re.MULTILINE).split()
        assert len(words) <= 2500, page  # without tables
