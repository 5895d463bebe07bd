"""What talks to upstream HARL: its runners as clients, its files, its recorded updates."""

from harl_mapush.interop.register import register_with_harl

__all__ = ["register_with_harl"]
