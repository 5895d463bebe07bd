"""A callback of your own: append the success rate to success.csv in the run folder.

mapush train --import own_callback
"""

import csv

import mapush
from harl_mapush.callback import Callback
from harl_mapush.callbacks.run_context import RunContext
from harl_mapush.progress import IterationReport


class SuccessTable(Callback):
    """Appends a row to a table after every iteration."""

    def __init__(self, run: RunContext) -> None:
        self.trainer = run.trainer
        self.file = (run.folder / "success.csv").open("a", newline="")
        self.writer = csv.writer(self.file)

    def on_iteration(self, report: IterationReport) -> None:
        statistics = self.trainer.statistics()
        self.writer.writerow([report.env_steps, statistics["success_rate"]])

    def on_end(self) -> None:
        self.file.close()


mapush.register_callback("success_table", SuccessTable)
