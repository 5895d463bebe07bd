"""HASAC with a GRU, whose hidden states are stored with the transitions (R2D2: Kapturowski et al.
2019).

mapush train --preset laptop_onboard --import onboard_recurrent --algo hasac_recurrent --set
runner.collectors=0 --set sim.num_threads=2 --set 'algorithm.symmetries=[]'

The actor learns over sequences of L decisions, each from the hidden state that was stored with its
first one. The critics know the true state, and need no memory. N worlds, A robots, O observation
size, H hidden size, B = S L rows in S sequences.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import mapush
from harl_mapush.learning.collected import Decision
from harl_mapush.learning.off_policy.experience import ReplayExperience
from harl_mapush.learning.off_policy.q_networks import SquashedActor
from harl_mapush.learning.off_policy.replay_buffer import (
    DONE,
    VALID,
    Batch,
    ReplayShape,
    RingReplay,
)
from harl_mapush.learning.off_policy.td import squashed_sample
from harl_mapush.learning.settings import NetworkCfg
from mapush.extensions.pivoting.taught_hasac import TaughtHasac, TaughtHasacCfg
from mqe.config import option
from mqe.vec_env import TimeStep

L = 16


class RecurrentActor(SquashedActor):
    """A squashed Gaussian policy with a GRU after its hidden layers.

    Rows are an observation and a hidden state (..., O + H). In sequences they also have 0 if the
    row repeats the first one (B, A, O + H + 1).
    """

    def __init__(
        self, cfg: NetworkCfg, obs_size: int, action_size: int, *more: Any, **options: Any
    ) -> None:
        super().__init__(cfg, obs_size, action_size, *more, **options)
        self.hidden_size = cfg.hidden_sizes[-1]
        self.gru = nn.GRU(self.hidden_size, self.hidden_size)
        self.in_size = obs_size
        self.obs_size += self.hidden_size + 1  # of a row, for those who cut rows
        # The last sampled rows, and their actions without noise
        self.rows = self.mean = torch.empty(0)

    def features(self, rows: Tensor) -> Tensor:
        """Return the hidden states (..., H) after the decisions."""
        obs, hidden, follows = rows.tensor_split(
            (self.in_size, self.in_size + self.hidden_size), dim=-1
        )
        x = self.net(self.sets(obs))
        if not follows.shape[-1]:
            return self.recur(x.flatten(0, -2).unsqueeze(0), hidden.flatten(0, -2)).view(x.shape)
        # (L, S A, H), from the first hidden state of each sequence
        by_time = x.unflatten(0, (-1, L)).transpose(0, 1).flatten(1, 2)
        first = hidden.unflatten(0, (-1, L))[:, 0].flatten(0, 1)
        joined = self.recur(by_time, first).unflatten(1, (-1, x.shape[1])).transpose(0, 1)
        is_joined = follows.unflatten(0, (-1, L)) > 0.0
        return torch.where(is_joined, joined, joined[:, :1]).flatten(0, 1)

    def recur(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Return the GRU's outputs (T, R, H) for inputs (T, R, H) and hidden states (R, H)."""
        with torch.backends.cudnn.flags(enabled=False):
            return self.gru(x.contiguous(), hidden.unsqueeze(0).contiguous())[0]

    def forward(self, obs: Tensor) -> Tensor:
        # An update samples a batch, and then imitates in it.
        if obs.shape == self.rows.shape and obs.data_ptr() == self.rows.data_ptr():
            return self.mean
        return torch.tanh(self.mu_layer(self.features(obs)))

    def layers(self) -> list[nn.Module]:
        return [self.sets, self.net.mlp, self.gru, self.mu_layer, nn.Tanh()]

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(obs)
        mean = self.mu_layer(features)
        self.rows = obs
        self.mean = torch.tanh(mean)
        return squashed_sample(mean, self.bound_log_std(self.log_std_layer(features)), noise)


