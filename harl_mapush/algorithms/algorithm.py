"""The contract between a learner and what drives it: runner, checkpoints, memory plan, doctor,
evaluation.

T decisions a block, N environments, A agents, U action size, R recurrent layers, H hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from torch import Tensor, nn

from harl_mapush.learning.networks import NetworkCfg
from mqe.config import option
from mqe.vec_env import TimeStep


@dataclass(frozen=True)
class AlgorithmCfg:
    """Section ``algorithm``: what the settings of every algorithm have."""

    takes_collectors: ClassVar[bool] = (
        False  # whether it is a ``ReplayLearner`` (``collectors/learner.py``)
    )

    name: str = option("", "which algorithm")

    def built_network(self, network: NetworkCfg) -> NetworkCfg:
        """Return the settings of the networks that the algorithm builds where ``network`` is asked
        for.
        """
        return network

    def for_acting(self) -> Self:
        """Return settings without those that a team needs for learning only."""
        return self

    def for_trial(self, num_rows: int) -> Self:
        """Return settings with which a first update learns from a block of only ``num_rows``
        training rows.
        """
        return self


class Decision(NamedTuple):
    """What a team decided: actions and log probabilities per dimension (N, A, U), hidden (A, N, R,
    H) after it.

    ``log_probs`` is None where actions are not drawn, and where the learner never needs them.
    """

    actions: Tensor
    log_probs: Tensor | None
    hidden: Tensor | None


class LearnerBytes(NamedTuple):
    """Bytes that a learner takes of its device, besides its weights and what an optimiser keeps of
    them.
    """

    experience: float
    update: float  # at its fullest moment


class Experience(Protocol):
    """What an algorithm learns from: one block of T decisions, or a replay of many; it decides
    what to keep.
    """

    def start(self, obs: Tensor, state: Tensor) -> None:
        """Take the obs (N, A, O) and state that the first decision follows: at the start of a run,
        and on a resume.
        """
        ...

    def begin(self) -> None:
        """Begin a block, T decisions after the last."""
        ...

    def hidden(self, t: int) -> Tensor | None:
        """Return the hidden states (A, N, R, H) for decision ``t`` of the block, None without
        recurrence.
        """
        ...

    def add(self, t: int, obs: Tensor, decision: Decision, step: TimeStep) -> None:
        """Store decision ``t`` of the block, taken on obs (N, A, O), and what came of it."""
        ...

    def finish(self) -> None:
        """End the block; an update may follow."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs; a replay that is not saved with the run starts empty
        again.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; ``start`` follows."""
        ...


class Algorithm(Protocol):
    """A team that acts and learns. Nothing else of an algorithm is used outside its own modules."""

    def make_experience(self, num_steps: int, num_envs: int) -> Experience:
        """Allocate the storage for collecting; raise ValueError if the settings do not allow
        blocks of this size.
        """
        ...

    def act(
        self, obs: Tensor, hidden: Tensor | None = None, *, deterministic: bool = False
    ) -> Decision:
        """Decide for obs (N, A, O), with exploration unless ``deterministic``; never waits for the
        device.

        ``hidden`` (A, N, R, H) are a recurrent team's hidden states; None at the start of an
        episode.
        """
        ...

    def update(self, experience: Any, progress: float = 0.0) -> dict[str, Tensor]:
        """Learn after a block, in as many steps as the settings say, none during a warm-up.

        ``progress`` in [0, 1) is the share of the run that is done. Return metrics as 0-dim tensors
        on the device.
        """
        ...

    @property
    def networks(self) -> dict[str, nn.Module]:
        """The modules of a checkpoint by file name: ``actor_agent{i}``, which are all that acting
        needs, and others.

        A run with ``runner.init_from`` loads trained weights into them once the team is built, and
        says so when it builds it: with ``TeamSpec.is_trained`` the team acts by its actors from the
        first decision on, not at random, and whatever copies weights (a target network) copies them
        no earlier than at the first update.
        """
        ...

    @property
    def weights(self) -> dict[str, Tensor]:
        """All that is trained as flat tensors by name: must stay finite, and moves in an update."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a bit-exact resume needs but the experience."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a ``state_dict``; learning rates are those of the settings unless they adapt
        themselves.
        """
        ...

    def plan_bytes(self, num_steps: int, num_envs: int, device_type: str) -> LearnerBytes:
        """Return what learning takes on a device of this type; raise ValueError as
        ``make_experience``.
        """
        ...
