"""Data hyper-cleaning: one weight per training image; half of the labels are wrong."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _catalogue, presets
from ..presets import _rows
from ..presets._rows import CLEANING
from ._images import Images, images
from ._results import Claim, Record, Results, Settings, Track
from ._views import Curve, Figure, Panel, Table, mean_and_error

if TYPE_CHECKING:
    from jax.typing import ArrayLike
    from jaxtyping import Array, Bool, Float, Int, PyTree

    from .. import Problem, Solver
    from ._trace import Trace

    Weights = dict[str, Array]
    Batch = dict[str, Array]
    Split = dict[str, dict[str, np.ndarray]]

MODELS = ("linear", "network")
HIDDEN = 300  # units of the network's hidden layer
SIZE = 100  # images in a batch, for f and for g
RIDGE = 1e-4  # weight of the squared weights in the inner function
CALLS = 10_000  # gradients and products on batches that every method may use
FITS = 3_000  # steps of plain training
FIT_STEP = {"linear": 0.1, "network": 0.3}  # step size of plain training
ROWS = 20  # times that a path is scored
PLAIN = ("all", "validation", "clean half", "clean half + validation")
QUICK = ("PDBO", "VPBGD", "ITD-R")
METHODS = (  # those with settings tuned for this study, or none to tune
    "PDBO", "Proximal-PDBO", "AutoPDBO", "BOME", "F2SA", "VPBGD", "BVFIM", "MEHA", "BigSAM+ITD",
    "AID-FP", "AID-CG", "ITD-R",
)  # fmt: skip
_CARDS = _catalogue.cards().values()
HYPERGRADIENT = [c.label for c in _CARDS if c.family == "hypergradient" and c.label in METHODS]
ANCHORS = {"penalty method": (90.1, 91.7), "unrolled": (84.6, 89.6)}
"""Published: test accuracy and F1 of the best iterate, MNIST, linear model, in per cent."""


CALLS_PER_STEP = {  # gradients and products, by method
    "PDBO": 5, "Proximal-PDBO": 5, "AutoPDBO": 14, "BOME": 8, "F2SA": 9, "VPBGD": 4, "BVFIM": 22,
    "MEHA": 6, "BigSAM+ITD": 31, "AID-FP": 12, "AID-CG": 12, "ITD-R": 16,
}  # fmt: skip


def size(found: Images, quick: bool) -> int:
    """How many images train, and as many validate."""
    return min(1000 if quick else 5000, len(found.labels) // 2)


def build(name: str, numbers: dict[str, Any]) -> Solver:
    """The solver of a method with these settings, beside those that are not tuned.

    A method that cannot run on mini-batches uses all images in every step, and takes fewer steps.
    """
    from ..solvers._streamed import Streamed

    solver = _rows.solver_of(CLEANING[name].solver, {**CLEANING[name].settings, **numbers})
    return solver if solver.batch_refusal else Streamed(solver)


def draw(found: Images, seed: list[int], size: int) -> Split:
    """Training images, exactly half of them mislabelled, and as many for validation."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(found.labels))[: 2 * size]
    train, validation = chosen[:size], chosen[size:]
    clean = np.ones(size, bool)
    clean[rng.permutation(size)[: size // 2]] = False
    wrong = (found.labels[train] + rng.integers(1, 10, size)) % 10
    labels = np.where(clean, found.labels[train], wrong).astype(np.int32)
    index = np.arange(size, dtype=np.int32)
    return {
        "train": {"X": found.pixels[train], "y": labels, "index": index},
        "validation": {"X": found.pixels[validation], "y": found.labels[validation]},
        "clean": {"clean": clean},
    }


def start(model: str, width: int, seed: int) -> Weights:
    """The weights before training: zero for the linear model, random for the network."""
    import jax
    import jax.numpy as jnp

    f32 = jnp.float32
    if model == "linear":
        return {"W": jnp.zeros((width, 10), f32), "b": jnp.zeros(10, f32)}
    keys = jax.random.split(jax.random.key(seed))
    sizes = (width, HIDDEN, 10)
    return {
        f"{name}{k + 1}": value
        for k in range(2)
        for name, value in (
            ("W", jax.random.normal(keys[k], sizes[k : k + 2], f32) / sizes[k] ** 0.5),
            ("b", jnp.zeros(sizes[k + 1], f32)),
        )
    }


def logits(w: Weights, X: Float[Array, "images pixels"]) -> Float[Array, "images 10"]:
    """The scores of the ten classes."""
    import jax.numpy as jnp

    return X @ w["W"] + w["b"] if "W" in w else jnp.tanh(X @ w["W1"] + w["b1"]) @ w["W2"] + w["b2"]


def losses(
    w: Weights, X: Float[Array, "images pixels"], y: Int[Array, " images"]
) -> Float[Array, " images"]:
    """The cross-entropy of every image."""
    import jax
    import jax.numpy as jnp

    scores = logits(w, X)
    return jax.nn.logsumexp(scores, -1) - jnp.take_along_axis(scores, y[:, None], 1)[:, 0]


def outer(x: Array | None, w: Weights, batch: Batch) -> Float[Array, ""]:
    """The loss on validation images."""
    return losses(w, batch["X"], batch["y"]).mean()


def inner(x: Float[Array, " images"], w: Weights, batch: Batch) -> Float[Array, ""]:
    """The weighted loss on training images: the weight of each is sigmoid(scale * x[index])."""
    import jax

    weights = jax.nn.sigmoid(batch["scale"] * x[batch["index"]])
    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(w))
    return (weights * losses(w, batch["X"], batch["y"])).mean() + 0.5 * RIDGE * squares


def problem(data: Split, scale: ArrayLike) -> Problem:
    """The problem in mini-batches; `scale` sets how fast the weights of images move."""
    import jax.numpy as jnp

    from .. import Batches, Problem

    scales = jnp.broadcast_to(jnp.asarray(scale, jnp.float32), data["train"]["index"].shape)
    batches = Batches(data["validation"], data["train"] | {"scale": scales}, SIZE)
    return Problem(outer, inner, batches)


def accuracy(
    w: Weights, X: Float[Array, "images pixels"], y: Int[Array, " images"]
) -> Float[Array, ""]:
    """The share of images classified correctly."""
    import jax.numpy as jnp

    return jnp.mean((jnp.argmax(logits(w, X), -1).astype(y.dtype) == y).astype(jnp.float32))


def f1(x: Float[Array, " images"], clean: Bool[Array, " images"]) -> Float[Array, ""]:
    """The F1 score for finding the clean images; an image counts as found if its x is above 0."""
    import jax.numpy as jnp

    kept = x > 0
    both = jnp.sum(kept & clean)
    return 2 * both / jnp.maximum(jnp.sum(kept) + jnp.sum(clean), 1)


def fit(part: Batch, w: Weights, steps: int, step: float, seed: int) -> Weights:
    """Plain training on some images: the weights after each of `ROWS` equal parts of the steps."""
    import jax
    from jax import lax

    from .. import Batches

    stream = Batches(part, part, SIZE).inner

    def loss(w: Weights, batch: Batch) -> Float[Array, ""]:
        squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(w))
        return outer(None, w, batch) + 0.5 * RIDGE * squares

    def once(_: int, state: tuple) -> tuple:
        w, cursor = state
        batch, cursor = stream.draw(cursor)
        return jax.tree.map(lambda a, b: a - step * b, w, jax.grad(loss)(w, batch)), cursor

    def row(state: tuple, _: None) -> tuple[tuple, Weights]:
        state = lax.fori_loop(0, steps // ROWS, once, state)
        return state, state[0]

    return lax.scan(row, (w, stream.begin(jax.random.key(seed))), length=ROWS)[1]


def parts(data: Split) -> dict[str, dict[str, np.ndarray]]:
    """The images of each kind of plain training, by its name."""
    train, validation = ({k: data[part][k] for k in "Xy"} for part in ("train", "validation"))
    half = {k: v[data["clean"]["clean"]] for k, v in train.items()}
    both = {k: np.concatenate([half[k], validation[k]]) for k in "Xy"}
    return dict(zip(PLAIN, (train, validation, half, both), strict=True))


class _Study(NamedTuple):
    """What all methods of a run share.

    Attributes:
        splits: the images, drawn again for each split.
        test: test images and their labels.
        images: how many images train, and as many validate.
        calls: the oracle calls on batches that a method may make.
        fits: the steps of plain training.
        seed: of the weights' start and of the batches.
    """

    splits: list[Split]
    test: tuple[Array, Array]
    images: int
    calls: int
    fits: int
    seed: int


def _study(found: Images, seed: int, quick: bool) -> _Study:
    """The splits, the test images and the budgets."""
    import jax.numpy as jnp

    count, calls, fits = (2, 600, 200) if quick else (5, CALLS, FITS)
    images_each = size(found, quick)
    splits = [draw(found, [seed, k], images_each) for k in range(count)]
    tested = 2000 if quick else len(found.test_labels)
    test = jnp.asarray(found.test_pixels[:tested]), jnp.asarray(found.test_labels[:tested])
    return _Study(splits, test, images_each, calls, fits, seed)


def run(seed: int, quick: bool, track: Track = iter, data: pathlib.Path | None = None) -> Results:
    """Every method and plain training, with both models, on every split."""
    found = images(data)
    study = _study(found, seed, quick)
    chosen = {m: json.loads(_rows.file_of(m).read_text("utf-8")) for m in MODELS}
    numbers = {m: {n: c["settings"] for n, c in chosen[m]["chosen"].items()} for m in MODELS}
    names = QUICK if quick else METHODS
    pairs = {f"{n}, {m}": (m, n) for m in MODELS for n in (*names, *PLAIN)}
    arrays: dict[str, np.ndarray] = {}
    calls, seconds = {}, {}
    for model, name in map(pairs.__getitem__, track(list(pairs))):
        w0 = start(model, found.pixels.shape[1], seed)
        label = f"{model}.{name}"
        if name in PLAIN:
            points = _plain_points(study, model, name, w0)
        else:
            trails, weight = _trails(study, model, name, w0)
            rows = [dict(t.rows) for t in trails]
            points = [(r.pop("x"), r) for r in rows]
            calls[label] = trails[0].calls
            seconds[label] = sum(t.seconds for t in trails)
            arrays[f"{label}.calls"] = np.linspace(0, weight * sum(calls[label].values()), ROWS + 1)
        arrays |= {f"{label}.{k}": v for k, v in _scored(study, points).items()}
    settings = _settings(found, study) | {
        "settings": numbers,
        "settings were chosen on": {
            m: f"{chosen[m]['data']}, splits {chosen[m]['seeds']}, "
            f"{chosen[m]['settings tried for each method']} tried for each method"
            for m in MODELS
        },
    }
    return Results(settings, arrays, calls, seconds)


def _settings(found: Images, study: _Study) -> Settings:
    """The settings that do not depend on the method."""
    return {
        "data": found.name,
        "splits": len(study.splits),
        "images for training and for validation": study.images,
        "test images": len(study.test[1]),
        "images in a batch": SIZE,
        "oracle calls of every method, on batches": study.calls,
        "ridge of the inner function": RIDGE,
        "hidden units": HIDDEN,
        "steps of plain training": study.fits,
        "step of plain training": FIT_STEP,
    }


def _plain_points(
    study: _Study, model: str, name: str, w0: Weights
) -> list[tuple[PyTree, Weights]]:
    """The rows of plain training on every split; training on all images keeps them all."""
    import jax
    import jax.numpy as jnp

    train = jax.jit(partial(fit, steps=study.fits, step=FIT_STEP[model], seed=study.seed))
    x = jnp.ones((ROWS, study.images)) if name == "all" else None
    return [(x, train(parts(split)[name], w0)) for split in study.splits]


def _trails(study: _Study, model: str, name: str, w0: Weights) -> tuple[list[Trace], float]:
    """A method's path on every split, and what one of its calls costs in calls on a batch."""
    import jax.numpy as jnp

    from ._trace import trace_each

    preset = presets.get(f"cleaning-{model}/{name}")
    scale, solver = preset.units["scale"], build(name, preset.settings)
    weight = study.images / SIZE if solver.batch_refusal else 1
    every = max(int(study.calls / weight / CALLS_PER_STEP[name] / ROWS), 1)
    trails = trace_each(
        [problem(split, scale) for split in study.splits], solver,
        [(jnp.zeros(study.images, jnp.float32), w0)] * len(study.splits),
        steps=ROWS * every, every=every, seed=study.seed,
        observe=lambda _, at: {"x": at.x, **at.y},
    )  # fmt: skip
    return trails, weight


def _scored(study: _Study, points: Sequence[tuple[PyTree, PyTree]]) -> dict[str, np.ndarray]:
    """The scores of the rows of every split, stacked."""
    import jax

    score = jax.jit(_scores)
    pairs = zip(points, study.splits, strict=True)
    rows = [score(*at, split, study.test) for at, split in pairs]
    return {k: np.stack([np.asarray(r[k]) for r in rows]) for k in rows[0]}


def _scores(
    x: Array | None, w: Weights, data: dict[str, Batch], test: tuple[Array, Array]
) -> dict[str, Array]:
    """The scores along the rows of one split; without x there is no F1."""
    from jax import lax

    def one(at: tuple[Array | None, Weights]) -> dict[str, Array]:
        x, w = at
        validation = data["validation"]
        kept = {} if x is None else {"f1": f1(x, data["clean"]["clean"])}
        seen = accuracy(w, validation["X"], validation["y"])
        return {"test": accuracy(w, *test), "validation": seen, **kept}

    return lax.map(one, (x, w))


def columns(record: Record, label: str) -> dict[str, dict[str, np.ndarray]]:
    """Per split, in per cent: the last iterate, the one chosen by validation, the best one."""
    pick = np.argmax(record[f"{label}.validation"], 1)
    found = {}
    for score in ("test", "f1"):
        rows = record.arrays.get(f"{label}.{score}")
        if rows is not None:
            each = np.arange(len(rows))
            found[score] = {
                "last": 100 * rows[:, -1],
                "chosen": 100 * rows[each, pick],
                "best": 100 * rows.max(1),
            }
    return found


def _labels(record: Record, model: str) -> list[str]:
    """The methods of a record, in the order of the table."""
    return [n for n in (*METHODS, *PLAIN) if f"{model}.{n}.test" in record.arrays]


def figures(record: Record) -> list[Figure]:
    """Test accuracy and F1 along the oracle calls."""
    panels = []
    for model in MODELS:
        for score, what in (("test", "test accuracy"), ("f1", "F1 of the clean set")):
            curves = [
                Curve(n, record[f"{model}.{n}.calls"], 100 * record[f"{model}.{n}.{score}"].mean(0))
                for n in _labels(record, model)
                if n not in PLAIN
            ]
            letter = "abcd"[len(panels)]
            title = f"({letter}) {model}: {what}"
            panels.append(Panel(title, "oracle calls", "per cent", curves))
    s = record.settings
    caption = (
        f"Data hyper-cleaning on {s['data']}: the mean over {s['splits']} splits of "
        f"{s['images for training and for validation']:,} training images, half of them "
        f"mislabelled. A call is a gradient or product on a batch of {s['images in a batch']}; "
        "a call of AutoPDBO uses all images and counts once for every batch in them."
    )
    return [Figure("cleaning", caption, panels, 2)]


def claims(record: Record) -> list[Claim]:
    """The published numbers, on MNIST only, and what the cleaning gains."""
    found = []
    best = columns(record, "linear.PDBO")
    if record.settings["data"] == "MNIST" and not record.quick:
        accuracy_mark, f1_mark = ANCHORS["penalty method"]
        for score, mark, what in (
            ("test", accuracy_mark, "test accuracy"),
            ("f1", f1_mark, "F1 of the recovered clean set"),
        ):
            found.append(
                Claim(
                    f"PDBO is above the penalty method's {mark} per cent.",
                    "a rerun of the protocol of Shen & Chen (2023)",
                    f"linear model, {what}, best iterate as published, mean over splits, per cent",
                    float(best[score]["best"].mean()),
                    ">",
                    mark,
                    quoted=False,
                )
            )
    for model in MODELS:
        ours = columns(record, f"{model}.PDBO")["test"]["chosen"]
        alone = columns(record, f"{model}.validation")["test"]["best"]
        ahead = ours - alone
        found.append(
            Claim(
                f"Cleaned training images improve the test accuracy: {model}.",
                "implied",
                "test accuracy of PDBO (iterate chosen by validation) minus that of training on "
                "the validation images alone (best iterate), minus twice the standard error, in "
                "per cent",
                float(ahead.mean() - 2 * ahead.std(ddof=1) / np.sqrt(len(ahead))),
                ">",
                0.0,
                quoted=False,
            )
        )
        rivals = [n for n in HYPERGRADIENT if n in _labels(record, model)]
        f1s = {n: columns(record, f"{model}.{n}")["f1"]["chosen"] for n in ("PDBO", *rivals)}
        found.append(
            Claim(
                f"PDBO finds the clean images better than hypergradient methods do: {model}.",
                "implied",
                "F1 of the iterate chosen by validation, minus that of the best of them, per cent",
                float(f1s["PDBO"].mean() - max(f1s[n].mean() for n in rivals)),
                ">",
                0.0,
                quoted=False,
            )
        )
    return found


def tables(record: Record) -> list[Table]:
    """Six columns per model: accuracy and F1 of the last, the chosen and the best iterate."""
    kinds = ("last", "chosen", "best")
    heads = {"last": "last", "chosen": "by validation", "best": "best, as published"}
    header = ("method", *(f"{s}, {heads[k]}" for s in ("accuracy", "F1") for k in kinds))
    found = []
    for model in MODELS:
        rows = []
        for name in _labels(record, model):
            cells = columns(record, f"{model}.{name}")
            rows.append(
                [
                    f"trained on {name}" if name in PLAIN else name,
                    *(
                        mean_and_error(cells[score][kind]) if score in cells else ""
                        for score in ("test", "f1")
                        for kind in kinds
                    ),
                ]
            )
        caption = (
            f"{model}, {record.settings['data']}: test accuracy and F1 of the recovered clean set "
            "in per cent, mean ± standard error over splits. Columns: the last iterate, the one "
            "with the best validation accuracy, and the best one, which is chosen on the test "
            "images and the true labels as in the published protocol."
        )
        found.append(Table(caption, header, rows))
    return found
