"""The settings every library tries on a workload; the best of its list is the one that counts.

Inner and outer steps are of the same sizes for all. A list is longer where a library has more
methods that fit: implicit and unrolled gradients, plain and Adam outer steps.
"""

from typing import Any

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

# inner step, step of plain outer descent, step of Adam
STEPS = {
    "ridge": (0.3, 100.0, 0.3),
    "one-penalty": (1.0, 10.0, 0.3),
    "digits": (1.0, 1000.0, 0.2),
    "newsgroups": (30.0, 0.0, 0.3),
}


def settings(entry: str, workload: str) -> list[Settings]:
    """What to try; nothing where the library has no method for the workload."""
    if entry == UNTUNED:
        large = workload in ("starts", "toy-500", "newsgroups")  # many at once, or minutes
        return [] if large else [{"solve": {"throw": False}}]
    if workload in STEPS:
        return _hypergradients(entry, workload)
    return _many_minima(entry, workload)


def _many_minima(entry: str, workload: str) -> list[Settings]:
    """The counter-example and its kin: the steps of the paper's toy experiment."""
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
    inner_step, plain, adam = STEPS[workload]
    large = workload == "newsgroups"  # plain steps of any size diverge or crawl there
    bases = [
        {"inner_step": inner_step, "inner_steps": n, "outer": kind, "outer_step": step}
        for kind, step in (("sgd", plain), ("adam", adam))[large:]
        for n in ((5,) if large else (2, 5))
    ]

    def implicit(base: Settings, mode: str) -> Settings:
        return base | {"mode": mode, "linear_steps": base["inner_steps"]}

    if entry == "pdbo":
        return [
            {
                "solver": "AIDConjugateGradient",
                "options": {
                    "inner_step": inner_step,
                    "inner_steps": base["inner_steps"],
                    "linear_steps": base["inner_steps"],
                    "outer_step": base["outer_step"],
                    "adam": base["outer"] == "adam",
                    "warm_linear": warm,
                },
            }
            for base in bases
            for warm in (False, True)
        ]
    if entry == "scikit-learn":
        if workload == "ridge":
            return []
        return [{"mode": mode, "max_iter": 200} for mode in ("cv", "optuna")]
    return {
        "jaxopt": [implicit(b, "implicit") for b in bases]
        + [implicit(bases[-1], "unrolled")],
        "torchopt": [implicit(b, "implicit") for b in bases] + [bases[-1] | {"mode": "explicit"}],
        "higher": bases,
        "betty": [implicit(b, "neumann") for b in bases],
        "boat": [
            base | {"mapping": ["NGD"], "approximation": [how], "linear_steps": base["inner_steps"]}
            for base in bases
            for how in ("RAD", "CG")
        ],
    }[entry]  # fmt: skip
