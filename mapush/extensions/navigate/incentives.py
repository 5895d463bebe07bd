"""Checks on rewards: arriving must pay more than waiting and failing."""

from __future__ import annotations

from collections.abc import Mapping

from mqe.config import ConfigError

# Terms that a policy which never comes to the goal may be given at every control step, and the most
# that each can be. Progress is none of these: over an episode its sum is the difference of two
# costs-to-go, and a policy that comes to the goal has all of it.
PAID_FOR_WAITING = {
    "object_contact": 1.0,
    "robot_contact": 1.0,
    "time": 1.0,
}


def pay_for_waiting(weights: Mapping[str, float], num_steps: int) -> float:
    """Return the highest reward without finishing in ``num_steps`` control steps. A user's own
    terms do not count.
    """
    positive = [
        highest * max(0.0, weights.get(name, 0.0)) for name, highest in PAID_FOR_WAITING.items()
    ]
    return max(num_steps * sum(positive), weights.get("failure", 0.0))


def check_failing(weights: Mapping[str, float], num_steps: int) -> None:
    """Raise ConfigError if failing at once can pay more than finishing after ``num_steps`` control
    steps. Progress does not count.
    """
    time = num_steps * weights.get("time", 0.0)
    finishing = weights.get("success", 0.0) + time
    failing = weights.get("failure", 0.0)
    if time < 0.0 and finishing <= failing:
        raise ConfigError(
            f"task.weights: failing at once may pay {failing:g}, and finishing after {num_steps} "
            f"control steps {finishing:g} (success={weights.get('success', 0.0):g}, "
            f"time={weights['time']:g} each); lower task.weights.failure below {finishing:g}, or "
            "raise time or success"
        )


def check_waiting(weights: Mapping[str, float], num_steps: int) -> None:
    """Raise ConfigError if never finishing can pay more than finishing."""
    progress = weights.get("progress", 0.0)
    if progress < 0.0:
        raise ConfigError(
            f"task.weights.progress: {progress:g} pays for going away from the goal; say 0 or more"
        )
    waiting = pay_for_waiting(weights, num_steps)
    finishing = weights.get("success", 0.0)
    if finishing > waiting or (waiting == 0.0 and finishing + progress > 0.0):
        return
    if waiting == 0.0:
        raise ConfigError(
            "task.weights: no term asks for the goal; say task.weights.success=10, or "
            "task.weights.progress=1"
        )
    named = [name for name in (*PAID_FOR_WAITING, "failure") if weights.get(name, 0.0) > 0.0]
    weight_list = ", ".join(f"{name}={weights[name]:g}" for name in named)
    raise ConfigError(
        f"task.weights: never finishing may pay up to {waiting:g} in {num_steps} control steps "
        f"({weight_list}), and finishing pays success={finishing:g}; raise task.weights.success "
        f"above {waiting:g}, or lower the others to 0 or less"
    )
