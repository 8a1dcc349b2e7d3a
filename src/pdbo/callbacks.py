"""Ready-made callbacks for `solve`, which pass the rows of a run on to a logger."""

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]


def scalars(
    write: Callable[[str, float, int], object], columns: Sequence[str] = ("f", "g", "eps")
) -> Callable[[Row], None]:
    """A callback that calls `write(name, value, step)` for some columns of every row.

    Experiment trackers take a name, a number and a step: TensorBoard's
    `SummaryWriter(...).add_scalar` as it is, others through a lambda.

    Arguments:
        write: called with the name of a column, its value and the step.
        columns: those of `Solution.history` to pass on.
    """

    def callback(row: Row) -> None:
        for name in columns:
            write(name, float(row[name]), int(row["step"]))

    return callback


def lines(
    write: Callable[[str], object], columns: Sequence[str] = ("f", "g", "eps")
) -> Callable[[Row], None]:
    """A callback that writes one line of text per row, for `print` or a logger's `info`.

    Arguments:
        write: called with the line.
        columns: those of `Solution.history` to show, after the step.
    """

    def callback(row: Row) -> None:
        shown = (f"{name} {float(row[name]):.4g}" for name in columns)
        write("  ".join([f"step {int(row['step'])}", *shown]))

    return callback
