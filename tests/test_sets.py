"""Projections, tangent cones and errors of the sets, as laws over a table of random sets.

Tolerances are multiples of eps times the size of the numbers that entered, nothing else. Points are
checked in batches of 64, so that one drawn example is 64 cases.
"""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from pdbo import sets
from pdbo._errors import ProblemError
from pdbo.sets import (
    Affine,
    Ball,
    Box,
    Free,
    Halfspace,
    NonNegative,
    Polyhedron,
    Product,
    Set,
    Simplex,
)


@pytest.fixture(scope="module", autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        yield


BATCH = 64
SIZE = 7  # entries of a point {"u": (3,), "w": (2, 2)}
FLOATS = [jnp.float32, jnp.float64]


def tree(flat):
    """The last axis as the point {"u": (3,), "w": (2, 2)}."""
    return {"u": flat[..., :3], "w": flat[..., 3:].reshape(*flat.shape[:-1], 2, 2)}


def flatten(point):
    """The inverse of `tree`, in double precision."""
    u, w = np.asarray(point["u"], float), np.asarray(point["w"], float)
    return np.concatenate([u, w.reshape(*u.shape[:-1], 4)], axis=-1)


def single(values):
    """Numbers that both dtypes hold exactly, so that both work with the same set."""
    return np.asarray(values, np.float32).astype(float)


def eps(dtype):
    return float(jnp.finfo(dtype).eps)


def norm(flat):
    return np.linalg.norm(flat, axis=-1)


# The table: for every set how to draw one, with the numbers needed to describe it.


def free(rng, scale):
    return Free(), {}


def box(rng, scale):
    lo = single(scale * rng.normal(size=SIZE))
    hi = single(lo + scale * rng.random(SIZE) * (rng.random(SIZE) < 0.8))
    hi = np.maximum(lo, hi)
    lo[rng.random(SIZE) < 0.2] = -np.inf
    hi[rng.random(SIZE) < 0.2] = np.inf
    return Box(tree(lo), tree(hi)), {"lo": lo, "hi": hi}


def nonnegative(rng, scale):
    return NonNegative(), {"lo": np.zeros(SIZE), "hi": np.full(SIZE, np.inf)}


def ball(rng, scale):
    center = single(scale * rng.normal(size=SIZE) * rng.choice([0, 0.1, 1, 10]))
    radius = float(single(scale * rng.choice([0, 1, rng.random()], p=[0.05, 0.45, 0.5])))
    return Ball(radius, tree(center)), {"center": center, "radius": radius}


def simplex(rng, scale):
    total = float(single(scale * rng.choice([0, 1, rng.random()], p=[0.05, 0.45, 0.5])))
    return Simplex(total), {"total": total}


def halfspace(rng, scale):
    a = single(rng.normal(size=SIZE) * 10.0 ** rng.integers(-6, 7))
    b = float(single(scale * norm(a) * rng.normal()))
    return Halfspace(tree(a), b), {"a": a, "b": b}


def affine(rng, scale):
    A = rng.normal(size=(4, SIZE))
    A[3] = A[0] - A[1]
    A = A * 10.0 ** rng.integers(-6, 7, (4, 1))
    solution = scale * rng.normal(size=SIZE)
    return Affine(A, A @ solution), {"A": A, "b": A @ solution, "solution": solution}


def polyhedron(rng, scale):
    """Two equations; bounds from below, a row twice and others, some of which meet in a point."""
    A, C = rng.normal(size=(2, SIZE)), rng.normal(size=(4, SIZE))
    C = np.concatenate([-np.eye(SIZE), C, 2 * C[:1]])
    solution = scale * (0.5 + rng.random(SIZE)) * (rng.random(SIZE) < 0.7)
    room = scale * rng.random(len(C)) * (rng.random(len(C)) < 0.7)
    room[:SIZE] = solution
    room[-1] = 2 * room[SIZE]
    b, d = A @ solution, C @ solution + room
    return Polyhedron(A, b, C, d), {"A": A, "b": b, "C": C, "d": d, "solution": solution}


def product(rng, scale):
    total = float(single(scale * rng.random()))
    center = single(scale * rng.normal(size=4))
    radius = float(single(scale * rng.random()))
    sets = Product({"u": Simplex(total), "w": Ball(radius, center.reshape(2, 2))})
    return sets, {"total": total, "center": center, "radius": radius}


TABLE = [free, box, nonnegative, ball, simplex, halfspace, affine, polyhedron, product]


def violation(draw, info, p):
    """How far points are from the set, by its definition, and 0 where that is exact."""
    if draw is free:
        return np.zeros(len(p))
    if draw in (box, nonnegative):
        return np.maximum(np.maximum(info["lo"] - p, p - info["hi"]), 0).max(-1)
    if draw is ball:
        return np.maximum(norm(p - info["center"]) - info["radius"], 0)
    if draw is simplex:
        return np.maximum(np.abs(p.sum(-1) - info["total"]), -p.min(-1))
    if draw is halfspace:
        return np.maximum(p @ info["a"] - info["b"], 0) / norm(info["a"])
    if draw is affine:
        return (np.abs(p @ info["A"].T - info["b"]) / norm(info["A"])).max(-1)
    if draw is polyhedron:
        over = ((p @ info["C"].T - info["d"]) / norm(info["C"])).max(-1)
        return np.maximum(over, violation(affine, info, p))
    u, w = p[:, :3], p[:, 3:]
    return np.maximum(violation(simplex, info, u), violation(ball, info, w))


def magnitude(info, *points):
    """The size of the numbers that entered, for every point of a batch."""
    own = sum(
        norm(np.atleast_1d(info.get(k, 0))) for k in ("center", "radius", "total", "solution")
    )
    return own + sum(norm(p) for p in points)


def points(rng, scale, info):
    """A batch of points around a set: near and far, with ties and entries on its bounds."""
    z = rng.normal(size=(BATCH, SIZE)) * scale * 10.0 ** rng.integers(-3, 4, (BATCH, 1))
    z[::4] = np.round(z[::4] / scale) * scale
    z[1::4] += scale * 10.0 ** rng.integers(0, 4, (BATCH // 4, 1))
    z[2::8, 1:4] = z[2::8, :1]
    if "lo" in info:
        on_lo = (rng.random(z.shape) < 0.2) & np.isfinite(info["lo"])
        on_hi = (rng.random(z.shape) < 0.2) & np.isfinite(info["hi"])
        z = np.where(on_lo, info["lo"], np.where(on_hi, info["hi"], z))
    if "center" in info and len(info["center"]) == SIZE:
        z[3::4] += info["center"]
        z[3] = info["center"]
    return z


def as_points(z, dtype):
    """A batch in a dtype, and the same numbers in double precision."""
    point = tree(jnp.asarray(z, dtype))
    return point, flatten(point)


cases = given(
    seed=st.integers(0, 2**32 - 1),
    log_scale=st.one_of(st.just(0), st.integers(-6, 6)),
)
per_set = pytest.mark.parametrize("draw", TABLE, ids=lambda draw: draw.__name__)
per_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=["float32", "float64"])
examples = settings(max_examples=30, deadline=None, derandomize=True, database=None)


project = eqx.filter_jit(lambda s, z: s.project(z))
project_and_look = eqx.filter_jit(lambda s, z: ((p := s.project(z)), s.contains(p)))
project_all = eqx.filter_jit(lambda s, z: jax.vmap(s.project)(z))


@eqx.filter_jit
def at_once(*calls):
    """What methods of sets return, `("contains", s, z)` for `s.contains(z)`, as one program."""
    return [getattr(s, name)(*arguments) for name, s, *arguments in calls]


@eqx.filter_jit
def evaluate(s, z, other):
    def one(z, other):
        p, q = s.project(z), s.project(other)
        return p, q, s.project(p), s.distance(z), s.contains(p)

    return jax.vmap(one)(z, other)


@per_set
@per_dtype
@cases
@examples
def test_projection_laws(draw, dtype, seed, log_scale):
    rng = np.random.default_rng(seed)
    scale = 10.0**log_scale
    s, info = draw(rng, scale)
    z_, z = as_points(points(rng, scale, info), dtype)
    y_, y = as_points(points(rng, scale, info), dtype)
    p_, q_, again, distance, contained = evaluate(s, z_, y_)
    assert p_["u"].dtype == dtype and p_["w"].dtype == dtype and distance.dtype == dtype
    p, q, again = flatten(p_), flatten(q_), flatten(again)
    # An SVD in double precision is backward stable to some tens of eps.
    tol = 16 * eps(dtype) + (64 * eps(float) if draw is affine else 0)

    # feasible, at the scale of the result and not of what was projected
    exact = draw in (free, box, nonnegative)
    assert (violation(draw, info, p) <= (0 if exact else tol * magnitude(info, p))).all()
    assert contained.all()
    # idempotent
    assert (norm(again - p) <= (0 if exact else tol * magnitude(info, p))).all()
    # rows that meet at small angles have large multipliers, which multiply rounding errors
    tol *= 100 if draw is polyhedron else 1
    # non-expansive
    assert (norm(p - q) <= norm(z - y) + tol * magnitude(info, z, y)).all()
    # no point of the set is nearer: <z - p, w - p> <= 0 for all w in it
    obtuse = np.einsum("ij,kij->ki", z - p, np.stack([np.roll(q, k, 0) for k in range(8)]) - p)
    reach = norm(z - p) + norm(q).max() + norm(p)
    assert (obtuse <= tol * magnitude(info, z, p) * reach).all()
    # the distance is the one to the projection
    assert (np.abs(np.asarray(distance) - norm(z - p)) <= tol * magnitude(info, z, p)).all()


@per_dtype
@cases
@examples
def test_simplex_against_bisection(dtype, seed, log_scale):
    rng = np.random.default_rng(seed)
    s, info = simplex(rng, 10.0**log_scale)
    z_, z = as_points(points(rng, 10.0**log_scale, info), dtype)
    p = flatten(evaluate(s, z_, z_)[0])
    z = z.astype(np.longdouble)
    low, high = z.max(-1) - info["total"], z.max(-1)
    for _ in range(120):
        middle = (low + high) / 2
        enough = np.maximum(z - middle[:, None], 0).sum(-1) >= info["total"]
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    expected = np.maximum(z - low[:, None], 0)
    # Bisection resolves its threshold to an ulp of extended precision at the size of z.
    slack = 2 * np.finfo(np.longdouble).eps * np.abs(z).max(-1)
    assert (np.abs(p - expected).max(-1) <= 2 * eps(dtype) * info["total"] + slack).all()


def test_simplex_against_quadratic_program():
    rng = np.random.default_rng(0)
    for _ in range(20):
        z = rng.normal(size=6)
        qp = minimize(
            lambda w: 0.5 * np.sum((w - z) ** 2),
            np.full(6, 1 / 3),
            jac=lambda w: w - z,
            method="SLSQP",
            bounds=[(0, None)] * 6,
            constraints={"type": "eq", "fun": lambda w: w.sum() - 2, "jac": lambda w: np.ones(6)},
            options={"ftol": 1e-15, "maxiter": 200},
        )
        # A minimum known to ftol is a minimiser known to its root.
        np.testing.assert_allclose(project(Simplex(2), z), qp.x, atol=1e-7)


@pytest.mark.parametrize(
    ("entries", "kind"),
    [(30_000, kind) for kind in ("normal", "shifted", "equal", "spike", "tiny")]
    + [(10**6, "shifted")],
)
def test_simplex_float32_is_accurate(entries, kind):
    rng = np.random.default_rng(entries)
    z = {
        "normal": 1e6 * rng.normal(size=entries),
        "shifted": 1e6 + rng.normal(size=entries),
        "equal": np.full(entries, 1e6),
        "spike": np.where(np.arange(entries) == 0, 0.5, 1e-6 * rng.random(entries)),
        "tiny": 1e-6 * rng.normal(size=entries),
    }[kind].astype(np.float32)
    p, contained = project_and_look(Simplex(1), z)
    p = np.asarray(p, float)
    high = np.sort(z.astype(np.longdouble) - z.max())[::-1]
    level = np.max((np.cumsum(high) - 1) / np.arange(1, entries + 1))
    expected = np.maximum(z.astype(np.longdouble) - z.max() - level, 0)
    assert np.abs(p - expected).max() <= 2 * eps(np.float32)
    assert abs(p.sum() - 1) <= 8 * eps(np.float32)
    assert contained


@per_dtype
@cases
@examples
def test_affine_against_least_squares(dtype, seed, log_scale):
    rng = np.random.default_rng(seed)
    s, info = affine(rng, 10.0**log_scale)
    z_, z = as_points(points(rng, 10.0**log_scale, info), dtype)
    p = flatten(evaluate(s, z_, z_)[0])
    rows = info["A"] / norm(info["A"])[:, None]
    gap = z @ rows.T - info["b"] / norm(info["A"])
    solution = np.linalg.lstsq(rows, gap.T, rcond=1e-10)
    expected = z - solution[0].T
    condition = solution[3][0] / solution[3][2]  # the fourth row is redundant
    # Both are backward stable: they differ by the condition of A in double precision.
    tol = 16 * eps(dtype) + 64 * condition * eps(float)
    assert (norm(p - expected) <= tol * (norm(z) + norm(expected))).all()


@per_dtype
@cases
@examples
def test_polyhedron_against_its_optimality_conditions(dtype, seed, log_scale):
    """z - p is a combination of the rows, with weights >= 0 for those that hold with equality."""
    rng = np.random.default_rng(seed)
    scale = 10.0**log_scale
    s, info = polyhedron(rng, scale)
    z_, z = as_points(points(rng, scale, info), dtype)
    p = flatten(evaluate(s, z_, z_)[0])
    A, C = info["A"], info["C"]
    for i in range(0, BATCH, 4):
        room = (info["d"] - C @ p[i]) / norm(C)
        active = C[room <= 64 * eps(dtype) * magnitude(info, p[i])]
        left = nnls(np.concatenate([A, -A, active]).T, (z[i] - p[i]) / scale)[1] * scale
        assert left <= 64 * eps(dtype) * magnitude(info, z[i])


# Tangent cones.


def on_the_set(draw, rng, scale):
    """A set, a batch of its points with bounds active or clearly not, and the active normals."""
    s, info = draw(rng, scale)
    z = rng.normal(size=(BATCH, SIZE)) * scale
    normals = [[] for _ in range(BATCH)]
    identity = np.eye(SIZE)
    if draw in (box, nonnegative):
        lo, hi = info["lo"], info["hi"]
        low = np.where(np.isfinite(lo), lo, np.where(np.isfinite(hi), hi - scale, -scale))
        high = np.where(np.isfinite(hi), hi, low + scale)
        side = rng.integers(0, 3, z.shape)
        z = np.choose(side, [low, single((low + high) / 2), high])
        for i, j in np.argwhere(z == lo):
            normals[i].append(-identity[j])
        for i, j in np.argwhere(z == hi):
            normals[i].append(identity[j])
    elif draw in (simplex, product):
        part = slice(0, SIZE if draw is simplex else 3)
        weights = rng.integers(0, 4, z[:, part].shape) + 0.0
        weights[:, 0] += 1  # multiples of total / 32: exact, whatever their sum
        weights /= 32
        weights[:, 0] += 1 - weights.sum(-1)
        z[:, part] = weights * info["total"]
        ones = identity[:, part].sum(-1)
        for i in range(BATCH):
            zeros = np.flatnonzero(weights[i] == 0)
            normals[i] += [ones, -ones, *-identity[zeros]]
            if info["total"] == 0:
                normals[i] = [*identity[:, part].T, *-identity[:, part].T]
    if draw in (ball, product):
        part = slice(0 if draw is ball else 3, SIZE)
        offset = z[:, part] / norm(z[:, part])[:, None]
        boundary = rng.random(BATCH) < 0.5
        reach = np.where(boundary, 1, 0.5)[:, None] * info["radius"]
        z[:, part] = info["center"] + reach * offset
        for i in range(BATCH):
            if boundary[i]:
                normals[i].append(identity[:, part] @ offset[i])
            if info["radius"] == 0:
                normals[i] += [*identity[:, part].T, *-identity[:, part].T]
    if draw is halfspace:
        unit = info["a"] / norm(info["a"])
        gap = z @ unit - info["b"] / norm(info["a"])
        active = rng.random(BATCH) < 0.5
        z = z - (gap + np.where(active, 0, 0.5 * scale))[:, None] * unit
        for i in np.flatnonzero(active):
            normals[i].append(unit)
    if draw is affine:
        rows = info["A"] / norm(info["A"])[:, None]
        gap = z @ rows.T - info["b"] / norm(info["A"])
        z = z - np.linalg.lstsq(rows, gap.T, rcond=1e-10)[0].T
        for i in range(BATCH):
            normals[i] += [*rows[:3], *-rows[:3]]
    if draw is polyhedron:
        A, C, middle = info["A"], info["C"], info["solution"]
        step = rng.normal(size=z.shape) @ (np.eye(SIZE) - np.linalg.pinv(A) @ A)
        room = info["d"] - C @ middle
        z = middle + 0 * z
        for i in range(0, BATCH, 2):  # the others stay in the corner that it was made around
            with np.errstate(divide="ignore"):
                reach = np.where(C @ step[i] > 0, room / (C @ step[i]), np.inf)
            z[i] += rng.choice([0.5, 1]) * min(reach.min(), 1e3 * scale) * step[i]
        for i in range(BATCH):
            left = (info["d"] - C @ z[i]) / norm(C)
            normals[i] += [*A, *-A, *C[left < 1e-9 * scale]]
    return s, info, z, normals


@eqx.filter_jit
def evaluate_tangent(s, z, v, other):
    def one(z, v, other):
        d = s.tangent(z, v)
        return d, s.tangent(z, d), s.residual(z, jax.tree.map(jnp.negative, v)), s.project(other)

    return jax.vmap(one)(z, v, other)


@per_set
@per_dtype
@cases
@examples
def test_tangent_and_residual_against_normal_cone(draw, dtype, seed, log_scale):
    """The tangent cone is the polar of the normal one, whose generators are listed here."""
    rng = np.random.default_rng(seed)
    s, info, z, normals = on_the_set(draw, rng, 10.0**log_scale)
    if draw in (ball, halfspace, affine, product) and dtype == jnp.float32:
        z = flatten(project_all(s, tree(jnp.asarray(z, dtype))))  # on it in float32
    z_, _ = as_points(z, dtype)
    v_, v = as_points(rng.normal(size=z.shape) * 10.0 ** rng.integers(-6, 7), dtype)
    w_, _ = as_points(points(rng, 10.0**log_scale, info), dtype)
    d, again, residual, w = evaluate_tangent(s, z_, v_, w_)
    assert d["u"].dtype == dtype and residual.dtype == dtype
    d, again, w = flatten(d), flatten(again), flatten(w)
    residual = np.asarray(residual, float)
    # A direction is known to the angle that rounding z turns a normal of a ball by.
    curvature = magnitude(info, z) / (info.get("radius", 0) or 1) if "radius" in info else 1
    condition = 1e3 if draw is affine else 1
    tol = 16 * eps(dtype) * (norm(v) * curvature) + 64 * eps(float) * condition * norm(v)

    assert (np.abs(residual - norm(d)) <= tol).all()
    assert (norm(again - d) <= tol).all()
    # Moreau: v - d is normal, d is tangent, and they are orthogonal.
    assert (np.abs(np.sum(d * (v - d), -1)) <= tol * norm(v)).all()
    for i in range(BATCH):
        if normals[i]:
            assert (np.array(normals[i]) @ d[i] <= tol[i]).all()
    reach = norm(w - z)
    noise = 16 * eps(dtype) * magnitude(info, z, w) * norm(v)
    assert (np.sum((v - d) * (w - z), -1) <= tol * reach + noise).all()
    # The distance of v to the normal cone, by non-negative least squares over its generators.
    for i in range(0, BATCH, 16):
        if normals[i]:
            unit = v[i] / norm(v[i])
            expected = nnls(np.array(normals[i]).T, unit)[1] * norm(v[i])
        else:
            expected = norm(v[i])
        assert abs(residual[i] - expected) <= 2 * tol[i] + 1e-14 * norm(v[i])


@pytest.mark.parametrize("draw", [free, box, nonnegative, simplex, halfspace, affine, polyhedron])
@cases
@examples
def test_tangent_is_the_derivative_of_the_projection(draw, seed, log_scale):
    """On polyhedra P(z + t v) = z + t d exactly, once t is small."""
    rng = np.random.default_rng(seed)
    scale = 10.0**log_scale
    s, info, z, _ = on_the_set(draw, rng, scale)
    v = rng.normal(size=z.shape)
    # Slacks are at least this, except in a side shorter than it: those of length 0 stay at 0.
    t = 1e-6 * min(scale, info.get("total", scale) or scale)
    if draw is box:
        width = np.where(info["hi"] > info["lo"], info["hi"] - info["lo"], np.inf)
        t = min(t, 1e-2 * width.min())
    d, _, _, moved = evaluate_tangent(s, tree(z), tree(v), tree(z + t * v))
    quotient = (flatten(moved) - z) / t
    noise = 64 * eps(float) * (magnitude(info, z) / t + 1)
    assert (norm(quotient - flatten(d)) <= noise * (1 + norm(v))).all()


def test_tangent_counts_a_bound_as_active_within_a_few_ulps():
    v = jnp.array([-1.0, 1.0])
    near, far = 1 + 2 * eps(float), 1 + 1e-9
    box = Box(1.0, jnp.array([5.0, far]))
    half = Halfspace(jnp.array([0.0, 2.0]), 2)
    expected = [
        (box, [near, far - eps(float)], [0, 0]),
        (box, [far, 1.0], v),
        (Ball(1), [0, 1 - 2 * eps(float)], [-1, 0]),
        (Ball(1), [0, 1 - 1e-9], v),
        (half, [0, 1 - 2 * eps(float)], [-1, 0]),
        (half, [0, 1 - 1e-9], v),
        (Simplex(1), [eps(float), 1.0], [0, 0]),
        (Simplex(1), [1e-9, 1.0], v),
        # A zero bound has no scale but its own: the smallest positive number is inside.
        (NonNegative(), [1e-300, 0.0], v),
    ]
    found = at_once(*(("tangent", s, jnp.array(z), v) for s, z, _ in expected))
    for (*_, tangent), d in zip(expected, found, strict=True):
        np.testing.assert_array_equal(d, tangent)


def test_points_as_sets():
    z, v = jnp.array([1.0, 2.0]), jnp.array([3.0, -4.0])
    for s in (Box(z, z), Ball(0, z), Affine(np.eye(2), z), Product(Box(z, z))):
        p, d, residual = at_once(("project", s, v), ("tangent", s, z, v), ("residual", s, z, v))
        np.testing.assert_allclose(p, z)
        np.testing.assert_allclose(d, 0, atol=1e-15)
        np.testing.assert_allclose(residual, 0, atol=1e-15)
    p, d, one = at_once(
        ("project", Simplex(0), v),
        ("tangent", Simplex(0), jnp.zeros(2), v),
        ("project", Simplex(3), jnp.array([3.0])),
    )
    np.testing.assert_array_equal(p, [0, 0])
    np.testing.assert_array_equal(d, [0, 0])
    np.testing.assert_array_equal(one, [3])


# Ranges of numbers.


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("draw", TABLE, ids=lambda draw: draw.__name__)
def test_squares_neither_overflow_nor_underflow_in_float32(draw, scale):
    rng = np.random.default_rng(1)
    s, info = draw(rng, 1.0)
    small, _ = as_points(rng.normal(size=(BATCH, SIZE)) * 3, jnp.float32)
    large = jax.tree.map(lambda leaf: leaf * jnp.float32(scale), small)
    factor = float(np.float32(scale))
    if draw in (nonnegative, free):
        scaled = s
    elif draw is affine:
        scaled = Affine(info["A"], factor * info["b"])
    elif draw is polyhedron:
        scaled = Polyhedron(info["A"], factor * info["b"], info["C"], factor * info["d"])
    elif draw is halfspace:
        scaled = Halfspace(s.a, factor * s.b)
    else:
        scaled = jax.tree.map(lambda leaf: leaf * factor, s)
    p, _, _, distance, _ = evaluate(s, small, small)
    p_large, _, _, distance_large, contained = evaluate(scaled, large, large)
    size = norm(flatten(small)) + magnitude(info)
    tol = 16 * eps(np.float32) * size
    assert (norm(flatten(p_large) / factor - flatten(p)) <= tol).all()
    assert (np.abs(np.asarray(distance_large, float) / factor - np.asarray(distance)) <= tol).all()
    assert contained.all()


def test_ball_and_halfspace_with_a_million_entries_in_float32():
    z = jnp.asarray(1e4 * np.random.default_rng(0).normal(size=10**6), jnp.float32)
    p, contained = project_and_look(Ball(3), z)
    assert abs(norm(np.asarray(p, float)) - 3) <= 3 * 8 * eps(np.float32)
    assert contained and not Ball(3).contains(p * jnp.float32(1.001))
    q, contained = project_and_look(Halfspace(1.0, -3.0), z)
    assert abs(np.asarray(q, float).sum() + 3) / 1e3 <= 8 * eps(np.float32) * norm(np.asarray(q))
    assert contained


def test_a_far_centre_costs_an_ulp_of_the_centre_and_no_more():
    center = np.full(SIZE, 1e6)
    z = center + np.random.default_rng(0).normal(size=(BATCH, SIZE)) * 100
    s = Ball(1.0, center)
    p = np.asarray(project_all(s, jnp.asarray(z, jnp.float32)), float)
    assert (norm(p - center) <= 1 + 8 * eps(np.float32) * norm(center)).all()


def test_infinite_bounds_make_no_nan():
    z = jnp.array([1.0, -2.0])
    sets = [Box(-np.inf, np.inf), Box(-np.inf, 0), Ball(np.inf), Halfspace(1.0, np.inf)]
    with jax.debug_nans(True):
        for s in [*sets, Halfspace(0.0, 0.0), Product(sets[0])]:
            jax.jit(lambda s, z: (s.project(z), s.tangent(z, z), s.residual(z, z)))(s, z)
            slope = jax.grad(lambda z, s: jnp.sum(s.project(z) ** 2) + s.distance(z))
            assert jnp.isfinite(jax.jit(slope)(z, s)).all()
            assert s.diameter(z) == np.inf
    for s in (sets[0], sets[2], sets[3]):
        np.testing.assert_array_equal(s.project(z), z)
        np.testing.assert_array_equal(s.tangent(z, z), z)


def test_nan_is_in_no_set():
    z = np.full((BATCH, SIZE), 0.1)
    z[:, 0] = np.nan
    z = tree(jnp.asarray(z))
    for draw in TABLE:
        p, *_, distance, contained = evaluate(draw(np.random.default_rng(0), 1.0)[0], z, z)
        assert jnp.isnan(p["u"][:, 0]).all()  # a failure is passed on, not hidden
        assert jnp.isnan(distance).all() and not contained.any()


def test_contains_takes_a_tolerance():
    z, unit = jnp.array([0.0, 1.001]), Box(0, 1)
    # A large entry does not hide the violation of a small one.
    mixed = jnp.array([1e6, -1e-3], jnp.float32)
    parts = Product((Free(), Simplex(1)))
    inside = [
        ("contains", Ball(1), z, 2e-3),
        ("contains", unit, jnp.array([0.0, 1.0]), 0),
        ("contains", unit, jnp.array([0.0, 1 + 1e-15])),
        ("contains", Simplex(1), jnp.full(10, 0.1)),
    ]
    outside = [
        ("contains", Ball(1), z),
        ("contains", Ball(1), z, 1e-4),
        ("contains", unit, jnp.array([0.0, 1 + 1e-15]), 0),
        ("contains", unit, jnp.array([0.0, 1 + 1e-14])),
        ("contains", Box(0, np.inf), mixed),
        ("contains", NonNegative(), mixed),
        ("contains", parts, (jnp.float32(1e6), jnp.array([0.5, 0.6], jnp.float32))),
        ("contains", Simplex(1), jnp.full(10, 0.2)),
    ]
    assert at_once(*inside, *outside) == [True] * len(inside) + [False] * len(outside)


# Points as pytrees.


def test_a_pytree_is_one_vector():
    z = {"u": jnp.array([3.0, 0.0]), "w": (jnp.array([[4.0]]), jnp.array(0.0))}

    def flat(z):
        return jax.flatten_util.ravel_pytree(z)[0]

    bounds = Box({"u": np.array([0, 1]), "w": 0}, {"u": 2, "w": (np.ones((1, 1)), 5)})
    parts = Product({"u": Simplex(1), "w": (Ball(1), Free())})
    prefix = Product({"u": Box(0, 1), "w": Product((NonNegative(), Box(1, 2)))})
    expected = [
        (Ball(1), [0.6, 0, 0.8, 0]),
        (Simplex(1), [0, 0, 1, 0]),
        (Halfspace(1.0, 3.0), [2, -1, 3, -1]),
        (Affine([[1, 0, 1, 0]], [1]), [0, 0, 1, 0]),
        (Box(1, 2), [2, 1, 2, 1]),
        (bounds, [2, 1, 1, 0]),
        (parts, [1, 0, 1, 0]),
        (prefix, [1, 0, 4, 1]),
    ]
    calls = [("project", s, z) for s, _ in expected]
    *found, distance = at_once(*calls, ("distance", prefix, z))
    for (_, p), q in zip(expected, found, strict=True):
        np.testing.assert_allclose(flat(q), p, atol=1e-15)
    np.testing.assert_allclose(distance, np.sqrt(4 + 1))
    for s in (bounds, parts, prefix, Ball(1, {"u": 1, "w": 0}), Halfspace({"u": 1, "w": 0}, 1)):
        s.check(z, "y_set")
        for found in jax.eval_shape(lambda z: (s.project(z), s.tangent(z, z)), z):
            assert jax.tree.structure(found) == jax.tree.structure(z)


def test_empty_parts_and_numbers():
    z = {"u": jnp.ones(2), "none": None, "empty": jnp.ones((0,))}
    for s in (Free(), Box(0, 1), NonNegative(), Ball(1), Simplex(), Halfspace(1, 1)):
        p, contained = project_and_look(s, z)
        assert jax.tree.structure(p) == jax.tree.structure(z) and p["empty"].shape == (0,)
        assert contained and jnp.isfinite(s.residual(p, z))
    assert Box(0, 1).project(2.0) == 1 and Ball(1).project(2.0) == 1
    np.testing.assert_array_equal(Box(0, 1).project([2.0, -1.0]), [1, 0])


# Transformations and dtypes.


def representative(draw):
    s, info = draw(np.random.default_rng(3), 1.0)
    return s, points(np.random.default_rng(4), 1.0, info)


@per_set
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_dtype_is_kept(draw, dtype):
    s, z = representative(draw)

    def outputs(s, z, key):
        p = s.project(z)
        gradient = jax.grad(s.distance)(z)
        return p, gradient, s.tangent(p, z), s.residual(p, z), s.diameter(z), s.sample(key, z, 1.0)

    shapes = jax.eval_shape(outputs, s, tree(jnp.asarray(z[0], dtype)), jax.random.key(0))
    assert all(leaf.dtype == dtype for leaf in jax.tree.leaves(shapes))


@per_set
def test_without_64_bit_types(draw, x32):
    s, z = representative(draw)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(s))
    z = tree(jnp.asarray(z[0]))
    p, contained = project_and_look(s, z)
    assert p["u"].dtype == jnp.float32
    assert contained


@per_set
def test_vmap_equals_loop(draw):
    s, z = representative(draw)
    batch = tree(jnp.asarray(z))
    one = jax.jit(lambda z: (s.project(z), s.distance(z), s.tangent(s.project(z), z)))
    p, _, _, distance, _ = evaluate(s, batch, batch)
    mapped = (p, distance, evaluate_tangent(s, p, batch, batch)[0])
    for i in range(BATCH):
        looped = one(jax.tree.map(lambda leaf: leaf[i], batch))
        tol = 16 * eps(float) * (1 + norm(z[i]))
        same = jax.tree.map(lambda a, b: np.allclose(a[i], b, rtol=0, atol=tol), mapped, looped)
        assert all(jax.tree.leaves(same))


def test_vmap_over_sets():
    z = jnp.array([3.0, 4.0])
    radii = jnp.array([1.0, 2.0, 10.0])

    def affine(b):
        return Affine([[1.0, 1.0], [2.0, 2.0]], jnp.stack([b, 2 * b])).project(z)

    @jax.jit
    def everything(radii, a):
        projected = jax.vmap(lambda s: s.project(z))(jax.vmap(Ball)(radii))
        inside = jax.vmap(lambda r: Ball(r).project(z))(radii)
        boxes = jax.vmap(lambda t: Box(-t, t).project(z))(radii)
        return projected, inside, boxes, jax.vmap(affine)(radii), Affine(a, [1]).project(z)

    found = everything(radii, jnp.array([[3.0, 4.0]]))
    projected, inside, boxes, sums, tilted = map(np.asarray, found)
    np.testing.assert_allclose(projected, [[0.6, 0.8], [1.2, 1.6], [3, 4]])
    np.testing.assert_allclose(inside, projected)
    np.testing.assert_allclose(boxes[:, 0], [1, 2, 3])
    np.testing.assert_allclose(sums.sum(-1), radii)
    np.testing.assert_allclose(tilted, [0.12, 0.16])
    jax.jit(lambda t: (Simplex(t), Halfspace(t, -t), Box(t, -t), Ball(-t)))(1.0)  # no checks


@pytest.mark.parametrize(
    "make",
    [
        lambda t: Box(-t, t),
        lambda t: Ball(t),
        lambda t: Simplex(t),
        lambda t: Halfspace(t, t),
        lambda t: Affine([[t, t]], [t]),
        lambda t: Polyhedron([[t, t]], [t], [[t, 0]], [t]),
        lambda t: Product(Box(0, t)),
    ],
)
def test_new_numbers_do_not_recompile(make):
    traces = 0

    @jax.jit
    def counted(s, z):
        nonlocal traces
        traces += 1
        return s.project(z)

    for t in (1, 2.0, np.float32(3), np.float64(4), jnp.asarray(5.0), jnp.float32(6)):
        counted(make(t), jnp.ones(2))
    assert traces == 1


# Derivatives.


@per_set
def test_gradient_of_the_projection(draw):
    s, z = representative(draw)
    rng = np.random.default_rng(0)
    weight = rng.normal(size=SIZE)

    @jax.jit
    def value(flat):
        p = s.project(tree(flat))
        return jnp.sum(jnp.asarray(weight) * jnp.concatenate([p["u"], p["w"].ravel()]) ** 2)

    gradient = jax.jit(jax.grad(value))
    for flat in rng.normal(size=(20, SIZE)) * 10.0 ** rng.integers(-2, 2, (20, 1)):
        found = gradient(flat)
        h = 1e-6
        expected = [(value(flat + h * e) - value(flat - h * e)) / (2 * h) for e in np.eye(SIZE)]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * (1 + norm(flat) ** 2))
    assert all(np.isfinite(gradient(flat)).all() for flat in z)


