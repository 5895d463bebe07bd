"""What the documents show in Python works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harl_mapush.runs.resume import CHANGEABLE_ON_RESUME

DOCS = Path(__file__).parent.parent / "docs"


def test_python_is_shown_as_it_works(capsys) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```",
        (DOCS / "guides/python.md").read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    assert len(blocks) == 4
    shown: dict[str, Any] = {}
    for block in blocks:
        # Fewer worlds take less time.
        exec(compile(block.replace("16", "4"), "docs/guides/python.md", "exec"), shown)
    assert shown["metrics"]["success_rate"] >= 0.75
    assert shown["step"].reward.shape == (4, 2)


def test_what_a_resume_may_change_is_listed() -> None:
    text = (DOCS / "guides/runs.md").read_text(encoding="utf-8")
    listed = text.partition("A resume may change:")[2].partition("Anything else is refused")[0]
    names = set(re.findall(r"`(?:\w+\.)?(\w+)`", listed))
    assert names == {key.rpartition(".")[2] for key in CHANGEABLE_ON_RESUME} | {
        "runner",
        "algorithm",
        "sim",
    }
