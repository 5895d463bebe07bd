"""Flags of MAPush's command lines. An import registers them."""

from __future__ import annotations

import argparse

from harl_mapush.config.other_names import (
    TEST_FLAGS,
    TRAIN_FLAGS,
    OtherFlag,
    SaidByCheckpoint,
)


def _with_unit(duration: str) -> str:
    return f"{duration}s" if duration.isdigit() else duration


# MAPush's time steps are control steps of all worlds, as ours, and its duration is in seconds.
TRAIN_FLAGS.register("train_timesteps", OtherFlag(("runner.num_env_steps",)))
TRAIN_FLAGS.register("num_workers", OtherFlag(("runner.collectors",)))
TRAIN_FLAGS.register("run_duration", OtherFlag(("runner.max_wall_time",), _with_unit))
TEST_FLAGS.register("test_mode", {"dest": "mode", "default": argparse.SUPPRESS})
for _name in ("headless", "use_tensorboard"):
    TRAIN_FLAGS.register(_name, OtherFlag())
    TEST_FLAGS.register(_name, {"action": "store_true"})
for _name in ("algo", "train_timesteps", "exp_name", "config"):
    TEST_FLAGS.register(_name, {"action": SaidByCheckpoint})
