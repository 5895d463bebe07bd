"""Pull a cart: every robot's trunk is welded to a bar of it, and it has to come to its finish.

mapush train --import pull_cart --task pull_cart --preset laptop_hasac --set algorithm.symmetries=[]
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from pull_sled import PullSled, PullSledCfg
from torch import Tensor

import mapush
from mqe.world.geometry import rotate_2d

FILE = Path(__file__).parent / "things" / "cart.xml"
AHEAD = 0.838  # [m] from the cart's middle to the robots'
LANE = 0.35  # [m] from there to a robot's, left or right


@dataclass(frozen=True)
class PullCartCfg(PullSledCfg):
    """A cart's section ``task``."""

    name: str = mapush.option("pull_cart", "the task", choices=("pull_cart",))


class PullCart(PullSled):
    """The cart comes within ``task.reach`` of the site sled/finish."""

    settings = PullCartCfg

    @classmethod
    def things(cls, cfg: PullCartCfg) -> list[mapush.Thing]:
        """Return the cart, with a bar welded to each robot's trunk."""
        return [mapush.Thing("sled", FILE, hook="grip{}")]

    def starts(self, episode: Tensor) -> Tensor:
        """Stand at the bars, wherever the cart stands."""
        cart = self.thing_starts(episode)["sled/sled"][:, None]  # (N, 1, 3)
        lane = LANE * (2 * torch.arange(self.num_agents, device=cart.device) - 1)
        bars = torch.stack((torch.full_like(lane, AHEAD), lane), dim=-1)
        places = cart[..., :2] + rotate_2d(bars, cart[..., 2])
        return torch.cat((places, cart[..., 2:].expand_as(places[..., :1])), dim=-1)


mapush.register_task("pull_cart", PullCart)
