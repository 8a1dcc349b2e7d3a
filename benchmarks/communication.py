"""What the devices of a sharded problem send each other, read from the compiled program."""

import re
from collections import defaultdict
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from pdbo import Problem, ProblemError
from pdbo._checks import check_point
from pdbo._problem import check_problem
from pdbo.solvers import AutoPDBO, Solver


class Communication(NamedTuple):
    """One iteration's collective operations: how many of each kind, and the bytes of their results.

    Attributes:
        operations, payload: by kind, such as "all-reduce".
        open_loops: how many loops hold collectives but have no fixed length; each is counted as
            if it ran once.
        largest: the bytes of the largest result.
    """

    operations: dict[str, int]
    payload: dict[str, int]
    open_loops: int
    largest: int = 0

    def sent(self, hosts: int) -> float:
        """The bytes that each host in a ring of `hosts` sends per iteration.

        A sum goes around twice (reduce, then gather), anything else once (Patarasuk & Yuan,
        Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations, 2009).
        """
        rounds = {"all-reduce": 2}
        share = (hosts - 1) / hosts
        return share * sum(rounds.get(k, 1) * size for k, size in self.payload.items())


def communication(
    problem: Problem, x: PyTree, y: PyTree, solver: Solver | None = None
) -> Communication:
    """What one iteration of a solver sends between the devices of a sharded problem.

    The sizes do not depend on the number of devices, so two devices on one machine show what a
    cluster will send.

    Arguments:
        problem: a problem from `shard`, on two devices or more.
        x, y: a point of the right shapes.
        solver: the method; `AutoPDBO()` by default.
    """
    check_problem(problem)
    if problem.mesh is None or problem.mesh.size < 2:
        raise ProblemError("problem must be sharded over two devices or more: see pdbo.shard.")
    solver = AutoPDBO() if solver is None else solver
    x, y = check_point(problem, x, y)
    state = eqx.filter_eval_shape(solver.init, problem, x, y, jax.random.key(0))
    arrays, rest = eqx.partition((problem, state), lambda leaf: hasattr(leaf, "dtype"))

    def step(arrays: PyTree) -> PyTree:
        problem, state = eqx.combine(arrays, rest)
        return solver.step(problem, state)

    return counted(jax.jit(step).lower(arrays).compile().as_text() or "")


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_COLLECTIVE = re.compile(
    r"= (.+?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
_CALLED = re.compile(r"(?:body|calls|to_apply|computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\]")


def counted(text: str) -> Communication:
    """Count the collectives of a program in XLA's text form, loops of known length unrolled."""
    lines: dict[str, list[str]] = defaultdict(list)
    name = entry = ""
    for line in text.splitlines():
        opened = _COMPUTATION.match(line)
        if opened:
            name = opened[2]
            entry = name if opened[1] else entry
        else:
            lines[name].append(line)
    operations: dict[str, int] = defaultdict(int)
    payload: dict[str, int] = defaultdict(int)
    sizes = [0]

    def visit(name: str, times: int) -> tuple[int, int]:
        """Add up a computation; return how many collectives and open loops it holds."""
        found = open_loops = 0
        for line in lines[name]:
            collective = _COLLECTIVE.search(line)
            if collective:
                operations[collective[2]] += times
                size = _size(collective[1])
                payload[collective[2]] += times * size
                sizes.append(size)
                found += 1
                continue
            trips = _TRIPS.search(line)
            loop = " while(" in line
            branches = _BRANCHES.search(line)
            called = _CALLED.findall(line) + re.findall(
                r"[\w.\-]+", branches[1] if branches else ""
            )
            for inner in called:
                held, opened = visit(inner, times * (int(trips[1]) if trips else 1))
                found += held
                open_loops += opened + (loop and held > 0 and trips is None)
        return found, open_loops

    _, open_loops = visit(entry, 1)
    return Communication(dict(operations), dict(payload), open_loops, max(sizes))


def _size(shapes: str) -> int:
    """The bytes of one array type or a tuple of them."""
    return sum(
        (int(bits) // 8 if bits else 1) * int(np.prod([int(n) for n in sizes.split(",") if n]))
        for _, bits, sizes in _ARRAY.findall(shapes)
    )