def test_gradient_at_the_centre_and_on_the_boundary():
    center, corner = jnp.array([1.0, 2.0]), jnp.array([0.0, 1.0])
    points = [
        (Ball(1, center), center),
        (Box(0, 1), jnp.array([0.5, 2.0])),
        (Ball(1), corner),
        (Ball(0), jnp.zeros(2)),
        (Simplex(1), corner),
        (Simplex(0), corner),
        (Halfspace(0.0, 1.0), jnp.zeros(2)),
    ]

    @jax.jit
    def slopes(points):
        return [jax.grad(lambda z, s=s: jnp.sum(s.project(z) ** 2))(z) for s, z in points]

    at_center, clipped, *others = map(np.asarray, slopes(points))
    np.testing.assert_array_equal(at_center, 2 * center)
    np.testing.assert_array_equal(clipped, [1, 0])
    assert np.isfinite(others).all()


@per_set
@pytest.mark.usefixtures("optimised")
def test_gradient_of_the_distance(draw):
    """A unit vector outside, zero inside, and between them where the distance is rounding error."""
    s, z = representative(draw)
    z = tree(jnp.asarray(z))
    p = project_all(s, z)
    slope = jax.jit(jax.vmap(jax.value_and_grad(lambda z: s.distance(z))))
    for where in (z, p):
        distance, gradient = slope(where)
        distance, gradient = np.asarray(distance), flatten(gradient)
        clear = distance > 1e-3 * (1 + norm(flatten(where)))
        assert (np.abs(norm(gradient) - 1)[clear] <= 16 * eps(float)).all()
        assert (norm(gradient) <= 1 + 16 * eps(float)).all()
        assert (gradient[distance == 0] == 0).all()


