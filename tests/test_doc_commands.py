"""Every shell block in README, Start and Guides runs line by line, in one folder per page, at the
sizes from ``tests/support/small_commands.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import traceback
from pathlib import Path

import mujoco
import numpy as np
import pytest

from mqe.world.robots import ROBOTS
from mqe.world.robots.build import add_robot
from tests.support import mapush_files, small_commands, upstream
from tests.support.paths import ROOT
from tests.test_docs import words_of

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted((DOCS / "start").glob("*.md")),
    *sorted((DOCS / "guides").glob("*.md")),
]
BLOCK = re.compile(r"^```bash\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

# The lines that do not run, by how they begin, with the reason.
NOT_RUN = {
    "git clone": "network",
    "pip install": "network; tests/test_packaging.py checks that the extras exist",
    "uvx": "network",
    "make train": "installs an environment; its commands are those of train.md and measure.md",
    "python benchmarks/leaderboard.py": "300 episodes; test_result_pages.py writes an entry",
    "mapush export RUN team --for policy --hub": "network; test_hub.py has a folder in its place",
    "mapush test hub:": "network, as the line before",
    "tensorboard": "a server",
    "mapush test pretrained:go1_velocity": "minutes; tests of the examination have smaller ones",
    "mapush test RUN --suite gait": "minutes, as the line before",
    "mapush test pretrained:any --suite mixed --set 'env.robots=[go1,al": "a file with a gait",
    "mapush train --preset laptop_team --set 'env.robots=[go2": "a file with a gait",
    "mapush train --preset laptop_team --set 'env.robots=[go1,j": "a file of a base on wheels",
    "mapush train --preset benchmarks/pair.yaml --set 'env.robots=[go2": "a file with a gait",
    "mapush train --preset benchmarks/pair_happo.yaml --set 'env.robots=[go2": "a file with a gait",
    "mapush doctor --sim isaacgym": "Isaac Gym",
    "mapush train --sim isaacgym": "Isaac Gym",
    "torchrun --nnodes 2": "two machines",
    "python benchmarks/algorithms.py algorithms --devices": "four GPUs",
    "python benchmarks/algorithms.py OUT --spec": "minutes; test_comparison.py adds HASPO",
}

# What the folder of a page has before its first line, made by commands at the same sizes.
PREPARED = {
    "any_team": ["mapush train --preset laptop_any --out RUN"],
    "evaluate": ["mapush train --preset smoke --out RUN"],
    "export": ["mapush train --preset smoke --out RUN"],
    "film": ["mapush train --preset smoke --out RUN"],
    "object": ["mapush train --import own_object --object crate --out RUN"],
    "report": [  # with episodes short enough to be counted
        f"mapush train {words} --set task.episode_length_s=0.4"
        for words in (
            "--preset smoke --seed 1 --out results/a",
            "--preset smoke --seed 2 --out results/b",
            "--preset laptop_hasac --out results/c",
        )
    ],
    "resume": ["mapush train --preset smoke --out RUN"],
    "measure": ["mapush train --preset smoke --out first_run"],
}
# Blocks of a page that it asks to save: the language of each block, and its file.
FILES = {
    "evaluate": {"python": "my_policies.py"},
    "object": {"python": "own_object.py"},
    "any_team": {"json": "corner.json"},
    "navigate": {"yaml": "maps.yaml"},
}
# Names that a page leaves open, as they are here.
NAMES = {
    "sweep": (
        ("space-DATE", "space-*"),
        ("DIR/", "results/sweeps/space-*/"),
        ("0007", "0000"),
        ("0012", "0001"),
    ),
}


def lines_of(page: Path) -> list[list[str]]:
    """Return the lines in each block on a page, with continuation lines joined."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        for block in blocks
        if not block.startswith("#!")  # scripts for Slurm: tools/faults/cluster.py runs them
    ]


def is_run(line: str) -> bool:
    return not line.startswith(tuple(NOT_RUN))


