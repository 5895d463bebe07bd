"""Upstream HARL for tests: the checkout in HARL_PATH, else the installed package."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from harl_mapush.clients.harl import harl_registration

_SPEC = importlib.util.find_spec("harl")
if _SPEC and _SPEC.submodule_search_locations:
    _INSTALLED = Path(_SPEC.submodule_search_locations[0]).parent
else:
    _INSTALLED = None
HARL = os.environ.get(harl_registration.PATH_VARIABLE) or _INSTALLED
MISSING = [
    name for name in ("tensorboardX", "setproctitle") if importlib.util.find_spec(name) is None
]
needs_checkout = pytest.mark.skipif(
    not HARL or bool(MISSING),
    reason=f"{', '.join(MISSING)} missing"
    if HARL
    else "no upstream HARL: pip install harl-aht, or set HARL_PATH",
)
