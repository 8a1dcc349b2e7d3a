"""Run the Python blocks of pages and write their output into the `text` blocks that follow.

`python docs/run.py [PAGE ...]` refreshes the README and the pages under docs/; the tests run the
same blocks and compare. The blocks of a page share one namespace and run in an empty folder.
"""

import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterator

import jax

SESSION = {"jax_enable_x64": False, "jax_numpy_dtype_promotion": "standard"}  # a user's defaults
ROOT = pathlib.Path(__file__).resolve().parents[1]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<shown>.*?)^```\n)?", re.S | re.M
)


def pages() -> list[pathlib.Path]:
    """The README and every page with Python blocks."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if BLOCK.search(page.read_text())]


def unfolded(text: str) -> str:
    """A page with the bodies of its folded notes as if they were not indented."""
    body = r"^\?\?\? .*\n((?:    .*\n|\n)+)"
    return re.sub(body, lambda note: textwrap.dedent(note[1]), text, flags=re.M)


def outputs(page: pathlib.Path, notes: bool = False) -> Iterator[tuple[re.Match[str], str]]:
    """Yield every Python block of a page, as a match, with its output; those in notes if asked."""
    text = unfolded(page.read_text()) if notes else page.read_text()
    space: dict = {"__name__": "__main__"}
    here = pathlib.Path.cwd()
    before = {name: getattr(jax.config, name) for name in SESSION}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name, value in SESSION.items():
                jax.config.update(name, value)
            for match in BLOCK.finditer(text):
                out = io.StringIO()
                with contextlib.redirect_stdout(out):
                    exec(compile(match["code"], page.name, "exec"), space)
                yield match, out.getvalue()
        finally:
            os.chdir(here)
            for name, value in before.items():
                jax.config.update(name, value)


def refresh(page: pathlib.Path) -> None:
    """Write the output of a page's blocks into the page."""
    text = page.read_text()
    for match, printed in reversed(list(outputs(page))):
        if match["shown"] is not None:
            text = text[: match.start("shown")] + printed + text[match.end("shown") :]
        elif printed:
            raise SystemExit(f"{page.name}: a block prints, but no text block follows it.")
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:] or pages():
        refresh(pathlib.Path(name).resolve())
        print(name)
