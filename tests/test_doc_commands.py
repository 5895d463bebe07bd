"""Every shell block of README, Start and Guides runs as it stands, line after line in a folder of
its own, at the sizes of ``tests/support/small_commands.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import mapush_files, upstream
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted((DOCS / "start").glob("*.md")),
    *sorted((DOCS / "guides").glob("*.md")),
]
PROGRAMS = ("mapush", "python", "torchrun")
BLOCK = re.compile(r"^```bash\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)

# The lines that do not run, by how they begin, with the reason.
NOT_RUN = {
    "git clone": "network",
    "pip install": "network; tests/test_packaging.py checks that the extras exist",
    "pip wheel": "network; tests/test_packaging.py builds the package",
    "uvx": "network",
    "make train": "installs an environment; its commands are those of train.md and measure.md",
    "make openrl": "installs an environment",
    ".venv-openrl/bin/python": "needs the environment of make openrl",
    "mapush import openrl results/DATE_cuboid": "needs the run of the line before",
    "tensorboard": "a server",
    "python3.8 -m venv": "network; tests/mqe/sim/test_remote_simulator.py has the stand-in",
    "mapush doctor --preset smoke --sim mujoco_worker": "needs the environment of the line before",
    "mapush doctor --sim isaacgym": "Isaac Gym",
    "mapush train --sim isaacgym": "Isaac Gym",
    "export RAY_ADDRESS": "a Ray cluster; tests/faults/ray_collectors.py starts one",
    "mapush train --preset laptop_hasac --device cpu --num_envs 896 --set runner.engine=ray": (
        "a Ray cluster"
    ),
    "torchrun --nnodes 2": "two machines",
    "torchrun --nproc_per_node 2 --max-restarts 3": "tests/faults/ranks.py kills ranks",
    "mapush play pretrained:cuboid --record film.mp4 --looks meshes": "network",
    "mapush play pretrained:cuboid --record film.mp4 --looks PATH_OF_MENAGERIE": (
        "needs a checkout of MuJoCo Menagerie"
    ),
    "mapush test --replay": "needs a world that broke; tests of callbacks film one",
}

# What the folder of a page has before its first line, made by commands at the same sizes.
PREPARED = {
    "any_team": "mapush train --preset any --out RUN",
    "evaluate": "mapush train --preset smoke --out RUN",
    "extensions": "cp examples/own_format.py .",
    "film": "mapush train --preset smoke --out RUN",
    "finetune": "mapush train --preset laptop_hasac --out RUN",
    "object": "mapush train --import own_object --object crate --out RUN",
    "report": "for name in a b c; do mapush train --preset smoke --out results/$name; done",
    "resume": "mapush train --preset smoke --out RUN",
    "robot": "mapush train --import MODULE --preset go1_velocity --set env.robots=my_robot "
    "--out RUN",
    "runs": "mkdir -p mqe/assets/pretrained && mapush average pretrained:cuboid "
    "mqe/assets/pretrained/NAME --last 1",
    "measure": "mapush train --preset smoke --out first_run",
}
# Blocks of a page that it asks to save: the language of the block, and the file.
FILES = {
    "evaluate": ("python", "my_policies.py"),
    "object": ("python", "own_object.py"),
    "any_team": ("json", "corner.json"),
    "navigate": ("yaml", "maps.yaml"),
    "sweep": ("yaml", "space.yaml"),
}
# Names that a page leaves open, as they are here.
NAMES = {
    "sweep": (("space-DATE", "space-*"), ("DIR/", "results/sweeps/space-*/"), ("0007", "0000")),
}


def lines_of(page: Path) -> list[list[str]]:
    """Return the lines of each block of a page, continued lines joined."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [
        [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines() if line.strip()]
        for block in blocks
        if not block.startswith("#!")  # scripts for Slurm: tests/faults/cluster.py runs them
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
    blocks = ["\n".join(filter(is_run, block)) for block in lines_of(page)]
    if not any(blocks):
        pytest.skip("no line of this page runs here")
    prepare(page.stem, text, tmp_path)
    for block in [PREPARED.get(page.stem, ""), *blocks]:
        for name, here in NAMES.get(page.stem, ()):
            block = block.replace(name, here)
        run(block, tmp_path)


def prepare(page: str, text: str, folder: Path) -> None:
    """Make the folder in which a page's blocks are run: programs, examples, the page's files."""
    programs = folder / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        script = f'#!/bin/sh\nexec {sys.executable} -m tests.support.small_commands {name} "$@"\n'
        (programs / name).write_text(script, encoding="utf-8")
        (programs / name).chmod(0o755)
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "configs", folder / "configs")
    if page in FILES:
        language, name = FILES[page]
        shown = re.search(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
        assert shown is not None
        (folder / name).write_text(shown[1], encoding="utf-8")
    if page == "extensions":
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
        (folder / "MODULE.py").write_text(OWN_ROBOT, encoding="utf-8")
    if page == "sweep":
        space = (folder / "space.yaml").read_text(encoding="utf-8")
        for large, small in SMALL_SPACE.items():
            assert large in space
            space = space.replace(large, small)
        (folder / "space.yaml").write_text(space, encoding="utf-8")


OWN_ROBOT = """
from dataclasses import replace

import mapush
from mqe.world.robots import ROBOTS

mapush.register_robot("my_robot", replace(ROBOTS["go2"], name="my_robot"))
"""
SMALL_SPACE = {
    "runner: {num_env_steps: 3_000_000, checkpoint_interval: 500_000}": (
        "runner: {num_env_steps: 1200, checkpoint_interval: 200, num_steps: 4}\n"
        "  env: {num_envs: 4}\n  task: {episode_length_s: 1.0}\n  network: {hidden_sizes: [8]}"
    ),
    "seeds: [11, 12, 13, 14, 15]": "seeds: [11]",
}


def run(block: str, folder: Path) -> None:
    """Run a block in a shell, up to the first line that fails."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(paths),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        environment.pop(name, None)
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", block],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )
    if log := os.environ.get("DOC_COMMANDS_LOG"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{done.stdout}EXIT {done.returncode}\n")
    assert done.returncode == 0, done.stdout[-4000:]
