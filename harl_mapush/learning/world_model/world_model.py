"""A learned model of the worlds beside an off-policy algorithm: fitted to the replay, it continues
from its states.

B rows, M members, A agents, S state size. What a model predicted lies in a replay of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from harl_mapush.learning.off_policy.replay_buffer import (
    Batch,
    ReplayShape,
    RingReplay,
    Transition,
    joined,
    replay_shape,
)
from harl_mapush.learning.optimizer import FlatAdam
from harl_mapush.learning.world_model.ensemble import Ensemble, disagreement, drawn, within_interval
from mqe.config import option
from mqe.vec_env import Planar

HELD_OUT = 8  # every so many worlds, the last is not fitted to: it measures the model
_STAGES = 4  # in which share and horizon rise
ROUND = 8  # steps of fitting at a time
_MEASURED = 512  # decisions of held-out worlds that a round measures the model with
_ADAM_EPS = 1e-8
_TINY = 1e-12  # least squared change of a number


@dataclass(frozen=True)
class EnsembleCfg:
    """Section ``algorithm.ensemble``: the learned model that ``algorithm.model=ensemble`` asks
    for.
    """

    members: int = option(5, "networks, each fitted to its own draws", min=2, max=64)
    hidden_size: int = option(64, "of the networks' layers", min=1, max=8192)
    learning_rate: float = option(1e-3, "of fitting", above=0.0)
    batch_size: int = option(256, "transitions per member and step of fitting", min=1, max=2**20)
    first_steps: int = option(500, "steps of fitting before the first rollouts", min=1, max=10**7)
    steps: float = option(0.25, "steps of fitting per update of the team", above=0.0, max=1e4)
    share: float = option(
        0.5, "of every batch, from rollouts, once it has risen", above=0.0, max=0.95
    )
    horizon: int = option(3, "decisions per rollout, once it has risen", min=1, max=3)
    ramp: int = option(
        100_000, "transitions over which share and horizon rise, in four stages", min=1
    )
    max_disagreement: float = option(
        0.5,
        "a rollout is cut where members differ by more of the deviations that they expect",
        above=0.0,
    )
    branches: int = option(512, "rollouts that start together", min=1, max=2**20)
    interval: int = option(8, "updates from one start of rollouts to the next", min=1, max=10**6)
    buffer_size: int = option(50_000, "predicted transitions kept", min=1, max=10**8)

    def for_trial(self, num_rows: int) -> Self:
        """Return settings with which a first update fits the model and learns from it."""
        size = 4 * num_rows
        return replace(
            self,
            first_steps=1,
            steps=float(ROUND),
            interval=1,
            batch_size=min(self.batch_size, size),
            branches=min(self.branches, size),
            buffer_size=min(self.buffer_size, 4 * size),
        )


class Rows(NamedTuple):
    """Single decisions of the team's replay: what a round of fitting takes."""

    batch: Batch
    is_held_out: Tensor  # (B,) bool: of worlds that the model is not fitted to


