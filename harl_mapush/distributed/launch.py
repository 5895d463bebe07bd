"""The start of ranks under ``torchrun``, their meeting, and the end of all after a rank's death.

``torchrun`` ends all ranks if one dies. A message to a hanging rank fails after some time.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from harl_mapush.distributed.ranks import ALONE, RankLostError, Ranks
from harl_mapush.distributed.stuck import ended_if_stuck
from mqe.config import ConfigError
from mqe.cores import num_cores

# Exit codes: a rank ends after another rank died or hung, or after a mistake in the settings or a
# refusal of the system.
RANK_LOST = 5
MISTAKE = 2

# Longest wait for the other ranks, while one of them compiles, evaluates or saves.
_PATIENCE = timedelta(minutes=10)


class Launch(NamedTuple):
    """This process's rank, rank count and restart count under ``torchrun``.

    The defaults describe a single process without ``torchrun``.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    restarts: int = 0

    @classmethod
    def of_environment(cls) -> Launch:
        """Read rank, sizes and restarts from torchrun's environment variables."""
        variables = {
            "RANK": "",
            "WORLD_SIZE": "",
            "LOCAL_RANK": "",
            "LOCAL_WORLD_SIZE": "1",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        texts = [os.environ.get(name, default) for name, default in variables.items()]
        if not all(re.fullmatch("[0-9]{1,9}", text) for text in texts):
            return cls()
        launch = cls(*map(int, texts))
        return launch if launch.local_size > 0 else cls()

    def device(self, device: torch.device) -> torch.device:
        """Return this rank's device, given the device for a single process.

        Raises ConfigError if the machine has fewer GPUs than ranks.
        """
        if self.size == 1 or device.type == "cpu":
            return device
        count = torch.cuda.device_count()
        if self.local_size > count:
            raise ConfigError(
                f"{self.local_size} ranks on this machine, but {count} GPU(s): use "
                f"--nproc_per_node {count}, or --device cpu"
            )
        return torch.device("cuda", self.local_rank)

    def threads(self) -> int:
        """Return the number of cores for one rank."""
        return max(1, num_cores() // self.local_size)


@contextmanager
def joined(
    launch: Launch, device: torch.device, how_to_resume: Callable[[], str]
) -> Iterator[Ranks]:
    """Context manager: yield this rank among all ranks.

    ``how_to_resume`` returns the hint for the user if a rank is lost.
    """
    if launch.size == 1:
        yield ALONE
        return
    on_gpu = device.type == "cuda"
    if on_gpu:
        # Otherwise all ranks would send their messages from the first GPU.
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        rank=launch.rank,
        world_size=launch.size,
        timeout=2 * _PATIENCE if on_gpu else _PATIENCE,  # NCCL would abort without a line
        device_id=device if on_gpu else None,
    )
    ranks = Ranks(launch.rank, launch.size, dist.new_group(backend="gloo", timeout=_PATIENCE))

    def say_lost(reason: str) -> None:
        sys.stderr.write(f"{reason}; all ranks end; {how_to_resume()}\n")
        sys.stderr.flush()

    def end() -> None:
        say_lost(f"rank {launch.rank} lost another rank (a message between GPUs has no end)")
        os._exit(RANK_LOST)

    with ExitStack() as stack:
        # Recorded graphs need resources set up by the first message.
        if on_gpu:
            ranks.sum_(torch.zeros(1, device=device))
            torch.cuda.synchronize(device)
            patience_s = _PATIENCE.total_seconds()
            stack.enter_context(ended_if_stuck(end, patience_s, lambda: ranks.num_messages))
        try:
            yield ranks
            if ranks.ends_together:
                ranks.gather(None)  # no rank ends while another one is still writing
        except RankLostError as error:
            say_lost(str(error))
            raise SystemExit(RANK_LOST) from None


def run_to_exit(main: Callable[[], int]) -> int:
    """Run ``main`` and return its exit code. With several ranks, exit instead of returning.

    Ranks exit at once because NCCL would wait for recorded graphs. A restart by ``torchrun`` would
    begin the run anew, and is refused.
    """
    launch = Launch.of_environment()
    if launch.restarts:
        if launch.rank == 0:
            sys.stderr.write(
                "torchrun starts the ranks again: leave out --max-restarts, and continue a run "
                "with --resume RUN\n"
            )
        return MISTAKE

    code = 1
    try:
        code = main()
    except SystemExit as ending:
        if not dist.is_initialized():
            raise
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except Exception:
        if not dist.is_initialized():
            raise
        traceback.print_exc()

    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
