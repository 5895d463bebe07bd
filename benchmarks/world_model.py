"""How well a learned model predicts the box task, and what computed rewards are worth; JSON lines.

``python benchmarks/world_model.py [--decisions 400] [--steps 500]`` has the shipped box team act in
64 worlds, with more noise from world to world. It compares every reward term computed from the
planar states with the one that the simulation gave, and fits two ensembles: one as it is, and one
that does not start from the present state.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from measuring import emit  # noqa: E402

from harl_mapush import config
from harl_mapush.learning.optimizer import FlatAdam  # noqa: E402
from harl_mapush.learning.world_model.ensemble import Ensemble, disagreement, within_interval  # noqa: E402
from harl_mapush.runs import checkpoint  # noqa: E402
from harl_mapush.runs.policy import load_team  # noqa: E402
from mqe.env.environment import MultiAgentEnv  # noqa: E402
from mqe.registry import SimCfg, make_env  # noqa: E402
from mqe.tasks.push.task import PushTask  # noqa: E402

MEMBERS = 5
BATCH = 256
SIZE = 64
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)


class Decisions(NamedTuple):
    """What happened at T decisions of N worlds."""

    state: Tensor  # (T, N, S)
    actions: Tensor  # (T, N, A, U)
    next_state: Tensor  # (T, N, S)
    terms: Tensor  # (T, N, K) reward terms of the first robot
    terminated: Tensor  # (T, N) bool
    valid: Tensor  # (T, N) bool


class FromZero(Ensemble):
    """Predicts the next state from nothing instead of from the present one."""

    def _predict(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = super()._predict(state, actions)
        return mean - self._normalized(state), log_var


def collect(env: MultiAgentEnv, num_decisions: int) -> Decisions:
    """Have the shipped team act: alone in the first world, at random in the last."""
    folder = checkpoint.resolve("pretrained:cuboid")
    team = load_team(config.resolve(checkpoint.read_config(folder), {})[0], folder, env)
    obs, state = env.reset(staggered=True)
    share = torch.linspace(0.0, 1.0, env.num_envs).view(-1, 1, 1)
    held = torch.zeros(0)
    rows = []
    for t in range(num_decisions):
        noise = 2.0 * torch.rand(env.num_envs, env.num_agents, 3) - 1.0
        if t % 5 == 0:
            held = noise
        else:
            held = torch.where(torch.arange(env.num_envs).view(-1, 1, 1) % 2 == 0, held, noise)
        actions = ((1.0 - share) * team(obs) + share * held).clamp(-1.0, 1.0)
        step = env.step(actions)
        terms = torch.stack([value[:, 0] for value in step.info.values()], dim=-1)
        rows.append((state, actions, step.final_state, terms, step.terminated[:, 0], step.valid))
        obs = step.obs
        state = step.state
    return Decisions(*(torch.stack(column) for column in zip(*rows, strict=True)))


def compare_rewards(task: PushTask, found: Decisions) -> None:
    """Compare terms and endings; R2 is 1 - (mean squared error) / (variance)."""
    planar: Any = task.planar
    state, next_state, given = (
        x[found.valid] for x in (found.state, found.next_state, found.terms)
    )
    rewards, ended = planar.judge(state, next_state)
    is_same = ended == found.terminated[found.valid]
    emit(
        terminated=int(found.terminated.sum()),
        predicted=int(ended.sum()),
        agree=int((ended & is_same).sum()),
    )
    error = rewards[:, 0] - given.sum(-1)
    continues = ~ended & is_same
    emit(
        term="sum",
        given=given.sum(-1)[continues].mean().item(),
        bias=error[continues].mean().item(),
        error=error[continues].abs().mean().item(),
    )
    weights = task._weights.clone()
    for k, name in enumerate(task.names.rewards):
        task._weights.zero_()[k] = weights[k]
        ours = planar.judge(state, next_state)[0][continues, 0]
        theirs = given[continues, k]
        r2 = 1.0 - (ours - theirs).square().mean() / theirs.var().clamp(min=1e-12)
        emit(term=name, given=theirs.mean().item(), computed=ours.mean().item(), R2=r2.item())
    task._weights.copy_(weights)


def fit(kind: type[Ensemble], task: PushTask, found: Decisions, num_steps: int) -> None:
    """Fit to all worlds but every eighth, which measure."""
    planar: Any = task.planar
    draw = torch.Generator().manual_seed(0)
    ensemble = kind(planar, 3, MEMBERS, SIZE, draw)
    optimizer = FlatAdam(ensemble, 1e-3, 1e-8, 0.0)
    is_held_out = torch.arange(found.state.shape[1]) % 8 == 7
    own = [x[:, ~is_held_out].flatten(0, 1) for x in found[:3]]
    theirs = [x[:, is_held_out].flatten(0, 1) for x in found[:3]]
    ensemble.update_norms(own[2], torch.ones(len(own[2])))
    start = time.perf_counter()
    for _ in range(num_steps):
        index = torch.randint(len(own[0]), (MEMBERS, BATCH), generator=draw)
        optimizer.zero_grad()
        optimizer.add_gradient(
            ensemble.loss(*(x[index] for x in own), weights=torch.ones(MEMBERS, BATCH))
        )
        optimizer.step(0.0)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        state, actions, next_state = theirs
        prediction = ensemble(state.expand(MEMBERS, -1, -1), actions.expand(MEMBERS, -1, -1, -1))
        spread = disagreement(prediction)
    names = [
        *planar.world_names,
        *(f"robot{i}_{name}" for i in range(2) for name in planar.robot_names),
    ]
    error = (prediction.mean.mean(0) - next_state).square().mean(0).sqrt().tolist()
    still = (next_state - state).square().mean(0).sqrt().tolist()
    emit(kind=kind.__name__, steps=num_steps, ms_a_step=1e3 * seconds / num_steps)
    emit(
        errors={
            name: [round(x, 4), round(y, 4)] for name, x, y in zip(names, error, still, strict=True)
        }
    )
    emit(
        calibration={
            share: round(within_interval(prediction, next_state, share).mean().item(), 3)
            for share in SHARES
        }
    )
    emit(
        disagreement=[
            round(x, 3) for x in spread.quantile(torch.tensor([0.1, 0.5, 0.9, 0.99])).tolist()
        ]
    )


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--decisions", type=int, default=400)
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    cfg, _ = config.resolve(config.load_preset("laptop_hasac"), {})
    env = make_env(cfg.env, SimCfg(name="mujoco", device="cpu"), cfg.task, 1)
    assert isinstance(env.task, PushTask)
    found = collect(env, arguments.decisions)
    compare_rewards(env.task, found)
    for kind in (Ensemble, FromZero):
        fit(kind, env.task, found, arguments.steps)
    env.close()


if __name__ == "__main__":
    main()
