"""The stochastic methods beside their update rules in NumPy, on quadratics written out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cases
import pdbo
from pdbo.solvers import F2SA2, F3SA, MASOBA, SABA, SOBA, SUSTAIN, StocBiO
from pdbo.solvers._streamed import Streamed

NX, NY, COUNT, STEPS = 2, 3, 6, 5
RNG = np.random.default_rng(4)
ROOTS = RNG.normal(size=(COUNT, NY, NY)) / 2
DATA = {
    "A": np.eye(NY) / 2 + np.einsum("nij,nkj->nik", ROOTS, ROOTS) / NY,
    "B": RNG.normal(size=(COUNT, NX, NY)),
    "c": RNG.normal(size=(COUNT, NY)),
}
X0, Y0 = np.array([0.4, -0.7]), np.array([0.3, 0.1, -0.2])


def inner(x, y, d):
    return jnp.mean(
        0.5 * jnp.einsum("nij,i,j->n", d["A"], y, y) - jnp.einsum("nij,i,j->n", d["B"], x, y)
    )


def outer(x, y, d):
    return 0.5 * jnp.mean(jnp.sum((y - d["c"]) ** 2, 1)) + 0.1 * jnp.sum(x**2)


def means(rows=slice(None)):
    return tuple(DATA[k][rows].mean(0) for k in "ABc")


def f_x(x, y):
    return 0.2 * x


def whole():
    return pdbo.Problem(outer, inner, DATA)


def check(solver, expected, problem=None):
    """The points after every step, from both."""
    problem = whole() if problem is None else problem
    state = solver.init(problem, jnp.asarray(X0), jnp.asarray(Y0), jax.random.key(0))
    step = eqx.filter_jit(lambda state: solver.step(problem, state))
    for x, y in expected:
        state = step(state)
        point = solver.output(state)
        np.testing.assert_allclose(point.x, x, rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(point.y, y, rtol=1e-11, atol=1e-12)


def test_soba():
    A, B, c = means()
    x, y, v, found = X0, Y0, np.zeros(NY), []
    for t in range(STEPS):
        s = (t + 1) ** -0.5
        new = (
            x - 0.1 * s * (f_x(x, y) + B @ v),
            y - 0.3 * s * (A @ y - x @ B),
            v - 0.3 * s * (A @ v - (y - c)),
        )
        x, y, v = new
        found.append((x, y))
    check(SOBA(0.1, 0.3), found)


def test_ma_soba():
    A, B, c = means()
    x, y, v, h, found = X0, Y0, np.zeros(NY), np.zeros(NX), []
    for _ in range(STEPS):
        d = f_x(x, y) + B @ v
        x, h, y, v = (
            x - 0.1 * h,
            0.75 * h + 0.25 * d,
            y - 0.3 * (A @ y - x @ B),
            v - 0.3 * (A @ v - (y - c)),
        )
        found.append((x, y))
    check(MASOBA(0.1, 0.3, 0.25), found)


def blocks(stream, cursor, count):
    """The numbers of the next fixed batches."""
    found = []
    for _ in range(count):
        found.append(int(stream.block(cursor)))
        cursor = stream._advance(cursor)
    return found


def test_saba():
    """In batches of f and g of unlike sizes, with a memory for each."""
    data = pdbo.Batches({"c": DATA["c"]}, DATA, (3, 2))
    problem, solver = pdbo.Problem(outer, inner, data), Streamed(SABA(0.1, 0.3))
    state = solver.init(problem, jnp.asarray(X0), jnp.asarray(Y0), jax.random.key(0))
    order_f, order_g = blocks(data.outer, state.outer, 7), blocks(data.inner, state.inner, 7)
    assert sorted(order_f[:2]) == [0, 1] and sorted(order_g[:3]) == [0, 1, 2]
    x, y, v, found = X0, Y0, np.zeros(NY), []
    of_f, of_g = np.zeros((2, NX + NY)), np.zeros((3, 2 * NY + NX))
    for i, j in zip(order_f, order_g, strict=True):
        c = means(slice(3 * i, 3 * i + 3))[2]
        A, B, _ = means(slice(2 * j, 2 * j + 2))
        new_f = np.concatenate([f_x(x, y), y - c])
        new_g = np.concatenate([A @ y - x @ B, -B @ v, A @ v])
        est_f = new_f - of_f[i] + of_f.mean(0)
        est_g = new_g - of_g[j] + of_g.mean(0)
        of_f[i], of_g[j] = new_f, new_g
        g_y, cross, curved = np.split(est_g, [NY, NY + NX])
        x, y, v = (
            x - 0.1 * (est_f[:NX] - cross),
            y - 0.3 * g_y,
            v - 0.3 * (curved - est_f[NX:]),
        )
        found.append((x, y))
    check(solver, found, problem)


def test_saba_converges_linearly_where_soba_hovers():
    """To the minimum of the whole, from batches; the hypergradient by the closed form."""
    A, B, c = means()
    problem = pdbo.Problem(outer, inner, pdbo.Batches({"c": DATA["c"]}, DATA, (3, 2)))

    def slope(solver):
        solver = Streamed(solver)
        state = cases.iterate(problem, solver, jnp.asarray(X0), jnp.asarray(Y0), 3000)
        x = np.asarray(solver.output(state).x)
        y = np.linalg.solve(A, x @ B)
        return np.linalg.norm(f_x(x, y) + B @ np.linalg.solve(A, y - c))

    assert slope(SABA(0.05, 0.2)) < 1e-10 < 1e-4 < slope(SOBA(0.05, 0.2, 0.0))


def test_saba_needs_equal_batches():
    problem = pdbo.Problem(outer, inner, pdbo.Batches(DATA, DATA, (3, 4)))
    with pytest.raises(pdbo.ProblemError, match="size must divide the 6 examples of inner, got 4"):
        pdbo.solve(problem, X0, Y0, SABA(), steps=5)


def test_stocbio():
    A, B, c = means()
    x, y, d, found = X0, Y0, np.zeros(NX), []
    for _ in range(STEPS):
        x = x - 0.1 * d
        for _ in range(2):
            y = y - 0.3 * (A @ y - x @ B)
        powers = [np.linalg.matrix_power(np.eye(NY) - 0.2 * A, k) for k in range(4)]
        d = f_x(x, y) + B @ (0.2 * sum(powers) @ (y - c))
        found.append((x, y))
    check(StocBiO(0.1, 0.3, 2, 4, 0.2), found)


def test_sustain():
    A, B, c = means()
    powers = 0.2 * sum(np.linalg.matrix_power(np.eye(NY) - 0.2 * A, k) for k in range(4))

    def both(x, y):
        return np.concatenate([f_x(x, y) + B @ powers @ (y - c), A @ y - x @ B])

    z = last = (X0, Y0)
    h, found = None, []
    for _ in range(STEPS):
        h = both(*z) if h is None else both(*z) + 0.7 * (h - both(*last))
        last, z = z, (z[0] - 0.1 * h[:NX], z[1] - 0.3 * h[NX:])
        found.append(z)
    check(SUSTAIN(0.1, 0.3, 0.3, 0.2, 4), found)


def test_f2sa_2():
    A, B, c = means()
    x, up, down, found = X0, Y0, Y0, []
    for _ in range(STEPS):
        for _ in range(2):
            up = up - 0.3 * (A @ up - x @ B + 0.1 * (up - c))
            down = down - 0.3 * (A @ down - x @ B - 0.1 * (down - c))
        x = x - 0.2 * (0.5 * (f_x(x, up) + f_x(x, down)) + (-B @ up + B @ down) / 0.2)
        found.append((x, (up + down) / 2))
    check(F2SA2(0.2, 0.3, 2, 0.1), found)


def test_f2sa_2_is_accurate_to_second_order():
    """Its fixed point against the exact solution, for an offset and for half of it."""
    A, B, c = means()
    inverse = np.linalg.inv(A)
    curvature = 0.2 * np.eye(NX) + B @ inverse @ inverse @ B.T
    exact = np.linalg.solve(curvature, B @ inverse @ c)

    def error(nu):
        solver = F2SA2(0.2, 0.5, 40, nu)
        state = cases.iterate(whole(), solver, jnp.asarray(X0), jnp.asarray(Y0), 400)
        return np.linalg.norm(np.asarray(state.x) - exact)

    assert 3.5 < error(0.1) / error(0.05) < 4.5


def test_f3sa():
    A, B, c = means()

    def all_at(x, y, z):
        g = lambda v: np.concatenate([-B @ v, A @ v - x @ B])
        return np.concatenate([f_x(x, y), y - c, g(y), g(z)])

    at = last = (X0, Y0, Y0)
    h, lam, found = None, 0.8, []
    cuts = np.cumsum([NX, NY, NX, NY, NX])
    for _ in range(STEPS):
        h = all_at(*at) if h is None else all_at(*at) + 0.7 * (h - all_at(*last))
        hf_x, hf_y, hg_x, hg_y, hz_x, hz_y = np.split(h, cuts)
        alpha = 0.3 / (2 * lam)
        x, y, z = at
        last, at = (
            at,
            (
                x - 0.5 * alpha * (hf_x + lam * (hg_x - hz_x)),
                y - alpha * (hf_y + lam * hg_y),
                z - 0.3 * hz_y,
            ),
        )
        lam += 0.1
        found.append(at[:2])
    check(F3SA(0.3, 0.5, 0.3, 0.8, 0.1), found)
