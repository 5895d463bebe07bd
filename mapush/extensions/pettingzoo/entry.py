"""The registry's entry for PettingZoo's environment, without an import of PettingZoo."""

from harl_mapush.clients.entries import CLIENTS, ClientOfExtra

CLIENTS.register(
    "pettingzoo",
    ClientOfExtra("pettingzoo", "mapush.extensions.pettingzoo.pettingzoo_env:PettingZooEnv"),
)
