"""Installed files: version, configurations and assets in a wheel, and accurate project files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from mapush import __version__, cli
from mqe import project
from mqe.manifest import UNKNOWN_REVISION, git_revision, revision_of
from tests.support.paths import EXTENSIONS
from tests.support.tiny_runs import TINY

ROOT = Path(__file__).parent.parent
PACKAGES = ("mqe", "harl_mapush", "mapush")
SOURCES = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]


def test_the_version_stands_once(capsys) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"mapush {__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "mapush.__version__"}
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__

    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## \[(\d[\d.]*)\] - (\S+)$", changes, flags=re.MULTILINE)
    assert heading is not None
    assert heading[1] == __version__
    assert heading[2] == str(citation["date-released"])
    for page in (ROOT / "docs").rglob("*.md"):
        wheels = re.findall(r"mapush-([\d.]+)-py3", page.read_text(encoding="utf-8"))
        assert set(wheels) <= {__version__}, page


def test_every_dependency_has_a_tested_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[<>=\[;]", text)[0] for text in project["dependencies"]}
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert needed <= {line.partition("==")[0] for line in pins if "==" in line}


def test_the_extra_for_exports_excludes_a_torch_without_the_former_exporter() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cap = SpecifierSet("<2.15")  # 2.14.1 has torch.onnx.export(dynamo=False)
    needed = [Requirement(text) for text in project["optional-dependencies"]["export"]]
    assert [requirement.specifier for requirement in needed if requirement.name == "torch"] == [cap]
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch==(.+)$", pins, flags=re.MULTILINE)[1] in cap


def test_continuous_integration_builds_the_site_strictly() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^docs: .*\n.* mkdocs build --strict$", makefile, flags=re.MULTILINE)
    assert (
        (ROOT / ".ci/run").read_text(encoding="utf-8").endswith("make test\nmake docs\nmake slow\n")
    )
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    runs = [step.get("run", "") for step in workflow["jobs"]["test"]["steps"]]
    assert [run.split()[-1] for run in runs if run.startswith("make ")] == [
        "test",
        "docs",
        "slow",
    ]


@pytest.mark.skipif(not EXTENSIONS.is_dir(), reason="the core stands alone")
def test_make_benchmarl_names_the_folder_of_the_examples_test() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folder = re.search(r"-k benchmarl (\S+)$", makefile, flags=re.MULTILINE)
    assert folder is not None
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder[1]).glob("test_*.py")]
    assert any("def test_benchmarl" in text for text in texts)


@pytest.mark.parametrize(
    "argv, words",
    [
        (["train", "--object", "ball"], "mapush train: task.object: unknown value 'ball'"),
        (["test"], "mapush test: CHECKPOINT is missing"),
    ],
)
def test_a_command_is_called_what_the_user_called_it(capsys, argv: list[str], words: str) -> None:
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith(words)
    with pytest.raises(SystemExit):
        cli.main([argv[0], "--help"])
    assert capsys.readouterr().out.startswith(f"usage: mapush {argv[0]} ")


def test_what_is_installed_holds_configurations_assets_and_types(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "setup.py",
        "-q",
        "egg_info",
        "-e",
        str(tmp_path),
        "build_py",
        "-d",
        str(tmp_path / "lib"),
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    installed = {
        path.relative_to(tmp_path / "lib").as_posix() for path in (tmp_path / "lib").rglob("*")
    }
    packages = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    expected = {
        path.relative_to(ROOT).as_posix() for path in packages if "__pycache__" not in path.parts
    }
    assert expected <= installed
    assert {
        "harl_mapush/configs/laptop.yaml",
        "mqe/py.typed",
        "harl_mapush/py.typed",
        "mapush/py.typed",
    } <= installed
    assert revision_of(tmp_path / "lib") == git_revision()


def test_an_unknown_revision_is_called_unknown(tmp_path: Path) -> None:
    assert revision_of(tmp_path) == UNKNOWN_REVISION
    (tmp_path / "mqe").mkdir()
    (tmp_path / "mqe" / "git_revision.txt").write_text("0123abc-dirty\n")
    assert revision_of(tmp_path) == "0123abc-dirty"
    (tmp_path / ".git").mkdir()  # which is no repository
    assert revision_of(tmp_path) == UNKNOWN_REVISION


def test_the_revision_of_a_checkout_is_its_commit(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y.z"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert commit.stdout.startswith(revision_of(tmp_path).rpartition("g")[2][:7])


@pytest.mark.slow
def test_examples_run_elsewhere_with_nothing_but_the_wheel(tmp_path: Path) -> None:
    parts = [
        ("egg_info", "-e"),
        ("build", "-b"),
        ("bdist_wheel", "-b", str(tmp_path / "all"), "-d"),
    ]
    build = [word for part in parts for word in (*part, str(tmp_path))]
    subprocess.run(
        [sys.executable, "setup.py", "-q", *build], cwd=ROOT, check=True, capture_output=True
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "installed")
    examples = shutil.copytree(ROOT / "examples", tmp_path / "own")
    environment = os.environ | {
        "PYTHONPATH": str(tmp_path / "installed"),
        "CUDA_VISIBLE_DEVICES": "",
    }

    def run(*words: str) -> None:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=examples,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr

    run("-c", f"import mqe; assert mqe.__file__.startswith({str(tmp_path)!r})")
    run("own_loop.py", "2", "3")
    train = (
        "-m",
        "harl_mapush.train",
        *TINY,
        "--num_env_steps",
        "16",
        "--device",
        "cpu",
        "--import",
    )
    run(*train, "own_object", "--object", "crate")
    run(*train, "own_reward", "--set", "task.weights.looking=0.01")
    run(*train, "own_observation", "--set", "task.more_observations=[height]")
    run(*train, "own_task", "--task", "race", "--num_agents", "3")


def test_every_supported_python_is_tested() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    tested = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    assert [
        f"3.{line.removeprefix(prefix)}"
        for line in project["classifiers"]
        if line.startswith(prefix)
    ] == tested


def test_the_repository_and_the_name_on_the_index_stand_in_one_file(monkeypatch) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    assert [path for path, text in texts.items() if re.search(r"pip install .?mapush", text)] == []
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert set(re.findall(r"git clone (\S+) mapush|git\+(\S+)", text)) == {
        (project.URL, ""),
        ("", project.URL),
    }
    if project.INDEX_NAME is None:
        assert not re.search(r"pip install (-\S+ \S+ )*['\"]?mapush\b|`mapush\[", text)
    assert project.install("gpu") == "pip install '.[gpu]' in a clone of mapush"
    monkeypatch.setattr(project, "INDEX_NAME", "mapush")
    assert project.install("gpu") == "pip install 'mapush[gpu]'"


def test_messages_name_extras_that_exist() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        extra
        for path in SOURCES
        for extra in re.findall(r"\binstall\(['\"](\w+)['\"]\)", path.read_text(encoding="utf-8"))
    }
    assert {"gpu", "harl"} <= named <= set(declared["optional-dependencies"])


def test_another_package_of_our_name_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "mqe").mkdir()
    (tmp_path / "mqe/__init__.py").write_text("")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", "from mapush.cli import main; raise SystemExit(main(['list']))"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"mapush: {tmp_path / 'mqe'} comes before")
    assert done.stderr.count("\n") == 1


def test_the_image_is_built_and_checked_in_continuous_integration() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = re.search(r"^FROM python:(3\.\d+)-slim$", lines, flags=re.MULTILINE)
    assert version is not None
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
    extras = set(re.findall(r"EXTRA=(\w+)", lines))
    assert extras <= set(project["optional-dependencies"])
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    runs = [step.get("run") for step in workflow["jobs"]["dockerfile"]["steps"]]
    assert "docker build --check ." in runs


@pytest.mark.slow
def test_the_image_is_built_where_there_is_a_builder() -> None:
    builder = shutil.which("docker") or shutil.which("podman")
    if builder is None or subprocess.run([builder, "info"], capture_output=True).returncode:
        pytest.skip("no builder of images here")
    subprocess.run([builder, "build", "-t", "mapush-test", str(ROOT)], check=True)
    shown = subprocess.run(
        [builder, "run", "--rm", "mapush-test", "--version"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == f"mapush {__version__}\n"


def test_a_tag_releases_what_make_builds() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    runs = [step.get("run", "") for step in workflow["jobs"]["release"]["steps"]]
    targets = [run.split()[-1] for run in runs if run.startswith("make ")]
    assert targets == ["test", "docs", "dist"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(f"\n{target}:" in makefile for target in targets)
