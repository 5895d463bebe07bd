"""Hooks of mkdocs: pages that are generated from the registries, and links to files of the code.

A generated page replaces a short one in ``docs/``, to which links lead on a host of repositories.

A link to a file outside of ``docs/`` (``../../examples/own_object.py``) works on a host of
repositories as it is. On the site it leads to a page that shows the file.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import reference_pages  # noqa: E402

TOUR = "start/tour.md"
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[\w./-]+)\)")
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".csv": "text", ".jsonl": "json"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each file of the code that a document links to."""
    pages = reference_pages.pages() | {TOUR: _notebook()}
    for name, text in pages.items():
        short = files.get_file_from_path(name)
        if short is not None:
            files.remove(short)
        files.append(File.generated(config, name, content=text))
    linked = {
        path
        for file in files.documentation_pages()
        for path in _linked(file.src_uri, file.content_string)
    }
    for path in sorted(linked):
        files.append(File.generated(config, _page_of(path), content=_source(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the code at the pages that show them."""
    uri = page.file.src_uri

    def replaced(match: re.Match[str]) -> str:
        path = _target(uri, match["path"])
        if path is None:
            return match[0]
        return f"]({os.path.relpath(_page_of(path), os.path.dirname(uri) or '.')})"

    return _LINK.sub(replaced, markdown)


def _notebook() -> str:
    """Return the notebook as a page, without results."""
    notebook = json.loads((ROOT / "examples/tour.ipynb").read_text(encoding="utf-8"))
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            source = f"```python\n{source}\n```"
        parts.append(source.replace("](../docs/", "](../"))
    return "\n\n".join(parts) + "\n"


def _linked(uri: str, text: str) -> list[str]:
    """Return the files of the code that a document links to."""
    targets = [_target(uri, match["path"]) for match in _LINK.finditer(text)]
    return [path for path in targets if path is not None]


def _target(uri: str, path: str) -> str | None:
    """Return the path in the repository of a linked file of the code; None for other links."""
    found = os.path.normpath(os.path.join("docs", os.path.dirname(uri), path))
    if found.startswith(("docs/", "..")) or not (ROOT / found).is_file():
        return None
    return found


def _page_of(path: str) -> str:
    return f"files/{path}.md"


def _source(path: str) -> str:
    """Return a page that shows a file."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    front = "---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n"
    if path.endswith(".md"):
        return f"{front}{text}\n"
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"{front}# `{path}`\n\n````{language}\n{text}\n````\n"
