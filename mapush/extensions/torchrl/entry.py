"""The registry's entry for TorchRL's environment, without an import of TorchRL."""

from harl_mapush.clients.entries import CLIENTS, ClientOfExtra

CLIENTS.register(
    "torchrl", ClientOfExtra("torchrl", "mapush.extensions.torchrl.torchrl_env:TorchRLEnv")
)
