"""benchmarks/motion_terms.py: what moves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# In a process of its own, since the module changes the registry for good.
PROGRAM = """
import torch
import motion_terms
import mapush
from mqe.tasks.push.features import SceneFeatures

settings = {
    "task.more_state": ["object_motion"],
    "task.more_observations": ["motion"], "sim.name": "mujoco", "sim.device": "cpu",
}
env = mapush.make("go1push_mid", num_envs=2, seed=1, settings=settings)
obs, state = env.reset()
for _ in range(12):
    obs = env.step(torch.tensor([0.8, 0.3, 0.5]).expand(2, 2, 3)).obs
scene = env.state
ahead = scene.robot_frame[..., 0, :2]
left = torch.stack((-ahead[..., 1], ahead[..., 0]), dim=-1)
moved = torch.tensor([0.3, -0.2])
scene.object_linvel[:, :2] = moved
motion = motion_terms.motion(SceneFeatures(scene, env.task.constants))
speed = (scene.robot_linvel[..., :2] * ahead).sum(-1)
torch.testing.assert_close(motion[..., 0], speed, atol=1e-5, rtol=0.0)
torch.testing.assert_close(motion[..., 3], (moved * ahead).sum(-1))
torch.testing.assert_close(motion[..., 4], (moved * left).sum(-1))
assert state.shape[-1] == 17 + 2
assert obs.shape[-1] == 10 + 5
"""


@pytest.mark.slow
def test_motion_is_that_of_robot_and_object() -> None:
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
