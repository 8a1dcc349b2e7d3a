"""The page in a real browser: it shows what it should, nothing can be injected, no complaint."""

import base64
import dataclasses
import hashlib
import html
import json
import re
import shutil
import subprocess
import time
import types
import urllib.error
import urllib.request
from html.parser import HTMLParser

import numpy as np
import pytest

from pdbo.app import records, report
from pdbo.app.report import _draw, _page, _style
from pdbo.experiments import EXPERIMENTS, _views, load
from pdbo.experiments._results import Claim, Record

HOW = "missing: {}; the Debian packages chromium and chromium-driver hold them"
HOSTILE = (
    "\"'><img src=x onerror=window.owned=1></script><script>window.owned=1</script>$\\frac@DATA@"
)


@pytest.fixture(scope="module")
def results(quick_run):
    return quick_run("first")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The record of a user's problem with names that try to break out."""
    out = tmp_path_factory.mktemp("hostile")
    names = Record(
        "solve", 0, False,
        {"problem": HOSTILE, "solver": HOSTILE, "tol": 1e-4, HOSTILE: HOSTILE},
        {f"history.{k}": np.array([1.0, 0.5, 0.1]) for k in
         ("f", "inner_gap", "stationarity", "eps", "multiplier")}
        | {"history.step": np.arange(3)}
        | {f"certificate.{k}": np.array(0.1) for k in
           ("stationarity", "feasibility", "complementarity", "distance", "inner_gap",
            "inner_residual", "multiplier", "slack", "eps")},
        {HOSTILE: {"f": 1, "g": 2, "products": 3}},
        (Claim(HOSTILE, HOSTILE, HOSTILE, np.nan, "<=", np.inf),),
        {"versions": {HOSTILE: HOSTILE}, "device": HOSTILE, "platform": HOSTILE, "x64": True},
        {"wall": 1.0},
    )  # fmt: skip
    records.write(out, names)
    page, damaged = report.build(out)
    assert not damaged
    return page


PAPER = "https://arxiv.org/abs/2203.01123"  # the one link that leaves the page


class Outline(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def check_markup(text):
    found = Outline(text).found
    tags = [t for t, _ in found]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "iframe" not in tags
    for tag, attributes in found:
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert "style" not in attributes
        for name in ("src", "href"):
            if name in attributes:
                link = re.match(r"(#|figures/[\w-]+\.(pdf|svg|png)$|data:,$)", attributes[name])
                assert link or (tag, attributes[name]) == ("a", PAPER)
    (policy,) = [a["content"] for t, a in found if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.S)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_is_one_file_that_asks_for_nothing(results):
    text = (results / "index.html").read_text()
    data = check_markup(text)
    assert set(data["scenes"]) == {"toy", "sine"}
    harmless = r"http://www\.w3\.org/2000/svg|// [^\n]*|'sha256-[^']*'"
    assert "//" not in re.sub(harmless, "", text.replace(f'href="{PAPER}"', ""))


def test_links_lead_to_files(results):
    links = [a["href"] for t, a in Outline((results / "index.html").read_text()).found if t == "a"]
    files = {link for link in links if not link.startswith("#")} - {PAPER}
    assert PAPER in links and files == {
        f"figures/{p.name}" for p in (results / "figures").iterdir()
    }


def test_claims_that_do_not_hold_lead_to_where_they_would(results):
    text = (results / "index.html").read_text()
    found = Outline(text).found
    ids = {a["id"] for _, a in found if "id" in a}
    targets = {a["href"][1:] for t, a in found if t == "a" and a["href"].endswith("-where")}
    assert targets == {f"{name}-where" for name in ("toy", "paths", "sine")}  # digits: too small
    assert targets <= ids
    held = re.findall(r'<li class="claim yes">(.*?)</li>', text, re.S)
    assert held and not [claim for claim in held if "-where" in claim]


@pytest.mark.parametrize(("name", "judged"), [("problems", False), ("toy", True)])
def test_quick_runs_too_small_are_not_counted(name, judged):
    claim = Claim("a", "b", "c", 1.0, "<=", 2.0)
    record = Record(name, 0, True, {}, {}, {}, (claim,))
    text = _page._summary([types.SimpleNamespace(record=record, text="")], [])
    assert ("claims held" in text) == judged and ("too small" in text) != judged


def test_hostile_names_stay_text(hostile):
    text = hostile.read_text()
    data = check_markup(text)
    assert data["figures"]["solve"]["labels"] == [HOSTILE]
    assert f"<title>{html.escape(HOSTILE)}</title>" in text
    assert "<img" not in text
    assert "<script>window" not in text


def test_embedded_json_cannot_end_its_element():
    text = _page.embed({"a": "</script><!-- \u2028 & 'x'"})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"a": "</script><!-- \u2028 & 'x'"}


