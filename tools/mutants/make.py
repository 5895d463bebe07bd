"""Make mutants, deliberate one-line mistakes, with cosmic-ray's operators: ``pip install
'.[mutants]'`` first.

``python tools/mutants/make.py --number 500 --seed 1 --out mutants.json`` draws equally many from
each area in ``areas.toml``, each from another line position as long as there are any. ``run.py``
reports the mutants noticed by the tests.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

TREE = Path(__file__).parents[2]
AREAS = Path(__file__).with_name("areas.toml")
LEFT_OUT = ("ExceptionReplacer", "Variable")
# An operator becomes another one of its family: others end in a TypeError, and are no test of the
# tests.
FAMILIES = (
    "Add Sub Mul Div FloorDiv Mod",
    "BitAnd BitOr BitXor",
    "LShift RShift",
    "Lt LtE Gt GtE Eq NotEq",
    "Is IsNot",
)
# Decorators that save memory or time, or refuse what nobody writes.
DECORATORS = ("no_grad", "inference_mode", "abstractmethod", "contextmanager", "cache")

# What a film shows, guards against changes that nobody makes, coefficients that contacts of three
# dimensions ignore.
NOT_TESTED = re.compile(r"rgb|visual|texture|light|diffuse|material|extent|frozen=|0\.0001\)")

# Path, first line and column, last line and column.
Place = tuple[str, tuple[int, int], tuple[int, int]]


def main() -> int:
    """Draw mutants and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--number", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--areas", nargs="*", help="some areas only")
    parser.add_argument("--since", metavar="COMMIT", help="only lines that are new since then")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    arguments = parser.parse_args()
    areas = tomllib.loads(AREAS.read_text(encoding="utf-8"))
    chosen = {name: areas[name] for name in arguments.areas or areas}
    added = None if arguments.since is None else added_lines(arguments.since)
    draws = [
        draw(name, area, random.Random(f"{arguments.seed} {name}"), added)
        for name, area in chosen.items()
    ]
    mutants: list[dict[str, Any]] = []
    while draws and len(mutants) < arguments.number:
        for area_draw in list(draws):
            mutant = next(area_draw, None)
            if mutant is None:
                draws.remove(area_draw)
            elif len(mutants) < arguments.number:
                mutants.append({"id": len(mutants), **mutant})
    arguments.out.write_text(json.dumps(mutants, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(mutants)} mutants of {len(chosen)} areas in {arguments.out}\n")
    return 0


def added_lines(since: str) -> set[tuple[str, int]]:
    """Return the paths and numbers of lines new or changed since a commit."""
    command = ["git", "diff", "--find-renames", "--unified=0", since, "--", "*.py"]
    diff = subprocess.run(command, cwd=TREE, check=True, capture_output=True, text=True).stdout
    added = set()
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first = int(hunk[1])
            added |= {(path, first + k) for k in range(int(hunk[2] or 1))}
    return added


def draw(
    name: str,
    area: dict[str, list[str]],
    chance: random.Random,
    added: set[tuple[str, int]] | None,
) -> Iterator[dict[str, Any]]:
    """Yield an area's mutants in random order: one per position, then another one per position, and
    so on. With ``added``, only lines in it count.
    """
    tests = [f"tests/{test}" for test in area["tests"]]
    missing = [path for path in (*area["modules"], *tests) if not (TREE / path).is_file()]
    if missing:
        sys.exit(f"{AREAS.name}: [{name}] names files that are not there: {', '.join(missing)}")
    places: dict[Place, list[tuple[str, int]]] = {}
    for path in area["modules"]:
        for position, mutation in mutations(path):
            if added is not None and (path, position[1][0]) not in added:
                continue
            places.setdefault(position, []).append(mutation)
    for mutants in places.values():
        chance.shuffle(mutants)
    order = sorted(places)
    while order:
        chance.shuffle(order)
        for position in order:
            operator, occurrence = places[position].pop()
            yield {
                "area": name,
                "tests": tests,
                **mutant_of(position[0], position[1][0], operator, occurrence),
            }
        order = sorted(position for position in order if places[position])


def mutations(path: str) -> Iterator[tuple[Place, tuple[str, int]]]:
    """Yield every position for an operator, with the operator and the position's index."""
    source = (TREE / path).read_text(encoding="utf-8")
    tree = get_ast(source)
    untested = list(untested_spans(source))
    lines = source.splitlines()
    for name in operator_names():
        if any(part in name for part in LEFT_OUT) or not is_kept(name):
            continue
        operator = get_operator(name)()
        spans = (span for node in ast_nodes(tree) for span in operator.mutation_positions(node))
        for occurrence, (start, end) in enumerate(spans):
            line = lines[start[0] - 1]
            is_idle = (
                "Decorator" in name and any(word in line for word in DECORATORS)
            ) or NOT_TESTED.search(line)
            if not is_idle and not any(first <= start < last for first, last in untested):
                yield (path, start, end), (name, occurrence)


def is_kept(name: str) -> bool:
    """Return whether a cosmic-ray operator keeps within one operator family. Operators without a
    family pass.
    """
    if "ReplaceBinaryOperator" not in name and "ReplaceComparisonOperator" not in name:
        return True
    _, old, new = name.split("_")
    return any({old, new} <= {*family.split(), "Pow"} and new != "Pow" for family in FAMILIES)


def untested_spans(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield spans without computation: annotations, error messages, assertions, ``strict``
    in zip.
    """
    for node in ast.walk(ast.parse(source)):
        parts: list[Any] = []
        if isinstance(node, (ast.arg, ast.AnnAssign)):
            parts.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parts.append(node.returns)
        elif isinstance(node, (ast.Raise, ast.Assert)):
            parts.append(node)
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            parts.append(node.value)
        for part in parts:
            if part is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def mutant_of(path: str, line: int, operator: str, occurrence: int) -> dict[str, Any]:
    """Return the change of one mutation: ``old`` at character ``start`` becomes ``new``."""
    source = (TREE / path).read_text(encoding="utf-8")
    mutated = mutate_code(source, get_operator(operator)(), occurrence)
    assert mutated is not None
    start = next(k for k, (a, b) in enumerate(zip(source, mutated, strict=False)) if a != b)
    rest = min(len(source), len(mutated)) - start
    same = next((k for k in range(rest) if source[-1 - k] != mutated[-1 - k]), rest)
    diff = difflib.unified_diff(
        source.splitlines(), mutated.splitlines(), path, path, lineterm="", n=0
    )
    return {
        "path": path,
        "line": line,
        "operator": operator.removeprefix("core/"),
        "start": start,
        "old": source[start : len(source) - same],
        "new": mutated[start : len(mutated) - same],
        "diff": "\n".join(line for line in diff if not line.startswith(("---", "+++", "@@"))),
    }


if __name__ == "__main__":
    sys.exit(main())
