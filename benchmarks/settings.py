"""The settings tried for every library on a workload; the best of each list counts.

Inner and outer step sizes are the same for all. A list is longer if a library has more methods that
fit: implicit and unrolled gradients, plain and Adam outer steps.
"""

from typing import Any, NamedTuple

Settings = dict[str, Any]

UNTUNED = "pdbo, untuned"
ENTRIES = {  # what is listed -> the file in benchmarks/peers that runs it
    "pdbo": "ours",
    UNTUNED: "ours",
    "jaxopt": "jaxopt",
    "torchopt": "torchopt",
    "higher": "higher",
    "betty": "betty",
    "boat": "boat",
    "scikit-learn": "sklearn",
}


class Steps(NamedTuple):
    """The inner step size, outer steps as (kind, size), and counts of (inner, linear) steps."""

    inner: float
    outer: list[tuple[str, float]]
    counts: list[tuple[int, int]]


STEPS = {
    "ridge": Steps(0.3, [("sgd", 100.0), ("adam", 0.3), ("adam", 1.0)], [(2, 2), (5, 5)]),
    "one-penalty": Steps(3.0, [("sgd", 20.0), ("adam", 0.1)], [(5, 5), (20, 5)]),
    "digits": Steps(1.0, [("sgd", 1000.0), ("adam", 0.05), ("adam", 0.1)], [(2, 2), (5, 5)]),
    "cleaning": Steps(1.0, [("sgd", 1000.0), ("adam", 0.1), ("adam", 0.3)], [(2, 2), (5, 5)]),
    "newsgroups": Steps(30.0, [("adam", 0.5)], [(5, 5)]),
}


def settings(entry: str, workload: str) -> list[Settings]:
    """The settings to try; empty if the library has no method for the workload."""
    if entry == UNTUNED:
        large = workload in ("starts", "toy-500", "newsgroups")  # many starts, or minutes
        return [] if large else [{"solve": {"throw": False}}]
    if workload in STEPS:
        return _hypergradients(entry, workload)
    return _many_minima(entry, workload)


def _many_minima(entry: str, workload: str) -> list[Settings]:
    """The counter-example and its variants: the steps of the paper's toy experiment."""
    base = {"inner_step": 0.5, "inner_steps": 5, "outer": "sgd", "outer_step": 0.2}
    aggregated = {"mapping": ["NGD", "GDA"], "approximation": ["RAD"], "alpha": 0.5}
    n = int(workload.split("-")[1]) if workload.startswith("counter-") else 1
    scaled = {"dual_step": 0.1 / n}  # the constraint is a sum over n
    table: dict[str, list[Settings]] = {
        "pdbo": [
            {"solver": "PDBO", "options": scaled},
            {"solver": "PDBO", "options": scaled | {"inner_steps": 1}},
            {"solver": "PDBO", "options": scaled | {"inner_steps": 1, "inner_step": 1.0}},
        ],
        "jaxopt": [
            base | {"mode": "unrolled", "linear_steps": 5},
            base | {"mode": "implicit", "linear_steps": 5},
        ],
        "torchopt": [base | {"mode": "explicit"}, base | {"mode": "implicit", "linear_steps": 5}],
        "higher": [base],
        "betty": [base | {"mode": "darts"}, base | {"mode": "neumann", "linear_steps": 5}],
        "boat": [
            base | aggregated | {"alpha_decay": 0.95, "inner_steps": 10},
            base | aggregated | {"alpha_decay": 0.8},
            base | {"first_order": "VFO"},
            base | {"mapping": ["NGD"], "approximation": ["RAD"]},
        ],
        "scikit-learn": [],
    }
    found = table[entry]
    if workload == "starts" and entry == "pdbo":
        found = [one | {"batched": True} for one in found]
    if workload == "toy-500":  # the cheapest iteration of five inner steps each
        found = [one for one in found if one.get("options", {}).get("inner_steps", 5) == 5]
        found = [one for one in found if one.get("inner_steps", 5) == 5]
    return found


def _hypergradients(entry: str, workload: str) -> list[Settings]:
    """Penalties: hypergradient methods, with plain outer steps and with Adam."""
    steps = STEPS[workload]
    bases = [
        {"inner_step": steps.inner, "inner_steps": n, "linear_steps": k, "outer": kind,
         "outer_step": size}
        for kind, size in steps.outer
        for n, k in steps.counts
    ]  # fmt: skip
    if entry == "pdbo":
        return [
            {
                "solver": "AIDConjugateGradient",
                "options": base | {"warm_linear": warm},
            }
            for base in bases
            for warm in (False, True)
        ]
    if entry == "scikit-learn":
        if workload in ("ridge", "cleaning"):
            return []
        return [{"mode": mode, "max_iter": 200} for mode in ("cv", "optuna")]
    last = bases[-1]
    found = {
        "jaxopt": [b | {"mode": "implicit"} for b in bases] + [last | {"mode": "unrolled"}],
        "torchopt": [b | {"mode": "implicit"} for b in bases] + [last | {"mode": "explicit"}],
        "higher": bases,
        "betty": [b | {"mode": "neumann"} for b in bases],
        "boat": [
            base | {"mapping": ["NGD"], "approximation": [how]}
            for base in bases
            for how in ("RAD", "CG")
        ],
    }[entry]
    # a setting takes a minute on 20 Newsgroups: only the cheaper way to the same hypergradient
    return found[:1] if workload == "newsgroups" and entry in ("jaxopt", "boat") else found
