"""The ranks of one training: processes with equal weights and a share of the worlds.

A single process (``ALONE``) sends, copies and draws nothing here. With several ranks, sums over
worlds become sums over all ranks' worlds. Every rank draws the random numbers for all worlds and
uses its own rows. So generators are in the same state on all ranks, and results do not depend on
the worlds' distribution.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mqe.config import ConfigError, reason_of
from mqe.vec_env import Share

_Thing = TypeVar("_Thing")
_PLACE = re.compile(r"\[[^]]*\.\w+:\d+\] ?")  # the source line in a library's message


class UnequalRanksError(RuntimeError):
    """Two ranks hold different weights. The message names the tensors."""


class RankLostError(Exception):
    """A message between ranks failed, since a rank has ended or hangs."""


class Ranks:
    """All ranks as seen from one rank. All ranks must call every method together."""

    def __init__(self, rank: int = 0, size: int = 1, host: Any = None) -> None:
        """Represent rank ``rank`` of ``size``.

        ``host`` is the process group for objects on the host. A single rank needs none.
        """
        self.rank = rank
        self.size = size
        self._host = host
        self.num_messages = 0  # sent outside CUDA graphs
        # Whether all ranks end together; False if this rank ends without the others' knowledge.
        self.ends_together = True

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the run's files and messages."""
        return self.rank == 0

    def share(self, num_envs: int) -> Share:
        """Return this rank's share of ``num_envs`` worlds."""
        return Share(self.rank * num_envs, self.size, self.sum_)

    # Numbers on the device; these calls can be captured in a graph

    def sum_(self, *tensors: Tensor) -> None:
        """Sum tensors over all ranks in place, in one float64 message."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        self._all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def max_(self, tensor: Tensor) -> None:
        """Take a tensor's maximum over all ranks in place."""
        if self.size > 1:
            self._all_reduce(tensor, dist.ReduceOp.MAX)

    def mean_(self, tensor: Tensor) -> Tensor:
        """Average a tensor over all ranks in place, and return it."""
        if self.size > 1:
            self._all_reduce(tensor)
            tensor.div_(self.size)
        return tensor

    def average_(
        self, gradient: Tensor, weight: Tensor | None, *numbers: Tensor
    ) -> tuple[Tensor, ...]:
        """Average a gradient (P,) over all ranks in place. Return the scalars ``*numbers``,
        averaged.

        One message carries both. A rank's gradient is a mean over rows, and ``weight`` (0-dim) is
        the sum of these rows' weights. The average weights ranks by this sum. With None, and for
        ``*numbers``, all ranks have equal weight.
        """
        if self.size == 1:
            return numbers
        if weight is None:
            weight = torch.ones_like(gradient[0])
        message = torch.cat((gradient * weight, torch.stack((weight, *numbers))))
        self._all_reduce(message)
        total = message[len(gradient)]
        rest = message[len(gradient) + 1 :]
        torch.div(message[: len(gradient)], total.clamp(min=1.0), out=gradient)
        return (rest / self.size).unbind()

    # Random numbers

    def draw(self, sampler: Callable[..., Tensor], shape: tuple[int, ...], **how: Any) -> Tensor:
        """Draw random numbers for all ranks by ``sampler``. Return this rank's rows, of
        ``shape``.
        """
        return self.part(sampler((shape[0] * self.size, *shape[1:]), **how))

    def part(self, rows: Tensor) -> Tensor:
        """Return this rank's rows from the rows of all ranks."""
        return rows.chunk(self.size)[self.rank]

    def order(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw an order for this rank's ``num_rows`` rows, a part of one order over all rows."""
        order = torch.randperm(num_rows * self.size, generator=generator, device=generator.device)
        if self.size == 1:
            return order
        is_own = order.div(num_rows, rounding_mode="floor") == self.rank
        first = torch.argsort((~is_own).to(torch.uint8), stable=True)[:num_rows]
        return order[first] - self.rank * num_rows

    # Objects on the host

    def gather(self, thing: _Thing) -> list[_Thing]:
        """Return all ranks' objects ``thing``, in rank order."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        self._meet(lambda: dist.all_gather_object(things, thing, group=self._host))
        return things

    def gather_on_first(self, thing: _Thing) -> list[_Thing]:
        """Return all ranks' objects on rank 0, and an empty list on the others."""
        if self.size == 1:
            return [thing]
        things: list[Any] | None = [None] * self.size if self.is_first else None
        self._meet(lambda: dist.gather_object(thing, things, dst=0, group=self._host))
        return things or []

    def join_messages(self, message: str | None) -> str | None:
        """Join the messages of all ranks, numbered if there are several. None: no messages."""
        if self.size == 1:
            return message
        messages = []
        for rank, text in enumerate(self.gather(message)):
            if text is not None:
                messages.append(f"rank {rank}: {text}")
        return "; ".join(messages) or None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Context manager: share any rank's ConfigError. Rank 0 raises with the rank's name, the
        others exit.

        No code inside may wait for another rank.
        """
        if self.size == 1:
            yield
            return
        mistake = None
        try:
            yield
        except ConfigError as error:
            mistake = str(error)
        mistakes = self.gather(mistake)
        different = set(mistakes)
        if different == {None}:
            return
        if not self.is_first:
            raise SystemExit(2)
        if mistake is not None and len(different) == 1:
            raise ConfigError(mistake)
        named = []
        for rank, text in enumerate(mistakes):
            if text is not None:
                named.append(f"rank {rank}: {text}" if rank else text)
        raise ConfigError("; ".join(named))

    def check_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise ConfigError on rank 0 if settings or versions differ between ranks. Others exit."""
        by_rank = self.gather(dict(facts))
        with self.together():
            for rank, theirs in enumerate(by_rank if self.is_first else []):
                for key in {**by_rank[0], **theirs}:
                    ours = by_rank[0].get(key)
                    other = theirs.get(key)
                    if ours != other:
                        raise ConfigError(
                            f"{key} is {other} on rank {rank}, but {ours} on rank 0; start all "
                            "ranks with one command line and one installation"
                        )

    def check_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise UnequalRanksError if a tensor differs from rank 0's in any bit."""
        if self.size == 1:
            return
        by_rank = self.gather({name: _digest(tensor) for name, tensor in tensors.items()})
        first = by_rank[0]
        for rank, theirs in enumerate(by_rank):
            unequal = [name for name in first if theirs[name] != first[name]]
            if unequal:
                raise UnequalRanksError(
                    f"rank {rank} holds other {', '.join(unequal)} than rank 0; the run is stopped"
                )

    def _all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        self._meet(lambda: dist.all_reduce(tensor, operation))

    def _meet(self, meeting: Callable[[], Any]) -> None:
        """Send a message between all ranks. Raise RankLostError if it fails."""
        self.num_messages += 1
        try:
            meeting()
        except RuntimeError as error:
            reason = _PLACE.sub("", reason_of(error)).partition(". ")[0]
            raise RankLostError(f"rank {self.rank} lost another rank ({reason})") from error


ALONE = Ranks()


def _digest(tensor: Tensor) -> str:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
