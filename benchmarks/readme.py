"""Write the pictures and tables of README and docs from the records of runs."""

import functools
import importlib
import io
import json
import math
import pathlib
import re
import runpy
import sys
from typing import Any

import numpy as np

import pdbo
from pdbo.app.records import read
from pdbo.experiments._results import Claim
from pdbo.experiments._views import Table
from pdbo.solvers import SOLVERS

from .protocols import BOUNDS
from .record import FOLDER, write

ROOT = pathlib.Path(__file__).parents[1]


def records(name: str) -> list[dict]:
    """The records of a benchmark on a CPU and on a GPU."""
    return [json.loads((FOLDER / f"{name}-{kind}.json").read_text()) for kind in ("cpu", "gpu")]


def table(found: list[dict], rows: list[tuple[str, list[str]]]) -> str:
    """A table with one row per figure and one column per device."""
    kinds = [f"{r['device']}, {r['platform'].split(', ')[1]}, JAX {r['versions']['jax']}"
             for r in found]  # fmt: skip
    lines = ["| | " + " | ".join(kinds) + " |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| {title} | {' | '.join(values)} |" for title, values in rows)])


def speeds() -> str:
    """The table of speeds, from the records of `python -m benchmarks.core`."""
    found = records("core")
    figures = [
        ("one PDBO iteration on the toy", "toy", "microseconds_per_iteration", "{:.3g} µs"),
        ("the same, per start, many starts under `vmap`", "starts",
         "microseconds_per_iteration_and_start", "{:.3g} µs"),
        ("first call with `PDBO()`, including compilation", "compilation", "seconds", "{:.1f} s"),
        ("share of the copy bandwidth on {variables} variables", "memory_speed",
         "share_of_copy_bandwidth", "{:.0%}"),
        ("cost of a live progress line", "progress", "overhead", "{:.1%}"),
    ]  # fmt: skip
    rows = []
    for title, part, key, form in figures:
        sizes = " and ".join(f"{r['results'][part].get('variables', 0):,}" for r in found)
        values = [form.format(r["results"][part][key]) for r in found]
        rows.append((title.format(variables=sizes), values))
    return table(found, rows)


def sparse() -> str:
    """The table of speeds on sparse data, from the records of `python -m benchmarks.sparse`."""
    found = records("sparse")
    figures = [
        ("value and gradient, relative to handwritten SciPy on the CPU", "gradient", "times_scipy",
         "{:.2f} times"),
        ("one PDBO iteration, N = 5", "iterations", "PDBO_milliseconds", "{:.3g} ms"),
        ("one ITD iteration, N = 5", "iterations", "ITD_milliseconds", "{:.3g} ms"),
        ("least bytes per PDBO iteration", "iterations", "bytes", "{:,}"),
        ("the same per second", "iterations", "bandwidth_GB_per_s", "{:,.0f} GB"),
        ("bandwidth of a copy", "iterations", "copy_bandwidth_GB_per_s", "{:,.0f} GB/s"),
        ("share of it", "iterations", "share_of_copy_bandwidth", "{:.0%}"),
    ]  # fmt: skip
    rows = [
        (title, [form.format(r["results"][part][key]) for r in found])
        for title, part, key, form in figures
    ]
    return table(found, rows)


def newsgroups() -> str:
    """The table of 20 Newsgroups, from the record of `python -m benchmarks.newsgroups`."""
    from pdbo.experiments import newsgroups

    return _markdown(newsgroups.tables(_kept("newsgroups"))[0])


def estimator() -> str:
    """Test accuracies of the estimators, from the records of `python -m benchmarks.estimator`."""
    small, large = (
        json.loads((FOLDER / f"estimator-{name}.json").read_text())
        for name in ("small", "newsgroups")
    )
    rows = []
    for name, found in small["results"].items():
        plain = found["LogisticRegressionCV"]
        cells = [f"{100 * plain['accuracy']:.2f}"]
        for kind in ("one penalty", "per feature"):
            row = found[kind]
            ahead, error = (100 * row[k] for k in ("ahead", "standard_error_of_ahead"))
            ahead = round(ahead, 2) + 0.0  # no sign on a zero
            cells.append(f"{100 * row['accuracy']:.2f} ({ahead:+.2f} ± {error:.2f})")
        rows.append((name, *cells))
    fits = large["results"]["fits"]
    known, words = large["results"]["shape"]
    cell = f"{100 * large['results']['mean_accuracy']:.2f}"
    rows.append((f"20 Newsgroups, {known:,} documents, {words:,} words", "", "", cell))
    header = ("test accuracy in per cent", "LogisticRegressionCV", 'per="scalar"', 'per="feature"')
    return (
        f"Mean over {small['settings']['splits']} splits of the same data. In brackets: the lead "
        "over LogisticRegressionCV ± its standard error. 20 Newsgroups: the usual test part, mean "
        f"over {len(fits)} shuffles. All settings are defaults.\n\n"
        + _markdown(Table("", header, rows))
    )