def test_gradient_in_the_numbers_of_a_set():
    z = jnp.array([3.0, 4.0])
    gradient = eqx.filter_grad(lambda s: s.project(z)[0])
    np.testing.assert_allclose(gradient(Ball(1)).radius, 0.6)
    np.testing.assert_allclose(gradient(Simplex(5)).total, 0.5)
    np.testing.assert_allclose(gradient(Box(0, 1)).hi, 1)
    np.testing.assert_allclose(gradient(Halfspace(1.0, 1.0)).b, 0.5)


# Diameter and samples.


def test_diameter():
    z = tree(jnp.zeros(SIZE))
    rng = np.random.default_rng(0)
    lo = rng.normal(size=SIZE)
    hi = lo + rng.random(SIZE)
    sets = [
        (Box(tree(lo), tree(hi)), norm(hi - lo)),
        (Ball(3, tree(lo)), 6),
        (Simplex(2), 2 * np.sqrt(2)),
        (Product({"u": Ball(2), "w": Simplex(1)}), np.sqrt(16 + 2)),
        (Product({"u": Ball(2), "w": Product(Box(0, 3))}), np.sqrt(16 + 36)),
    ]
    directions = np.concatenate([np.eye(SIZE), rng.normal(size=(200, SIZE)), [hi - lo]])
    far = tree(jnp.asarray(np.concatenate([directions, -directions]) * 1e6))
    for s, expected in sets:
        np.testing.assert_allclose(s.diameter(z), expected, rtol=1e-15)
        ends = flatten(project_all(s, far))
        widest = norm(ends[:, None] - ends[None]).max()
        assert 0.99 * expected <= widest <= expected * (1 + 1e-9)
    for s in (Free(), NonNegative(), Halfspace(1.0, 1.0), Affine(np.ones((1, SIZE)), [1])):
        assert s.diameter(z) == np.inf
        ends = flatten(project_all(s, far))
        assert norm(ends[:, None] - ends[None]).max() > 1e6
    assert Box(0, np.inf).diameter(z) == np.inf
    assert Product({"u": Ball(1), "w": Free()}).diameter(z) == np.inf
    assert Simplex(5).diameter(jnp.ones(1)) == 0
    np.testing.assert_allclose(Simplex(5).diameter(jnp.ones(2)), 5 * np.sqrt(2))


