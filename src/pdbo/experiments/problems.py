"""The scoreboard: every solver with its defaults on every problem of the collection."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from .. import _catalogue
from ._results import Claim, Record, Results, Settings, Track
from ._views import Curve, Figure, Panel, Table

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PyTree
    from numpy.typing import ArrayLike

    from .. import Problem, Solver
    from .._driver import Row
    from .._solution import State
    from ..problems import Entry

    Score = Mapping[str, ArrayLike]

AUTO, MANY = "AutoPDBO", "many minima"
RIVALS = tuple(name for name in _catalogue.names() if name != AUTO)
MULTISTART = "multistart"
EACH = 4  # solvers that `solve` runs on the host start from one in this many starts
COUNTED = {"steps": "step", "f": "f_calls", "g": "g_calls", "products": "products"}
QUICK = ("toy", "sine", "mb-3.14", "mb-3.19", "iaptt", "desilva")
QUICK_RIVALS = ("PDBO", "ITD", "BOME")
SETTINGS: Settings = {
    "solved": "inner gap at most 1e-4 and |f - f*| at most 1e-2 max(1, |f*|); a formula or a grid "
    "gives the inner value",
    "starts": "a low-discrepancy sequence over the sets, or around zero if they are unbounded; "
    "multistart draws its own from one start",
    "run by solve": "AutoPDBO and Implicit run as in pdbo.solve, up to their own certificate, from "
    "every fourth start; the other methods take all their steps from every start",
    "first half": "the problems at even positions of the list, counted from zero; constants are "
    "chosen on this half only",
}


def run(
    seed: int, quick: bool, track: Track = iter, own: tuple[str, Solver] | None = None
) -> Results:
    """Every solver from every start of every problem, then multistart on every problem.

    With a solver of one's own, by name, it and the default are measured beside a few others.
    """
    import pdbo

    from ..problems import names

    chosen = [n for n in names() if not quick or n in QUICK]
    rivals, made = _solvers(quick, own)
    starts, steps = (16, 1_000) if quick else (64, 10_000)
    entries = _entries(chosen)
    marks = np.unique(np.geomspace(1, steps, 40).astype(int))
    arrays: dict[str, np.ndarray] = {}
    calls, refused = {}, {}
    parts = [(s, n) for s in (AUTO, *rivals, MULTISTART) for n in chosen]
    rows: dict[str, list[Score]] = {s: [] for s, _ in parts}
    for part in track([f"{s} on {n}" for s, n in parts]):
        solver, name = part.split(" on ")
        entry, problem = entries[name]
        if solver == MULTISTART:
            rows[solver].append(_many_starts(entry, problem, starts, seed))
            continue
        try:
            points = entry.starts(starts, seed)
            if made[solver].exact_first or made[solver].on_host:
                found = _solved(problem, made[solver], points, steps, seed)
            else:
                found = _runs(problem, made[solver], points, marks, seed)
        except pdbo.ProblemError as error:  # a set the method does not cover
            refused.setdefault(solver, {})[name] = str(error)
            found = None
        rows[solver].append(_score(entry, found, _count(made[solver], starts)))
        if found is not None:
            total = calls.setdefault(solver, {"f": 0, "g": 0, "products": 0})
            for k in total:
                total[k] += int(found[k][:, -1].sum())
    for solver, found in rows.items():
        arrays |= {f"{solver}.{k}": np.stack([row[k] for row in found]) for k in found[0]}
    tags = {n: sorted(entries[n][0].tags) for n in chosen}
    settings = SETTINGS | {
        "problems": chosen,
        "tags": tags,
        "references": {n: entries[n][0].reference for n in chosen},
        "random starts": starts,
        "most steps": steps,
        "refused": refused,
    }
    if own is not None:
        settings |= {"own solver": rivals[0]}
    return Results(settings, arrays, calls)


def _many_starts(entry: Entry, problem: Problem, starts: int, seed: int) -> Score:
    """What multistart finds; the score tells what the follower answers, so no warning does."""
    import jax

    import pdbo

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pdbo.errors.AnswerWarning)
        key = jax.random.key(seed)
        best = pdbo.multistart(problem, *entry.start, starts=starts, key=key, throw=False)
    return {
        "solved": entry.solved(best.x, best.y),
        "certified": best.ok,
        "f_error": abs(float(best.f) - entry.f_star),
        "gap": entry.inner_gap(best.x, best.y),
    }


def _solvers(
    quick: bool, own: tuple[str, Solver] | None
) -> tuple[tuple[str, ...], dict[str, Solver]]:
    """The names of the rivals, one's own first, and all solvers by name."""
    from ..solvers import SOLVERS

    rivals = QUICK_RIVALS if quick or own else RIVALS
    made: dict[str, Solver] = {name: SOLVERS[name]() for name in (AUTO, *rivals)}
    if own is None:
        return rivals, made
    name = f"{own[0]} (own)" if own[0] in SOLVERS else own[0]
    return (name, *rivals), made | {name: own[1]}


