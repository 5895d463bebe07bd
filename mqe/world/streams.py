"""Counter-based random numbers: a draw depends on seed, world, episode and purpose only."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Multipliers and shifts of the SplitMix64 finaliser (Steele, Lea & Flood 2014), as signed 64-bit
# integers.
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)


class Streams:
    """Random numbers for N worlds, equal on every device and independent of earlier draws.

    A draw is about thirty operations on the device at any size: draw all random values of an
    episode at once (``UniformRanges``). Column k in a draw does not depend on the number of
    columns.
    """

    def __init__(
        self,
        seed: int,
        num_envs: int,
        device: torch.device | str,
        first: int = 0,
        places: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """Key the streams by ``seed``. Worlds are numbered from ``first``, or ``places`` gives each
        one's seed and number.
        """
        keys = places or [(seed, number) for number in range(first, first + num_envs)]
        seeds, numbers = torch.tensor(keys, dtype=torch.int64, device=device).unbind(dim=1)
        self.device = seeds.device
        self.numbers = numbers  # (N,) of the worlds
        self.once = torch.zeros_like(numbers)  # (N,) "episode" of draws once per world
        self._world_key = _mix(_mix(seeds) + numbers * _STEP)  # (N,)
        self._counters: dict[int, Tensor] = {}  # by the number of columns

    def uniform(self, purpose: int, episode: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
        """Draw float32 in [0, 1), (N, *shape), for ``episode`` (N,) int64, from the stream
        ``purpose``.
        """
        key = _mix(self._world_key + _mix(episode + (purpose << 40)))
        # The last fold would change low bits only.
        bits = _stir(key.unsqueeze(1) + self._counter(math.prod(shape)))
        return (_shift(bits, 40) * 2.0**-24).view(-1, *shape)

    def between(
        self, low: float, high: float, purpose: int, episode: Tensor, shape: tuple[int, ...] = ()
    ) -> Tensor:
        """Draw float32 in [low, high), (N, *shape)."""
        return low + (high - low) * self.uniform(purpose, episode, shape)

    def normal(self, purpose: int, episode: Tensor, shape: tuple[int, ...] = ()) -> Tensor:
        """Draw standard normal float32, (N, *shape), by Box and Muller's transform."""
        pair = self.uniform(purpose, episode, (2, *shape))
        radius = torch.sqrt(-2.0 * torch.log(1.0 - pair[:, 0]))
        return radius * torch.cos(2.0 * math.pi * pair[:, 1])

    def _counter(self, count: int) -> Tensor:
        if count not in self._counters:
            number = torch.arange(1, count + 1, dtype=torch.int64, device=self._world_key.device)
            self._counters[count] = number * _STEP
        return self._counters[count]


class UniformRanges:
    """C random values drawn at once, each uniform in its own range."""

    def __init__(self, ranges: Sequence[tuple[float, float]], device: torch.device | str) -> None:
        """Store the ranges [low, high)."""
        low, high = torch.tensor(ranges, device=device).unbind(dim=1)
        self._low = low
        self._span = high - low

    def draw(self, streams: Streams, purpose: int, episode: Tensor) -> Tensor:
        """Return float32 (N, C) for ``episode`` (N,) int64."""
        return self._low + self._span * streams.uniform(purpose, episode, self._low.shape)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right with zeros. torch's own shift repeats the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _stir(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    return (x ^ _shift(x, 27)) * _MIX_2


def _mix(x: Tensor) -> Tensor:
    x = _stir(x)
    return x ^ _shift(x, 31)