def test_one_colour_per_method_throughout():
    labels = ["PDBO", "Proximal-PDBO", "BigSAM+ITD", "AID-FP", "ITD-R", "AutoPDBO", "bound"]
    looks = _style.styles(labels)
    assert len({s.slot for s in looks.values()}) == len(labels)
    assert _style.styles(["x", "AID-FP"])["AID-FP"] == looks["AID-FP"]
    pair = _style.styles(["PDBO from a", "PDBO from b"])
    assert pair["PDBO from a"].slot == pair["PDBO from b"].slot == looks["PDBO"].slot
    assert pair["PDBO from a"].dash != pair["PDBO from b"].dash
    css = (report._page._HERE / "page.css").read_text()
    for slot in range(len(_style.COLORS)):
        assert css.count(f"--c{slot}:") == 2  # light and dark


def test_figures_show_dollars_as_dollars_and_zero_on_a_floor():
    curve = _views.Curve("$\\frac", np.arange(3), np.array([1.0, 0.0, np.nan]))
    panel = _views.Panel("a $ b", "$x", "y$", [curve], y_log=True)
    files = _draw.draw(_views.Figure("one", "", [panel]))
    assert set(files) == {"pdf", "svg", "png"}
    assert b"a $ b" in files["svg"]
    np.testing.assert_array_equal(_style.on_log(curve.y), [1.0, _style.FLOOR, np.nan])


@pytest.fixture(scope="module")
def kinds():
    """A figure of every kind of curve: bars over categories with whiskers, steps, bands."""
    heights = np.array([3.0, 1.0, 2.0])
    grouped = [_views.bars(m, heights, 0.1 * heights) for m in ("PDBO", "F2SA")]
    steps = _views.Curve("MEHA", np.array([1.0, 2.0, 8.0]), np.array([0.2, 0.5, 1.0]), kind="steps")
    band = _views.Curve("BOME", np.arange(3), heights, spread=np.array([0.5, 2.0, 0.5]))
    return _views.Figure(
        "kinds", "Every kind.",
        [
            _views.Panel("bars", "problem", "share", grouped, categories=["one", "two", "<b>"]),
            _views.Panel("steps", "ratio", "share", [steps], x_log=True),
            _views.Panel("band", "seconds", "loss", [band], y_log=True),
        ],
        columns=1,
    )  # fmt: skip


def test_figures_hold_bars_steps_and_bands(kinds):
    svg = _draw.draw(kinds)["svg"].decode()
    assert all(name in svg for name in ("one", "two", "&lt;b&gt;"))
    for color in ("#0072b2", "#332288"):  # three bars each
        assert len(re.findall(rf'<path d="[^"]+"[^>]*fill: {color}', svg)) == 3
    low, high = _style.reach(kinds.panels[2].curves[0], log=True)
    np.testing.assert_allclose(low, [2.5, 1.0, 1.5])  # 1 - 2 < 0 cannot be drawn
    np.testing.assert_allclose(high, [3.5, 3.0, 2.5])


def test_a_cell_is_a_mean_with_its_error():
    assert str(_views.mean_and_error([1.0, 2.0, 3.0])) == "2.00 ± 0.58"
    assert str(_views.mean_and_error([1.0], 1)) == "1.0"
    table = _views.Table("", ("a",), [[_views.Spread(79.263, 0.124)]])
    assert "<td>79.26 ± 0.12</td>" in _page._table(table)


# ---- a real browser ------------------------------------------------------------------------------


