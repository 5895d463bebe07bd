"""A callback of your own: append the success rate to success.csv in the run folder.

mapush train --import own_callback
"""

import csv

import mapush
from harl_mapush.callbacks.callback import Callback
from harl_mapush.experiment import Experiment
from harl_mapush.trainer import IterationReport


class SuccessTable(Callback):
    """Appends a row to a table after every iteration."""

    def __init__(self, experiment: Experiment) -> None:
        self.trainer = experiment.trainer
        self.file = (experiment.folder / "success.csv").open("a", newline="")
        self.writer = csv.writer(self.file)

    def on_iteration(self, report: IterationReport) -> None:
        statistics = self.trainer.statistics()
        self.writer.writerow([report.env_steps, statistics["success_rate"]])

    def on_end(self) -> None:
        self.file.close()


mapush.register_callback("success_table", SuccessTable)
