"""What a team with onboard senses would gain from the truth about object or teammates.

``python benchmarks/onboard_truths.py RUN --suite onboard_90,heavy --object tblock --teacher ANY``
plays the same starts with what the robots know, and with true places of the object, of the
teammates, and of both in their memory. It prints success and, while robots press, the mean squared
difference of their actions from the teacher's.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harl_mapush import config
from harl_mapush.evaluation.suite_player import Player
from harl_mapush.runs import checkpoint
from harl_mapush.runs.policy import exported_team, load_team
from mapush.extensions.pivoting.exact_observations import ExactObservations
from mqe.env.environment import MultiAgentEnv
from mqe.extensions import load_extensions
from mqe.registry import SimCfg, make_env
from mqe.world.geometry import rotate_2d

TRUTHS = ("none", "object", "teammates", "both")
SEED = 2000
PRESSES = 5.0  # [N]


def tell(senses: Any, starts: int) -> None:
    """Write truths into the robots' memory after each decision, other ones in each block of
    ``starts`` worlds.
    """
    block = torch.arange(len(TRUTHS)).repeat_interleave(starts).view(-1, 1, 1)
    detect = senses._detect

    def detect_and_tell(takes_part: Tensor) -> None:
        detect(takes_part)
        memory = senses._recollection
        constants = senses._constants
        poses = senses._history[:, 0]
        bodies = poses[:, constants.observed]  # (N, A, E, 4)
        drift = memory.drift.unsqueeze(2)
        robot = poses[:, :-1, :2].unsqueeze(2)
        turn = drift[..., 2].expand(bodies.shape[:3])
        place = robot + drift[..., :2] + rotate_2d(bodies[..., :2] - robot, turn)
        fresh = torch.ones_like(place[..., :1])
        truth = torch.cat((place, rotate_2d(bodies[..., 2:], turn), fresh), dim=-1)

        is_told = (block % 2 == 1).expand(*bodies.shape[:3]).clone()
        is_told[:, :, 1:] = (block >= 2) & (takes_part[:, constants.order[:, 1:]] > 0.0)
        entities = memory.entities
        entities.copy_(torch.where(is_told.unsqueeze(-1), truth, entities))
        memory.outline.masked_fill_(block % 2 == 1, 1.0)
        way = poses[:, -1, :2] - senses._history[:, constants.cfg.decision_period, -1, :2]
        velocity = way / (0.02 * constants.cfg.decision_period)
        motion = rotate_2d(velocity.unsqueeze(1).expand_as(memory.motion), memory.drift[..., 2])
        memory.motion.copy_(torch.where(block % 2 == 1, motion, memory.motion))

    senses._detect = detect_and_tell


@torch.no_grad()
def play(env: MultiAgentEnv, policy: str, teacher: str) -> tuple[Tensor, Tensor]:
    """Return success (N,), and differences from the teacher (2, N): sums and numbers of robots."""
    folder = checkpoint.resolve(teacher)
    taught = config.resolve(checkpoint.read_config(folder), {})[0].task.more_observations
    exact = ExactObservations(env.task, taught)  # pyright: ignore[reportArgumentType]
    sizes = (exact.size,) * env.num_agents
    teaches = exported_team(folder, env.spec._replace(obs_sizes=sizes), env.device)
    team = load_team(checkpoint.resolve(policy), env)
    obs, state = env.reset()
    is_finished = torch.zeros(env.num_envs, dtype=torch.bool)
    success = torch.zeros(env.num_envs)
    differences = torch.zeros(2, env.num_envs)
    while not bool(is_finished.all()):
        actions = team(obs)
        square = (actions - teaches(exact(state.unsqueeze(1)))).square().mean(dim=-1)
        force = env.state.contact_force[:, : env.num_agents, :2].norm(dim=-1)
        presses = (force > PRESSES) & ~is_finished.unsqueeze(1)
        differences += torch.stack(((square * presses).sum(dim=1), presses.sum(dim=1)))
        step = env.step(actions)
        ends = step.done & ~is_finished
        if bool(ends.any()):
            success = torch.where(ends, env.episode_metrics["success"].float(), success)
        is_finished = is_finished | ends
        env.pause(is_finished)
        obs = step.obs
        state = step.state
    return success, differences


def main() -> None:
    """Print a line for each truth."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("policy")
    parser.add_argument("--suite", default="onboard_90,heavy")
    parser.add_argument("--object", default="tblock")
    parser.add_argument("--teacher", default="pretrained:any")
    parser.add_argument("--starts", type=int, default=24)
    arguments = parser.parse_args()
    load_extensions()
    torch.set_num_threads(1)
    starts = arguments.starts
    num_envs = starts * len(TRUTHS)
    folder = checkpoint.resolve(arguments.policy)
    suite = config.measured_suite("go1push_mid", arguments.suite)
    over = {"task": {"object": arguments.object}, "env": {"num_envs": num_envs}}
    cfg = Player(suite, over, folder, None, (SEED,), starts).request().cfg
    cfg = replace(cfg, env=replace(cfg.env, num_envs=num_envs))
    places = [(SEED, k) for _ in TRUTHS for k in range(starts)]
    env = make_env(cfg.env, SimCfg("mujoco", "cpu", 1), cfg.task, 0, places=places)
    tell(env.task._senses, starts)  # pyright: ignore[reportAttributeAccessIssue]
    success, differences = play(env, arguments.policy, arguments.teacher)
    rates = success.view(len(TRUTHS), starts).mean(dim=1)
    sums, counts = differences.view(2, len(TRUTHS), starts).sum(dim=2)
    for truth, rate, difference in zip(TRUTHS, rates, sums / counts, strict=True):
        sys.stdout.write(f"{truth:>9}: {rate:.3f} of {starts}, difference {difference:.3f}\n")


if __name__ == "__main__":
    main()
