"""Check the core without ``mapush/extensions``: imports, ``mapush --help`` and the core's tests.

``python tools/core_alone.py`` copies the tracked files without the extensions and their tests into
a temporary folder. It imports every module there, prints the commands, and runs pytest with the
given arguments, by default the core's whole suite in two processes. Tests about documents are left
out: the documents describe the extensions as well.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("mapush/extensions/", "tests/mapush/extensions/")
OF_DOCUMENTS = (
    "tests/test_docs.py",
    "tests/test_doc_commands.py",
    "tests/test_result_pages.py",
    "tests/test_site.py",
)
WHOLE_SUITE = ("-q", "-n", "2", "--dist", "worksteal")
IMPORT_ALL = """
import importlib, pathlib
from mqe.extensions import load_extensions
load_extensions()
for package in ("mqe", "harl_mapush", "mapush"):
    for path in sorted(pathlib.Path(package).rglob("*.py")):
        if path.name != "__main__.py" and "assets" not in path.parts:
            name = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            importlib.import_module(name)
"""


def copy_core(folder: Path) -> None:
    """Copy the tracked files, except those of the extensions, into ``folder``."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listing.stdout.decode().split("\0"):
        if name and not name.startswith(LEFT_OUT) and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    configs = folder / "harl_mapush" / "configs"
    if not configs.exists():
        configs.symlink_to(os.path.join("..", "configs"))


def python(folder: Path, *words: str) -> int:
    """Run Python in ``folder``. Return its exit code."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment).returncode


def main(arguments: list[str]) -> int:
    """Check a copy of the core. Return 0 if everything passes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_core(folder)
        ignored = [f"--ignore={path}" for path in OF_DOCUMENTS]
        codes = (
            python(folder, "-c", IMPORT_ALL),
            python(folder, "-m", "mapush", "--help"),
            python(folder, "-m", "pytest", *(arguments or WHOLE_SUITE), *ignored),
        )
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
