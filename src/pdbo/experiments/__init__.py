"""The experiments: their names are plain data here; each module is imported when it runs.

An experiment is one file `NAME.py` in this folder and one line in `EXPERIMENTS` below. The module
imports JAX inside its functions only, so that pages can be rebuilt without JAX. It offers

- `run(seed, quick, track) -> Results`, called in double precision. `for part in track(names)` moves
  the progress bar. The result holds the settings, plain arrays and the oracle calls by method (`f`,
  `g`, `products`): with the same seed these are the same byte for byte. Whatever differs from run
  to run (`seconds` by method, `measured`) is kept apart from them;
- `claims(record) -> list[Claim]`: a sentence, the number that tests it, and the bound that number
  has to meet. A claim must be able to fail;
- `figures(record) -> list[Figure]`: panels of lines with bands, steps (`Curve(kind="steps")`) and
  bars (`bars(label, heights, spread)` over `Panel(categories=...)`). Paper and page are drawn from
  the same description. A figure's name must be unique among all experiments;
- optionally `tables(record) -> list[Table]`, whose cells are text, numbers or `Spread`
  (`mean_and_error(values)`), and `scene(record) -> Scene`, a landscape with paths.

All but `run` are functions of the record alone: no clock, no files, no JAX. A label that begins
with the name of a method gets the method's colour. Errors that the user can put right, such as
missing data, raise `Unavailable` with one sentence that says what to do.

An experiment that needs data names it in `Experiment.data`; its `run` takes a further argument
`data`, the folder given with `--data` or None. `download` is set if it needs the network. Such
experiments, and those that take longer than two minutes, run only if they are named.
"""

import importlib
from types import ModuleType
from typing import NamedTuple


class Experiment(NamedTuple):
    """What is known about an experiment before it is imported.

    Attributes:
        text: one line for the list and the page.
        seconds: about how long it takes on two cores, in full and with `--quick`.
        needs: modules it needs besides the package's own dependencies and matplotlib.
        data: the data it reads, in a few words; empty if it needs none.
        download: whether it needs the network to get the data.
    """

    text: str
    seconds: tuple[float, float]
    needs: tuple[str, ...] = ()
    data: str = ""
    download: bool = False

    @property
    def by_name(self) -> bool:
        """Whether it runs only if it is named."""
        return self.download or self.seconds[0] > 120


class Unavailable(Exception):
    """An experiment cannot run; the message says in one sentence what to do."""


EXPERIMENTS = {
    "toy": Experiment("a line of inner minima: five methods and AutoPDBO, nine panels", (6, 6)),
    "paths": Experiment("multiplier and constraint along PDBO's path on the toy problem", (4, 4)),
    "sine": Experiment("an inner problem with many basins: five methods and AutoPDBO", (9, 7)),
    "rates": Experiment("error against T, N and K, with the theorems' bounds", (12, 9)),
    "digits": Experiment(
        "one l2 hyperparameter per weight of a classifier of digits", (45, 9), ("sklearn",)
    ),
    "newsgroups": Experiment(
        "one l2 hyperparameter per weight, or per word, of a classifier of 20 Newsgroups",
        (21600, 90),
        ("sklearn",),
        data="20 Newsgroups",
        download=True,
    ),
    "cleaning": Experiment(
        "a weight per training image, half of them mislabelled: twelve methods",
        (1000, 40),
        ("sklearn",),
        "MNIST or Fashion-MNIST, else digits",
    ),
    "meta": Experiment(
        "a start from which eight tasks are learnt: waves, and digits by a few images",
        (150, 30),
        ("sklearn",),
        "MNIST, else digits",
    ),
    "problems": Experiment(
        "every solver on every problem of the collection, with defaults", (600, 40)
    ),
    "bolib": Experiment(
        "constraints between the levels: 102 problems of BOLIB, one setting", (600, 25)
    ),
}

PROBLEMS = (  # noqa: SIM905
    "toy sine mb-3.10 mb-3.11 mb-3.12 mb-3.13 mb-3.14 mb-3.15 mb-3.16 mb-3.17 mb-3.18 mb-3.19 "
    "mb-3.20 mb-3.21 mb-3.24 bda bvfim-sine iaptt vpbgd penalty-trap coreset desilva falk-liu "
    "toll-5 quadratic"
).split()
"""The names of `pdbo.problems`, repeated here so that listing them does not import JAX."""


def load(name: str) -> ModuleType:
    """Returns the module of an experiment."""
    return importlib.import_module(f".{name}", __name__)
