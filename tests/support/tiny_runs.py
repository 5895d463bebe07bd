"""Flags for a test-sized run."""

SMALL = ("--num_envs", "4", "--set", "runner.num_steps=4", "--set", "network.hidden_sizes=[8]")
# Unequal actors show more than a shared one.
OF_ANY_ALGORITHM = (
    *SMALL,
    "--set",
    "algorithm.share_param=false",
)
# Two passes over a rollout, and two minibatches a pass, show as much as more.
TINY = (
    *OF_ANY_ALGORITHM,
    "--set",
    "algorithm.num_epochs=2",
    "--set",
    "algorithm.num_minibatches=2",
)
