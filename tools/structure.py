"""Library structure: ``python tools/structure.py [MODULE...]``.

Prints the import circles, the modules with the most imports, the functions with a whole ``RunCfg``,
and the number of modules loaded by each MODULE's import (by default the runner's).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mqe", "harl_mapush", "mapush")
MOST_IMPORTS = 15  # of the project, in one module
SHOWN = 10


def modules() -> dict[str, Path]:
    """Return each project module's file."""
    files = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            files[".".join(parts)] = path
    return files


def imports(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return each module's imports, including those for type checkers."""
    graph = {}
    for module, path in files.items():
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    member = f"{node.module}.{alias.name}"
                    names.add(member if member in files else node.module)
        graph[module] = names & files.keys() - {module}
    return graph


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return sets of modules with circular imports."""
    reached = {module: _reached(graph, module) for module in graph}
    groups: list[set[str]] = []
    for module in graph:
        circle = {other for other in reached[module] if module in reached[other]}
        if circle and circle not in groups:
            groups.append(circle)
    return groups


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return the modules imported by ``start``, directly or through others."""
    reached: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        module = ahead.pop()
        if module not in reached:
            reached.add(module)
            ahead += graph[module]
    return reached


def loaded_by(module: str) -> list[str]:
    """Return the project modules loaded by an import of ``module`` in a new process."""
    code = f"import sys, {module}; print(*sys.modules)"
    names = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    return sorted(name for name in names if name.partition(".")[0] in PACKAGES)


def takers(files: Mapping[str, Path], section: str = "RunCfg") -> list[str]:
    """Return the functions with a parameter annotated as ``section``."""
    functions = []
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                annotations = [argument.annotation for argument in arguments]
                if any(
                    section in ast.unparse(annotation)
                    for annotation in annotations
                    if annotation is not None
                ):
                    functions.append(f"{module}.{node.name}")
    return functions


def main(names: list[str]) -> None:
    """Print the structure."""
    files = modules()
    graph = imports(files)
    out = [f"{len(files)} modules"]

    groups = circles(graph)
    out.append(f"{len(groups)} circles of imports, those for types included")
    out += [f"  {', '.join(sorted(circle))}" for circle in groups]

    many = sorted(graph, key=lambda module: len(graph[module]), reverse=True)
    above = [module for module in many if len(graph[module]) > MOST_IMPORTS]
    out.append(f"{len(above)} modules import more than {MOST_IMPORTS} of the project")
    out += [f"  {len(graph[module])} {module}" for module in many[: max(SHOWN, len(above))]]

    functions = takers(files)
    out.append(f"{len(functions)} functions take a whole RunCfg")
    out += [f"  {function}" for function in functions]
    for name in names or ["harl_mapush.runner"]:
        out.append(f"{len(loaded_by(name))} modules are loaded by {name}")
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
