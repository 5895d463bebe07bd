"""Tensor clients leave their tensors on the simulator's device.

The test device is torch's ``meta``. Its tensors have no numbers, so a copy to the host raises.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harl_mapush import config
from harl_mapush.clients.entries import CLIENTS
from harl_mapush.clients.harl.harl_env import HarlEnv, to_host
from harl_mapush.clients.worlds import Worlds
from tests.support.placed import PlacedEnv

N = 8


class PlacedWorlds(Worlds):
    """Builds worlds of one robot on a device."""

    def build(self, seed: int | None = None) -> Any:
        return PlacedEnv(N, 1, "meta")


CFG = config.resolve({}, {})[0]


def test_the_device_notices_copies() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        HarlEnv(PlacedEnv(N, 2, "meta")).reset()  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_gymnasium_with_tensors_copies_nothing(mode) -> None:
    env = CLIENTS["gymnasium"](PlacedWorlds(CFG), output="torch", autoreset_mode=mode)
    env.reset()
    *results, infos = env.step(torch.zeros(N, 3, device="meta"))
    assert {value.device.type for value in (*results, *infos.values())} == {"meta"}


def test_arrays_on_the_host_are_the_callers_and_row_by_row() -> None:
    ones = torch.ones(3)
    given = (torch.arange(6.0).view(2, 3).t(), torch.tensor([True, False]), ones)
    arrays = to_host(*given)
    assert [array.tolist() for array in arrays] == [[[0, 3], [1, 4], [2, 5]], [1, 0], [1, 1, 1]]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays)
    ones.zero_()
    assert arrays[2].sum() == 3.0
