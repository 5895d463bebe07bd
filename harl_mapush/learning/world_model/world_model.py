"""A learned model of the worlds, used beside an off-policy algorithm.

It is trained on the replay buffer, and its rollouts continue from the states there. Predicted
transitions are in a replay buffer of their own. B rows, M members, A agents, S state size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

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
from harl_mapush.learning.settings import MODEL_ROUND, EnsembleCfg, OffPolicyCfg
from harl_mapush.learning.world_model.ensemble import (
    Ensemble,
    Prediction,
    disagreement,
    drawn,
    within_interval,
)
from mqe.vec_env import Planar

HELD_OUT = 8  # the last of so many worlds is held out of training, for measurements
_STAGES = 4  # stages of the ramp of share and horizon
_MEASURED = 512  # decisions of held-out worlds with which a round measures the model
_ADAM_EPS = 1e-8
_TINY = 1e-12  # lower bound of a mean squared change


class Rows(NamedTuple):
    """Single decisions from the team's replay buffer, for one round of training."""

    batch: Batch
    is_held_out: Tensor  # (B,) bool: from worlds that are held out of training


class WorldModel:
    """The ensemble, its optimiser, and the replay buffer of predicted transitions.

    ``train_round`` may run in a thread of its own beside the updates; all other methods are called
    in turns with these.
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
        """Build the model of a team whose predicted transitions are stored in ``replay``.

        ``team_rewards`` computes the rewards (B, G) that are learned from those of the agents
        (B, A). Everything but the batches of ``replay`` is drawn from ``seed``.
        """
        self.cfg = cfg
        self.planar = planar
        self.replay = replay
        self.device = device
        self._team_rewards = team_rewards
        self._transitions_an_update = 1.0 / update_ratio

        start = torch.Generator().manual_seed(seed)
        ensemble = Ensemble(planar, replay.shape.action_size, cfg.members, cfg.hidden_size, start)
        self.ensemble = ensemble.to(device)
        self.acting = self.ensemble  # the ensemble that rolls out
        self.optimizer = FlatAdam(self.ensemble, cfg.learning_rate, _ADAM_EPS, 0.0)
        self.generator = torch.Generator(device).manual_seed(seed)

        self.training = threading.Lock()  # held while a round changes the ensemble
        self.num_steps = 0  # gradient steps of the ensemble that rolls out
        self.num_owed = float(cfg.first_steps)  # gradient steps that are due
        self.metrics: dict[str, Tensor] = {}
        self._round_metrics: dict[str, Tensor] = {}  # metrics of the last round

    # The schedule

    @property
    def is_trained(self) -> bool:
        """Whether the model has had enough training for rollouts."""
        return self.num_steps >= self.cfg.first_steps

    def mixed(self, replay: RingReplay, num_real: int, num_predicted: int) -> Batch:
        """Draw a batch of transitions of the team's replay buffer and of predicted ones."""
        real = replay.sample(num_real)
        if not num_predicted:
            return real
        return joined(real, self.replay.sample(num_predicted))

    def stage(self, num_updates: int) -> int:
        """Return the stage of the ramp (1 to 4) after ``num_updates``; 0 before any rollout."""
        if not len(self.replay):
            return 0
        num_passed = int(_STAGES * num_updates * self._transitions_an_update / self.cfg.ramp)
        return min(_STAGES, 1 + num_passed)

    def num_predicted(self, batch_size: int, num_updates: int) -> int:
        """Return the number of transitions of a batch that come from rollouts."""
        return round(batch_size * self.cfg.share * self.stage(num_updates) / _STAGES)

    def horizon(self, num_updates: int) -> int:
        """Return the number of decisions of a rollout."""
        stage = max(self.stage(num_updates), 1)
        return 1 + (self.cfg.horizon - 1) * (stage - 1) // (_STAGES - 1)

    # Training

    def advance(
        self, replay: RingReplay, explore: Callable[[Tensor], Tensor], num_updates: int
    ) -> dict[str, Tensor]:
        """Train and roll out as far as due before update ``num_updates``; return metrics.

        If a thread trains the model, this rolls out only.
        """
        self.num_owed += self.cfg.steps
        while self.acting is self.ensemble and self.is_due():
            self.train_round(self.draw(replay))
            self.publish()
        if self.is_trained and (num_updates % self.cfg.interval == 0 or not len(self.replay)):
            self.roll_out(replay, explore, num_updates)
        return self.metrics

    def is_due(self) -> bool:
        """Return whether a round of training is due."""
        return self.num_owed >= min(MODEL_ROUND, self.cfg.first_steps)

    def draw(self, replay: RingReplay) -> Rows:
        """Draw the rows of a round of training.

        They are the rows that measure the model, and a batch for every step and member.
        """
        num_worlds = replay.shape.num_envs
        num_trained = MODEL_ROUND * self.cfg.members * self.cfg.batch_size
        index = replay.draw(_MEASURED + num_trained, self.generator)

        # Move the first rows to the nearest held-out world.
        world = index % num_worlds
        last_held_out = num_worlds - num_worlds % HELD_OUT - 1
        held_out = (world - world % HELD_OUT + HELD_OUT - 1).clamp(max=last_held_out)
        index[:_MEASURED] += (held_out - world)[:_MEASURED]

        is_held_out = replay.is_valid(index) & (index % num_worlds % HELD_OUT == HELD_OUT - 1)
        return Rows(replay.look_up(index, num_steps=1), is_held_out)

    def train_round(self, rows: Rows) -> None:
        """Measure the model on held-out worlds, then train it on the others for one round."""
        cfg = self.cfg
        state = rows.batch.state[:, 0]
        next_state = rows.batch.next_state[:, 0]
        with self.training:
            weights = (~rows.is_held_out).to(state.dtype)
            self.ensemble.update_norms(state[_MEASURED:], weights[_MEASURED:])
            self._round_metrics = self.measure(rows)

            parts = (state, rows.batch.actions, next_state, weights)
            steps = [
                part[_MEASURED:].unflatten(0, (MODEL_ROUND, cfg.members, -1)) for part in parts
            ]
            for step in zip(*steps, strict=True):
                loss = self.ensemble.loss(*step)
                self.optimizer.zero_grad()
                self.optimizer.add_gradient(loss)
                self.optimizer.step(0.0)
                self._round_metrics["model/loss"] = loss.detach() / cfg.members

    def publish(self) -> None:
        """Make the result of the last round available to rollouts, and count the round."""
        self.num_steps += MODEL_ROUND
        self.num_owed = max(self.num_owed - MODEL_ROUND, 0.0)
        self.metrics |= {name: value.clone() for name, value in self._round_metrics.items()}
        if self.acting is not self.ensemble:
            self.acting.load_state_dict(self.ensemble.state_dict())

    def separate(self) -> None:
        """Use a copy of the ensemble in rollouts; a thread may then train the original."""
        self.acting = deepcopy(self.ensemble)

    @torch.no_grad()
    def measure(self, rows: Rows) -> dict[str, Tensor]:
        """Return errors and calibration of one-step predictions on held-out worlds.

        Errors are root mean squares of each number of a state, in its unit. ``error_ratio`` is 1
        for a model that predicts no change. The error of computed rewards is among the metrics.
        """
        planar = self.planar
        batch = Batch(*(part[:_MEASURED] for part in rows.batch))
        state = batch.state[:, 0]
        next_state = batch.next_state[:, 0]
        weights = rows.is_held_out[:_MEASURED].to(state.dtype)
        weights = (weights / weights.sum().clamp(min=1.0)).unsqueeze(-1)

        # Errors of the members' mean, by number
        prediction = self.ensemble(*(_for_all(x, self.cfg.members) for x in (state, batch.actions)))
        error = ((prediction.mean.mean(0) - next_state).square() * weights).sum(0)
        change = ((next_state - state).square() * weights).sum(0)
        world, robots = planar.split(error)
        robot_names = [f"robot_{name}" for name in planar.robot_names]
        squares = dict(zip(planar.world_names, world, strict=True))
        squares |= dict(zip(robot_names, robots.mean(0), strict=True))
        metrics = {f"model/error_{name}": square.sqrt() for name, square in squares.items()}
        metrics["model/error_ratio"] = (error / change.clamp(min=_TINY)).mean().sqrt()

        # Calibration of the members' intervals
        for share in (0.5, 0.9):
            inside = within_interval(prediction, next_state, share).mean((0, 2))
            metrics[f"model/inside_{100 * share:.0f}"] = (inside * weights[:, 0]).sum()

        # Errors of the rewards that are computed from states
        rewards, _ = planar.judge(state, next_state)
        differences = (self._team_rewards(rewards) - batch.returns).mean(1) * weights[:, 0]
        metrics["model/reward_error"] = differences.abs().sum()
        metrics["model/reward_bias"] = differences.sum()
        return metrics

    def plan_bytes(self, row: float) -> float:
        """Return the bytes of a round of training, given the ``row`` bytes of a transition.

        They are the bytes of the round's rows and of one step.
        """
        hidden = 4 * 3 * 4 * self.planar.num_robots * self.cfg.hidden_size
        num_rows = _MEASURED + self.cfg.members * self.cfg.batch_size
        return num_rows * (2 * MODEL_ROUND * row + hidden)

    # Rolling out

    @torch.no_grad()
    def roll_out(
        self, replay: RingReplay, explore: Callable[[Tensor], Tensor], num_updates: int
    ) -> None:
        """Roll out from states of the team's replay buffer, and store the predicted transitions.

        The team acts by ``explore``. A rollout is cut if the members disagree; it then ends like a
        time-out, as it does at its full length. Of the first decisions the one with the least
        disagreement is stored in any case.
        """
        cfg = self.cfg
        horizon = self.horizon(num_updates)
        start = replay.look_up(replay.draw(cfg.branches, self.generator), num_steps=1)
        obs = start.obs
        state = start.state[:, 0]
        continues = torch.ones(cfg.branches, dtype=torch.bool, device=self.device)
        num_kept = torch.zeros((), device=self.device)
        first_disagreement = num_kept
        for k in range(horizon):
            # Predict the next state by a member drawn for each rollout.
            actions = explore(obs)
            prediction = self.acting(*(_for_all(x, cfg.members) for x in (state, actions)))
            spread = disagreement(prediction)
            next_state = self.planar.tidy(self._drawn(prediction, spread.shape, state.shape))
            rewards, terminated = self.planar.judge(state, next_state)
            next_obs = self.planar.observe(next_state)

            # Cut rollouts about which the members disagree.
            continues = continues & (spread <= cfg.max_disagreement)
            if k == 0:
                first_disagreement = spread.mean()
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
        for name, number in numbers.items():
            self.metrics[name] = torch.tensor(number, device=self.device)
        self.metrics["model/disagreement"] = first_disagreement
        self.metrics["model/kept"] = num_kept / (horizon * cfg.branches)

    def _drawn(self, prediction: Prediction, rollouts: torch.Size, states: torch.Size) -> Tensor:
        """Return next states (B, S), each drawn from the prediction of a random member."""
        member = torch.randint(
            self.cfg.members, rollouts, generator=self.generator, device=self.device
        )
        noise = torch.randn(states, generator=self.generator, device=self.device)
        return drawn(prediction, member, noise)

    # Saving

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a bit-exact resume."""
        with self.training:
            ensemble = self.ensemble.state_dict()
            return {
                "ensemble": {name: value.clone() for name, value in ensemble.items()},
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
    cfg: OffPolicyCfg,
    planar: Planar,
    shape: ReplayShape,
    team_rewards: Callable[[Tensor], Tensor],
    generator: torch.Generator,
    seed: int,
) -> WorldModel:
    """Build the model of a team whose own replay buffer has sizes ``shape``.

    The team's ``generator`` draws the model's batches.
    """
    own = cfg.ensemble
    device = generator.device
    capacity = max(own.buffer_size, own.horizon * own.branches)
    predicted = replay_shape(
        capacity,
        own.branches,
        num_agents=shape.num_agents,
        obs_size=shape.obs_size,
        action_size=shape.action_size,
        num_views=shape.num_views,
        state_size=shape.state_size,
    )
    replay = RingReplay(predicted, cfg.n_step, cfg.gamma, generator, device)
    return WorldModel(own, planar, replay, team_rewards, cfg.update_ratio, seed, device)


def check_worlds(num_worlds: int) -> None:
    """Raise ValueError if a process that collects has too few worlds to hold any out."""
    if num_worlds < HELD_OUT:
        raise ValueError(
            f"model=ensemble is measured on one world in {HELD_OUT}, and a collector or the "
            f"learner has {num_worlds}; set env.num_envs to at least {HELD_OUT} for each"
        )


def health_line(metrics: Mapping[str, float]) -> str | None:
    """Format the metrics of a model as one line; return None if there are none yet."""
    if "model/error_ratio" not in metrics:
        return None
    found = {name.removeprefix("model/"): value for name, value in metrics.items()}
    parts = [
        f"[Model] error {found['error_ratio']:.2f} of standing still",
        f"90 % interval holds {100 * found['inside_90']:.0f} %",
        f"reward off by {found['reward_error']:.3f}",
    ]
    if "kept" in found:
        parts += [
            f"steps {found['steps']:,.0f}",
            f"horizon {found['horizon']:.0f}",
            f"share {found['share']:.2f}",
            f"kept {100 * found['kept']:.0f} %",
        ]
    else:
        parts.append("no rollouts yet")
    return " | ".join(parts)


def _for_all(x: Tensor, num_members: int) -> Tensor:
    """Repeat rows x (B, ...) for all members, (M, B, ...)."""
    return x.expand(num_members, *x.shape)