def _entries(names: list[str]) -> dict[str, tuple[Entry, Problem]]:
    """Entries and their problems.

    Problems with one x and one y in boxes share two functions, so that each solver is compiled
    once for all of them.
    """
    import jax

    from .. import Box, Problem, problems

    entries = {n: problems.get(n) for n in names}
    alike = [
        e.problem
        for e in entries.values()
        if e.dimension == (1, 1)
        and isinstance(e.problem.x_set, Box)
        and isinstance(e.problem.y_set, Box)
        and e.problem.data is None
    ]

    def f(x: Float[Array, ""], y: Float[Array, ""], which: Int[Array, ""]) -> Float[Array, ""]:
        return jax.lax.switch(which, [p.f for p in alike], x, y)

    def g(x: Float[Array, ""], y: Float[Array, ""], which: Int[Array, ""]) -> Float[Array, ""]:
        return jax.lax.switch(which, [p.g for p in alike], x, y)

    shared = {
        id(p): Problem(f, g, np.int32(k), x_set=p.x_set, y_set=p.y_set) for k, p in enumerate(alike)
    }
    return {n: (e, shared.get(id(e.problem), e.problem)) for n, e in entries.items()}


def _count(solver: Solver, starts: int) -> int:
    """How many of the starts a solver runs from."""
    return len(range(0, starts, EACH)) if solver.exact_first or solver.on_host else starts


def _solved(
    problem: Problem, solver: Solver, starts: tuple[PyTree, PyTree], steps: int, seed: int
) -> dict[str, np.ndarray]:
    """`solve` from every `EACH`-th start: arrays of leading axes start and record."""
    import jax

    import pdbo

    runs = []
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(starts)[0]))
    for index in range(0, len(keys), EACH):
        x, y = jax.tree.map(lambda leaf, i=index: leaf[i], starts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pdbo.errors.AnswerWarning)
            end = pdbo.solve(
                problem, x, y, solver, steps=steps, key=keys[index], throw=False, observe=_x
            )
        rows = end.history
        last = {"x": end.x, "f": end.f, "g": end.g}  # the answer may be beside the last record
        runs.append(
            {
                "x": np.stack([*rows["x"], np.asarray(last["x"])]),
                "outer": np.append(rows["f"], last["f"]),
                "inner": np.append(rows["g"], last["g"]),
                **{
                    name: np.append(rows[column], rows[column][-1])
                    for name, column in COUNTED.items()
                },
            }
        )
    most = max(len(run["outer"]) for run in runs)

    def padded(column: np.ndarray) -> np.ndarray:
        return np.concatenate([column, np.repeat(column[-1:], most - len(column), axis=0)])

    return {name: np.stack([padded(run[name]) for run in runs]) for name in runs[0]}


def _x(x: PyTree, y: PyTree) -> dict[str, PyTree]:
    return {"x": x}


def _runs(
    problem: Problem, solver: Solver, starts: tuple[PyTree, PyTree], marks: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """All starts at once, observed at the steps `marks`: arrays of leading axes start and mark."""
    import jax
    import jax.numpy as jnp

    from .._checks import check_point

    check_point(problem, *jax.tree.map(lambda leaf: leaf[0], starts))
    x, y = jax.tree.map(jnp.asarray, starts)
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(x)[0]))
    program = _compiled()
    rows, counts = jax.tree.map(
        np.asarray, program(problem, solver, x, y, keys, jnp.asarray(marks, jnp.int32))
    )
    # a run that has settled records nothing more: its last row is repeated
    place = np.minimum(np.arange(len(marks)), counts[:, None] - 1)
    return jax.tree.map(lambda leaf: leaf[np.arange(len(counts))[:, None], place], rows)


@functools.cache
def _compiled() -> Callable[..., tuple[Row, Array]]:
    """The program that runs a solver from a batch of starts; it is made once."""
    import jax
    import jax.numpy as jnp

    from .._driver import Recorder, advance
    from .._errors import RESULTS
    from .._programs import Program
    from .._solution import launch

    class Seen(Recorder):
        """The point, its values and the calls so far; a run that settles ends."""

        def record(self, problem: Problem, run: State) -> tuple[Row, Array]:
            _, running = super().record(problem, run)
            at, used = run.point, run.solver.calls(run.solver_state)
            row = {
                "x": at.x,
                "outer": problem.outer(at.x, at.y),
                "inner": problem.inner(at.x, at.y),
                "steps": run.step,
                **{k: jnp.asarray(v) for k, v in used._asdict().items()},
            }
            settled = run.solver.settled(run.solver_state)
            if settled is False:
                return row, running
            return row, jnp.where(settled, RESULTS.settled, running).astype(jnp.int32)

    @Program
    def batch(
        problem: Problem,
        solver: Solver,
        x: PyTree,
        y: PyTree,
        keys: Array,
        marks: Int[Array, " marks"],
    ) -> tuple[Row, Array]:
        def one(x: PyTree, y: PyTree, key: Array) -> tuple[Row, Array]:
            run = launch(problem, x, y, solver, key)
            end = advance(problem, run, Seen(), marks[-1], marks, rows=len(marks))
            return end.rows, end.written

        return jax.vmap(one)(x, y, keys)

    return batch