def penalties() -> str:
    """Test errors on sparse truths, from records of `python -m benchmarks.estimators`."""
    folds, split = (_sparse_truths(name) for name in ("sparse", "held_out"))
    return (
        "Test error relative to LassoCV on the same data, mean ± standard error, and processor "
        "seconds of a fit, one core. Data sets have 200 samples (make_regression: 300); the "
        "features are standard normal, with correlations 0.5^|j - k| or in groups of 20; the noise "
        'is half as long as the signal. "the true features" is least squares that knows which '
        "features matter. All models have the same data and, here, the same five "
        f"folds.\n\n{folds}\n\nThe same with 100 samples that train and 100 that validate, as "
        f"papers on bilevel optimisation have it. In brackets: the test error.\n\n{split}"
    )


def _sparse_truths(name: str) -> str:
    found = json.loads((FOLDER / f"estimators-{name}.json").read_text())["results"]
    rows = []
    for model in dict.fromkeys(model for table in found.values() for model in table):
        cells = []
        for measured in (table.get(model) for table in found.values()):
            if measured is None:
                cells.append("")
                continue
            ratio = measured["relative_to_LassoCV"]
            seconds = f"{measured['median_seconds']:.2g} s"
            shown = f"{measured['mean']:.3g}, {seconds}" if name == "held_out" else seconds
            error = ratio["standard_error"]
            about = f" ± {error:.2f}" if error else ""
            cells.append(f"{ratio['mean']:.2f}{about} ({shown})")
        counts = {table[model]["data_sets"] for table in found.values() if model in table}
        rows.append((model, max(counts), *cells))
    return _markdown(Table("", ("", "data sets", *found), rows))


def real() -> str:
    """Test errors on real data, from the record of `python -m benchmarks.estimators real`."""
    found = json.loads((FOLDER / "estimators-real.json").read_text())
    rows = []
    for title, table in found["results"].items():
        rivals = {k: v for k, v in table.items() if "above" not in v}
        best = min(rivals, key=lambda k: rivals[k]["mean"])
        unit = 100 / rivals[best]["mean"]
        for name, row in table.items():
            if "above" in row:
                above = row["above"][best]
                rows.append(
                    (
                        title, f"{best}: {rivals[best]['mean']:.4g}", name, f"{row['mean']:.4g}",
                        f"{unit * above['mean']:+.1f} ± {unit * above['standard_error']:.1f} %",
                        f"{row['median_seconds']:.2g} s ({row['first_seconds']:.2g} s)",
                        f"{rivals[best]['median_seconds']:.2g} s",
                    )
                )  # fmt: skip
    header = ("data", "the best of scikit-learn's", "model", "test error", "above the best",
              "fit (the first)", "fit of the best")  # fmt: skip
    return (
        f"Squared errors (diabetes, alcohol) and shares of wrong answers, mean over "
        f"{found['settings']['seeds']} splits, features standardised. The best of scikit-learn's "
        "cross-validated models is chosen by these test errors, which flatters it.\n\n"
        + _markdown(Table("", header, rows))
    )


def cleaning() -> str:
    """Hyper-cleaning on MNIST, from a record of `pdbo reproduce cleaning`."""
    from pdbo.experiments import cleaning

    found = cleaning.tables(_kept("cleaning"))
    return "\n\n".join(f"{table.caption}\n\n{_markdown(table)}" for table in found)


