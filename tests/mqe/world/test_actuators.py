"""Actuators: delay from joint target to motor, and the reference's actuator net as target
response.
"""

import pytest
import torch

from mqe.world.actuators import MAX_DELAY, TargetDelay
from mqe.world.scene import ACTUATOR_LAG
from tests.support.scenes import GO1

CPU = torch.device("cpu")


def sent(delay: int | torch.Tensor, num_steps: int = 5) -> list[list[float]]:
    """Send targets 0, 1, 2, ... and return the first world's motor target at each physics step."""
    line = TargetDelay(2, 1, CPU)
    return [
        line.send(torch.full((2, 1), float(k)), delay)[:, 0, 0].tolist() for k in range(num_steps)
    ]


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("delay", range(MAX_DELAY + 1))
def test_a_target_takes_effect_as_many_physics_steps_late(delay, as_tensor):
    given = sent(torch.tensor([delay, 0]) if as_tensor else delay)
    # In physics step s of control step k the targets of time 4 k + s - delay hold; before the
    # first, the first does.
    assert given == [
        [max(0.0, float((4 * k + s - delay) // 4)) for s in range(4)] for k in range(5)
    ]


def test_a_new_episode_knows_no_older_targets():
    line = TargetDelay(2, 1, CPU)
    line.send(torch.full((2, 1), 5.0), 8)
    line.begin(torch.tensor([True, False]))
    assert line.send(torch.full((2, 1), 7.0), 8)[:, :, 0].tolist() == [[7.0, 5.0]] * 4


def test_going_on_from_a_saved_state_is_as_if_nothing_had_been():
    line = TargetDelay(2, 1, CPU)
    other = TargetDelay(2, 1, CPU)
    for k in range(3):
        line.send(torch.full((2, 1), float(k)), 6)
    other.load_state_dict(line.state_dict())
    assert torch.equal(
        line.send(torch.full((2, 1), 9.0), 6), other.send(torch.full((2, 1), 9.0), 6)
    )


@pytest.mark.parametrize(
    "error, velocity, torque",
    [
        ((0.1, 0.1, 0.1), (0.0, 0.0, 0.0), -1.872288),
        ((-0.1, -0.1, -0.1), (0.0, 0.0, 0.0), 1.891360),
        ((0.5, 0.5, 0.5), (0.0, 0.0, 0.0), -10.041947),
        ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), -18.192492),
        ((0.0, 0.0, 0.0), (10.0, 10.0, 10.0), -8.510340),
        ((0.1, 0.08, 0.05), (-1.0, -0.8, -0.5), -0.677777),
        ((-0.3, -0.3, -0.3), (2.0, 2.0, 2.0), 4.488188),
    ],
)
def test_motors_answer_as_the_references_actuator_net(error, velocity, torque):
    """Inputs and outputs for the reference's net: error (measured minus target) and speed, now and
    1 and 2 steps ago.

    The net's rows give errors. A motor here combines its present angle with the target from
    ``ACTUATOR_LAG`` steps ago, so its error is the old error plus the joint's motion since then.
    The tolerance is 15 % in every row, except for the net's answer to zero input, -0.004 N m.
    """
    moved = 0.5 * (velocity[0] + velocity[1]) * 0.005 * ACTUATOR_LAG
    ours = -GO1.stiffness * (error[ACTUATOR_LAG] + moved) - GO1.damping * velocity[0]
    limit = min(GO1.torque_limit)
    assert max(-limit, min(limit, ours)) == pytest.approx(torque, rel=0.15)
