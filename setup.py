"""Build through setuptools; what it needs to know is in pyproject.toml, except where the packages
are.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["mqe*", "harl_mapush*", "mapush*"]), "harl_mapush.configs"],
    package_dir={"harl_mapush.configs": "configs"},
)
