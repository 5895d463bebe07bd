"""Figures in one style, written to files by Matplotlib from the extra ``report``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mqe.config import import_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito's colours, distinct for colour-blind readers.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 10,
    "grid.alpha": 0.25,
    "font.size": 9,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.08,
    "pdf.fonttype": 42,  # whole fonts; publishers refuse Matplotlib's default
}


def import_matplotlib() -> Any:
    """Import Matplotlib. Raise ConfigError if it is not installed.

    The import ignores ``MPLBACKEND``: figures need no window, and a notebook's value is unknown to
    Matplotlib in other processes.
    """
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        return import_extra("matplotlib", "report", "a figure")
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend


@contextmanager
def figure_style() -> Iterator[None]:
    """Context manager: draw and save figures in this project's style."""
    mpl = import_matplotlib()
    from cycler import cycler

    with mpl.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=COLORS)}):
        yield


def panels(number: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``number`` panels in rows of at most ``columns``.

    ``width`` and ``height`` [inch] are a panel's.
    """
    from matplotlib.figure import Figure

    columns = min(columns, number)
    rows = -(-number // columns)
    figure = Figure(figsize=(width * columns, height * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flatten())
    for panel in axes[number:]:
        panel.set_visible(False)
    return figure, axes[:number]