def arrival() -> str:
    """Time to the rivals' accuracy on a CPU, from `python -m benchmarks.newsgroups arrival`."""
    from pdbo.experiments import newsgroups

    if not (path := FOLDER / "arrival-cpu.json").exists():
        return ""
    record = json.loads(path.read_text())
    found = record["results"]
    time = {n: float(np.mean(r["iterations"])) * r["seconds_each"] for n, r in found.items()}
    rows = [
        (
            name,
            f"{np.mean(row['iterations']):.0f}",
            f"{1e3 * row['seconds_each']:.0f} ms",
            f"{time[name]:.1f} s",
            f"{time[name] / time['AID-FP']:.3f}",
        )
        for name, row in found.items()
    ]
    accuracy, splits = (record["settings"][k] for k in ("accuracy", "splits"))
    header = (f"to {accuracy} %", "iterations", "each", "time", "relative to AID-FP")
    about = f"{record['platform'].split(', ')[1]}, JAX {record['versions']['jax']}"
    first, rival = (np.asarray(found[n]["iterations"]) for n in ("PDBO with N = 1", "AID-FP"))
    each = found["PDBO with N = 1"]["seconds_each"] / found["AID-FP"]["seconds_each"]
    study = _kept("newsgroups")
    seconds = newsgroups.arrival(study, "PDBO", newsgroups.PAPER)
    by_split = ", ".join(f"{ratio:.2f}" for ratio in np.sort(each * first / rival))
    return (
        f"On a CPU ({about}), means over {splits} splits:\n\n{_markdown(Table('', header, rows))}"
        f"\n\nOn individual splits, PDBO with N = 1 takes {by_split} of AID-FP's time. In the full "
        f"study, on an {study.provenance['device']}, the mean accuracy of PDBO passes the paper's "
        f"{newsgroups.PAPER} % after {seconds:.2f} s, not counting compilation."
    )


def steps() -> str:
    """The step-size recipe on data cleaning, from the record of `python -m benchmarks.steps`."""
    record = json.loads((FOLDER / "steps.json").read_text())
    found = record["results"]
    rows = {row: {} for part in found.values() for row in part}
    for part, scores in found.items():
        for row, score in scores.items():
            accuracy, f1 = (100 * np.mean(score[k]) for k in ("accuracy", "f1"))
            rows[row][part] = f"{accuracy:.1f} / {f1:.1f}"
    cells = [(f"`{row}`", *(cells.get(part, "") for part in found)) for row, cells in rows.items()]
    s = record["settings"]
    return (
        "Data cleaning with half of the labels wrong: test accuracy / F1 of the recovered clean "
        f"set in per cent, mean over {s['splits']} splits, {s['oracle calls']:,} oracle calls on "
        f"batches of {s['images in a batch']}, last iterate.\n\n"
        + _markdown(Table("", ("solver", *found), cells))
    )


def cleaned() -> str:
    """The guide's cleaning with other seeds and settings, from `python -m benchmarks.labels`."""
    from .labels import CHOSEN

    record = json.loads((FOLDER / "labels.json").read_text())
    rows = []
    for name, runs in record["results"].items():
        scores = [[run[k] for run in runs] for k in ("kept", "thrown out")]
        cells = [f"{np.median(s):.1f} ({min(s):.1f} to {max(s):.1f})" for s in scores]
        rows.append((name, len(runs), *cells, sum(run["certified"] for run in runs)))
    first, last = (record["settings"]["seeds"][k] for k in (0, -1))
    head = ("settings", "runs", "labels kept", "thrown out", "runs certified")
    return (
        f"F1 of the labels kept and of those thrown out: median, smallest and largest. {CHOSEN} "
        f"These are the seeds {first} to {last}, or the first five of them.\n\n"
        + _markdown(Table("", head, rows))
    )


def seeds() -> str:
    """The row of the guide's own settings in `cleaned`, in a sentence."""
    record = json.loads((FOLDER / "labels.json").read_text())
    runs = record["results"]["as in the guide"]
    kept, slowest = [run["kept"] for run in runs], max(run["CPU seconds"] for run in runs)
    return (
        f"With {len(runs)} other random seeds F1 of the labels kept is {min(kept):.1f} to "
        f"{max(kept):.1f}, in at most {math.ceil(slowest)} CPU seconds per run: "
        "[Measured results](../results.md#cleaning-labels-the-guides-settings)."
    )


