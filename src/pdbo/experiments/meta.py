"""Meta-learning: a start for a network from which eight tasks are learnt by few examples each."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ._images import Images, images
from ._results import Claim, Record, Results, Track
from ._views import Curve, Figure, Panel, Table, mean_and_error

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from .. import Problem, Solver

    Layers = list[tuple[Array, Array]]
    Batch = dict[str, Array]
    Tasks = dict[str, dict[str, np.ndarray]]

KINDS = ("sinusoid", "few-shot")
TASKS = 8
SHOTS = 10  # examples of a sinusoid for training, and as many for validation
WAYS, PER_CLASS = 5, 4  # classes of an image task, and images of each for training
PROXIMAL = 0.05  # how strongly a task's weights are held near x
HIDDEN = 40
SEEDS, CALLS, ROWS = 5, 20_000, 10
QUICK = (2, 12_000)  # seeds and calls of a quick run
TARGET = 0.35  # the validation loss on waves that the default has to get below
ADAPT = 200  # gradients of g for the weights of the tasks, from x
DEFAULT, START = "default (BatchPDBO)", "random start"
RIVALS: dict[str, dict[str, dict[str, Any]]] = {  # steps chosen on tasks of another seed
    "sinusoid": {
        "AID-CG": {"outer_step": 0.3, "inner_step": 0.1, "inner_steps": 10, "linear_steps": 5},
        "ITD-R": {"outer_step": 1.0, "inner_step": 0.3, "inner_steps": 10},
    },
    "few-shot": {
        "AID-CG": {"outer_step": 0.1, "inner_step": 0.3, "inner_steps": 10, "linear_steps": 5},
        "ITD-R": {"outer_step": 0.1, "inner_step": 0.3, "inner_steps": 10},
    },
}
CALLS_PER_STEP = {"AID-CG": 17, "ITD-R": 31}
EARLY, LATE = 90, 63  # the most calls per step of the default while it tries rates, and later


def sinusoids(seed: int) -> Tasks:
    """Waves of random amplitude and phase, as in Finn, Abbeel & Levine (2017)."""
    rng = np.random.default_rng([seed, 1])

    def waves(count: int, size: np.ndarray, phase: np.ndarray) -> dict[str, np.ndarray]:
        t = rng.uniform(-5, 5, (count, TASKS)).astype(np.float32)
        return {"t": t[..., None], "u": (size * np.sin(t - phase)).astype(np.float32)}

    found = {}
    for name in ("", "new "):
        size, phase = rng.uniform(0.1, 5, TASKS), rng.uniform(0, np.pi, TASKS)
        found[f"{name}train"] = waves(SHOTS, size, phase)
        found[f"{name}validation"] = waves(SHOTS, size, phase)
    return found


def few_shot(found: Images, seed: int) -> Tasks:
    """Five of the ten digits in each task; new tasks have test images."""
    rng = np.random.default_rng([seed, 2])
    tasks = {}
    for name, pixels, labels in (
        ("", found.pixels, found.labels),
        ("new ", found.test_pixels, found.test_labels),
    ):
        drawn = [_ways(rng, labels) for _ in range(TASKS)]
        for part in ("train", "validation"):
            rows = np.stack([d[part] for d in drawn], 1)
            classes = np.tile(np.repeat(np.arange(WAYS), PER_CLASS)[:, None], (1, TASKS))
            tasks[name + part] = {"t": pixels[rows], "u": classes.astype(np.int32)}
    return tasks


def _ways(rng: np.random.Generator, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The images of one task, class by class."""
    chosen = rng.permutation(10)[:WAYS]
    rows = [rng.permutation(np.flatnonzero(labels == c))[: 2 * PER_CLASS] for c in chosen]
    return {
        "train": np.concatenate([r[:PER_CLASS] for r in rows]),
        "validation": np.concatenate([r[PER_CLASS:] for r in rows]),
    }


def scores(w: Layers, t: Float[Array, "... inputs"]) -> Float[Array, "... outputs"]:
    """The network."""
    import jax.numpy as jnp

    for k, (W, b) in enumerate(w):
        t = t @ W + b
        t = jnp.tanh(t) if k < len(w) - 1 else t
    return t


