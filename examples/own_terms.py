"""Terms of your own: a reward with memory, a term of the critic's state, an observation in the
place of a default one, a termination and a metric.

mapush train --import own_terms --set task.weights.jolt=-0.001 \
  --set task.more_state=[goal_speed] --set task.replaced_observations.goal=near_goal \
  --set task.more_terminations=[astray] --set task.more_metrics=[object_speed]
"""

from torch import Tensor

import mapush
from mqe.tasks.push.features import SceneFeatures, StepFeatures
from mqe.tasks.terms import Memory, Worlds
from mqe.world.geometry import length


class Jolt(Memory):
    """Change in the robot's push on the object since the last control step."""

    def __init__(self, worlds: Worlds) -> None:
        super().__init__(worlds)
        self.last_push = self.remember("last_push", worlds.num_agents)  # (N, A) [N]

    def __call__(self, features: StepFeatures) -> Tensor:
        change = (features.state.useful_push - self.last_push).abs()
        self.last_push.copy_(features.state.useful_push)  # in place, as a CUDA graph needs it
        return change


def goal_speed(features: SceneFeatures) -> Tensor:
    """Object speed towards the goal (N, 1)."""
    state = features.state
    return (state.object_linvel[:, :2] * state.goal_direction).sum(dim=-1, keepdim=True)


def near_goal(features: SceneFeatures) -> Tensor:
    """Goal position (N, A, 2) in the robot's heading frame, at most 1 m away."""
    object_place = features.places_b[:, :, 0]
    return object_place / length(object_place).clamp(min=1.0).unsqueeze(-1)


def astray(features: StepFeatures) -> Tensor:
    """Object further than 5 m from its goal (N,)."""
    return features.state.goal_distance > 5.0


def object_speed(features: StepFeatures) -> Tensor:
    """Mean object speed (N,)."""
    return length(features.state.object_linvel)


mapush.register_reward("jolt", Jolt, unit="N")
mapush.register_state("goal_speed", goal_speed, mirror_signs=(1.0,), unit="m/s")
mapush.register_observation(
    "near_goal", near_goal, (1.0, -1.0), unit="m", numbers=("goal_x", "goal_y")
)
mapush.register_termination("astray", astray)
mapush.register_metric("object_speed", object_speed, unit="m/s")
