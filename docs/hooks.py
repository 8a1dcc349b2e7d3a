"""Additions to the MkDocs build, so that the site works offline and without a server.

Formulas become MathML, which browsers show without a script. Search from disk uses the site's own
script.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_SHIM = re.compile(r'https://[^"\s]*/iframe-worker/shim')  # the offline plugin would fetch this
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Convert every formula that Markdown left as LaTeX into MathML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    latex = html.unescape(match[3]).replace(r"\arg", r"\operatorname{arg}")
    if match[2] == "(":
        return convert(latex, display="inline")
    parts = re.split(r"\$\$\s*\$\$", latex.replace(r"\min_", r"\min\limits_"))
    return "".join(convert(part, display="block") for part in parts)


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Replace the script from the network by the site's own."""
    return _SHIM.sub("../" * page.url.count("/") + "scripts/worker.js", output)


def on_post_template(output_content: str, **_: object) -> str:
    """Do the same on the page for missing pages."""
    return _SHIM.sub("/scripts/worker.js", output_content)