class WorldModel:
    """The ensemble, what it is fitted with, and the replay of what it predicted.

    ``fit`` may run in a thread of its own beside the updates; all else happens in turns with them.
    """

    def __init__(
        self,
        cfg: EnsembleCfg,
        planar: Planar,
        replay: RingReplay,
        team_rewards: Callable[[Tensor], Tensor],
        update_ratio: float,
        seed: int,
        device: torch.device,
    ) -> None:
        """Build for a team whose predicted transitions lie in ``replay``; all else is drawn from
        ``seed``.

        ``team_rewards`` turns rewards (B, A) into those that are learned (B, G).
        """
        self.cfg = cfg
        self.planar = planar
        self.replay = replay
        self.device = device
        self._team_rewards = team_rewards
        self._transitions_an_update = 1.0 / update_ratio
        start = torch.Generator().manual_seed(seed)
        ensemble = Ensemble(planar, replay.shape.action_size, cfg.members, cfg.hidden_size, start)
        self.ensemble = self.acting = ensemble.to(device)
        self.optimizer = FlatAdam(self.ensemble, cfg.learning_rate, _ADAM_EPS, 0.0)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.fitting = threading.Lock()  # held while a round changes the ensemble
        self.num_steps = 0  # of fitting, published
        self.num_owed = float(cfg.first_steps)  # steps of fitting
        self.metrics: dict[str, Tensor] = {}
        self._found: dict[str, Tensor] = {}  # by the last round

    # The schedule

    @property
    def is_fitted(self) -> bool:
        """Return whether the model was fitted for long enough to roll out."""
        return self.num_steps >= self.cfg.first_steps

    def mixed(self, replay: RingReplay, num_real: int, num_predicted: int) -> Batch:
        """Draw a batch, so much from the team's replay and so much from the model's."""
        real = replay.sample(num_real)
        return joined(real, self.replay.sample(num_predicted)) if num_predicted else real

    def stage(self, num_updates: int) -> int:
        """Return how far share and horizon have risen after so many updates of the team: 1 to 4; 0
        without rollouts.
        """
        if not len(self.replay):
            return 0
        return min(
            _STAGES, 1 + int(_STAGES * num_updates * self._transitions_an_update / self.cfg.ramp)
        )

    def num_predicted(self, batch_size: int, num_updates: int) -> int:
        """Return how many transitions of a batch come from rollouts."""
        return round(batch_size * self.cfg.share * self.stage(num_updates) / _STAGES)

    def horizon(self, num_updates: int) -> int:
        """Return how many decisions a rollout has."""
        return 1 + (self.cfg.horizon - 1) * (max(self.stage(num_updates), 1) - 1) // (_STAGES - 1)

    # Fitting

    def advance(
        self, replay: RingReplay, explore: Callable[[Tensor], Tensor], num_updates: int
    ) -> dict[str, Tensor]:
        """Do what is due before update ``num_updates`` of the team: fit, unless a thread does, and
        roll out.

        Return metrics.
        """
        self.num_owed += self.cfg.steps
        while self.acting is self.ensemble and self.is_due():
            self.fit(self.draw(replay))
            self.publish()
        if self.is_fitted and (num_updates % self.cfg.interval == 0 or not len(self.replay)):
            self.roll_out(replay, explore, num_updates)
        return self.metrics

    def is_due(self) -> bool:
        """Return whether a round of fitting is owed."""
        return self.num_owed >= min(ROUND, self.cfg.first_steps)

    def draw(self, replay: RingReplay) -> Rows:
        """Draw what a round of fitting takes: a batch to measure the model with, and one for every
        step and member.
        """
        num_worlds = replay.shape.num_envs
        num_fitted = ROUND * self.cfg.members * self.cfg.batch_size
        index = replay.draw(_MEASURED + num_fitted, self.generator)
        world = index % num_worlds
        held_out = (world - world % HELD_OUT + HELD_OUT - 1).clamp(
            max=num_worlds - num_worlds % HELD_OUT - 1
        )
        index[:_MEASURED] += (held_out - world)[:_MEASURED]
        is_held_out = replay.is_valid(index) & (index % num_worlds % HELD_OUT == HELD_OUT - 1)
        return Rows(replay.look_up(index, num_steps=1), is_held_out)

    def fit(self, rows: Rows) -> None:
        """Measure the model on worlds that it is not fitted to, then take a round of steps with
        the others.
        """
        cfg = self.cfg
        batch = rows.batch
        state = batch.state[:, 0]
        next_state = batch.next_state[:, 0]
        with self.fitting:
            weights = (~rows.is_held_out).to(state.dtype)
            self.ensemble.update_norms(state[_MEASURED:], weights[_MEASURED:])
            self._found = self.measure(rows)
            parts = (state, batch.actions, next_state, weights)
            own = [part[_MEASURED:].unflatten(0, (ROUND, cfg.members, -1)) for part in parts]
            for step in zip(*own, strict=True):
                loss = self.ensemble.loss(*step)
                self.optimizer.zero_grad()
                self.optimizer.add_gradient(loss)
                self.optimizer.step(0.0)
                self._found["model/loss"] = loss.detach() / cfg.members

    def publish(self) -> None:
        """Have rollouts use what the last round made of the ensemble; count it."""
        self.num_steps += ROUND
        self.num_owed = max(self.num_owed - ROUND, 0.0)
        self.metrics |= {name: value.clone() for name, value in self._found.items()}
        if self.acting is not self.ensemble:
            self.acting.load_state_dict(self.ensemble.state_dict())

    def separate(self) -> None:
        """Have rollouts use a copy, so that a thread may fit the ensemble meanwhile."""
        self.acting = deepcopy(self.ensemble)

    @torch.no_grad()
    def measure(self, rows: Rows) -> dict[str, Tensor]:
        """Return the model's one-step errors and calibration on held-out worlds, and the error of
        computed rewards.

        Errors are root mean squares by number, in its unit; ``error_ratio`` is 1 for a model by
        which nothing moves.
        """
        planar = self.planar
        batch = Batch(*(part[:_MEASURED] for part in rows.batch))
        state = batch.state[:, 0]
        next_state = batch.next_state[:, 0]
        weights = rows.is_held_out[:_MEASURED].to(state.dtype)
        weights = (weights / weights.sum().clamp(min=1.0)).unsqueeze(-1)
        prediction = self.ensemble(*(_for_all(x, self.cfg.members) for x in (state, batch.actions)))
        error = ((prediction.mean.mean(0) - next_state).square() * weights).sum(0)
        still = ((next_state - state).square() * weights).sum(0)
        world, robots = planar.split(error)
        named = dict(zip(planar.world_names, world, strict=True))
        named |= dict(
            zip([f"robot_{name}" for name in planar.robot_names], robots.mean(0), strict=True)
        )
        found = {f"model/error_{name}": square.sqrt() for name, square in named.items()}
        found["model/error_ratio"] = (error / still.clamp(min=_TINY)).mean().sqrt()
        for share in (0.5, 0.9):
            inside = within_interval(prediction, next_state, share).mean((0, 2))
            found[f"model/inside_{100 * share:.0f}"] = (inside * weights[:, 0]).sum()
        rewards, _ = planar.judge(state, next_state)
        differs = (self._team_rewards(rewards) - batch.returns).mean(1) * weights[:, 0]
        return found | {
            "model/reward_error": differs.abs().sum(),
            "model/reward_bias": differs.sum(),
        }

    def plan_bytes(self, row: float) -> float:
        """Return what a round of fitting takes, where a transition takes ``row`` bytes: its draws,
        and one step.
        """
        cfg = self.cfg
        hidden = 4 * 3 * 4 * self.planar.num_robots * self.cfg.hidden_size
        return (_MEASURED + cfg.members * cfg.batch_size) * (2 * ROUND * row + hidden)

    # Rolling out

    @torch.no_grad()
    def roll_out(
        self, replay: RingReplay, explore: Callable[[Tensor], Tensor], num_updates: int
    ) -> None:
        """Continue from states of the team's replay as the team acts now, and keep what the members
        agree on.

        A rollout ends as a time-out does where it is cut, or has its full length. Of the first
        decisions the one that members agree on most is kept in any case.
        """
        cfg = self.cfg
        planar = self.planar
        horizon = self.horizon(num_updates)
        start = replay.look_up(replay.draw(cfg.branches, self.generator), num_steps=1)
        obs = start.obs
        state = start.state[:, 0]
        continues = torch.ones(cfg.branches, dtype=torch.bool, device=self.device)
        num_kept = torch.zeros((), device=self.device)
        spreads = []
        for k in range(horizon):
            actions = explore(obs)
            prediction = self.acting(*(_for_all(x, cfg.members) for x in (state, actions)))
            spread = disagreement(prediction)
            member = torch.randint(
                cfg.members, spread.shape, generator=self.generator, device=self.device
            )
            noise = torch.randn(state.shape, generator=self.generator, device=self.device)
            next_state = planar.tidy(drawn(prediction, member, noise))
            rewards, terminated = planar.judge(state, next_state)
            next_obs = planar.observe(next_state)
            continues = continues & (spread <= cfg.max_disagreement)
            if k == 0:
                spreads.append(spread.mean())
                continues = continues | (spread == spread.min())
            transition = Transition(
                obs=obs,
                state=state.unsqueeze(1),
                actions=actions,
                active=torch.ones_like(actions[..., 0], dtype=torch.bool),
                rewards=self._team_rewards(rewards),
                next_obs=next_obs,
                next_state=next_state.unsqueeze(1),
                terminated=terminated,
                done=terminated | (k == horizon - 1),
                valid=continues,
            )
            self.replay.add(transition)
            num_kept += continues.sum()
            continues = continues & ~terminated
            obs = next_obs
            state = next_state
        share = cfg.share * self.stage(num_updates) / _STAGES
        numbers = {
            "model/horizon": float(horizon),
            "model/share": share,
            "model/steps": float(self.num_steps),
        }
        self.metrics |= {
            name: torch.tensor(number, device=self.device) for name, number in numbers.items()
        }
        self.metrics |= {
            "model/disagreement": spreads[0],
            "model/kept": num_kept / (horizon * cfg.branches),
        }

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-exact resume needs."""
        with self.fitting:
            return {
                "ensemble": {
                    name: value.clone() for name, value in self.ensemble.state_dict().items()
                },
                "optimizer": self.optimizer.state_dict(),
                "replay": self.replay.state_dict(),
                "generator": self.generator.get_state(),
                "num_steps": self.num_steps,
                "num_owed": self.num_owed,
                "metrics": dict(self.metrics),
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; the learning rate is that of the settings."""
        self.ensemble.load_state_dict(state["ensemble"])
        rate = self.optimizer.learning_rate.clone()
        self.optimizer.load_state_dict(state["optimizer"])
        self.optimizer.learning_rate.copy_(rate)
        self.replay.load_state_dict(state["replay"])
        self.generator.set_state(state["generator"].cpu())
        self.num_steps = state["num_steps"]
        self.num_owed = state["num_owed"]
        self.metrics = {name: value.to(self.device) for name, value in state["metrics"].items()}