class SequenceReplay(RingReplay):
    """A replay buffer that looks up sequences of L decisions."""

    def look_up(self, index: Tensor) -> Batch:
        """Return sequences from the first B / L rows of ``index`` (B,), one after another.

        After an episode's end and after the newest decision the first row repeats.
        """
        shape = self.shape
        flags = self.flags.view(-1)
        first = index[: len(index) // L]
        start = first // shape.ring_size * shape.ring_size
        newest = self.newest[first // shape.ring_size]
        rows = [first]
        follows = [torch.ones_like(first, dtype=torch.bool)]
        for _ in range(L - 1):
            last = rows[-1]
            after = start + (last - start + shape.num_envs) % shape.ring_size
            goes_on = (flags[last] & DONE == 0) & (last // shape.num_envs != newest)
            goes_on = goes_on & (flags[after] & VALID != 0) & follows[-1]
            rows.append(torch.where(goes_on, after, first))
            follows.append(goes_on)
        batch = super().look_up(torch.stack(rows, dim=1).flatten())
        mark = torch.stack(follows, dim=1).view(-1, 1, 1).expand(-1, shape.num_agents, 1)
        return batch._replace(obs=torch.cat((batch.obs, mark.float()), dim=-1))


class RecurrentExperience(ReplayExperience):
    """Transitions with hidden states beside the observations."""

    def __init__(self, hidden_size: int, replay: RingReplay, *more: Any, **options: Any) -> None:
        super().__init__(replay, *more, **options)
        shape = replay.shape
        self._hidden = torch.zeros(shape.num_envs, shape.num_agents, hidden_size).to(replay.flags)
        self._hidden = self._hidden.float()

    def hidden(self, t: int) -> Tensor:
        return self._hidden

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        assert decision.hidden is not None
        final = torch.cat((step.final_obs, decision.hidden), dim=-1)
        rows = torch.cat((obs, self._hidden), dim=-1)
        super().add(t, rows, decision, step._replace(final_obs=final))
        self._hidden = decision.hidden.masked_fill(step.done.view(-1, 1, 1), 0.0)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"hidden": self._hidden.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._hidden.copy_(state["hidden"])


@dataclass(frozen=True)
class RecurrentHasacCfg(TaughtHasacCfg):
    """Settings of ``hasac_taught`` with hidden states."""

    name: str = option("hasac_recurrent", "name of the learning algorithm")
    symmetries: tuple[str, ...] = option((), "none: hidden states have no images")


class RecurrentHasac(TaughtHasac):
    """``hasac_taught`` with hidden states."""

    actor_class = RecurrentActor
    replay_class = SequenceReplay

    def check_settings(self) -> None:
        super().check_settings()
        if self.cfg.symmetries or self.cfg.batch_size % L or self.cfg.beside_collecting:
            raise ValueError(
                f"hasac_recurrent learns from sequences of {L}; set algorithm.symmetries=[], "
                f"algorithm.beside_collecting=false, and a multiple of {L} as algorithm.batch_size"
            )

    @torch.no_grad()
    def act(self, obs: Tensor, hidden: Tensor | None = None) -> Decision:
        assert hidden is not None, "set runner.collectors=0"
        rows = torch.cat((obs, hidden), dim=-1)
        is_trained = self.spec.is_trained or self.num_updates
        actions = self.explore(rows) if is_trained else self.act_untrained(obs)
        return Decision(actions, None, self.actors[0].features(rows))

    def make_experience(self, num_steps: int, num_envs: int) -> RecurrentExperience:
        replay = super().make_experience(num_steps, num_envs).replay
        arguments = (replay, self.device, self.team_rewards, self.update_norm)
        size = self.network.hidden_sizes[-1]
        return RecurrentExperience(size, *arguments, is_saved=self.cfg.save_replay)

    def replay_shape(self, num_envs: int, num_rings: int = 1) -> ReplayShape:
        shape = super().replay_shape(num_envs, num_rings)
        return shape._replace(obs_size=shape.obs_size + self.network.hidden_sizes[-1])


mapush.register_algorithm("hasac_recurrent", RecurrentHasacCfg, RecurrentHasac)
