"""A run's hooks."""

from harl_mapush.progress import IterationReport


class Callback:
    """Base class for callbacks on a run's events. Subclasses override hooks as needed.

    With several ranks every rank calls the hooks of its own callbacks, in one order.
    """

    def on_iteration(self, report: IterationReport) -> None:
        """Run after each iteration."""

    def on_checkpoint(self, env_steps: int) -> None:
        """Run at the end of each checkpoint interval and at the run's end."""

    def on_wait(self) -> None:
        """Run between two updates by a learner with collectors, many times an iteration."""

    def on_end(self) -> None:
        """Run once after the training, however it ended. Free the callback's resources."""