@eqx.filter_jit
def samples(s, z, radius, number=2000):
    keys = jax.random.split(jax.random.key(0), number)
    return jax.vmap(lambda key: s.sample(key, z, radius))(keys)


@per_set
def test_samples_lie_in_the_set(draw):
    s, z = representative(draw)
    drawn = samples(s, tree(jnp.asarray(z[0], jnp.float32)), 0.5, BATCH)
    assert drawn["u"].shape == (BATCH, 3) and drawn["u"].dtype == jnp.float32
    *_, distance, _ = evaluate(s, drawn, drawn)
    assert (np.asarray(distance) <= 16 * eps(np.float32) * norm(flatten(drawn))).all()
    assert len(np.unique(flatten(drawn), axis=0)) > BATCH // 2


def test_samples_of_a_box_fill_its_finite_sides():
    s = Box(jnp.array([2.0, 0.0, -np.inf, 5.0]), jnp.array([4.0, np.inf, np.inf, 5.0]))
    z = jnp.array([3.9, 10.0, 10.0, 5.0])
    draws = samples(s, z, 0.5)
    np.testing.assert_allclose(draws.mean(0), [3, 10, 10, 5], atol=0.05)
    np.testing.assert_allclose(draws.min(0), [2, 9.5, 9.5, 5], atol=0.01)
    np.testing.assert_allclose(draws.max(0), [4, 10.5, 10.5, 5], atol=0.01)
    assert (samples(s, z.at[1].set(-7.0), 0.5)[:, 1] == 0).all()
    wide = Box(np.float32(-3e38), np.float32(3e38))
    assert jnp.isfinite(samples(wide, jnp.zeros(3, jnp.float32), 1.0)).all()


