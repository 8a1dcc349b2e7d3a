"""Builds figures and page from records alone."""

import pathlib
from types import ModuleType

from ..._files import write_file
from ...experiments import EXPERIMENTS, load
from .. import solved
from ..folders import FIGURES, FILES, PAGE
from ..records import RecordError, read
from ..runner import with_claims
from ._draw import FORMATS, draw
from ._page import Section, page


def build(folder: pathlib.Path, files: bool = True) -> tuple[pathlib.Path | None, list[str]]:
    """Write the page of the records in a folder, and every figure as a file.

    The page draws its figures itself: without `files`, that of a user's own problem, if it is all
    there is, gets no figure files.

    Returns the page's path, and a sentence for every record that cannot be used; the page shows the
    others. Claims are computed again from the results in the record.
    """
    known = [*EXPERIMENTS, "solve"]
    names = [n for n in known if any((folder / n / file).exists() for file in FILES)]
    if not names:
        raise RecordError(f"{folder} holds no records of pdbo.")
    files = files or names != ["solve"]
    sections, damaged = [], []
    for name in names:
        try:
            sections.append(_section(folder, name, files))
        except RecordError as error:
            damaged.append(str(error))
        except OSError:
            raise
        except Exception as error:
            damaged.append(
                f"{folder / name} does not hold what {name} records ({type(error).__name__})."
            )
    if not sections:
        return None, damaged
    write_file(folder / PAGE, page(sections, FORMATS if files else (), damaged).encode())
    return folder / PAGE, damaged


def _section(folder: pathlib.Path, name: str, files: bool) -> Section:
    """A record as the page shows it; with `files` its figures are drawn and written."""
    record, module = read(folder / name), _module(name)
    if record.name != name:
        raise RecordError(f"{folder / name} holds the record of another experiment.")
    record = with_claims(record, module)
    figures = module.figures(record)
    tables = module.tables(record) if hasattr(module, "tables") else []
    scene = module.scene(record) if hasattr(module, "scene") else None
    text = EXPERIMENTS[name].text if name in EXPERIMENTS else "a problem of your own"
    section = Section(record, text, figures, tables, scene)
    page([section], FORMATS)  # a record that cannot be shown fails here, not on the whole page
    for figure in figures if files else ():
        for format, content in draw(figure).items():
            write_file(folder / FIGURES / f"{figure.name}.{format}", content)
    return section


def _module(name: str) -> ModuleType:
    """The module that shows a record: its experiment, or `solved` for a user's own problem."""
    return solved if name == "solve" else load(name)
