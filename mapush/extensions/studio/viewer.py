"""The page as a viewer for ``mapush play`` and ``--mode viewer``."""

from mqe.viewer.player import VIEWERS, Player


def show(player: Player, port: int | None, host: str | None) -> list[str]:
    """Show a player's episodes on a page for browsers. Return the episodes' outcomes."""
    from mapush.extensions.studio import page_server  # some builds of MuJoCo lack Studio

    return page_server.show(player, port, host)


VIEWERS.register("studio", show)
