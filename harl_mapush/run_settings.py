"""A run's settings: its length, its iterations and its log."""

import re
from dataclasses import dataclass

from harl_mapush.durations import parse_duration
from mqe.config import option


@dataclass(frozen=True)
class RunnerCfg:
    """Section ``runner``: a run's length, its iterations, and its collectors."""

    seed: int = option(1, "seed of every random number in the run", min=0, max=2**63 - 1)
    num_env_steps: int = option(
        100_000_000,
        "control steps of the run, summed over worlds; rounded up to whole iterations",
        min=1,
        max=10**15,
    )
    num_steps: int = option(32, "decisions of every world in one iteration", min=1, max=1_000_000)
    checkpoint_interval: int = option(
        10_000_000, "env steps between two checkpoints", min=1, max=10**15
    )
    torch_threads: int | None = option(
        None, "threads of PyTorch; null: PyTorch's choice, at most one per core", min=1, max=1024
    )
    staggered_start: bool = option(
        True, "spread of the first episodes' ends over the time limit, instead of all at once"
    )
    max_wall_time: str | None = option(
        None, "wall-clock time limit, such as 3h50m; the run saves and ends before it; null: none"
    )

    init_from: str | None = option(
        None, "checkpoint, run or pretrained:NAME with the run's initial networks"
    )
    collectors: int = option(
        0,
        "number of collecting processes beside the learner; 0: the learner collects itself",
        min=0,
        max=256,
    )
    learner_device: str = option(
        "auto",
        "device of the learner beside collectors: auto (a GPU if there is one), cpu or cuda:K",
    )
    queue_blocks: int = option(
        4, "largest number of full blocks per collector that wait for storage", min=1, max=1000
    )
    stall_time: float = option(
        60.0,
        "longest time of a collector without progress [s]; then the run ends",
        min=0.5,
        max=1e6,
    )

    def __post_init__(self) -> None:
        if self.max_wall_time is not None:
            try:
                parse_duration(self.max_wall_time)
            except ValueError as error:
                raise ValueError(f"max_wall_time (--max_wall_time): {error}") from None


@dataclass(frozen=True)
class LoggerCfg:
    """Section ``logger``: the run folder and its contents."""

    exp_name: str = option("default", "name of the experiment, part of the run folder's name")
    interval: int = option(5, "iterations between two progress lines", min=1, max=10**9)
    lines: str = option(
        "one",
        "form of the progress: one line, HARL's four lines, or (async) one line and those about "
        "collectors from MAPush's asynchronous trainer",
        choices=("one", "harl", "async"),
    )
    out_dir: str | None = option(
        None, "path of the run folder; null: results/mapush/<object>/<algo>/<exp_name>/..."
    )

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.+=,@ -]+", self.exp_name) or self.exp_name.strip(". ") == "":
            raise ValueError(
                f"exp_name: {self.exp_name!r} cannot name a folder; use letters, digits, - and _"
            )
        if self.out_dir is not None and not self.out_dir.strip():
            raise ValueError("out_dir (--out): the name of a folder is needed, not an empty one")
