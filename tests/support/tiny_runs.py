"""Flags for a test-sized run."""

SMALL = ("--num_envs", "4", "--set", "runner.num_steps=4", "--set", "network.hidden_sizes=[8]")
# Unequal actors show more than a shared one.
OF_ANY_ALGORITHM = (
    *SMALL,
    "--set",
    "algorithm.share_param=false",
)
# A second pass over a rollout shows as much as eight.
TINY = (
    *OF_ANY_ALGORITHM,
    "--set",
    "algorithm.num_epochs=2",
)
