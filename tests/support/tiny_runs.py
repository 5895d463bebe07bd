"""Flags that make a run small enough for a test."""

SMALL = ("--num_envs", "4", "--set", "runner.num_steps=4", "--set", "network.hidden_sizes=[8]")
# Unequal actors show more than a shared one, and a second pass over a rollout as much as eight.
TINY = (
    *SMALL,
    "--set",
    "algorithm.share_param=false",
    "--set",
    "algorithm.num_epochs=2",
)
