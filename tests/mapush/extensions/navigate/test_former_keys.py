"""Settings of release 0.3 that the navigation task no longer has."""

from __future__ import annotations

from typing import Any

import pytest

from harl_mapush import config
from mqe.config import ConfigError

TASK = {"name": "go1push_upper"}


@pytest.mark.parametrize(
    ("key", "default", "other"),
    [
        ("look_ahead", 2.0, 3.0),
        ("narrow_cost", 3.0, 1.3),
        ("map_scale", 0.05, 0.1),
        ("failures_end", True, False),
        ("rewards", "default", "published"),
        ("observation", "default", "rays"),
    ],
)
def test_a_former_setting_loads_at_its_default_alone(key: str, default: Any, other: Any) -> None:
    cfg, notices = config.resolve({"task": {**TASK, key: default}}, {})
    assert (cfg, notices) == (config.resolve({"task": TASK}, {})[0], [])
    with pytest.raises(ConfigError, match=rf"^unknown key 'task\.{key}'[^\n]*$"):
        config.resolve({"task": {**TASK, key: other}}, {})