def test_samples_of_a_product_are_independent():
    z = {"u": jnp.zeros(3), "w": jnp.zeros(3)}
    draw = Product({"u": Free(), "w": Free()}).sample(jax.random.key(0), z, 1.0)
    assert (draw["u"] != draw["w"]).all()


# Errors.

nan, inf = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(2, 1), r"^Box lo is 2.0 and hi is 1.0; expected a number between them\.$"),
        (
            lambda: Box(np.array([0, 3, 4]), np.array([1, 2, 3])),
            r"^Box lo is 3.0 and hi is 2.0 at index \(1,\); expected a number between them\.$",
        ),
        (
            lambda: Box({"u": 0, "w": np.zeros((2, 2))}, {"u": 1, "w": np.eye(2) - 1}),
            r"^Box lo\['w'\] is 0.0 and hi\['w'\] is -1.0 at index \(0, 1\); expected",
        ),
        (
            lambda: Box(0, {"u": 1, "w": -1}),
            r"^Box lo\['w'\] is 0.0 and hi\['w'\] is -1.0; expected",
        ),
        (lambda: Box(inf, inf), r"^Box lo is inf and hi is inf; expected"),
        (lambda: Box(-inf, -inf), r"^Box lo is -inf and hi is -inf; expected"),
        (lambda: Box(nan, 1), r"^Box lo is nan; expected a number\.$"),
        (
            lambda: Box(0, np.array([1, nan])),
            r"^Box hi is nan at index \(1,\); expected a number\.$",
        ),
        (lambda: Box({"u": nan}, 1), r"^Box lo\['u'\] is nan; expected a number\.$"),
        (lambda: Box("0", 1), r"^Box lo is of type <U1; expected real numbers\.$"),
        (lambda: Box(0, 1j), r"^Box hi is of type complex128; expected real numbers\.$"),
        (
            lambda: Box(np.zeros(3), np.ones(2)),
            r"^Box lo has shape \(3,\) and hi has shape \(2,\); expected shapes that broadcast\.$",
        ),
        (
            lambda: Box({"u": 0}, {"w": 1}),
            r"^Box lo has structure .*'u'.* and hi has structure .*'w'.*; expected one to be a "
            r"prefix of the other\.$",
        ),
        (lambda: Ball(-1), r"^Ball radius is -1; expected at least 0\.$"),
        (lambda: Ball(nan), r"^Ball radius is nan; expected a number\.$"),
        (lambda: Ball(np.ones(2)), r"^Ball radius is array\(\[1., 1.\]\); expected one number\.$"),
        (lambda: Ball([1]), r"^Ball radius is \[1\]; expected one number\.$"),
        (lambda: Ball(None), r"^Ball radius is None; expected one number\.$"),
        (
            lambda: Ball(1, np.array([0, inf])),
            r"^Ball center is inf at index \(1,\); expected a fin",
        ),
        (lambda: Simplex(-1.5), r"^Simplex total is -1.5; expected at least 0\.$"),
        (lambda: Simplex(nan), r"^Simplex total is nan; expected a finite number\.$"),
        (lambda: Simplex(inf), r"^Simplex total is inf; expected a finite number\.$"),
        (
            lambda: Halfspace(np.zeros(3), -1),
            r"^Halfspace a is zero and b is -1: no point has <a, z> <= b\.$",
        ),
        (
            lambda: Halfspace(np.ones(3), -inf),
            r"^Halfspace a is finite and b is -inf: no point has <a, z> <= b\.$",
        ),
        (lambda: Halfspace(nan, 1), r"^Halfspace a is nan; expected a finite number\.$"),
        (lambda: Halfspace(1, nan), r"^Halfspace b is nan; expected a number\.$"),
        (lambda: Halfspace(1, [1, 2]), r"^Halfspace b is \[1, 2\]; expected one number\.$"),
        (
            lambda: Affine(np.ones((2, 3)), np.ones(3)),
            r"^Affine A has shape \(2, 3\) and b has shape \(3,\); expected \(m, n\) and \(m,\)\.$",
        ),
        (
            lambda: Affine(np.ones(3), 1),
            r"^Affine A has shape \(3,\) and b has shape \(\); expected",
        ),
        (
            lambda: Affine([[1, 1], [2, 2]], [1, 3]),
            r"^Affine A z = b has no solution: the nearest to one misses b at index \d by .*\.$",
        ),
        (
            lambda: Polyhedron([[1, 1]], [1], np.eye(2), np.full(2, 0.4)),
            r"^Polyhedron has no points: no z with A z = b is nearer than 0\.1 to all of",
        ),
        (
            lambda: Polyhedron(C=[[1, 0], [0, 0]], d=[1, -1]),
            r"^Polyhedron has no points: no z with A z = b is nearer than 1 to",
        ),
        (lambda: Polyhedron(C=[[1, 0]], d=[-inf]), r"^Polyhedron has no points: .* than inf "),
        (lambda: Polyhedron([[1, 1], [2, 2]], [1, 3]), r"^Polyhedron A z = b has no solution: "),
        (lambda: Polyhedron([[1, 1]]), r"^Polyhedron needs both A and b, or neither\.$"),
        (
            lambda: Polyhedron(),
            r"^Polyhedron needs A and b, or C and d; Free\(\) is the whole space",
        ),
        (
            lambda: Polyhedron([[1, 1]], [1], np.eye(3), np.ones(3)),
            r"^Polyhedron A has 2 columns and C has 3; expected as many\.$",
        ),
        (
            lambda: Polyhedron(C=np.eye(2), d=np.ones(3)),
            r"^Polyhedron C has shape \(2, 2\) and d has shape \(3,\); expected \(k, n\) and ",
        ),
        (lambda: Polyhedron(C=[[1, nan]], d=[1]), r"^Polyhedron C is nan at index \(0, 1\); exp"),
        (lambda: Affine([[0, 0]], [1]), r"^Affine A z = b has no solution: .* at index 0 by 1\.$"),
        (lambda: Affine([[1, nan]], [1]), r"^Affine A is nan at index \(0, 1\); expected a finite"),
        (lambda: Affine([[1, 1]], [inf]), r"^Affine b is inf at index \(0,\); expected a finite"),
        (lambda: Product({"u": Free(), "w": 3}), r"^Product tree\['w'\] is 3; expected a set\.$"),
        (lambda: Product(1.5), r"^Product tree is 1.5; expected a set\.$"),
        (lambda: Product([Box]), r"^Product tree\[0\] is <class '.*Box'>; expected a set\.$"),
    ],
)
def test_construction_errors(make, message):
    with pytest.raises(ProblemError, match=message):
        make()