def make_model(
    cfg: Any,
    planar: Planar,
    shape: ReplayShape,
    team_rewards: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    seed: int,
) -> WorldModel:
    """Build the model of a team with settings ``cfg`` (``OffPolicyCfg``), whose own replay has
    sizes ``shape``.

    The team's ``generator`` draws its batches.
    """
    sizes = {
        name: getattr(shape, name)
        for name in ("num_agents", "obs_size", "action_size", "num_views", "state_size")
    }
    own = cfg.ensemble
    device = generator.device
    shape = replay_shape(max(own.buffer_size, own.horizon * own.branches), own.branches, **sizes)
    replay = RingReplay(shape, cfg.n_step, cfg.gamma, generator, device)
    return WorldModel(own, planar, replay, team_rewards, cfg.update_ratio, seed, device)


def check_worlds(num_worlds: int) -> None:
    """Raise ValueError where a collector, or the learner that collects itself, has too few worlds
    to hold any out.
    """
    if num_worlds < HELD_OUT:
        raise ValueError(
            f"model=ensemble is measured on one world in {HELD_OUT}, and a collector or the "
            f"learner has {num_worlds}; "
            f"set env.num_envs to at least {HELD_OUT} for each"
        )


def health_line(metrics: Mapping[str, float]) -> str | None:
    """Format what was measured of a model in one line; None where there is none yet."""
    if "model/error_ratio" not in metrics:
        return None
    found = {name.removeprefix("model/"): value for name, value in metrics.items()}
    line = (
        f"[Model] error {found['error_ratio']:.2f} of standing still | 90 % interval holds "
        f"{found['inside_90']:.0%}"
    )
    line += f" | reward off by {found['reward_error']:.3f}"
    if "kept" in found:
        line += (
            f" | steps {found['steps']:,.0f} | horizon {found['horizon']:.0f} | share "
            f"{found['share']:.2f} | "
            f"kept {found['kept']:.0%}"
        )
    else:
        line += " | no rollouts yet"
    return line.replace("%", " %").replace("90  %", "90 %")


def _for_all(x: Tensor, num_members: int) -> Tensor:
    """Show the same rows to every member, (M, B, ...)."""
    return x.expand(num_members, *x.shape)
