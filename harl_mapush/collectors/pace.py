"""The pace of storing and learning: a rule for either to continue.

The learner owes ``update_ratio`` updates for every transition stored after the warm-up. It waits
while less than one update is owed. Storing waits while the learner owes the updates of a whole
block, so the queue fills up and the collectors wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from harl_mapush.collectors.learner import ReplayLearner
from harl_mapush.learning.off_policy.experience import ReplayExperience


@dataclass
class Pace:
    """Numbers of stored and learned transitions, and the rule between the two."""

    algorithm: ReplayLearner
    experience: ReplayExperience
    block: int  # transitions of a block
    num_stored: int = 0  # transitions since the start of the run
    num_counted: int = 0  # stored transitions after the warm-up, in this process
    num_learned: int = 0  # updates in this process

    @property
    def ratio(self) -> float:
        """Number of updates per transition."""
        return self.algorithm.cfg.update_ratio

    @property
    def warmup(self) -> int:
        """Number of transitions before the first update."""
        return max(self.algorithm.cfg.warmup, 1)

    @property
    def is_warm(self) -> bool:
        """Whether the warm-up is over."""
        return len(self.experience.replay) >= self.warmup

    def may_learn(self) -> bool:
        """Return whether an update is due."""
        return self.is_warm and self.algorithm.num_owed >= 1.0

    def is_done(self, num_stored: int) -> bool:
        """Return whether ``num_stored`` transitions are stored and their updates done."""
        beyond = self.num_stored - num_stored
        if beyond < 0:
            return False
        return not self.is_warm or self.algorithm.num_owed < 1.0 + self.ratio * beyond

    def may_store(self) -> bool:
        """Return whether the learner owes less than a block's updates."""
        return not self.is_warm or self.algorithm.num_owed < max(1.0, self.ratio * self.block)

    def stored(self) -> None:
        """Count a stored block."""
        self.num_stored += self.block
        self.experience.num_new = 0
        if self.is_warm:
            self.num_counted += self.block
            self.algorithm.num_owed += self.ratio * self.block

    def learned(self) -> None:
        """Count an update."""
        self.num_learned += 1
        self.algorithm.num_owed -= 1.0
