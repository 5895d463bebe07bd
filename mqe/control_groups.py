"""The Linux control groups (v1 or v2) of this process. Containers and Slurm set their limits."""

from collections.abc import Iterator
from pathlib import Path

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


def groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and its parents.

    A group's limit holds for the groups inside it. A container sees its own group as the root,
    under either path.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):  # not Linux, or the name of a group is no text
        return
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controllers
        innermost = root / path.lstrip("/")
        for group in (innermost, *innermost.parents):
            if group.is_relative_to(root):
                yield group