@pytest.mark.parametrize(
    ("s", "z", "message"),
    [
        (
            lambda: Box(np.zeros(3), 1),
            np.ones(2),
            r"^y_set: Box lo has shape \(3,\) but y0 has a leaf of shape \(2,\)\.$",
        ),
        (
            lambda: Box(0, {"u": np.ones(3), "w": 1}),
            {"u": np.ones(()), "w": 1.0},
            r"^y_set: Box hi has shape \(3,\) but y0 has a leaf \['u'\] of shape \(\)\.$",
        ),
        (
            lambda: Box(0, np.ones(3)),
            np.ones(1),
            r"^y_set: Box hi has shape \(3,\) but y0 has a leaf of shape \(1,\)\.$",
        ),
        (
            lambda: Box([0, 0], 1),
            np.ones(2),
            r"^y_set: Box lo has structure PyTreeDef\(\[\*, \*\]\) but y0 has structure "
            r"PyTreeDef\(\*\)\.$",
        ),
        (
            lambda: Box(0, {"u": 1}),
            {"w": 1.0},
            r"^y_set: Box hi has structure .* but y0 has struct",
        ),
        (
            lambda: Ball(1, np.zeros((2, 2))),
            np.ones(2),
            r"^y_set: Ball center has shape \(2, 2\) but y0 has a leaf of shape \(2,\)\.$",
        ),
        (
            lambda: Halfspace(np.ones(3), 1),
            [np.ones(3), np.ones(2)],
            r"^y_set: Halfspace a has shape \(3,\) but y0 has a leaf \[1\] of shape \(2,\)\.$",
        ),
        (
            lambda: Affine(np.ones((2, 3)), np.ones(2)),
            [np.ones(3), np.ones(2)],
            r"^y_set: Affine A has 3 columns but y0 has 5 entries\.$",
        ),
        (
            lambda: Polyhedron(C=np.ones((2, 3)), d=np.ones(2)),
            {"u": np.ones(1), "w": np.ones((2, 2))},
            r"^y_set: Polyhedron has 3 columns but y0 has 5 entries\.$",
        ),
        (lambda: Simplex(), np.ones(0), r"^y_set: Simplex needs an entry but y0 has none\.$"),
        (
            lambda: Product({"u": Free()}),
            {"u": 1.0, "w": 1.0},
            r"^y_set: Product tree has structure .* but y0 has structure .*\.$",
        ),
        (
            lambda: Product({"u": Free(), "w": Product([Box(np.zeros(3), 1)])}),
            {"u": 1.0, "w": [np.ones(2)]},
            r"^y_set\['w'\]\[0\]: Box lo has shape \(3,\) but y0\['w'\]\[0\] has a leaf of shape "
            r"\(2,\)\.$",
        ),
    ],
)
def test_check_errors(s, z, message):
    with pytest.raises(ProblemError, match=message):
        s().check(z, "y_set")


