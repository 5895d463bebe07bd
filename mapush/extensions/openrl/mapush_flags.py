"""Flags of MAPush's command lines. An import registers them."""

import argparse

from harl_mapush.config.other_names import (
    NOTHING,
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

# Flags of MAPush's fork for HARL
TRAIN_FLAGS.register("object_type", OtherFlag(("task.object",), str.lower))
NOTHING.update(
    dict.fromkeys(("hetero_agent", "agent0", "agent1"), "say --set env.robots=[go1,NAME_OR_FILE]")
)
NOTHING.update(
    dict.fromkeys(
        (
            "individualized_rewards",
            "shared_gated_rewards",
            "mapush_og_rewards_teamified",
            "cooperation_rewards",
            "collaboration_rewards",
        ),
        "say --set task.rewards=NAME or --set task.weights={TERM: WEIGHT}",
    )
)
NOTHING.update(
    dict.fromkeys(
        (
            "use_concat_agent_observations_critic",
            "use_goal_centered_critic",
            "use_box_centered_critic",
            "use_relative_obs_critic",
        ),
        "for the critics' state say --set task.state_type=EP or FP",
    )
)
