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


def build(folder: pathlib.Path) -> tuple[pathlib.Path | None, list[str]]:
    """Draw every figure of the records in a folder and write the page.

    Returns the page's path, and a sentence for every record that cannot be used; the page shows the
    others. Claims are computed again from the results in the record.
    """
    known = [*EXPERIMENTS, "solve"]
    names = [n for n in known if any((folder / n / file).exists() for file in FILES)]
    if not names:
        raise RecordError(f"{folder} holds no records of pdbo.")
    sections, damaged = [], []
    for name in names:
        try:
            sections.append(_section(folder, name))
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
    write_file(folder / PAGE, page(sections, FORMATS, damaged).encode())
    return folder / PAGE, damaged


def _section(folder: pathlib.Path, name: str) -> Section:
    """A record as the page shows it; its figures are drawn and written."""
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
    for figure in figures:
        for format, content in draw(figure).items():
            write_file(folder / FIGURES / f"{figure.name}.{format}", content)
    return section


def _module(name: str) -> ModuleType:
    """The module that shows a record: its experiment, or `solved` for a user's own problem."""
    return solved if name == "solve" else load(name)
