"""What the site's build adds to MkDocs: formulas as MathML, which browsers show without a script.

A page that a measurement writes is announced where it has not been made.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

WRITTEN = {
    "benchmarks.md": "# Benchmarks\n\n`python -m benchmarks` measures, and writes this page.\n"
}

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Put a line in the place of pages that nobody has written yet."""
    for name, text in WRITTEN.items():
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, content=text))
    return files


def on_page_content(content: str, **_: object) -> str:
    """Turn every formula that the Markdown left as LaTeX into MathML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    return convert(html.unescape(match[3]), display=display)