def _score(entry: Entry, found: dict[str, np.ndarray] | None, starts: int) -> Score:
    """For each start: whether it ended solved, was ever solved, and when it was solved for good."""
    import jax

    never = {
        "solved": np.zeros(starts, bool), "on_the_way": np.zeros(starts, bool),
        **{k: np.full(starts, np.nan) for k in ("steps", "calls", "all_calls", "f_error", "gap")},
    }  # fmt: skip
    if found is None:
        return never
    used = found["f"] + found["g"] + found["products"]
    error = np.abs(found["outer"] - entry.f_star)
    near = error <= 1e-2 * max(1.0, abs(entry.f_star))  # false for NaN
    gap = np.full(near.shape, np.nan)
    near[:, -1] |= np.isfinite(found["outer"][:, -1])  # the last gap is always computed
    for i, j in np.argwhere(near):
        x = jax.tree.map(lambda leaf, i=i, j=j: leaf[i, j], found["x"])
        gap[i, j] = found["inner"][i, j] - entry.inner_min(x)
    good = (error <= 1e-2 * max(1.0, abs(entry.f_star))) & (gap <= 1e-4)
    stays = np.flip(np.logical_and.accumulate(np.flip(good, 1), axis=1), 1)
    solved, arrival = stays[:, -1], np.argmax(stays, 1)
    row = np.arange(starts)
    return {
        "solved": solved,
        "on_the_way": good.any(1),
        "steps": np.where(solved, found["steps"][row, arrival], np.nan),
        "calls": np.where(solved, used[row, arrival], np.nan),
        "all_calls": used[:, -1].astype(float),
        "f_error": error[:, -1],
        "gap": gap[:, -1],
    }


def solvers(record: Record) -> list[str]:
    """The solvers of the record, without multistart."""
    own = [record.settings["own solver"]] if "own solver" in record.settings else []
    return [s for s in (AUTO, *own, *RIVALS) if f"{s}.solved" in record.arrays]


def groups(record: Record) -> dict[str, np.ndarray]:
    """The problems that count in each column of the scoreboard."""
    names, tags = record.settings["problems"], record.settings["tags"]
    first = np.arange(len(names)) % 2 == 0

    def tagged(tag: str) -> np.ndarray:
        return np.array([tag in tags[n] for n in names])

    return {
        "all": np.ones(len(names), bool),
        MANY: tagged(MANY),
        "basins": tagged("basins"),
        "unique": tagged("unique"),
        "first half": first,
        "second half": ~first,
    }


def share(record: Record, solver: str, group: str = "all", key: str = "solved") -> float:
    """The share of runs solved in per cent, mean over a group's problems; NaN if it has none."""
    chosen = groups(record)[group]
    if not chosen.any():
        return float("nan")
    return 100 * float(record[f"{solver}.{key}"][chosen].mean())


def claims(record: Record) -> list[Claim]:
    """What the package promises about its defaults."""
    rivals = [s for s in solvers(record) if s != AUTO]
    best = max(share(record, s, MANY, "on_the_way") for s in rivals)
    starts = record.settings["random starts"]

    def claim(sentence: str, measure: str, value: float, relation: str, bound: float) -> Claim:
        return Claim(sentence, "this package", measure, value, relation, bound, quoted=False)

    single = "random starts: share of the runs that end solved, mean over the problems, in per cent"
    return [
        claim(
            f"multistart from {starts} starts solves nearly every problem.",
            "problems solved, in per cent",
            share(record, MULTISTART),
            ">=",
            95.0,
        ),
        claim(
            "AutoPDBO solves most problems from any start.", single, share(record, AUTO), ">=", 75.0
        ),
        claim(
            "It does so at little cost.",
            "the median number of oracle calls, over all runs",
            float(np.median(record[f"{AUTO}.all_calls"])),
            "<=",
            5000.0,
        ),
        claim(
            "If the inner problem has many minima it is far ahead of every other method's "
            "defaults.",
            "random starts, problems with many minima: the runs of AutoPDBO that end solved, minus "
            "the best rival's runs that were solved at any time, in percentage points",
            share(record, AUTO, MANY) - best,
            ">=",
            20.0,
        ),
        claim(
            "This also holds on problems that its constants were not chosen on.",
            f"the second half, {single}",
            share(record, AUTO, "second half"),
            ">=",
            75.0,
        ),
        claim(
            "Multistart solves nearly all of these problems, too.",
            "the second half, problems solved, in per cent",
            share(record, MULTISTART, "second half"),
            ">=",
            95.0,
        ),
    ]