def protocols() -> str:
    """The default on mini-batches beside tuned methods, from `python -m benchmarks.protocols`."""
    labels = {"ours": "always wrong", "V-PBGD": "V-PBGD's", "BOME": "BOME's"}
    records = [
        json.loads((FOLDER / f"protocols-{name}.json").read_text())
        for name in ("mnist", "fashion-mnist", "digits")
    ]
    methods = ("default", "PDBO, tuned", "VPBGD, tuned", "F2SA, tuned", "trained on noisy labels")
    rows = []
    for record in records:
        for part in sorted(record["results"], key=lambda p: list(labels).index(p.split(",")[0])):
            protocol, model = part.split(", ")
            found = record["results"][part]
            cells = [_accuracy_and_f1(found[m]) if m in found else "" for m in methods]
            rows.append((record["settings"]["data"], labels[protocol], model, *cells))
    settings = records[0]["settings"]
    return (
        f"Test accuracy / F1 of the recovered clean set in per cent, mean over "
        f"{settings['splits']} splits, {settings['oracle calls']:,} oracle calls. An empty cell "
        "was not measured.\n\n"
        + _markdown(Table("", ("data", "labels", "model", *methods), rows))
        + _bounds(records[1]["results"]["BOME, linear"])
    )


def _bounds(found: dict[str, Any]) -> str:
    """What knowing the labels brings with BOME's protocol."""
    every, right = (np.mean(found[row]["accuracy"]) for row in BOUNDS)
    return (
        f"\nWith BOME's labels of Fashion-MNIST, a linear model fitted to the true labels of all "
        f"training and validation images reaches {every:.2f}, and {right:.2f} if it is fitted to "
        "those images alone whose label was right, each stopped early by other images. A method "
        "that finds every wrong label and corrects none can hardly reach more than the second."
    )


def waves() -> str:
    """Meta-learning of waves in a few seconds, from the record of `python -m benchmarks.meta`."""
    record = json.loads((FOLDER / "meta-seconds.json").read_text())
    rows = []
    for name, found in record["results"].items():
        seeds = [row for key, row in found.items() if key.startswith("seed")]
        until = next(key for key in seeds[0] if "until" in key)
        reached = [row[until] for row in seeds if row[until] is not None]
        middle = f"{np.median(reached):.1f}" if reached else ""
        parts = [np.median([row[k] for row in seeds]) for k in ("f", "validation loss")]
        new = np.median([row["on new tasks"] for row in seeds])
        cells = (f"{part:.3g}" for part in (*parts, new))
        rows.append((name, f"{len(reached)} of {len(seeds)}", middle, *cells))
    seconds = record["settings"]["processor seconds"]
    heads = ("method", "reached 0.35", "after", "f", "learnt again", "on new tasks")
    return (
        f"Medians over {len(seeds)} seeds after about {seconds:g} seconds of processor time, "
        "compilation included; the time after which a record of f was below 0.35 is the median of "
        "the runs that got there.\n\n" + _markdown(Table("", heads, rows))
    )


def _accuracy_and_f1(score: dict[str, Any]) -> str:
    """The means over splits; plain training has no F1."""
    return " / ".join(f"{np.mean(score[k]):.2f}" for k in ("accuracy", "f1") if score[k])


def overhead() -> str:
    """What `solve` adds to bare steps, from the record of `python -m benchmarks.overhead`."""
    record = json.loads((FOLDER / "overhead.json").read_text())
    names = {
        "variables": "100,000 variables",
        "newsgroups": "20 Newsgroups, 2.6 million weights and as many hyperparameters",
        "network": "a network of 10.7 million parameters, mini-batches",
    }
    rows = [
        (
            names[part],
            found["device"],
            f"{found['seconds']['bare']:.2f} s",
            f"{found['ratio']:.2f}",
            f"{found['ratio without a tolerance']:.2f}",
        )
        for part, found in record["results"].items()
    ]
    head = ("PDBO", "device", "bare steps", "`solve`", "`solve(tol=None)`")
    return (
        f"{record['settings']['steps']:,} steps, compiled before; `solve` as a multiple of the "
        "bare steps, without looking at the certificate.\n\n" + _markdown(Table("", head, rows))
    )


