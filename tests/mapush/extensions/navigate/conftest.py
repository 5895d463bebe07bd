"""Members from benchmarks for the navigation task."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mapush.extensions.navigate.maps.families import FAMILIES
from mapush.extensions.navigate.planners.entries import PLANNERS
from mqe.registry import TASKS
from tests.support.paths import ROOT
from tests.support.registries import restored_registries


@pytest.fixture
def benchmarks(monkeypatch) -> Iterator[SimpleNamespace]:
    """Run the modules of benchmarks with registrations, and return their names."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    names: dict = {}
    with restored_registries(FAMILIES, PLANNERS, TASKS["go1push_upper"].policies):
        for module in ("navigation_baselines", "more_maps", "map_files"):
            names |= runpy.run_path(str(ROOT / "benchmarks" / f"{module}.py"), run_name=module)
        yield SimpleNamespace(**names)