@dataclasses.dataclass
class Browser:
    """As much of the WebDriver protocol as these tests need."""

    port: int
    session: str = ""

    def call(self, method, path, body=None):
        data = None if method == "GET" else json.dumps(body or {}).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        request.get_method = lambda: method
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def __call__(self, script, *arguments):
        body = {"script": script, "args": list(arguments)}
        return self.call("POST", f"/session/{self.session}/execute/sync", body)

    def open(self, path):
        self.call("POST", f"/session/{self.session}/url", {"url": path.as_uri()})
        ready = self.until("return document.documentElement.dataset.ready", "true")
        assert ready == "true", f"the page's script did not run through: {self.log()}"

    def until(self, script, wanted, seconds=10):
        """The answer of a script, asked for so long unless it is the one wanted."""
        for _ in range(10 * seconds):
            if (found := self(script)) == wanted:
                break
            time.sleep(0.1)
        return found

    def resize(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        body = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        self.call("POST", f"/session/{self.session}/goog/cdp/execute", body)

    def pointer(self, *actions):
        source = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
        body = {"actions": [source | {"actions": list(actions)}]}
        self.call("POST", f"/session/{self.session}/actions", body)

    def log(self):
        entries = self.call("POST", f"/session/{self.session}/se/log", {"type": "browser"})
        return [e["message"] for e in entries]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    paths = {"chromium": chromium, "chromedriver": driver}
    if missing := [name for name, path in paths.items() if path is None]:
        pytest.skip(HOW.format(" and ".join(missing)))
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = tmp_path_factory.mktemp("browser")
    process = subprocess.Popen(
        [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    found = Browser(port)
    try:
        for _ in range(100):
            try:
                found.call("GET", "/status")
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        options = {
            "binary": chromium,
            "args": [
                "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--window-size=1280,900", f"--user-data-dir={home}",
            ],
        }  # fmt: skip
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        body = {"capabilities": {"alwaysMatch": wanted}}
        found.session = found.call("POST", "/session", body)["sessionId"]
        yield found
        found.call("DELETE", f"/session/{found.session}")
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def page(browser, results):
    browser.resize(1280, 900)
    browser.open(results / "index.html")
    yield browser
    assert browser.log() == []


def test_browser_curves_are_drawn(page):
    counts = page(
        "return [...document.querySelectorAll('[data-figure]')].map(f => "
        "[f.dataset.figure, f.querySelectorAll('.plot').length, "
        "f.querySelectorAll('.curve').length])"
    )
    shown = {name: (plots, curves) for name, plots, curves in counts}
    assert shown.items() >= {
        "toy": (9, 54), "paths": (3, 12), "sine": (3, 18), "sine-why": (3, 12), "rates": (7, 21),
        "digits": (3, 12),
    }.items()  # fmt: skip
    assert "claims held" in page("return document.querySelector('.tally').textContent")


def test_browser_every_experiment_is_whole(page, results):
    """Each section: claims, figures with curves inside their frames, tables, settings."""
    for name in (n for n, e in EXPERIMENTS.items() if not e.by_name):
        found = page(
            "const s = document.getElementById(arguments[0]); "
            "return [s.querySelectorAll('.claim').length, "
            "s.querySelectorAll('.settings tr').length,"
            " [...s.querySelectorAll('.plot')].map(p => p.querySelectorAll('.curve, .bar').length),"
            " [...s.querySelectorAll('.curve')].filter(c => !c.getAttribute('d')).length,"
            " s.innerText.match(/NaN|undefined|Infinity/g)]",
            name,
        )
        record = records.read(results / name)
        assert found[0] == len(load(name).claims(record))
        assert found[1] > 8
        assert len(found[2]) == sum(len(f.panels) for f in load(name).figures(record))
        assert all(found[2])
        assert found[3:] == [0, None]


def test_browser_hover_shows_values(page):
    place = page(
        "const s = document.querySelector('[data-figure=toy] .plot'); s.scrollIntoView({block: "
        "'center'}); const b = s.getBoundingClientRect(); "
        "return [b.left + b.width / 2, b.top + b.height / 2].map(Math.round)"
    )
    page.pointer({"type": "pointerMove", "duration": 50, "x": place[0], "y": place[1]})
    tip = page(
        "const t = document.querySelector('[data-figure=toy] .tip'); "
        "return t.hidden ? '' : t.innerText"
    )
    assert re.search(r"iteration \d+", tip)
    assert "Proximal-PDBO" in tip
    assert re.search(r"0\.0625", tip)  # where AID-FP stops
    page.pointer({"type": "pointerMove", "duration": 50, "x": 2, "y": 2})
    assert page("return document.querySelector('[data-figure=toy] .tip').hidden")


def test_browser_drag_zooms_and_resets(page):
    ticks = (
        "return [...document.querySelectorAll('[data-figure=toy] .plot')][0].querySelectorAll("
        "'text')[0].textContent + [...document.querySelectorAll('[data-figure=toy] .plot')][0]"
        ".querySelectorAll('text')[2].textContent"
    )
    before = page(ticks)
    x, y, width, height = page(
        "const s = document.querySelector('[data-figure=toy] .plot'); s.scrollIntoView({block: "
        "'center'}); const b = s.getBoundingClientRect(); "
        "return [b.left, b.top, b.width, b.height].map(Math.round)"
    )
    spots = [(x + width // 3, y + height // 3), (x + 2 * width // 3, y + 2 * height // 3)]
    page.pointer(
        {"type": "pointerMove", "duration": 0, "x": spots[0][0], "y": spots[0][1]},
        {"type": "pointerDown", "button": 0},
        {"type": "pointerMove", "duration": 100, "x": spots[1][0], "y": spots[1][1]},
        {"type": "pointerUp", "button": 0},
    )
    assert page(ticks) != before
    assert not page("return document.querySelector('[data-figure=toy] .reset').hidden")
    page("document.querySelector('[data-figure=toy] .reset').click()")
    assert page(ticks) == before


def test_browser_legend_toggles_a_method_in_every_panel(page):
    count = (
        "return document.querySelectorAll('[data-figure=toy] .curve[data-label=\"ITD-R\"]').length"
    )
    click = (
        "[...document.querySelectorAll('[data-figure=toy] .legend button')]"
        ".find(b => b.textContent === 'ITD-R').click()"
    )
    assert page(count) == 9
    page(click)
    assert page(count) == 0
    page(click)
    assert page(count) == 9


def test_browser_slider_and_starts_move_the_landscape(page):
    def slide(value):
        page(
            "const s = document.querySelector('[data-scene=toy] input'); s.value = arguments[0]; "
            "s.dispatchEvent(new Event('input'))",
            value,
        )
        return page("return document.querySelector('[data-scene=toy] output').textContent")

    def head(method):
        return page(
            "const c = document.querySelector(`[data-scene=toy] [data-head='${arguments[0]}']`); "
            "return [c.getAttribute('cx'), c.getAttribute('cy')].map(Number)",
            method,
        )

    assert slide(0) == "0 / 200"
    at_start = head("PDBO")
    assert head("AID-FP") == at_start
    assert slide(1000) == "200 / 200"
    assert head("PDBO") != at_start
    assert head("AID-FP")[1] == at_start[1]  # y2 never moves
    cells = page("return document.querySelector('[data-scene=toy] tbody').innerText")
    assert re.search(r"AID-FP\s+0\.746\s+0\.5", cells)
    page(
        "document.querySelectorAll('[data-scene=toy] .start')[1].dispatchEvent(new Event('click'))"
    )
    assert head("AID-FP")[1] != at_start[1]
    note = page("return document.querySelector('[data-scene=toy] .note').textContent")
    assert note.startswith("From x = 0, y = (2, 2): ")
    chosen = page(
        "return [...document.querySelectorAll('[data-scene=toy] .start')].map(c => "
        "c.getAttribute('aria-checked'))"
    )
    assert chosen == ["false", "true", "false", "false", "false", "false"]


def test_browser_play_runs_to_the_end_and_stops(page):
    page(
        "const s = document.querySelector('[data-scene=toy] input'); s.value = 980; "
        "document.querySelector('[data-scene=toy] .controls button').click()"
    )
    ended = (
        "const text = document.querySelector('[data-scene=toy] .controls').innerText; "
        "return text.includes('play') && text.includes('200 / 200')"
    )
    assert page.until(ended, True, seconds=5)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_browser_page_fits_its_width(page, width):
    page.resize(width, 900)
    assert page.until("return window.innerWidth", width) == width
    assert page("return document.documentElement.scrollWidth") <= width
    assert page("return parseFloat(getComputedStyle(document.body).fontSize)") >= 15


@pytest.mark.parametrize("width", [320, 1280])
def test_browser_long_names_do_not_widen_the_page(browser, tmp_path, width):
    long = "a" * 300
    curve = _views.Curve(long, np.arange(3), np.arange(3.0))
    figure = _views.Figure("long", long, [_views.Panel(long, long, long, [curve])], columns=1)
    record = Record(
        "solve", 0, False, {"problem": long, long: long}, {}, {long: {"f": 1}},
        (Claim(long, long, long, 1.0, "<=", 2.0),),
        {"versions": {long: long}, "device": long, "platform": long, "x64": True},
    )  # fmt: skip
    section = _page.Section(record, long, [figure], [_views.Table(long, (long,), [[long]])], None)
    path = tmp_path / "index.html"
    path.write_text(_page.page([section], ("pdf",), [long]))
    browser.resize(width, 900)
    browser.open(path)
    browser("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser("return document.documentElement.scrollWidth") <= width
    assert browser.log() == []


def test_browser_dark_and_light_differ(page):
    def colour(scheme):
        feature = [{"name": "prefers-color-scheme", "value": scheme}]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": feature}}
        page.call("POST", f"/session/{page.session}/goog/cdp/execute", body)
        return page("return getComputedStyle(document.body).backgroundColor")

    assert colour("light") == "rgb(255, 255, 255)"
    assert colour("dark") == "rgb(21, 23, 26)"
    colour("light")


def test_browser_draws_bars_steps_and_bands(browser, kinds, tmp_path):
    about = {"versions": {}, "device": "", "platform": "", "x64": True}
    record = Record("solve", 0, False, {"problem": "kinds"}, {}, {}, (), about)
    path = tmp_path / "index.html"
    path.write_text(_page.page([_page.Section(record, "", [kinds], [], None)], ()))
    browser.resize(1280, 900)
    browser.open(path)
    found = browser(
        "const [bars, steps, band] = document.querySelectorAll('.panel'); "
        "return [bars.querySelectorAll('.bar').length, bars.querySelectorAll('.whisker').length, "
        "bars.innerText.includes('<b>'), steps.querySelector('.curve').getAttribute('d'), "
        "band.querySelectorAll('.band').length, "
        "[...bars.querySelectorAll('.bar')].map(b => Number(b.getAttribute('height')))]"
    )
    assert found[:3] == [6, 6, True]
    assert found[3].count("L") == 4  # two steps of two lines
    assert found[4] == 1
    np.testing.assert_allclose(np.array(found[5]) / found[5][0], [1, 1 / 3, 2 / 3] * 2, rtol=1e-3)
    place = browser(
        "const b = document.querySelector('.bar').getBoundingClientRect(); "
        "return [b.left + b.width / 2, b.top + b.height / 2].map(Math.round)"
    )
    browser.pointer({"type": "pointerMove", "duration": 50, "x": place[0], "y": place[1]})
    tip = browser("return document.querySelector('.tip').innerText")
    assert tip.split() == ["one", "PDBO", "3", "±", "0.3", "F2SA", "3", "±", "0.3"]
    browser("document.querySelector('.legend button').click()")
    assert browser("return document.querySelectorAll('.bar').length") == 3
    width = "return document.querySelector('.plot').viewBox.baseVal.width"
    assert browser(width) == 720
    browser.resize(360, 800)
    assert browser.until(width, 360) == 360  # drawn anew once the browser has said so
    assert browser.log() == []


def test_browser_hostile_names_do_nothing(browser, hostile):
    browser.open(hostile)
    assert browser("return window.owned === undefined")
    labels = browser("return [...document.querySelectorAll('.legend')].map(l => l.textContent)")
    assert labels == [HOSTILE]
    assert browser("return document.images.length") == 0
    assert browser.log() == []
