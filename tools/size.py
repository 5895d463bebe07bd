"""Library size and voice by room: ``python tools/size.py [FOLDER...]``.

Columns: tokens (without comments and line ends, with a docstring as one token), lines, relative
words, "of" and semicolons per 1,000 docstring words, and vague names per 1,000 bindings.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}
RELATIVE = {"that", "which", "whose", "what", "where"}
VAGUE = {"own", "found", "each", "here", "asked", "known", "wanted", "kept", "place", "most", "m"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_tokens(path: Path) -> int:
    """Return a file's number of Python tokens."""
    with path.open("rb") as file:
        return sum(token.type not in SKIPPED for token in tokenize.tokenize(file.readline))


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names bound by assignments, loops and arguments."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def measure(path: Path) -> Counter[str]:
    """Return one file's counts."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    counts = Counter(tokens=count_tokens(path), lines=text.count("\n"))
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED):
            docstring = ast.get_docstring(node) or ""
            words = re.findall(r"[A-Za-z']+", docstring.lower())
            counts["words"] += len(words)
            counts["relative"] += sum(word in RELATIVE for word in words)
            counts["of"] += words.count("of")
            counts["semicolons"] += docstring.count(";")
    names = list(bound_names(tree))
    counts["bindings"] = len(names)
    counts["vague"] = sum(name in VAGUE for name in names)
    return counts


def room(path: Path) -> str:
    """Return a file's room: a package's folder or module, or one extension."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:3] if parts[:2] == ("mapush", "extensions") else parts[:2])


def row(name: str, counts: Counter[str]) -> str:
    """Format a room's counts."""

    def per_thousand(key: str, base: str) -> str:
        return f"{1000 * counts[key] / max(1, counts[base]):8.1f}"

    return (
        f"{counts['tokens']:8d}{counts['lines']:8d}"
        + per_thousand("relative", "words")
        + per_thousand("of", "words")
        + per_thousand("semicolons", "words")
        + per_thousand("vague", "bindings")
        + f"  {name}\n"
    )


def main(folders: list[str]) -> None:
    """Print a row for each room, and the sums of core and extensions."""
    rooms: dict[str, Counter[str]] = {}
    sums = {"core": Counter[str](), "extensions": Counter[str](), "all": Counter[str]()}
    for folder in folders or ["mqe", "harl_mapush", "mapush"]:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "configs" in path.parts[len(ROOT.parts) :][:2]:
                continue
            counts = measure(path)
            rooms.setdefault(room(path), Counter()).update(counts)
            is_extension = room(path).startswith("mapush/extensions/")
            sums["extensions" if is_extension else "core"].update(counts)
            sums["all"].update(counts)
    sys.stdout.write("  tokens   lines    that      of       ;   vague\n")
    for name, counts in sorted(rooms.items()):
        sys.stdout.write(row(name, counts))
    for name, counts in sums.items():
        sys.stdout.write(row(name, counts))


if __name__ == "__main__":
    main(sys.argv[1:])
