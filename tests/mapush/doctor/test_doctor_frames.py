"""mapush doctor on simulators with other conventions for poses and velocities."""

from __future__ import annotations

import pytest

from harl_mapush import config
from mapush.doctor import stages
from mapush.doctor.checkup import Checkup
from mapush.doctor.stage import StageError
from mqe.world.geometry import rotation_matrix


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (None, "all bodies fly and turn"),
        ("quaternions", "the object turns at"),
        ("frame", "the object turns at"),
        ("point", r"the object flies at \(0.60, -0.07"),
    ],
)
def test_a_simulator_that_means_something_else_by_a_velocity_is_found_out(mistake, says):
    cfg, _ = config.resolve(
        config.load_preset("smoke"), {"sim": {"name": "mujoco", "device": "cpu"}}
    )
    checkup = Checkup(cfg)
    checkup.build(1)
    assert checkup.env is not None
    checkup.env.reset()
    sim = checkup.env.sim
    # the object's share
    real = sim.step
    at = 38
    vel_at = 36

    def step(decimation, ctrl=None):
        if mistake == "quaternions":
            sim.data.qpos[:, at + 3 : at + 7] = sim.data.qpos[:, at + 3 : at + 7].roll(1, dims=1)
        if mistake == "frame":
            turn = rotation_matrix(sim.data.qpos[:, at + 3 : at + 7])
            sim.data.qvel[:, vel_at + 3 : vel_at + 6] = (
                turn @ sim.data.qvel[:, vel_at + 3 : vel_at + 6, None]
            )[..., 0]
        if mistake == "point":
            sim.data.qvel[:, vel_at + 1] += 0.33
        real(decimation, ctrl)
        if mistake == "quaternions":
            sim.data.qpos[:, at + 3 : at + 7] = sim.data.qpos[:, at + 3 : at + 7].roll(-1, dims=1)

    sim.step = step  # type: ignore[method-assign]
    if mistake is None:
        assert says in stages.check_frames(checkup)
    else:
        with pytest.raises(StageError, match=says):
            stages.check_frames(checkup)
    checkup.close()
