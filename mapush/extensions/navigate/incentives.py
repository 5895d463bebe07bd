"""Checks on rewards: arriving must pay more than waiting and failing."""

from __future__ import annotations

from collections.abc import Mapping

from mqe.config import ConfigError

# Terms, at most 1, that a policy which never comes to the goal may be given at every control step.
# Progress is none of these: over an episode its sum is the difference of two
# costs-to-go, and a policy that comes to the goal has all of it.
PAID_FOR_WAITING = ("object_contact", "robot_contact", "time")


def check_rewards(weights: Mapping[str, float], num_steps: int) -> None:
    """Raise ConfigError if never finishing, or failing at once, can pay more than finishing after
    ``num_steps`` control steps. A user's own terms do not count.
    """
    progress, success, failure, time = (
        weights.get(name, 0.0) for name in ("progress", "success", "failure", "time")
    )
    if progress < 0.0:
        raise ConfigError(
            f"task.weights.progress: {progress:g} pays for going away from the goal; say 0 or more"
        )
    positive = [max(0.0, weights.get(name, 0.0)) for name in PAID_FOR_WAITING]
    waiting = max(num_steps * sum(positive), failure)
    if success <= waiting and (waiting > 0.0 or success + progress <= 0.0):
        raise ConfigError(
            f"task.weights: never finishing may pay up to {waiting:g} in {num_steps} control "
            f"steps, and finishing pays success={success:g}; raise task.weights.success above "
            f"{waiting:g}, or lower the others to 0 or less"
        )
    finishing = success + num_steps * time
    if time < 0.0 and finishing <= failure:
        raise ConfigError(
            f"task.weights: failing at once may pay {failure:g}, and finishing after {num_steps} "
            f"control steps {finishing:g} (success={success:g}, time={time:g} each); lower "
            f"task.weights.failure below {finishing:g}, or raise time or success"
        )