def test_every_line_that_is_not_run_is_on_a_page() -> None:
    lines = [line for page in PAGES for block in lines_of(page) for line in block]
    for start in NOT_RUN:
        assert any(line.startswith(start) for line in lines), start


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = [[line for line in block if is_run(line)] for block in lines_of(page)]
    if not any(blocks):
        pytest.skip("no line of this page runs here")
    prepare(page.stem, text, tmp_path)
    for block in [PREPARED.get(page.stem, []), *blocks]:
        folder = tmp_path
        for line in block:
            for name, folder_name in NAMES.get(page.stem, ()):
                line = line.replace(name, folder_name)
            folder = run(line, folder)


def prepare(page: str, text: str, folder: Path) -> None:
    """Make the folder for a page's blocks, with the examples and the page's files."""
    for name in ("examples", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(ROOT / "configs", folder / "configs")
    for language, name in FILES.get(page, {}).items():
        shown = re.search(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
        assert shown is not None
        (folder / name).write_text(shown[1], encoding="utf-8")
    if page == "runs":
        shipped = Path("mqe/assets/pretrained")
        shutil.copytree(ROOT / shipped / "cuboid", folder / shipped / "NAME")
    if page == "extensions":
        shutil.copy(ROOT / "examples/own_format.py", folder)
        (folder / "FOLDER").mkdir()
        np.savez(folder / "FOLDER/linear.npz", matrix=np.zeros((10, 3)))
    if page == "harl":
        if upstream.HARL is None or upstream.MISSING:
            pytest.skip("upstream HARL is not installed")
        (folder / "HARL").symlink_to(upstream.HARL)
    if page == "migrate":
        team = folder / "MAPush/results/10-15-23_cuboid/checkpoints/rl_model_100000000_steps"
        mapush_files.save(team / "module.pt", mapush_files.module())
    if page == "robot":
        (folder / "anymal_c.urdf").write_text(robot_file(), encoding="utf-8")
    if page in ("gpu", "sweep"):
        guide = (ROOT / "docs" / "guides" / "sweep.md").read_text(encoding="utf-8")
        space = guide.partition("```yaml\n")[2].partition("```")[0]
        for large, small in SMALL_SPACE.items():
            assert large in space
            space = space.replace(large, small)
        (folder / "space.yaml").write_text(space, encoding="utf-8")


def robot_file() -> str:
    """Return the Go2 as its maker might describe it, which is no ANYmal."""
    spec = mujoco.MjSpec()
    spec.compiler.degree = False
    add_robot(spec, ROBOTS["go2"], "go2", (0.5, 0.5, 0.5, 1.0), collision=1, hits=1)
    spec.compile()
    return spec.to_xml()


SMALL_SPACE = {
    "runner: {num_env_steps: 3_000_000, checkpoint_interval: 500_000}": (
        "runner: {num_env_steps: 1200, checkpoint_interval: 200, num_steps: 4}\n"
        "  env: {num_envs: 4}\n  task: {episode_length_s: 1.0}\n  network: {hidden_sizes: [8]}"
    ),
}


def run(line: str, folder: Path) -> Path:
    """Run a shell line's commands, each in its own process. Return the next line's folder."""
    for words in words_of(line):
        if words[0] == "cd":
            folder = folder / words[1]
        elif words[0] != "wait":
            words = [argument for word in words for argument in expanded(word, folder)]
            run_command(words, folder)
    return folder


def expanded(word: str, folder: Path) -> list[str]:
    """Return the paths for a word with a star, as a shell does, or the word alone."""
    paths = sorted(folder.glob(word)) if "*" in word else []
    return [str(path.relative_to(folder)) for path in paths] or [word]


def run_command(words: list[str], folder: Path) -> None:
    """Run a command in a fork of this process, with torch already imported."""
    output = folder / "output.txt"
    sys.stdout.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            with output.open("w", encoding="utf-8") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
                sys.stdout = os.fdopen(1, "w", encoding="utf-8")
                sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
                os.chdir(folder)
                sys.path.insert(0, "")
                for name in ("DISPLAY", "WAYLAND_DISPLAY"):
                    os.environ.pop(name, None)
                code = small_commands.main(words)
        except BaseException:  # the copy ends here, whatever happens
            traceback.print_exc(file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(process, 0)
    shown = output.read_text(encoding="utf-8")
    if log := os.environ.get("DOC_COMMANDS_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"$ {' '.join(words)}\n{shown}\n")
    assert os.waitstatus_to_exitcode(status) == 0, f"{' '.join(words)}\n{shown[-3000:]}"
