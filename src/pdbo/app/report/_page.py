"""The page: one HTML file that contains everything and loads nothing from the network."""

import base64
import dataclasses
import hashlib
import html
import json
import math
import pathlib
import re
from collections.abc import Sequence

import numpy as np

from ... import __version__
from ...experiments._results import Claim, Record
from ...experiments._views import Curve, Figure, Panel, Scene, Table
from ._style import Style, on_log, reach, styles

_HERE = pathlib.Path(__file__).parent
PAPER = (
    "<p>The paper: Daouda Sow, Kaiyi Ji, Ziwei Guan and Yingbin Liang, "
    '<a href="https://arxiv.org/abs/2203.01123">arXiv 2203.01123</a> (2022).</p>'
)
TITLE = "A primal-dual approach to bilevel optimization with multiple inner minima, reproduced"


@dataclasses.dataclass(frozen=True)
class Section:
    """A record, and what its experiment shows of it."""

    record: Record
    text: str
    figures: Sequence[Figure]
    tables: Sequence[Table]
    scene: Scene | None


def page(sections: Sequence[Section], formats: Sequence[str], damaged: Sequence[str] = ()) -> str:
    """The page as text; all text from records is escaped.

    Arguments:
        sections: what to show.
        formats: the formats of the figure files beside the page.
        damaged: a sentence for each record that is left out.
    """
    style, script = ((_HERE / name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    data = {
        "figures": {f.name: _figure(f) for s in sections for f in s.figures},
        "scenes": {s.record.name: _scene(s.scene) for s in sections if s.scene is not None},
    }
    scenes = [s for s in sections if s.scene is not None]
    body = [_verdict(sections[0], damaged) if _own(sections) else _summary(sections, damaged)]
    if scenes:
        body.append(_landscapes(scenes))
    body += [_section(s, formats) for s in sections]
    parts = {
        "@POLICY@": policy,
        "@TITLE@": html.escape(_title(sections)),
        "@ABOUT@": "" if _own(sections) else PAPER,
        "@STYLE@": style,
        "@SCRIPT@": script,
        "@DATA@": embed(data),
        "@BODY@": "\n".join(body),
        "@VERSION@": html.escape(__version__),
    }
    pattern = re.compile("|".join(map(re.escape, parts)))
    text = (_HERE / "page.html").read_text("utf-8")
    return pattern.sub(lambda mark: parts[mark[0]], text)  # one pass: inserted text is not searched


def _title(sections: Sequence[Section]) -> str:
    """The paper's title; the problem's name if a user's own problem is all there is."""
    return str(sections[0].record.settings["problem"]) if _own(sections) else TITLE


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def embed(data: object) -> str:
    """JSON that is safe inside a script element: no character in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _numbers(values: np.ndarray, digits: int = 5) -> list[float | None]:
    """Numbers rounded to a few digits; None for one that is not finite."""

    def short(v: float) -> float | None:
        if not math.isfinite(v):
            return None
        v = float(f"{v:.{digits}g}")
        return int(v) if v.is_integer() and abs(v) < 1e15 else v

    return [short(float(v)) for v in values]


def _figure(figure: Figure) -> dict[str, object]:
    looks = styles([c.label for p in figure.panels for c in p.curves])
    labels = list(looks)

    def curve(c: Curve, panel: Panel) -> dict[str, object]:
        whole = np.array_equal(c.x, np.arange(len(c.x)))
        spread: dict[str, object] = {}
        if c.spread is not None:
            low, high = reach(c, panel.y_log)
            spread = {"low": _numbers(low), "high": _numbers(high)}
        return spread | {
            "label": labels.index(c.label),
            "x": None if whole else _numbers(c.x),
            "y": _numbers(on_log(c.y) if panel.y_log else c.y),
            "points": c.points,
            "kind": c.kind,
        }

    return {
        "labels": labels,
        "columns": figure.columns,
        "styles": [_style(s) for s in looks.values()],
        "panels": [
            {
                "title": p.title, "x": p.x, "y": p.y, "xLog": p.x_log, "yLog": p.y_log,
                "categories": list(p.categories),
                "curves": [curve(c, p) for c in p.curves],
            }
            for p in figure.panels
        ],
    }  # fmt: skip


def _style(style: Style) -> list[object]:
    """Slot, dashes and width; dashes in pixels here, in multiples of the width in `Style`."""
    return [style.slot, " ".join(f"{d * style.width:g}" for d in style.dash), style.width]


def _scene(scene: Scene) -> dict[str, object]:
    from contourpy import contour_generator

    contours = contour_generator(scene.x, scene.y, scene.z)
    looks = styles(list(scene.paths))
    return {
        "axes": scene.axes,
        "box": _numbers(np.array([scene.x[0], scene.x[-1], scene.y[0], scene.y[-1]])),
        "contours": [
            {"level": f"{level:g}",
             "lines": [_numbers(np.asarray(line).ravel(), 4) for line in contours.lines(level)]}
            for level in scene.levels
        ],
        "lines": [[label, _numbers(points.ravel())] for label, points in scene.lines],
        "optima": [_numbers(p) for p in scene.optima],
        "starts": [_numbers(s) for s in scene.starts],
        "notes": list(scene.notes),
        "labels": list(scene.paths),
        "styles": [_style(s) for s in looks.values()],
        "paths": [
            [_numbers(start.ravel(), 4) for start in path] for path in scene.paths.values()
        ],
    }  # fmt: skip


def _number(value: object) -> str:
    if isinstance(value, float | np.floating):
        if math.isinf(value):
            return "never" if value > 0 else "-∞"
        return "–" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def _claim(claim: Claim, judged: bool = True, where: str = "") -> str:
    verdict = ("held" if claim.held else "not held") if judged else "not judged"
    tag = "q" if claim.quoted else "span"
    sentence = f"<{tag}>{html.escape(claim.sentence)}</{tag}>"
    relation = {"<=": "≤", ">=": "≥"}.get(claim.relation, claim.relation)
    value, bound = _number(claim.value), _number(claim.bound)
    link = f' <a href="#{html.escape(where)}">Where it would hold.</a>' if where else ""
    return (
        f'<li class="claim {_mark(claim, judged)}"><span class="verdict">{verdict}</span>'
        f"{sentence} "
        f'<span class="source">{html.escape(claim.source)}</span>'
        f"<p>{html.escape(claim.measure)}: <b>{html.escape(value)}</b>, holds if "
        f'<span class="bound">{html.escape(relation)} {html.escape(bound)}</span>'
        f"{'' if claim.held or not judged else link}</p></li>"
    )


def _where(section: Section) -> str:
    """The figure that sweeps what the paper leaves open, if there is one."""
    return next((f.name for f in section.figures if f.name.endswith("-where")), "")


def _mark(claim: Claim, judged: bool) -> str:
    """The class of a claim: it decides its colour."""
    return ("yes" if claim.held else "no") if judged else "open"


def _tally(claims: Sequence[Claim]) -> tuple[int, int]:
    """How many claims held, of how many; one quotation is one claim, held if all of it did."""
    verdicts: dict[object, bool] = {}
    for number, claim in enumerate(claims):
        key = (claim.sentence, claim.source) if claim.quoted else number
        verdicts[key] = verdicts.get(key, True) and claim.held
    return sum(verdicts.values()), len(verdicts)


def _own(sections: Sequence[Section]) -> bool:
    """Whether a user's own problem is all there is."""
    return [s.record.name for s in sections] == ["solve"]


def _summary(sections: Sequence[Section], damaged: Sequence[str]) -> str:
    judged = [s.record for s in sections if s.record.judged]
    every = [c for record in judged for c in record.claims]
    held, count = _tally(every)
    small = [s.record.name for s in sections if not s.record.judged]
    quick = any(s.record.quick for s in sections)
    rows = []
    for s in sections:
        dots = "".join(
            f'<span class="dot {_mark(c, s.record.judged)}" title="{html.escape(c.sentence)}">'
            f"{('✓' if c.held else '✗') if s.record.judged else '?'}</span>"
            for c in s.record.claims
        )
        name = html.escape(s.record.name)
        rows.append(
            f'<tr><th scope="row"><a href="#{name}">{name}</a></th>'
            f"<td>{html.escape(s.text)}</td><td>{dots}</td></tr>"
        )
    failed = "".join(
        _claim(c, where=_where(s))
        for s in sections
        if s.record.judged
        for c in s.record.claims
        if not c.held
    )
    if failed:
        failed = (
            "<details open><summary>What did not hold</summary>"
            f'<ul class="claims">{failed}</ul></details>'
        )
    note = "<p>A quick run: smaller than the full one.</p>" if quick else ""
    note += "".join(f"<p>{html.escape(n)}: too small to judge its claims by.</p>" for n in small)
    note += "".join(f'<p class="damaged">Left out: {html.escape(d)}</p>' for d in damaged)
    tally = f"<b>{held}</b> of <b>{count}</b> claims held, <b>{count - held}</b> did not."
    tally = f'<p class="tally">{tally}</p>' if count else ""
    return (
        f'<section id="summary"><h2>Claims</h2>{tally}{note}'
        f'<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'
        f"{failed}<p>A claim holds if its number meets the threshold shown. All claims are listed "
        "with their numbers below.</p></section>"
    )


def _verdict(section: Section, damaged: Sequence[str]) -> str:
    """The head of the page of a user's own problem: whether it is solved."""
    note = "".join(f'<p class="damaged">Left out: {html.escape(d)}</p>' for d in damaged)
    words = section.record.settings.get("in words", "")
    words = f"<p>{html.escape(words)}</p>" if words else ""
    for claim in section.record.claims:  # there is one, unless it was made by hand
        word = "Solved" if claim.held else "Not certified"
        note = (
            f'<p class="tally"><b>{word}</b>: eps is {_number(claim.value)}, the tolerance '
            f"{_number(claim.bound)}.</p>{words}{note}"
        )
    return f'<section id="summary">{note}</section>'


def _landscapes(sections: Sequence[Section]) -> str:
    blocks = []
    for s in sections:
        assert s.scene is not None
        name = html.escape(s.record.name)
        blocks.append(
            f'<article class="scene" data-scene="{name}"><h3>{html.escape(s.scene.title)}</h3>'
            f"<p>{html.escape(s.scene.text)}</p></article>"
        )
    return (
        '<section id="landscapes"><h2>Landscapes</h2><p>Click on an open circle to '
        f"choose a start; move the slider to follow the iterations.</p>{''.join(blocks)}</section>"
    )


def _section(section: Section, formats: Sequence[str]) -> str:
    record = section.record
    parts = [f"<h2>{html.escape(record.name)}</h2><p>{html.escape(section.text)}</p>"]
    if record.name != "solve":
        claims = "".join(_claim(c, record.judged, _where(section)) for c in record.claims)
        parts.append(f'<ul class="claims">{claims}</ul>')
    for figure in section.figures:
        name = html.escape(figure.name)
        links = " ".join(f'<a href="figures/{name}.{f}">{f.upper()}</a>' for f in formats)
        parts.append(
            f'<figure id="{name}" data-figure="{name}"><figcaption>{html.escape(figure.caption)} '
            f'<span class="files">{links}</span></figcaption></figure>'
        )
    parts += [_table(t) for t in section.tables]
    about = {
        "seed": record.seed,
        "run": "quick" if record.quick else "full",
        **record.settings,
        "device": record.provenance.get("device", ""),
        "platform": record.provenance.get("platform", ""),
        "double precision": record.provenance.get("x64", ""),
        **{f"version of {k}": v for k, v in record.provenance.get("versions", {}).items()},
        "wall time": f"{record.times.get('wall', math.nan):.1f} s",
    }
    rows = "".join(
        f'<tr><th scope="row">{html.escape(str(k))}</th><td>{html.escape(_setting(v))}</td></tr>'
        for k, v in about.items()
    )
    calls = "".join(
        f'<tr><th scope="row">{html.escape(m)}</th>'
        + "".join(f"<td>{int(n):,}</td>" for n in c.values())
        + "</tr>"
        for m, c in record.calls.items()
    )
    parts.append(
        "<details><summary>Settings and provenance</summary>"
        f'<div class="scroll"><table class="settings"><tbody>{rows}</tbody></table></div>'
        '<div class="scroll"><table><caption>Oracle calls of one run.</caption><thead><tr>'
        "<th>run</th><th>gradients of f</th><th>gradients of g</th><th>products</th></tr></thead>"
        f"<tbody>{calls}</tbody></table></div></details>"
    )
    return f'<section id="{html.escape(record.name)}">{"".join(parts)}</section>'


def _setting(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_setting(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "(" + ", ".join(_setting(v) for v in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(h)}</th>' for h in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(_number(v))}</td>" for v in row) + "</tr>"
        for row in table.rows
    )
    caption = html.escape(table.caption)
    return (
        f'<div class="scroll"><table class="results"><caption>{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