def bridge() -> str:
    """f and g in PyTorch, from the record of `python -m benchmarks.torch_bridge`."""
    if not (path := FOLDER / "torch.json").exists():
        return ""
    record = json.loads(path.read_text())
    found, settings = record["results"], record["settings"]
    steps = [
        (f"{part['parameters']:,}", *(f"{part[k]:,.1f} ms" for k in ("passes_ms", "step_ms")),
         f"{part['ratio']:.2f}", f"{part['one_step_per_call_ms']:,.1f} ms")
        for part in found["overhead"].values()
    ]  # fmt: skip
    head = ("parameters", "its passes in PyTorch alone", "a step", "ratio", "a step alone")
    times = {}
    for entries in found["target"].values():
        for name, entry in entries.items():
            reached = "–" if "error" in entry else _spread(entry)
            times.setdefault(name, []).append(reached if entry.get("reached") else "–")
    titles = {"digits": "weight decay", "cleaning": "label cleaning"}
    columns = ("to the target", *(titles[task] for task in found["target"]))
    rows = [(name, *cells) for name, cells in times.items()]
    return (
        f"A step of PDBO with {settings['inner_steps']} inner gradients on a network, medians of "
        f"processor time on one thread, PyTorch {settings['torch']}. `solve` takes 100 steps or "
        "more in a call unless `every` says otherwise; here it is 50, or 4 for the largest "
        "network, and one for the last column, as a call copies the state:\n\n"
        f"{_markdown(Table('', head, steps))}\n\nProcessor time to the targets of "
        "[the benchmarks](benchmarks.md), after a first run: medians and, in brackets, "
        "quartiles of runs in turns. The others have the best settings of a search, `solve` has "
        "none.\n\n" + _markdown(Table("", columns, rows))
    )


def _spread(entry: dict[str, Any]) -> str:
    """The median and the quartiles of a time, in milliseconds."""
    middle, ends = 1e3 * entry["processor_seconds"], entry["processor_quartiles"]
    return f"{middle:.0f} ms ({1e3 * ends[0]:.0f}–{1e3 * ends[1]:.0f})"


def scoreboard() -> str:
    """Results of the solvers by kind of problem, from a record of `pdbo reproduce problems`."""
    from pdbo.experiments import problems

    if (record := _kept("problems")) is None:
        return ""
    board = problems.tables(record)[0]
    return f"{board.caption}\n\n{_markdown(board)}"


def solvers() -> str:
    """The table of solvers, from their class variables."""
    rows = []
    for name, kind in SOLVERS.items():
        refusal = kind().batch_refusal
        products = "yes" if kind.needs_products else "no"
        if name == "AutoPDBO":
            products = "yes, by its first part, `Implicit`"
        batches = f"no: {refusal}" if refusal else "yes"
        rows.append((kind.label, f"`{name}`", kind.family, products, batches, kind.citation))
    header = ("method", "solver", "family", "second-order products", "mini-batches", "reference")
    return _markdown(Table("", header, rows))


def entries() -> str:
    """The reference entries of the solvers."""
    lines = []
    for name, kind in SOLVERS.items():
        home = "pdbo" if name in pdbo.__all__ else "pdbo.solvers"
        members = "\n    options: {members: [from_theory]}" if hasattr(kind, "from_theory") else ""
        lines.append(f"::: {home}.{name}{members}")
    return "\n\n".join(lines)


def profiles() -> str:
    """The picture next to the scoreboard."""
    return _figures("problems")


def claims() -> str:
    """The claims of the paper, experiment by experiment, from records of `pdbo reproduce`."""
    from pdbo.experiments import EXPERIMENTS, load

    parts = []
    for name in REPRODUCED:
        if (record := _kept(name)) is None:
            continue
        found = load(name).claims(record)
        parts.append(f"## {name}: {EXPERIMENTS[name].text}\n\n{_figures(name)}")
        sentences = [_sentence(c) for c in found]
        again = [s in sentences[:k] for k, s in enumerate(sentences)]
        rows = [
            ("the same" if known else said, c.measure, _compared(c), "yes" if c.held else "**no**")
            for c, said, known in zip(found, sentences, again, strict=True)
        ]
        parts.append(_markdown(Table("", ("claim", "measured", "value", "holds"), rows)))
    return "\n\n".join(parts)


REPRODUCED = ("toy", "paths", "sine", "rates", "digits", "newsgroups", "cleaning")


def _sentence(claim: Claim) -> str:
    return f"“{claim.sentence}” {claim.source}" if claim.quoted else claim.sentence


def _compared(claim: Claim) -> str:
    relation = {"<=": "≤", ">=": "≥"}.get(claim.relation, claim.relation)
    return f"{claim.value:.3g} {relation} {claim.bound:.3g}"


def _kept(name: str) -> Any:
    """The record of an experiment in benchmarks/records, or None."""
    return read(FOLDER / name) if (FOLDER / name).is_dir() else None


def _markdown(table: Table) -> str:
    lines = [f"| {' | '.join(table.header)} |", f"|{'---|' * len(table.header)}"]
    cell = lambda value: str(value).replace("|", "\\|")
    return "\n".join([*lines, *(f"| {' | '.join(map(cell, row))} |" for row in table.rows)])


