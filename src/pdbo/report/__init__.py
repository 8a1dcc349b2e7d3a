"""Figures and page, from records alone."""

import pathlib

from ..experiments import EXPERIMENTS, load
from ..experiments._record import RECORD, RecordError, read, write_file
from ._draw import FORMATS, draw
from ._page import Section, page

PAGE = "index.html"


def build(folder: pathlib.Path) -> pathlib.Path:
    """Draw every figure of the records in a folder and write the page; returns its path."""
    known = [*EXPERIMENTS, "solve"]
    names = [n for n in known if (folder / n / RECORD).is_file()]
    if not names:
        raise RecordError(f"{folder} holds no records of pdbo.")
    sections = []
    for name in names:
        record, module = read(folder / name), load(name)
        if record.name != name:
            raise RecordError(f"{folder / name} holds the record of another experiment.")
        figures = module.figures(record)
        for figure in figures:
            for format, content in draw(figure).items():
                write_file(folder / "figures" / f"{figure.name}.{format}", content)
        text = EXPERIMENTS[name].text if name in EXPERIMENTS else "a problem of your own"
        tables = module.tables(record) if hasattr(module, "tables") else []
        scene = module.scene(record) if hasattr(module, "scene") else None
        sections.append(Section(record, text, figures, tables, scene))
    write_file(folder / PAGE, page(sections, FORMATS).encode())
    return folder / PAGE
