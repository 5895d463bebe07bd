"""Build through setuptools; what it needs to know is in pyproject.toml, except where the packages
are, and the git revision, which an installation keeps in ``mqe/git_revision.txt``.
"""

import subprocess
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
REVISION_FILE = Path("mqe", "git_revision.txt")
DESCRIBE = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


class BuildWithRevision(build_py):
    """Copies the modules, and notes the revision of the checkout that they come from."""

    def run(self):
        """Build; outside a checkout, or without git, no revision is noted."""
        super().run()
        if self.editable_mode:  # the modules stay in the checkout
            return
        noted = Path(self.build_lib) / REVISION_FILE
        noted.unlink(missing_ok=True)
        if not (ROOT / ".git").exists():
            return
        try:
            done = subprocess.run(DESCRIBE, cwd=ROOT, capture_output=True, text=True, check=True)
        except (OSError, subprocess.SubprocessError):
            return
        noted.parent.mkdir(parents=True, exist_ok=True)
        noted.write_text(done.stdout, encoding="utf-8")


setup(
    packages=[*find_packages(include=["mqe*", "harl_mapush*", "mapush*"]), "harl_mapush.configs"],
    package_dir={"harl_mapush.configs": "configs"},
    cmdclass={"build_py": BuildWithRevision},
)
