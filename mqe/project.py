"""The package's origin: the only file to change for a publication."""

URL = "URL"  # the repository's address, a placeholder before a publication
INDEX_NAME: str | None = None  # the name on the package index, None before a publication


def install(extra: str) -> str:
    """Return the shell command that installs an extra."""
    if INDEX_NAME is None:
        return f"pip install '.[{extra}]' in a clone of mapush"
    return f"pip install '{INDEX_NAME}[{extra}]'"
