"""Watchers by name: a suite's measurements beside its task's own metrics."""

from __future__ import annotations

from harl_mapush.evaluation.watchers.pushing import PushWatcher
from harl_mapush.evaluation.watchers.watcher import EpisodeWatcher
from mqe.extensions import Registry

WATCHERS: Registry[type[EpisodeWatcher]] = Registry("watcher", {"pushing": PushWatcher})