def test_check_accepts_what_fits():
    shapes = {"u": jax.ShapeDtypeStruct((3,), float), "w": np.ones((2, 2))}
    for draw in TABLE:
        draw(np.random.default_rng(0), 1.0)[0].check(shapes, "x_set")
    Box(np.zeros((1, 3)), np.ones((2, 1))).check(np.ones((2, 3)), "x_set")
    jax.jit(lambda z: Box(0, z).check(z, "x_set"))(1.0)


def test_consistent_systems_are_accepted():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for _ in range(200):
            m, n, rank = rng.integers(1, 12, 3)
            A = rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))
            b = A @ (rng.normal(size=n) * 10.0 ** rng.integers(-3, 4))
            s = Affine(A.astype(dtype), b.astype(dtype))
            assert np.sum(norm(np.asarray(s.rows)) > 0.5) == min(m, n, rank)
    assert np.sum(norm(np.asarray(Affine([[1e9, 0], [0, 1e-9]], [1, 1]).rows))) == 2


def test_sets_are_abstract_or_final_and_frozen():
    with pytest.raises(TypeError):
        Set()
    ours = [cls for cls in Set.__subclasses__() if cls.__module__.startswith("pdbo.")]
    assert len(ours) >= 8
    for cls in ours:
        assert getattr(cls, "__final__", False)
    with pytest.raises(AttributeError):
        Ball(1).radius = 2


def test_import_starts_no_backend():
    code = "import pdbo.sets as s; s.Free(); s.NonNegative()"
    environment = {**os.environ, "JAX_PLATFORMS": "no_such_platform"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_plane_alone_and_numbers_that_are_traced():
    """A polyhedron without sides is an affine set; under jit its rows need not be known."""
    A, b, z = np.array([[1.0, 2.0, 0.0]]), np.array([3.0]), jnp.array([4.0, -1.0, 2.0])
    plane = Polyhedron(A, b).project(z)
    np.testing.assert_allclose(plane, Affine(A, b).project(z), atol=1e-12)
    half = jax.jit(lambda d: Polyhedron(C=A, d=d).project(z))(jnp.array([1.0]))
    np.testing.assert_allclose(half, Halfspace(A[0], 1.0).project(z), atol=1e-12)


def test_names_that_no_set_has():
    with pytest.raises(AttributeError, match=r"module 'pdbo.sets' has no attribute 'Cone'"):
        sets.Cone  # noqa: B018
