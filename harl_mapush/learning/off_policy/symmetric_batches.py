"""Batches that show transitions as they would be in scenes like their own.

B rows of a batch, A agents, G critic views, I images: the symmetries one after another in every
way. The image of a team's numbers is another order of them, some negated.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harl_mapush.learning.off_policy.replay_buffer import Batch
from mqe.vec_env import Image, TeamImage, TeamSpec


class Images:
    """All images that symmetries of a team make together, the team as it is last."""

    def __init__(
        self, symmetries: Sequence[TeamImage], spec: TeamSpec, num_views: int, device: torch.device
    ) -> None:
        """Find the images of a team with ``spec`` and G critic views."""
        sizes = [
            (spec.num_agents, spec.obs_size),
            (num_views, spec.state_size),
            (spec.num_agents, spec.action_size),
            (spec.num_agents, 1),
            (num_views, 1),
        ]
        # An image of the numbers 1, 2, ... tells which number stands where, and with which sign.
        found = [[_count(*size, device) for size in sizes]]
        for parts in found:  # grows until there is nothing new
            for symmetry in symmetries:
                image = _image_of(parts, symmetry)
                if not any(all(map(torch.equal, image, other)) for other in found):
                    found.append(image)
        shown = [torch.stack(each[::-1]).flatten(1) for each in map(list, zip(*found, strict=True))]
        self._index = [numbers.abs().long() - 1 for numbers in shown]  # (I, numbers) each
        self._sign = [numbers.sign() for numbers in shown]

    def __len__(self) -> int:
        """Return the number of images I."""
        return len(self._sign[0])

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch whose rows are replaced by images: row b by image b, counted round."""
        obs, state, actions, agents, views = range(5)
        image = torch.arange(len(batch.obs), device=batch.obs.device) % len(self)

        def shown(values: Tensor, part: int) -> Tensor:
            placed = values.flatten(1).gather(1, self._index[part][image])
            return (placed * self._sign[part][image]).view_as(values)

        return Batch(
            obs=shown(batch.obs, obs),
            state=shown(batch.state, state),
            actions=shown(batch.actions, actions),
            active=shown(batch.active, agents),
            returns=shown(batch.returns, views),
            discount=batch.discount,
            next_obs=shown(batch.next_obs, obs),
            next_state=shown(batch.next_state, state),
        )


def _count(rows: int, columns: int, device: torch.device) -> Tensor:
    """Return the numbers 1, 2, ... in a table; floats up to 2^24 are exact."""
    return torch.arange(1.0, rows * columns + 1.0, device=device).view(rows, columns)


def _image_of(parts: Sequence[Tensor], symmetry: TeamImage) -> list[Tensor]:
    """Return the image of obs (A, O), states (G, S), actions (A, U), and a number of each agent and
    of each view.
    """
    assert symmetry.state is not None
    alone = Image.same(1, parts[0].device)
    images = (symmetry.obs, symmetry.state, symmetry.action, alone, alone)
    return [image(part).roll(-symmetry.shift, 0) for image, part in zip(images, parts, strict=True)]
