"""The processes of one training that ``torchrun`` started: each has a share of the worlds, all hold
the same weights.

A single process (``ALONE``) calls, copies and draws nothing here. With several ranks, sums over
worlds become sums over all ranks' worlds. Every rank draws the random numbers of all worlds and
takes its own rows of them. So generators are in the same state everywhere, and it does not matter
which rank has a world.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mqe.config import ConfigError
from mqe.vec_env import Share

_Thing = TypeVar("_Thing")


class UnequalRanksError(RuntimeError):
    """Two ranks hold different weights; the message names them."""


class Ranks:
    """One of ``size`` processes, number ``rank``; every method but ``tick`` must be called by all
    of them together.
    """

    def __init__(self, rank: int = 0, size: int = 1, host: Any = None) -> None:
        """Count from rank 0; ``host`` is the process group of objects on the host, where there are
        several ranks.

        Ranks that only plan, and never meet, need none.
        """
        self.rank = rank
        self.size = size
        self._host = host
        self.progress = 0  # counts meetings; a rank whose count stands still hangs
        self.ends_together = True  # unless this rank ends and the others do not know
        self.is_busy = (
            True  # with work that may take long: until the first iteration is done, and in ``busy``
        )
        # Called where a meeting fails, before the error is raised.
        self.on_failure: Callable[[], None] = lambda: None

    @property
    def is_first(self) -> bool:
        """Return whether this rank writes what a run writes."""
        return self.rank == 0

    def share(self, num_envs: int) -> Share:
        """Return which worlds this rank has, ``num_envs`` of them."""
        return Share(self.rank * num_envs, self.size, self.sum_)

    def tick(self) -> None:
        """Note that this rank is making progress."""
        self.progress += 1

    # Numbers on the device; inside a captured graph these are part of it

    def sum_(self, *tensors: Tensor) -> None:
        """Add tensors up over all ranks, in place, in one float64 message."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
        self._all_reduce(flat)
        for tensor, part in zip(
            tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True
        ):
            tensor.copy_(part.view_as(tensor))

    def max_(self, tensor: Tensor) -> None:
        """Take the largest over all ranks, in place."""
        if self.size > 1:
            self._all_reduce(tensor, dist.ReduceOp.MAX)

    def mean_(self, tensor: Tensor) -> Tensor:
        """Average a tensor over all ranks, in place, and return it."""
        if self.size > 1:
            self._all_reduce(tensor)
            tensor.div_(self.size)
        return tensor

    def average_(
        self, gradient: Tensor, weight: Tensor | None, *numbers: Tensor
    ) -> tuple[Tensor, ...]:
        """Average a gradient (P,) over all ranks, in place and in one message; return ``numbers``
        (0-dim), averaged.

        A rank's gradient counts by its ``weight`` (0-dim): the sum of weights of the rows that it
        is the mean of. With None, and for ``numbers``, all ranks count alike.
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
        """Return this rank's rows, of ``shape``, of what ``sampler`` draws for all ranks."""
        return self.part(sampler((shape[0] * self.size, *shape[1:]), **how))

    def part(self, rows: Tensor) -> Tensor:
        """Return this rank's rows of those of all ranks."""
        count = len(rows) // self.size
        return rows if self.size == 1 else rows.narrow(0, self.rank * count, count)

    def order(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw an order of this rank's ``num_rows`` rows, out of one of all ranks' rows."""
        order = torch.randperm(num_rows * self.size, generator=generator, device=generator.device)
        if self.size == 1:
            return order
        is_own = order.div(num_rows, rounding_mode="floor") == self.rank
        first = torch.argsort((~is_own).to(torch.uint8), stable=True)[:num_rows]
        return order[first] - self.rank * num_rows

    # Objects on the host

    def gather(self, thing: _Thing) -> list[_Thing]:
        """Return every rank's object, by rank."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        self._meet(lambda: dist.all_gather_object(things, thing, group=self._host))
        return things

    def gather_on_first(self, thing: _Thing) -> list[_Thing]:
        """Return every rank's object on rank 0, and nothing elsewhere."""
        if self.size == 1:
            return [thing]
        things: list[Any] | None = [None] * self.size if self.is_first else None
        self._meet(lambda: dist.gather_object(thing, things, dst=0, group=self._host))
        return things or []

    def first(self, thing: _Thing) -> _Thing:
        """Return rank 0's object."""
        if self.size == 1:
            return thing
        things: list[Any] = [thing]
        self._meet(lambda: dist.broadcast_object_list(things, src=0, group=self._host))
        return things[0]

    def join_messages(self, message: str | None) -> str | None:
        """Join the messages of all ranks, each named where there are several; return None if no
        rank has any.
        """
        if self.size == 1:
            return message
        messages = [
            f"rank {rank}: {each}"
            for rank, each in enumerate(self.gather(message))
            if each is not None
        ]
        return "; ".join(messages) or None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Share a ConfigError of any rank: rank 0 raises it, with the number of the rank, and the
        others exit.

        Nothing inside may wait for another rank.
        """
        if self.size == 1:
            yield
            return
        mistake = None
        try:
            yield
        except ConfigError as error:
            mistake = str(error)
        mistakes = {
            rank: each for rank, each in enumerate(self.gather(mistake)) if each is not None
        }
        if not mistakes:
            return
        if not self.is_first:
            raise SystemExit(2)
        if len(mistakes) == self.size and len(set(mistakes.values())) == 1:
            raise ConfigError(mistakes[0])
        raise ConfigError(
            "; ".join(f"rank {rank}: {each}" if rank else each for rank, each in mistakes.items())
        )

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark work of this rank that may take longer than other ranks would wait for it."""
        before = self.is_busy
        self.is_busy = True
        try:
            yield
        finally:
            self.is_busy = before

    def check_equal(self, facts: Mapping[str, Any]) -> None:
        """Raise ConfigError on rank 0 where a rank has other settings or versions than rank 0;
        others exit.
        """
        everybody = self.gather(dict(facts))
        with self.together():
            for rank, theirs in enumerate(everybody if self.is_first else []):
                for key in {**everybody[0], **theirs}:
                    ours = everybody[0].get(key)
                    other = theirs.get(key)
                    if ours != other:
                        raise ConfigError(
                            f"{key} is {other} on rank {rank}, but {ours} on rank 0; start all "
                            "ranks with one command "
                            "line and one installation"
                        )

    def check_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise UnequalRanksError where a tensor differs from rank 0's in any bit."""
        if self.size == 1:
            return
        everybody = self.gather({name: _digest(tensor) for name, tensor in tensors.items()})
        for rank, theirs in enumerate(everybody):
            unequal = [name for name in everybody[0] if theirs[name] != everybody[0][name]]
            if unequal:
                raise UnequalRanksError(
                    f"rank {rank} holds other {', '.join(unequal)} than rank 0; the run is stopped"
                )

    def _all_reduce(self, tensor: Tensor, operation: Any = dist.ReduceOp.SUM) -> None:
        self._meet(lambda: dist.all_reduce(tensor, operation))

    def _meet(self, meeting: Callable[[], Any]) -> None:
        self.progress += 1
        try:
            meeting()
        except RuntimeError:
            self.on_failure()
            raise


ALONE = Ranks()


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(
        tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    ).hexdigest()
