"""Millions of hyperparameters: a linear classifier of 20 Newsgroups on sparse data."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import numpy as np

from .. import presets
from ..presets._rows import NEWSGROUPS
from ._accuracy import COLUMNS, ahead_in_accuracy, lead
from ._results import Claim, Record, Results, Settings, Track
from ._views import Curve, Figure, Panel, Table, bars, level, listed, mean_and_error

if TYPE_CHECKING:
    from jaxtyping import Array, Float, PyTree

    from .. import Problem, Solver
    from ..solvers import Point
    from ._corpus import Corpus, Sparse
    from ._trace import Trace

    Weights = dict[str, Array]

PAPER = 79.26  # per cent: PDBO's best test accuracy in the paper
RIVALS = 76.2  # per cent: the same of AID-FP and ITD-R
NEAR = 0.5  # per cent of accuracy that count as equal
TRAIN, BOTH = 79.2, 82.0  # per cent: refitted accuracies of an independent AID-CG, per feature
_PDBO, _PROXIMAL, _SHORT, _OWN, _PENALTY, _IMPLICIT, _RIVAL = (
    NEWSGROUPS[row].settings
    for row in (
        "PDBO", "Proximal-PDBO", "PDBO with N = 1", "PDBO, per feature", "V-PBGD",
        "AID-CG, per feature", "BigSAM+ITD",
    )
)  # fmt: skip


def _units(name: str) -> dict[str, float]:
    """A unit of the rows per feature that have it, by method."""
    found = {row.partition(",")[0]: preset.units for row, preset in NEWSGROUPS.items()}
    return {method: units[name] for method, units in found.items() if name in units}


SETTINGS: Settings = {
    "primal step of PDBO": _PDBO["primal_step"],
    "dual step of PDBO": _PDBO["dual_step"],
    "first multiplier of PDBO": _PDBO["multiplier0"],
    "steps of the others, inner and outer": _RIVAL["outer_step"],
    "inner steps N": _PDBO["inner_steps"],
    "smoothing": _PDBO["smoothing"],
    "averaging of BigSAM": _RIVAL["averaging"],
    "proximal strengths": _PROXIMAL["proximal_f"],
    "round steps of Proximal-PDBO": _PROXIMAL["round_steps"],
    "penalty and primal step of V-PBGD": [_PENALTY["penalty"], _PENALTY["primal_step"]],
    "unit of the offsets": 0.1,
    "N = 1: primal step of PDBO, start of the inner step": [
        _SHORT["primal_step"], _SHORT["inner_start"],
    ],
    "per feature: unit of x": _units("unit of x"),
    "per feature: speed of level and exponent": _units("speed of level and exponent"),
    "per feature, PDBO: primal step, first multiplier": [_OWN["primal_step"], _OWN["multiplier0"]],
    "per feature, AID-CG: outer step, inner and linear steps": [
        _IMPLICIT["outer_step"], _IMPLICIT["linear_steps"],
    ],
}  # fmt: skip
"""The offsets of the classes are measured in tenths, so that a step of 100 is stable for them as it
is for the weights. x is bounded so that an inner step of 100 on its regulariser stays stable. Per
feature, x consists of a level and an exponent of the feature's variance, both shared by all
features, and one number per feature: without the shared part only a few features would move, and
never their mean. Settings that the paper does not give were chosen on a fifth of the training
documents, held out for this; no choice used the test documents."""
STEPS = {  # iterations
    "PDBO": 2000, "AID-FP": 2000, "ITD-R": 2000, "BigSAM+ITD": 2000, "Proximal-PDBO": 2000,
    "AutoPDBO": 200, "BOME": 2000, "F2SA": 2000, "V-PBGD": 2000, "PDBO with N = 1": 1000,
    "PDBO, per feature": 4000, "AID-CG, per feature": 1000, "AutoPDBO, per feature": 400,
}  # fmt: skip
METHODS = tuple(STEPS)
FEATURES = tuple(name for name in METHODS if "," in name)
PLAIN = "one tuned l2"
ROWS = 100  # times that a path is observed


def run(
    seed: int,
    quick: bool,
    track: Track = iter,
    data: pathlib.Path | None = None,
    rows: tuple[str, ...] | None = None,
) -> Results:
    """Every method, or some rows of the table, on every split, in single precision."""
    from .._precision import single
    from ._corpus import load

    corpus = load(data)
    with single():
        corpus = _smaller(corpus) if quick else corpus
        return _run(corpus, seed, quick, track, rows or (PLAIN, *METHODS))


def _smaller(corpus: Corpus) -> Corpus:
    """A tenth of the documents and the most frequent of their words."""
    train, test = corpus.train[::10], corpus.test[::10]
    common = np.argsort(-np.diff(train.tocsc().indptr), kind="stable")[:2000]
    return corpus._replace(
        train=train[:, common],
        train_labels=corpus.train_labels[::10],
        test=test[:, common],
        test_labels=corpus.test_labels[::10],
    )


def _run(corpus: Corpus, seed: int, quick: bool, track: Track, rows: tuple[str, ...]) -> Results:
    count = 2 if quick else 5
    exponents = (-4.0, -2.0, 0.0) if quick else (-6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 2.0)
    refit_steps, shorter = (200, 40) if quick else (1000, 1)
    study = Study(corpus, seed, count, refit_steps)
    solvers = {name: presets.get(f"newsgroups/{name}").solver for name in METHODS}
    arrays: dict[str, np.ndarray] = {}
    calls, seconds, memory = {}, {}, {}
    for name in track(rows):
        if name == PLAIN:
            found = _tuned(study, exponents)
        else:
            traces, found = _learned(study, name, solvers[name], STEPS[name] // shorter, seed)
            calls[name], memory[name] = traces[0].calls, traces[0].memory
            seconds[name] = float(np.mean([t.seconds for t in traces]))
        arrays |= {f"{name}.{k}": v for k, v in found.items()}
    settings = SETTINGS | {
        "corpus": corpus.source,
        "precision": "float32",
        "iterations": {n: STEPS[n] // shorter for n in METHODS},
        "splits": count,
        "sizes": study.sizes,
        "exponents tried for the tuned l2": list(exponents),
        "quasi-Newton steps per refit": refit_steps,
    }
    counts = (1, 10) if quick else (1, 2, 5, 10, 20)
    growth = _growth(study.problems("PDBO", "")[0], study.per_weight, study.zero, counts)
    return Results(settings, arrays, calls, seconds, {"bytes": memory, "growth": growth})


def _tuned(study: Study, exponents: tuple[float, ...]) -> dict[str, np.ndarray]:
    """The columns of one penalty for all weights, the best on validation of those tried."""
    one = study.per_feature
    table = np.asarray([[study.worth(one + e, d) for d in study.splits] for e in exponents])
    best = np.argmin(table[:, :, 2], 0)  # of (exponents, splits, 3)
    chosen = table[best, np.arange(len(study.splits))]
    return {
        "exponent": np.asarray(exponents)[best],
        "own": chosen[:, 0],
        "best": chosen[:, 0],
        "refit": chosen[:, 0],
        "refit.both": chosen[:, 1],
    }


def _learned(
    study: Study, name: str, solver: Solver, steps: int, seed: int
) -> tuple[list[Trace], dict[str, np.ndarray]]:
    """A method's paths on all splits, and its columns."""
    from ._trace import trace_each

    method, _, per = name.partition(",")
    problems = study.problems(method, per)
    between = max(1, steps // ROWS)
    traces = trace_each(
        problems, solver, study.starts(per),
        steps=steps, every=between, seed=seed, observe=study.observe,
    )  # fmt: skip
    accuracy, loss = (np.stack([t.rows[k] for t in traces]) for k in ("accuracy", "loss"))
    pairs = zip(traces, problems, strict=True)
    learned = [study.exponents(t.last.x, problem.data) for t, problem in pairs]
    pairs = zip(learned, study.splits, strict=True)
    chosen = np.asarray([study.worth(x, d) for x, d in pairs])
    return traces, {
        "step": np.arange(0, steps + 1, between),
        "accuracy": accuracy,
        "loss": loss,
        "own": accuracy[:, -1],
        "best": accuracy.max(1),
        "range": np.asarray([[x.min(), x.mean(), x.max()] for x in learned]),
        "refit": chosen[:, 0],
        "refit.both": chosen[:, 1],
    }


class Study:
    """The corpus split several times, the problems on it, and scores for hyperparameters.

    An argument `per` is empty for one hyperparameter per weight, and names a feature otherwise.
    """

    def __init__(self, corpus: Corpus, seed: int, count: int, refit_steps: int = 1000):
        import equinox as eqx
        import jax.numpy as jnp

        from .. import Free
        from .._minimize import minimize
        from ..linear import SparseMatrix, accuracy, cross_entropy, penalty

        self.documents, features = corpus.train.shape
        classes = int(corpus.train_labels.max()) + 1
        self.half = half = self.documents // 2
        draws = [np.random.default_rng([seed, k]).permutation(self.documents) for k in range(count)]
        halves = [(np.sort(d[:half]), np.sort(d[half : 2 * half])) for d in draws]
        room = max(corpus.train[part].nnz for pair in halves for part in pair)

        def part(X: Sparse, labels: np.ndarray, nnz: int | None = None) -> dict[str, PyTree]:
            return {"X": SparseMatrix.from_scipy(X, nnz=nnz), "y": jnp.asarray(labels)}

        def some(rows: np.ndarray) -> dict[str, PyTree]:
            return part(corpus.train[rows], corpus.train_labels[rows], room)

        self.splits = [
            {"train": some(a), "validation": some(b), "scale": _log_scale(corpus.train[a])}
            for a, b in halves
        ]
        self.every = part(corpus.train, corpus.train_labels)
        self.test = part(corpus.test, corpus.test_labels)
        self.zero = {"weights": jnp.zeros((features, classes)), "offsets": jnp.zeros(classes)}
        self.per_weight, self.per_feature = self.zero["weights"], jnp.zeros((features, 1))
        self.bound = np.log(features * classes / SETTINGS["steps of the others, inner and outer"])
        self.sizes = {
            "documents": [half, half, corpus.test.shape[0]],
            "weights": [features, classes],
        }

        @eqx.filter_jit
        def refit(x: Array, d: PyTree) -> Weights:
            def loss(w: Weights) -> Float[Array, ""]:
                return cross_entropy(w, d["X"], d["y"]) + penalty(x, w)

            return minimize(loss, Free(), self.zero, refit_steps).point

        @eqx.filter_jit
        def score(w: Weights, d: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
            return accuracy(w, d["X"], d["y"]), cross_entropy(w, d["X"], d["y"])

        self.refit, self.score = refit, score

    def problems(self, method: str, per: str) -> list[Problem]:
        """The problem of every split, in the units of a method."""
        import jax.numpy as jnp

        from .. import Box, Free, Problem

        unit = SETTINGS["per feature: unit of x"].get(method, 1.0)
        speed = SETTINGS["per feature: speed of level and exponent"].get(method, 0.0)
        numbers = {k: jnp.asarray(v, jnp.float32) for k, v in (("unit", unit), ("speed", speed))}
        where = Free() if per else Box(-self.bound, self.bound)
        more = numbers | {"test": self.test}
        return [Problem(self._outer, self._inner, d | more, where) for d in self.splits]

    def _outer(self, x: PyTree, w: Weights, d: PyTree) -> Float[Array, ""]:
        from ..linear import cross_entropy

        return cross_entropy(_weights(w), d["validation"]["X"], d["validation"]["y"])

    def _inner(self, x: PyTree, w: Weights, d: PyTree) -> Float[Array, ""]:
        from ..linear import cross_entropy, penalty

        loss = cross_entropy(_weights(w), d["train"]["X"], d["train"]["y"])
        return loss + penalty(self.exponents(x, d), w)

    def exponents(self, x: PyTree, d: PyTree) -> Array:
        """The logarithms of the regularisers."""
        import jax.numpy as jnp

        if not isinstance(x, dict):
            return x
        shared = x["level"] + x["exponent"] * d["scale"]
        return jnp.clip(d["unit"] * (x["own"] + d["speed"] * shared), -self.bound, self.bound)

    def starts(self, per: str) -> list[tuple[PyTree, Weights]]:
        """All zero; per feature, one l2 for all words and the weights trained with it."""
        import jax.numpy as jnp

        if not per:
            return [(self.per_weight, self.zero)] * len(self.splits)
        x = {"own": self.per_feature, "level": jnp.zeros(()), "exponent": jnp.zeros(())}
        found = [self.refit(self.per_feature, d["train"]) for d in self.splits]
        unit = SETTINGS["unit of the offsets"]
        return [(x, w | {"offsets": w["offsets"] / unit}) for w in found]

    def observe(self, problem: Problem, at: Point) -> dict[str, Array]:
        """Test accuracy and validation loss of a method's own weights."""
        from ..linear import accuracy

        t = problem.data["test"]
        right = accuracy(_weights(at.y), t["X"], t["y"])
        return {"accuracy": right, "loss": problem.outer(at.x, at.y)}

    def worth(self, x: Array, split: PyTree) -> list[float]:
        """The test accuracies of refitted weights, and a validation loss.

        The weights are refitted on the training part and on all documents; the loss is that of the
        former. With all documents the loss is a mean over more terms, so the regulariser is scaled
        down to count the same per document.
        """
        w = self.refit(x, split["train"])
        both = self.refit(x - np.log(self.documents / self.half), self.every)
        loss = self.score(w, split["validation"])[1]
        return [
            float(v) for v in (self.score(w, self.test)[0], self.score(both, self.test)[0], loss)
        ]


def _weights(w: Weights) -> Weights:
    """A method's weights, with the offsets converted from their unit."""
    return w | {"offsets": SETTINGS["unit of the offsets"] * w["offsets"]}


def _log_scale(counts: Sparse) -> Float[Array, "features 1"]:
    """For each feature the logarithm of its variance, centred at their weighted mean."""
    import jax.numpy as jnp

    from ..sklearn._search import moments

    _, variance = moments(counts, np.ones(counts.shape[0]), True)
    there = variance > 0
    scale = np.log(variance, where=there, out=np.zeros_like(variance))
    scale -= np.average(scale, weights=variance)
    return jnp.asarray(np.where(there, scale, 0)[:, None], jnp.float32)


def _growth(
    problem: Problem, x: Array, w: Weights, counts: tuple[int, ...]
) -> dict[str, list[int]]:
    """The most bytes that one iteration holds, by the number of inner steps."""
    import equinox as eqx
    import jax

    from .. import ITD, PDBO

    step = SETTINGS["steps of the others, inner and outer"]
    found: dict[str, list[int]] = {"inner steps": list(counts)}
    for name, make in {
        "PDBO": lambda n: PDBO(step, 0.001, step, n, multiplier0=0.0),
        "ITD-R": lambda n: ITD(step, step, n),
    }.items():
        found[name] = []
        for n in counts:
            solver = make(n)
            state = solver.init(problem, x, w, jax.random.key(0))
            program = eqx.filter_jit(solver.step).lower(problem, state)  # pyright: ignore[reportFunctionMemberAccess]
            size = program.compile().compiled.memory_analysis()
            parts = size.argument_size_in_bytes + size.output_size_in_bytes
            found[name].append(int(parts + size.temp_size_in_bytes))
    return found


def _seconds(record: Record, name: str) -> np.ndarray:
    """The time of every row of a path."""
    step = record[f"{name}.step"]
    return step / step[-1] * record.times.get("seconds", {}).get(name, np.nan)


def arrival(record: Record, name: str, accuracy: float) -> float:
    """Seconds until the mean test accuracy, in per cent, is reached; infinite if it never is."""
    reached = np.flatnonzero(100 * record[f"{name}.accuracy"].mean(0) >= accuracy)
    return float(_seconds(record, name)[reached[0]]) if len(reached) else float("inf")


def figures(record: Record) -> list[Figure]:
    """Accuracy against time, memory against inner steps, and what the hyperparameters gain."""
    whole = [m for m in METHODS if "," not in m]
    paths = []
    for m in whole:
        accuracy = 100 * record[f"{m}.accuracy"][:, 1:]
        spread = accuracy.std(0, ddof=1)
        paths.append(Curve(m, _seconds(record, m)[1:], accuracy.mean(0), spread=spread))
    names = [m.replace(", per feature", " / word") for m in METHODS]
    gains = []
    for mark, title, key in zip("ab", COLUMNS[1:], ("refit", "refit.both"), strict=True):
        values = [100 * (record[f"{m}.{key}"] - record[f"{PLAIN}.{key}"]) for m in METHODS]
        spread = np.asarray([v.std(ddof=1) for v in values])
        heights = bars(f"above {PLAIN}", [v.mean() for v in values], spread)
        gains.append(Panel(f"({mark}) {title}", "", "per cent", [heights], categories=names))
    growth = record.times.get("measured", {}).get("growth", {})
    sizes = [
        Curve(m, np.asarray(growth["inner steps"]), np.asarray(growth[m]) / 1e6, points=True)
        for m in ("PDBO", "ITD-R")
        if m in growth
    ]
    panels = [
        Panel("(a) test accuracy, own weights", "seconds", "per cent", paths, x_log=True),
        Panel("(b) memory of an iteration", "inner steps N", "megabytes", sizes),
    ]
    caption = (
        f"20 Newsgroups ({record.settings['corpus']}): mean and standard deviation over "
        f"{record.settings['splits']} splits. Time counts the compiled steps of one split, on "
        f"{record.provenance.get('device', 'an unknown device')}."
    )
    more = (
        f"20 Newsgroups: test accuracy of weights refitted with the learned hyperparameters, minus "
        f"that with {PLAIN}; mean and standard deviation over the splits."
    )
    return [
        Figure("newsgroups", caption, panels),
        Figure("newsgroups-worth", more, gains, 1),
        _where(record),
    ]


def _where(record: Record) -> Figure:
    """Stopping earlier, and other accuracies to reach."""
    steps = {m: record[f"{m}.step"] for m in ("PDBO", "BigSAM+ITD")}
    panels, caption = lead(record, steps)
    top = max(100 * record[f"{m}.accuracy"].mean(0).max() for m in ("AID-FP", "ITD-R"))
    goals = np.arange(70.0, top, 0.1)
    ours = np.array([arrival(record, "PDBO with N = 1", goal) for goal in goals])
    theirs = np.array([min(arrival(record, m, g) for m in ("AID-FP", "ITD-R")) for g in goals])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = ours / theirs
    curves = [Curve("PDBO with N = 1", goals, share), level("a tenth", goals, 0.1)]
    panels.append(
        Panel("(c) time relative to AID and ITD", "accuracy to reach, per cent", "ratio", curves)
    )
    caption += (
        " (c) Time to reach an accuracy, up to the best of AID-FP and ITD-R, relative to the "
        f"faster of them; the claim is on {RIVALS:g} per cent. It is at most a tenth at these: "
        f"{listed(goals[share <= 0.1])}."
    )
    return Figure("newsgroups-where", caption, panels)


def claims(record: Record) -> list[Claim]:
    """The paper's sentences, the numbers of its table, and what the hyperparameters gain."""
    source = "Section 5.2"
    significantly, slightly, hyperparameters = ahead_in_accuracy(record, source)
    target = 100 * record["BigSAM+ITD.accuracy"].mean(0)[-1] - NEAR
    faster = Claim(
        "with a much faster convergence speed.",
        source,
        f"seconds until PDBO is within {NEAR} per cent of BigSAM+ITD's last accuracy, compared "
        "with half of what BigSAM+ITD needs",
        arrival(record, "PDBO", target),
        "<",
        0.5 * arrival(record, "BigSAM+ITD", target),
    )
    reached = Claim(
        f"PDBO reaches {PAPER} per cent.",
        "Figure 4, the table",
        "mean over the splits of the best test accuracy along the path, as in the paper, in "
        "per cent",
        100 * float(record["PDBO.best"].mean()),
        ">=",
        PAPER,
        quoted=False,
    )
    rivals = min(arrival(record, m, RIVALS) for m in ("AID-FP", "ITD-R"))
    tenth = Claim(
        f"PDBO passes {RIVALS} per cent in a tenth of the time of AID and ITD.",
        "Figure 4, the plot",
        "seconds of PDBO with N = 1 divided by those of the faster of AID-FP and ITD-R; zero if "
        "neither gets there",
        arrival(record, "PDBO with N = 1", RIVALS) / rivals if rivals else float("nan"),
        "<=",
        0.1,
        quoted=False,
    )
    first = [significantly, slightly, faster, reached, hyperparameters, tenth]
    return [*first, *_feature_claims(record), _memory_claim(record)]


def _feature_claims(record: Record) -> list[Claim]:
    """That a regulariser per feature beats one for all, after refitting on either set."""
    found = []
    for column, part, bound in (
        ("refit", "training part", TRAIN),
        ("refit.both", "both parts", BOTH),
    ):
        place = "the training part" if column == "refit" else part
        found.append(
            Claim(
                f"Hyperparameters learned per feature are worth more than one tuned l2: {part}.",
                "an independent implementation of AID-CG on one split",
                f"mean test accuracy of the best method after refitting on {place}, per cent",
                max(100 * float(record[f"{m}.{column}"].mean()) for m in FEATURES),
                ">=",
                bound,
                quoted=False,
            )
        )
    return found


def _memory_claim(record: Record) -> Claim:
    """That PDBO's memory does not depend on the number of inner steps."""
    growth = record.times.get("measured", {}).get("growth", {})
    return Claim(
        "PDBO's memory does not grow with the inner steps.",
        "implied by Algorithm 1",
        "bytes per iteration with the most inner steps, divided by those with one",
        growth["PDBO"][-1] / growth["PDBO"][0] if growth else float("nan"),
        "<=",
        1.05,
        quoted=False,
    )


def tables(record: Record) -> list[Table]:
    """Test accuracies, time, oracle calls and memory of every row."""
    times = record.times.get("seconds", {})
    sizes = record.times.get("measured", {}).get("bytes", {})
    rows = []
    for m in (*METHODS, PLAIN):
        cells: list[object] = [
            mean_and_error(100 * record[f"{m}.{k}"]) for k in ("best", "own", "refit", "refit.both")
        ]
        made = record.calls.get(m, {})
        cells.append(f"{times[m]:.2f}" if m in times else "")
        cells.append(f"{sum(made.values()):,}" if made else "")
        cells.append(f"{sizes[m] / 1e6:.0f}" if m in sizes else "")
        rows.append([m, *cells])
    caption = (
        "Test accuracy in per cent, mean ± standard error over the splits. The paper reports the "
        "best accuracy of a method's own weights along its path. The own weights of PDBO and "
        "others were also trained on the validation part, so only the refitted columns measure "
        "the hyperparameters themselves. Seconds, oracle calls (gradients and Hessian- or "
        "Jacobian-vector products) and megabytes are those of one split. Rows per feature have one "
        "regulariser per word, plus a level and an exponent of the word's variance shared by all "
        "words, and start from weights trained with one l2 for all. The other rows have one "
        "regulariser per weight and start from zero."
    )
    header = ("method", "own, best on the path", *COLUMNS, "seconds", "oracle calls", "MB")
    return [Table(caption, header, rows)]
