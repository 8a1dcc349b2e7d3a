"""The README's picture, docs/toy.png, and the record of the run that drew it."""

import pathlib
import runpy

from .record import write

ROOT = pathlib.Path(__file__).parents[1]

if __name__ == "__main__":
    toy = runpy.run_path(str(ROOT / "examples" / "toy.py"))
    settings = {"start": [2.0, [0.5, 0.5]], "steps": 100, "solvers": list(toy["solvers"])}
    print("kept in", write("toy", settings, toy["main"](str(ROOT / "docs" / "toy.png"))))
