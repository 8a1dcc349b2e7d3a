"""What the two classification experiments share: the paper's sentences and the table's columns."""

import numpy as np

from ._results import Claim, Record

COLUMNS = ("own weights", "refitted on the training part", "refitted on training + validation")


def margin(
    record: Record, name: str, rivals: tuple[str, ...], column: str, errors: float = 0
) -> float:
    """The smallest lead over any rival in per cent, minus `errors` standard errors."""
    margins = []
    for rival in rivals:
        ahead = 100 * (record[f"{name}.{column}"] - record[f"{rival}.{column}"])
        error = ahead.std(ddof=1) / np.sqrt(len(ahead)) if errors else 0
        margins.append(ahead.mean() - errors * error)
    return float(min(margins))


def ahead_in_accuracy(record: Record, source: str) -> list[Claim]:
    """The paper's two sentences on accuracy, and a test of the hyperparameters on their own."""
    return [
        Claim(
            "It can be seen that our algorithm PDBO significantly improves over AID and ITD "
            "methods,",
            source,
            "own weights: mean test accuracy minus that of AID-FP and of ITD-R, minus twice the "
            "standard error of the difference over the splits, in per cent",
            margin(record, "PDBO", ("AID-FP", "ITD-R"), "own", errors=2),
            ">",
            0.0,
        ),
        Claim(
            "and slightly outperforms BigSAM+ITD method",
            source,
            "own weights: mean test accuracy minus that of BigSAM+ITD, in per cent",
            margin(record, "PDBO", ("BigSAM+ITD",), "own"),
            ">",
            0.0,
        ),
        Claim(
            "PDBO's hyperparameters are better than those of AID and ITD.",
            "implied by Section 5.2",
            "weights refitted on the training part with the learned hyperparameters: mean test "
            "accuracy minus the better of AID-FP and ITD-R, in per cent",
            margin(record, "PDBO", ("AID-FP", "ITD-R"), "refit"),
            ">",
            0.0,
            quoted=False,
        ),
    ]
