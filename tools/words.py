"""Words of the documents by page: ``python tools/words.py``.

Generated tables and the rows of tables in pages of results do not count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = re.compile(r"<!-- table: .*?<!-- end -->", flags=re.DOTALL)
ROW = re.compile(r"^\|.*\n", flags=re.MULTILINE)
OF_RESULTS = ("README.md", "docs/results/", "docs/background/what_takes_a_team.md")
MOST_WORDS = 25_500


def count_words(path: Path) -> int:
    """Return the number of words that are written by hand on a page."""
    text = GENERATED.sub("", path.read_text(encoding="utf-8"))
    if path.relative_to(ROOT).as_posix().startswith(OF_RESULTS):
        text = ROW.sub("", text)
    return len(text.split())


def pages() -> dict[str, int]:
    """Return the number of words of each document, by its path."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {path.relative_to(ROOT).as_posix(): count_words(path) for path in paths}


def main() -> None:
    """Print the number of words of each page and their sum."""
    counts = pages()
    for page, number in sorted(counts.items(), key=lambda item: item[1]):
        sys.stdout.write(f"{number:6d}  {page}\n")
    sys.stdout.write(f"{sum(counts.values()):6d}  of {MOST_WORDS}\n")


if __name__ == "__main__":
    main()