def _figures(name: str) -> str:
    """The figures of a record, from docs/figures, each with its caption."""
    from pdbo.experiments import load

    if (record := _kept(name)) is None:
        return ""
    found = load(name).figures(record)
    return "\n\n".join(f"![{f.name}](figures/{f.name}.png)\n\n{f.caption}" for f in found)


def draw() -> None:
    """Draw every figure that a page shows, with few colours, into docs/figures."""
    from PIL import Image

    from pdbo.app.report._draw import draw
    from pdbo.experiments import load

    folder = ROOT / "docs" / "figures"
    folder.mkdir(exist_ok=True)
    for name in (*REPRODUCED, "problems"):
        if (record := _kept(name)) is None:
            continue
        for figure in load(name).figures(record):
            picture = Image.open(io.BytesIO(draw(figure)["png"])).convert("RGB")
            picture.quantize(64).save(folder / f"{figure.name}.png", optimize=True)


def short() -> str:
    """The libraries in a few words, from the record of `python -m benchmarks`."""
    from .page import OURS, ratio

    record = json.loads((FOLDER / "peers.json").read_text())
    workloads = record["results"]["workloads"].values()
    ours = [w["entries"][OURS] for w in workloads]
    rows = ["| | targets reached | median time | median memory | certificate | tuning needed |",
            "|---|---|---|---|---|---|"]  # fmt: skip
    names = dict.fromkeys(n for w in workloads for n in w["entries"])
    for name in names:
        found = [(w["entries"].get(name), o) for w, o in zip(workloads, ours, strict=True)]
        tried = [(e, o) for e, o in found if e is not None and "error" not in e]
        reached = sum(e["reached"] for e, _ in tried)
        cells = [f"{reached} of {len(tried)}"]
        for key in ("seconds", "peak_bytes"):
            known = [r for r in (ratio(e, o, key) for e, o in tried) if r is not None]
            cells.append(f"{float(f'{np.median(known):.2g}'):g}×" if known else "–")
        mine = name.startswith(OURS)
        untuned = name in (f"{OURS}, untuned", "scikit-learn")
        cells += ["yes" if mine else "no", "no" if untuned else "yes"]
        used = {e["settings"].get("solver", "AutoPDBO") for e, _ in tried} if mine else ()
        which = f" ({' or '.join(sorted(used, reverse=True))})" if used else ""
        rows.append(f"| {name}{which} | {' | '.join(cells)} |")
    return "\n".join(rows)


TABLES = (
    short, speeds, sparse, newsgroups, arrival, estimator, penalties, real, cleaning, cleaned,
    seeds, protocols, waves, overhead, steps, bridge,
    scoreboard, solvers, entries, profiles, claims,
)  # fmt: skip


OWN = ("parts", "devices", "bolib", "svm", "large_constraints")
"""Benchmarks whose modules make their tables themselves: `figures(record)`."""


def _own(name: str) -> str:
    module = importlib.import_module(f".{name}", __package__)
    return module.figures(json.loads((FOLDER / f"{name}.json").read_text()))


def fill(text: str) -> str:
    """A page with its tables written again."""
    makers = {make.__name__: make for make in TABLES}
    makers |= {name: functools.partial(_own, name) for name in OWN}
    for name, make in makers.items():
        marks = f"<!-- {name}: python -m benchmarks.readme -->", f"<!-- end of {name} -->"
        if marks[0] in text:
            pattern = re.escape(marks[0]) + ".*?" + re.escape(marks[1])
            made = "\n".join((marks[0], *filter(None, [make()]), marks[1]))
            text = re.sub(pattern, lambda _, made=made: made, text, flags=re.S)
    return text


def pages() -> list[pathlib.Path]:
    """The pages that have tables."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if "python -m benchmarks.readme -->" in page.read_text()]


def main() -> None:
    """Write the tables and, unless called with `tables`, the pictures."""
    if sys.argv[1:] != ["tables"]:
        pictures()
    tables()


def tables() -> None:
    """Write the tables of all pages."""
    for page in pages():
        page.write_text(fill(page.read_text()))


def pictures() -> None:
    """Draw the figures of the records, and the toy's from a run of the example."""
    toy = runpy.run_path(str(ROOT / "examples" / "toy.py"))
    settings = {"start": [2.0, [0.5, 0.5]], "steps": 100, "solvers": list(toy["solvers"])}
    print("written to", write("toy", settings, toy["main"](str(ROOT / "docs" / "toy.png"))))
    draw()


if __name__ == "__main__":
    main()
