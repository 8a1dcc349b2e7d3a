"""What the site's build adds to MkDocs, so that it reads without a network and without a server.

Formulas become MathML, which browsers show without a script; search from disk has a script of its
own.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_SHIM = "https://unpkg.com/iframe-worker/shim"  # what the offline plugin would fetch
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    """Turn every formula that the Markdown left as LaTeX into MathML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(match: re.Match[str]) -> str:
    latex = html.unescape(match[3]).replace(r"\arg", r"\operatorname{arg}")
    if match[2] == "(":
        return convert(latex, display="inline")
    parts = re.split(r"\$\$\s*\$\$", latex.replace(r"\min_", r"\min\limits_"))
    return "".join(convert(part, display="block") for part in parts)


def on_post_page(output: str, page: Any, **_: object) -> str:
    """Put the site's own script in the place of one from the network."""
    return output.replace(_SHIM, "../" * page.url.count("/") + "scripts/worker.js")


def on_post_template(output_content: str, **_: object) -> str:
    """The same for the page that says that there is none."""
    return output_content.replace(_SHIM, "/scripts/worker.js")
