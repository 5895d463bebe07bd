"""The push task by PettingZoo's names: ``from mapush import push_v0; push_v0.parallel_env()``."""

from typing import Any


def parallel_env(**options: Any) -> Any:
    """Build a world with PettingZoo's parallel contract. ``options`` are those of
    ``mapush.make``.
    """
    from harl_mapush.clients.entries import make

    return make("go1push_mid", client="pettingzoo", **options)


def env(**options: Any) -> Any:
    """Build a world with PettingZoo's contract of turns."""
    from pettingzoo.utils import parallel_to_aec  # pyright: ignore[reportMissingImports]

    return parallel_to_aec(parallel_env(**options))