def outer(x: Layers | None, w: Layers, batch: Batch) -> Float[Array, ""]:
    """The loss of all tasks, each with its own weights: squared error or cross-entropy."""
    import jax
    import jax.numpy as jnp

    found = jax.vmap(scores, (0, 1), 1)(w, batch["t"])
    if jnp.issubdtype(batch["u"].dtype, jnp.floating):
        return jnp.mean((found[..., 0] - batch["u"]) ** 2)
    right = jnp.take_along_axis(found, batch["u"][..., None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(found, -1) - right)


def inner(x: Layers, w: Layers, batch: Batch) -> Float[Array, ""]:
    """The loss on training examples, with all weights held near x."""
    import jax

    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(w), strict=True)
    return outer(x, w, batch) + 0.5 * PROXIMAL / TASKS * sum(((v - u) ** 2).sum() for u, v in pairs)


def problem(tasks: Tasks, new: bool = False) -> Problem:
    """The problem of these tasks, or of the new ones; a batch holds all examples."""
    from .. import Batches, Problem

    train, validation = (tasks[f"{'new ' if new else ''}{p}"] for p in ("train", "validation"))
    sizes = (len(validation["u"]), len(train["u"]))
    return Problem(outer, inner, Batches(validation, train, sizes))


def start(tasks: Tasks, seed: int) -> tuple[Layers, Layers]:
    """Random weights, and the same for every task."""
    import jax
    import jax.numpy as jnp

    target = tasks["train"]["u"]
    outputs = 1 if target.dtype == np.float32 else WAYS
    inputs = tasks["train"]["t"].shape[-1]
    sizes = (inputs, HIDDEN, HIDDEN, outputs) if inputs == 1 else (inputs, HIDDEN, outputs)
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    x = [
        (jax.random.normal(k, (a, b), jnp.float32) / a**0.5, jnp.zeros(b, jnp.float32))
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    return x, everyone(x)


def everyone(x: Layers) -> Layers:
    """The same weights for every task."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (TASKS, *leaf.shape)), x)


def adapted(problem: Problem, x: Layers) -> tuple[Layers, Float[Array, ""]]:
    """The weights that the tasks learn from x, and the validation loss with them."""
    from jax.flatten_util import ravel_pytree

    from .._minimize import minimize

    flat, shaped = ravel_pytree(everyone(x))
    found = minimize(lambda v: problem.inner(x, shaped(v)), problem.y_set, flat, ADAPT)
    w = shaped(found.point)
    return w, problem.outer(x, w)


def solvers(kind: str) -> dict[str, Solver]:
    """The default and the rivals."""
    from ..solvers import ITD, AIDConjugateGradient, BatchPDBO

    classes: dict[str, Any] = {"AID-CG": AIDConjugateGradient, "ITD-R": ITD}
    found: dict[str, Solver] = {DEFAULT: BatchPDBO()}
    return found | {n: classes[n](**s) for n, s in RIVALS[kind].items()}


def run(seed: int, quick: bool, track: Track = iter, data: pathlib.Path | None = None) -> Results:
    """Every method on both kinds of tasks, from every seed."""
    import equinox as eqx

    from ..solvers._streamed import Streamed
    from ._trace import trace_each

    found = images(data)
    seeds, budget = QUICK if quick else (SEEDS, CALLS)
    arrays, calls, seconds = {}, {}, {}
    pairs = {f"{kind}, {n}": (kind, n) for kind in KINDS for n in (DEFAULT, *RIVALS[kind])}
    look = eqx.filter_jit(lambda p, x: adapted(p, x)[1])
    for kind, name in map(pairs.__getitem__, track(list(pairs))):
        drawn = [
            sinusoids(seed + k) if kind == "sinusoid" else few_shot(found, seed + k)
            for k in range(seeds)
        ]
        starts = [start(tasks, seed + k) for k, tasks in enumerate(drawn)]
        steps = _steps(name, budget)
        every = max(steps // ROWS, 1)
        traces = trace_each(
            [problem(tasks) for tasks in drawn], Streamed(solvers(kind)[name]), starts,
            steps=ROWS * every, every=every, seed=seed,
            observe=lambda p, at: {"validation": adapted(p, at.x)[1]},
        )  # fmt: skip
        label = f"{kind}.{name}"
        arrays[f"{label}.validation"] = np.stack([t.rows["validation"] for t in traces])
        arrays[f"{label}.calls"] = np.linspace(0, sum(traces[0].calls.values()), ROWS + 1)
        calls[label], seconds[label] = traces[0].calls, sum(t.seconds for t in traces)
        news = [problem(tasks, new=True) for tasks in drawn]
        ends = {label: [t.last.x for t in traces], f"{kind}.{START}": [x for x, _ in starts]}
        for key, points in ends.items():
            arrays[f"{key}.new"] = np.array([look(p, x) for p, x in zip(news, points, strict=True)])
    settings = {
        "seeds": seeds, "tasks": TASKS, "oracle calls of every method": budget,
        "images": found.name, "shots": SHOTS, "ways": WAYS, "images per class": PER_CLASS,
        "proximal weight": PROXIMAL, "hidden units": HIDDEN, "gradients to adapt": ADAPT,
        "settings": RIVALS,
    }  # fmt: skip
    return Results(settings, arrays, calls, seconds)


def _steps(name: str, budget: int) -> int:
    """The steps that a method can take with so many calls."""
    from ..solvers._whole import RATES, TRIAL

    if name in CALLS_PER_STEP:
        return budget // CALLS_PER_STEP[name]
    tries = 1 + RATES * TRIAL
    return min(tries, budget // EARLY) + max(budget - EARLY * tries, 0) // LATE


def _methods(record: Record, kind: str) -> list[str]:
    return [n for n in (DEFAULT, *RIVALS[kind]) if f"{kind}.{n}.validation" in record.arrays]


def figures(record: Record) -> list[Figure]:
    """The validation loss after adaptation along the oracle calls."""
    panels = [
        Panel(
            f"({'ab'[k]}) {kind}", "oracle calls", "validation loss",
            [
                Curve(n, record[f"{kind}.{n}.calls"], record[f"{kind}.{n}.validation"].mean(0))
                for n in _methods(record, kind)
            ],
            y_log=True,
        )
        for k, kind in enumerate(KINDS)
    ]  # fmt: skip
    caption = (
        f"Meta-learning of {record.settings['tasks']} tasks: the validation loss after the weights "
        f"of every task were learnt from x, mean over {record.settings['seeds']} seeds."
    )
    return [Figure("meta", caption, panels, 2)]


def claims(record: Record) -> list[Claim]:
    """What the default gains on the tasks it saw."""
    found = [
        Claim(
            f"The default finds a better start than a random one: {kind}.",
            "implied",
            "validation loss after adaptation at the end, over that at the random start, mean over "
            "seeds",
            float((rows[:, -1] / rows[:, 0]).mean()),
            "<",
            1.0,
            quoted=False,
        )
        for kind in KINDS
        for rows in [record[f"{kind}.{DEFAULT}.validation"]]
    ]
    rows = record[f"sinusoid.{DEFAULT}.validation"]
    below = Claim(
        f"Without a setting the default gets below {TARGET} on waves.",
        "implied",
        "validation loss after adaptation at the end, mean over seeds",
        float(rows[:, -1].mean()),
        "<",
        TARGET,
        quoted=False,
    )
    return [*found, below]


def tables(record: Record) -> list[Table]:
    """The losses at the start and at the end, on the tasks and on new ones."""
    found = []
    for kind in KINDS:
        rows: list[list[object]] = []
        for name in _methods(record, kind):
            values = record[f"{kind}.{name}.validation"]
            new = record[f"{kind}.{name}.new"]
            rows.append([name, mean_and_error(values[:, -1], 3), mean_and_error(new, 3)])
        first = record[f"{kind}.{_methods(record, kind)[0]}.validation"][:, 0]
        new = record[f"{kind}.{START}.new"]
        rows.append([START, mean_and_error(first, 3), mean_and_error(new, 3)])
        caption = (
            f"{kind}: validation loss after adaptation, mean ± standard error over seeds, on the "
            "tasks that x was learnt for and on new ones."
        )
        found.append(Table(caption, ("method", "validation loss", "on new tasks"), rows))
    return found
