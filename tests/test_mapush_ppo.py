"""benchmarks/mapush_ppo.py: OpenRL's PPO."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# In a process of its own, since the module changes the registry for good.
PROGRAM = """
import torch
import mapush_ppo
from harl_mapush.learning.settings import NetworkCfg
from mqe.controllers.network import build_network, declare

network = NetworkCfg(hidden_sizes=(4, 4), activation="relu", use_layer_norm=True)
actor = mapush_ppo.OpenRLActor(network, 8, 3)
torch.testing.assert_close(actor.std(), torch.full((3,), 0.5))

first, relu, norm, last, _, last_norm = actor.base.mlp["fc"]
obs = torch.randn(5, 8)
hidden = last_norm(last(norm(relu(first(obs)))))  # no activation after the last layer
head = actor.act["action_out"]
torch.testing.assert_close(actor(obs), 0.5 * head.fc_mean(hidden))
played = build_network([declare(actor)], [actor.state_dict()]).actors[0]
torch.testing.assert_close(played(obs), actor(obs))

# Each dimension is clipped by itself: 1.2 + 1.0 + 0.5, and with A = -1 -1.5 - 1.0 - 0.8.
log_ratio = torch.tensor([[[1.5, 1.0, 0.5], [1.5, 1.0, 0.5]]]).log()
gain = mapush_ppo.objective(log_ratio, torch.tensor([[1.0, -1.0]]), 0.2)
torch.testing.assert_close(gain, torch.tensor([[2.7, -3.3]]))
"""


def test_the_actor_and_the_clip_are_openrls() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=BENCHMARKS, check=True)


@pytest.mark.slow
def test_the_published_training_starts(tmp_path: Path) -> None:
    words = "-m mapush train --import mapush_ppo --config mapush_ppo.yaml --sim mujoco --num_envs 4"
    words += f" --num_env_steps 200 --device cpu --out {tmp_path / 'run'}"
    subprocess.run([sys.executable, *words.split()], cwd=BENCHMARKS, check=True)
    assert (tmp_path / "run" / "checkpoints" / "200" / "actor_agent0.pt").is_file()
