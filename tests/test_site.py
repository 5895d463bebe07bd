"""The documentation site builds without a warning: no broken link, anchor or reference."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_site_builds_and_needs_no_other_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("material")
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    monkeypatch.chdir(ROOT)
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config("mkdocs.yml", site_dir=str(tmp_path / "site"), strict=False)
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    assert [record.getMessage() for record in caplog.records] == []

    loaded = re.compile(r"<(?:script|link|img)\b[^>]*(?:src|href)=\"?https?://[^\"> ]+")
    for page in (tmp_path / "site").rglob("*.html"):
        links = loaded.findall(page.read_text(encoding="utf-8"))
        assert links == [], page.name