def figures(record: Record) -> list[Figure]:
    """Performance profiles: the share of runs solved within a number of oracle calls."""

    def profile(solver: str, chosen: np.ndarray) -> Curve:
        calls = record[f"{solver}.calls"][chosen].ravel()
        at = np.sort(calls[np.isfinite(calls)])
        x = np.concatenate([[10.0], at, [most]])
        y = np.concatenate([[0.0], np.arange(1, len(at) + 1), [len(at)]]) / len(calls)
        return Curve(solver, x, 100 * y, kind="steps")

    found = solvers(record)
    most = max(float(np.nanmax(record[f"{s}.all_calls"])) for s in found)
    titles = {"all": "(a) all problems", MANY: "(b) many inner minima", "unique": "(c) one minimum"}
    panels = [
        Panel(
            title,
            "oracle calls",
            "per cent of the runs solved",
            [profile(s, groups(record)[group]) for s in found],
            x_log=True,
        )
        for group, title in titles.items()
        if groups(record)[group].any()
    ]
    starts = f"{record.settings['random starts']} starts each"
    if "run by solve" in record.settings:
        starts += ", AutoPDBO and Implicit from every fourth of them"
    caption = (
        f"Every solver with its defaults on {len(record.settings['problems'])} problems, {starts}: "
        "the share of runs that are solved and stay solved within a number of oracle calls "
        "(gradients of f and g, and products with their Hessians). Higher and further left is "
        "better."
    )
    return [Figure("problems", caption, panels)]


def scores(record: Record) -> str:
    """The scoreboard as text, best first."""
    from .._show import table

    found = sorted(solvers(record), key=lambda s: -share(record, s))
    columns = {
        "all": ("all", "solved"),
        MANY: (MANY, "solved"),
        "at any time": ("all", "on_the_way"),
    }
    shares = {
        title: [f"{share(record, s, *which):.0f}" for s in found]
        for title, which in columns.items()
    }
    return "Runs solved, in per cent:\n" + table({"solver": found} | shares)


def tables(record: Record) -> list[Table]:
    """The scoreboard, and the problems one by one."""
    names = record.settings["problems"]
    columns = [g for g, chosen in groups(record).items() if chosen.any()]

    def cell(value: float) -> str:
        return "" if np.isnan(value) else f"{value:.0f}"

    def middle(values: np.ndarray) -> str:
        values = values[np.isfinite(values)]
        return f"{np.median(values):,.0f}" if len(values) else "never"

    board = [
        [
            s,
            *(cell(share(record, s, g)) for g in columns),
            cell(share(record, s, key="on_the_way")),
            middle(record[f"{s}.steps"]),
            middle(record[f"{s}.calls"]),
            len(record.settings["refused"].get(s, {})),
        ]
        for s in solvers(record)
    ]
    several = f"{MULTISTART}({record.settings['random starts']})"
    board.insert(
        0, [several, *(cell(share(record, MULTISTART, g)) for g in columns), "", "", "", 0]
    )
    header = (
        "solver", *columns, "solved at any time", "median steps", "median oracle calls", "refused",
    )  # fmt: skip
    caption = (
        "Runs solved, in per cent: the mean over the problems of a column; for multistart, the "
        "share of problems solved. Median steps and oracle calls until a run is solved and stays "
        "solved. A method refuses a problem if it does not cover its sets; such a problem counts "
        "as not solved."
    )
    singles = {s: record[f"{s}.solved"].mean(1) for s in solvers(record)}
    rivals = [s for s in singles if s != AUTO]
    rows = []
    for k, name in enumerate(names):
        rival = max(rivals, key=lambda s, k=k: singles[s][k])
        best = f"{rival} {100 * singles[rival][k]:.0f}" if singles[rival][k] else "none"
        rows.append([
            name, ", ".join(record.settings["tags"][name]), cell(100 * singles[AUTO][k]),
            middle(record[f"{AUTO}.all_calls"][k]), best,
            "solved" if record[f"{MULTISTART}.solved"][k] else "not solved",
            "yes" if record[f"{MULTISTART}.certified"][k] else "no",
        ])  # fmt: skip
    by_problem = Table(
        "The problems: runs solved by AutoPDBO, in per cent, with its median number of oracle "
        "calls; the best rival; whether multistart solved it, and whether its answer is certified.",
        ("problem", "tags", AUTO, "oracle calls", "best rival", several, "certified"),
        rows,
    )
    return [Table(caption, header, board), by_problem]
