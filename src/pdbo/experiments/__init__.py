"""The paper's experiments: names as plain data here, one module each, imported when it is run.

A module offers `run(seed, quick, track)`, which returns the `Results` to be recorded, and functions
of the record alone: `claims`, `figures`, and where there is something to show `tables` and `scene`.
"""

import importlib
from types import ModuleType
from typing import NamedTuple


class Experiment(NamedTuple):
    """What is known about an experiment before it is imported.

    Attributes:
        text: one line for the list and the page.
        seconds: about how long it takes on two cores, in full and quick.
        needs: modules it needs beside the package's own and matplotlib.
        download: whether it needs data from the network; such are run only by name.
    """

    text: str
    seconds: tuple[float, float]
    needs: tuple[str, ...] = ()
    download: bool = False


EXPERIMENTS = {
    "toy": Experiment("a line of inner minima: five methods, nine panels", (3, 3)),
    "paths": Experiment("multiplier and constraint along PDBO's path on the toy problem", (2, 2)),
    "sine": Experiment("an inner problem with many basins: five methods and AutoPDBO", (9, 7)),
    "rates": Experiment("error against T, N and K, with the theorems' bounds", (10, 8)),
    "digits": Experiment(
        "one l2 hyperparameter per weight of a classifier of digits", (45, 9), ("sklearn",)
    ),
}

PROBLEMS = (  # noqa: SIM905
    "toy sine mb-3.10 mb-3.11 mb-3.12 mb-3.13 mb-3.14 mb-3.15 mb-3.16 mb-3.17 mb-3.18 mb-3.19 "
    "mb-3.20 mb-3.21 mb-3.24 bda bvfim-sine iaptt vpbgd penalty-trap coreset desilva falk-liu "
    "toll-5 quadratic"
).split()
"""The names of `pdbo.problems`, repeated here so that listing them does not import JAX."""


def load(name: str) -> ModuleType:
    """The module of an experiment; "solve" is that of a user's own problem."""
    return importlib.import_module(f".{name}", __name__)
