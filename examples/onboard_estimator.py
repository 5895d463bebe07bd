"""``hasac_taught`` whose actor also estimates the object's true place, as an auxiliary loss.

mapush train --preset laptop_onboard --import onboard_estimator --algo hasac_estimator

With ``--set task.more_state=[load]`` it also estimates the push that slides the object. Estimates
are linear in the last features. B rows, A robots, H features, E estimated numbers.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import mapush
from harl_mapush.learning.off_policy.replay_buffer import Batch
from mapush.extensions.pivoting.taught_hasac import TaughtHasac, TaughtHasacCfg
from mqe.config import option

RATE = 1e-3  # learning rate of the estimate
LOAD_SCALE = 10.0  # a load is estimated in 10 N, as a place is in metres
DECAYS = (0.9, 0.99)  # of its gradient's moments


@dataclass(frozen=True)
class EstimatorCfg(TaughtHasacCfg):
    """Settings of ``hasac_taught`` with an estimator."""

    name: str = option("hasac_estimator", "name of the learning algorithm")
    estimate_weight: float = option(1.0, "weight of the estimate's square error [m^2]", min=0.0)


class Estimator(TaughtHasac):
    """``hasac_taught`` with the error of the object's estimated place in the actor's loss."""

    cfg: EstimatorCfg

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        size = self.network.hidden_sizes[-1] + 1
        self.knows_load = "load" in self.spec.teacher_obs.states.names
        # The estimate's matrix (H + 1, E), and its gradient's moments
        zeros = [torch.zeros(size, 2 + self.knows_load, device=self.device) for _ in range(3)]
        self.head, self.mean, self.square = zeros
        names = self.spec.teacher_obs.names
        self.columns = torch.tensor([names.index("object_x"), names.index("object_y")])
        self.columns = self.columns.to(self.device)

    @torch.no_grad()
    def truth(self, batch: Batch) -> Tensor:
        """Return the estimated numbers' true values (B A, E)."""
        place = self.spec.teacher_obs(batch.state)[..., self.columns]
        if not self.knows_load:
            return place.flatten(0, -2)
        load = LOAD_SCALE * self.spec.teacher_obs.states.split(batch.state)["load"]
        return torch.cat((place, load.expand(-1, place.shape[1], -1)), dim=-1).flatten(0, -2)

    def further_losses(self, batch: Batch) -> dict[str, Tensor]:
        losses = super().further_losses(batch)
        actor = self.actors[0]
        features = actor.net(actor.sets(batch.obs)).flatten(0, -2)
        features = torch.cat((features, torch.ones_like(features[:, :1])), dim=1)
        error = features @ self.head - self.truth(batch)
        with torch.no_grad():
            gradient = features.t() @ error * (2.0 / len(error))
            self.mean.lerp_(gradient, 1.0 - DECAYS[0])
            self.square.lerp_(gradient.square(), 1.0 - DECAYS[1])
        weight = self.cfg.estimate_weight
        losses["agent0/estimate_loss"] = weight * error.square().sum(dim=-1).mean()
        return losses

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        metrics = super().learn(batch)
        self.head.sub_(RATE * self.mean / (self.square.sqrt() + 1e-8))
        return metrics


mapush.register_algorithm("hasac_estimator", EstimatorCfg, Estimator)
