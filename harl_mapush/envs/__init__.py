"""This project's environments under other libraries' contracts."""

from harl_mapush.envs.harl_env import HarlEnv
from harl_mapush.envs.mapush_env import MAPushEnv

__all__ = ["HarlEnv", "MAPushEnv"]
