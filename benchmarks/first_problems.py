"""First problems that a user would write, each with a truth that pdbo does not compute.

A truth is the solution itself, or the inner solution as a function of x by other means (a closed
form, Newton's method from scratch, SciPy's solvers), along which SciPy searches for the lowest f.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import pdbo

CLOSE = 1e-5  # relative: a point this close to a solution is right
LOWER = 1e-7  # relative: f this much above the lowest is right


def flat(tree: Any) -> np.ndarray:
    """A point as one vector of doubles."""
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def apart(a: Any, b: Any) -> float:
    """The distance of two points, relative to the larger."""
    a, b = flat(a), flat(b)
    size = max(np.linalg.norm(a), np.linalg.norm(b))
    return float(np.linalg.norm(a - b) / size) if size > 0 else 0.0


class Case(NamedTuple):
    """A problem, a start and a truth.

    Attributes:
        name, f, g, x0, y0, x_set, y_set: the problem and the start.
        answers: solutions (x, y), either None if it does not matter; local ones count.
        inner: the inner solution of a flat x, by other means.
        smooth: whether `inner` is differentiable by JAX, for SciPy's BFGS; else Nelder-Mead.
        bounds: lower and upper bounds of x, for the searches.
        check: whether a solution's flat x and y and its f are right, where nothing else says so.
        expected: "solved", "refused", or "any" if anything but a false ok will do.
        double: whether the session has 64-bit types.
        close: how far, relatively, an answer may be off.
    """

    name: str
    f: Callable[[Any, Any], Any]
    g: Callable[[Any, Any], Any]
    x0: Any
    y0: Any
    answers: tuple[tuple[Any, Any], ...] = ()
    inner: Callable[[Any], Any] | None = None
    smooth: bool = True
    bounds: tuple[float, float] | None = None
    check: Callable[[np.ndarray, np.ndarray, float], bool] | None = None
    x_set: Any = None
    y_set: Any = None
    expected: str = "solved"
    double: bool = False
    close: float = CLOSE

    def problem(self) -> tuple[pdbo.Problem, Any, Any]:
        """The problem and its start."""
        named = {"x_set": self.x_set, "y_set": self.y_set}
        sets = {k: s() if callable(s) else s for k, s in named.items() if s is not None}
        return pdbo.Problem(self.f, self.g, **sets), self.x0, self.y0

    def judge(self, solution: Any) -> tuple[bool, str]:
        """Whether a solution is right, and what is wrong with it if it is not."""
        x, y = flat(solution.x), flat(solution.y)
        for a, b in self.answers:
            off = [_off(z, flat(t)) for z, t in ((x, a), (y, b)) if t is not None]
            if max(off) <= self.close:
                return True, ""
        if self.check is not None:
            right = bool(self.check(x, y, float(solution.f)))
            return right, "" if right else "fails the check"
        if self.inner is None:
            return False, f"expected {self.answers}"
        off = _off(y, flat(self.inner(x)))
        if not off <= self.close:
            return False, f"y is off by {off:.1e}"
        f, best = float(solution.f), self.lowest(x)
        if f > best + LOWER * (1 + abs(best)):
            return False, f"f is {f:.10g}, nearby {best:.10g}"
        return True, ""

    def lowest(self, x: np.ndarray) -> float:
        """The lowest f near x along the inner solutions, by SciPy."""
        shape = jax.tree.map(np.shape, self.x0)
        like = jax.tree.leaves(shape, is_leaf=lambda s: isinstance(s, tuple))
        structure = jax.tree.structure(self.x0)
        y_like = jax.tree.map(jnp.asarray, self.y0)
        y_leaves, y_structure = jax.tree.flatten(y_like)
        assert self.inner is not None
        inner = self.inner

        def tree(z: Any, shapes: list[Any], structure: Any) -> Any:
            leaves, at = [], 0
            for s in shapes:
                n = int(np.prod(s))
                leaves.append(jnp.reshape(z[at : at + n], s))
                at += n
            return jax.tree.unflatten(structure, leaves)

        def value(z: Any) -> Any:
            y = jnp.ravel(jnp.asarray(inner(z)))
            shapes = [leaf.shape for leaf in y_leaves]
            return self.f(tree(jnp.asarray(z), like, structure), tree(y, shapes, y_structure))

        bounds = None if self.bounds is None else [self.bounds] * x.size
        at = float(value(x))
        if self.smooth:
            both = jax.jit(jax.value_and_grad(value))
            call = lambda z: tuple(np.asarray(v, np.float64) for v in both(jnp.asarray(z)))
            found = scipy.optimize.minimize(
                call, x, jac=True, method="L-BFGS-B", bounds=bounds,
                options={"ftol": 1e-16, "gtol": 1e-12, "maxiter": 2000},
            )  # fmt: skip
            return min(at, float(found.fun))
        best = at
        for size in (1e-2, 1e-4):
            steps = size * np.maximum(np.abs(x), 1.0)
            corners = np.concatenate([x[None], x + np.diag(steps)])
            if bounds is not None:
                corners = np.clip(corners, *self.bounds)
            found = scipy.optimize.minimize(
                lambda z: float(value(z)), x, method="Nelder-Mead", bounds=bounds,
                options={"initial_simplex": corners, "xatol": 1e-10, "fatol": 1e-13,
                         "maxiter": 400},
            )  # fmt: skip
            best = min(best, float(found.fun))
        return best


def _off(a: np.ndarray, b: np.ndarray) -> float:
    """The distance relative to one plus the size of b."""
    return float(np.linalg.norm(a - b) / (1 + np.linalg.norm(b))) if a.shape == b.shape else np.inf


def newton(g: Callable[[Any, Any], Any], y0: Any, steps: int = 30) -> Callable[[Any], Any]:
    """The inner solution by plain Newton steps, differentiable in x."""

    def inner(x: Any) -> Any:
        x = jnp.asarray(x)

        def step(_: Any, y: Any) -> Any:
            return y - jnp.linalg.solve(jax.hessian(g, 1)(x, y), jax.grad(g, 1)(x, y))

        return jax.lax.fori_loop(0, steps, step, jnp.asarray(y0, x.dtype))

    return inner


def quasi_newton(g: Callable[[Any, Any], Any], y0: Any) -> Callable[[Any], Any]:
    """The inner solution by SciPy's BFGS, for a g whose second derivatives jump."""
    both = jax.jit(jax.value_and_grad(g, 1))

    def inner(x: Any) -> Any:
        x = np.asarray(x, np.float64)
        call = lambda y: tuple(np.asarray(v, np.float64) for v in both(x, y))
        y = np.asarray(y0, np.float64)
        for _ in range(3):  # again from its end, until rounding stops it
            y = scipy.optimize.minimize(call, y, jac=True, method="BFGS", options={"gtol": 1e-12}).x
        return y

    return inner


def on_simplex(H: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The minimum of y H y / 2 + c y on the simplex, by trying all faces."""
    n, best, low = len(c), np.zeros(len(c)), np.inf
    for face in range(1, 2**n):
        used = [k for k in range(n) if face >> k & 1]
        m = len(used)
        system = np.ones((m + 1, m + 1))
        system[:m, :m], system[m, m] = H[np.ix_(used, used)], 0.0
        y = np.zeros(n)
        y[used] = np.linalg.solve(system, np.append(-c[used], 1.0))[:m]
        g = 0.5 * y @ H @ y + c @ y
        if np.all(y >= -1e-13) and g < low:
            best, low = np.maximum(y, 0.0), g
    return best


def in_box(H: np.ndarray, c: np.ndarray, lo: float, hi: float) -> np.ndarray:
    """The minimum of y H y / 2 + c y in a box, by SciPy's bounded least squares."""
    L = np.linalg.cholesky(H)
    target = -np.linalg.solve(L, c)
    return scipy.optimize.lsq_linear(L.T, target, (lo, hi), "bvls", tol=1e-15).x


# Data


def _regression(seed: int, rows: int, columns: int, noise: float = 0.3) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((rows, columns))
    w = rng.standard_normal(columns)
    return A, A @ w + noise * rng.standard_normal(rows), w


def _single(*arrays: Any) -> tuple[np.ndarray, ...]:
    """Numbers that are the same in either precision."""
    return tuple(np.asarray(np.asarray(a, np.float32), np.float64) for a in arrays)


def _learning() -> list[Case]:
    """Hyperparameters, robust losses, meta-learning, poisoning, distillation."""
    A, b, w = _regression(0, 20, 4)
    rng = np.random.default_rng(1)
    A2 = rng.standard_normal((15, 4))
    b2 = A2 @ w + 0.3 * rng.standard_normal(15)
    A, b, A2, b2 = _single(A, b, A2, b2)
    s, s2 = np.sign(b), np.sign(b2)
    loss = lambda y: 0.5 * jnp.mean((A2 @ y - b2) ** 2)
    fit = lambda y: 0.5 * jnp.mean((A @ y - b) ** 2)
    b = b + np.float32(1.5) * np.sign(np.sin(7.0 * np.arange(20)))  # so that a penalty helps
    H, c = A.T @ A / 20, A.T @ b / 20
    zeros = np.zeros(4, np.float32)
    found: list[Case] = []

    def add(name: str, f: Any, g: Any, x0: Any, y0: Any, inner: Any = None, **more: Any) -> None:
        found.append(Case(name, f, g, x0, y0, inner=inner, **more))

    ridge = lambda x: jnp.linalg.solve(H + jnp.exp(x[0]) * jnp.eye(4), jnp.asarray(c))
    add("ridge, one penalty", lambda x, y: loss(y),
        lambda x, y: fit(y) + 0.5 * jnp.exp(x) * jnp.sum(y**2), 0.0, zeros, ridge)  # fmt: skip
    add("ridge, one penalty >= 0", lambda x, y: loss(y),
        lambda x, y: fit(y) + 0.5 * x * jnp.sum(y**2), 1.0, zeros,
        lambda x: jnp.linalg.solve(H + x[0] * jnp.eye(4), jnp.asarray(c)),
        bounds=(0.0, np.inf), x_set=pdbo.NonNegative)  # fmt: skip
    per = lambda x: jnp.linalg.solve(H + jnp.diag(jnp.exp(x)), jnp.asarray(c))
    small = lambda x: 1e-3 * jnp.sum(x**2)
    add("ridge, penalty per feature", lambda x, y: loss(y) + small(x),
        lambda x, y: fit(y) + 0.5 * jnp.sum(jnp.exp(x) * y**2), zeros, zeros, per)  # fmt: skip
    add("ridge with an intercept, dict",
        lambda x, y: 0.5 * jnp.mean((A2 @ y["w"] + y["b"] - b2) ** 2),
        lambda x, y: 0.5 * jnp.mean((A @ y["w"] + y["b"] - b) ** 2)
        + 0.5 * jnp.exp(x) * jnp.sum(y["w"] ** 2), 0.0, {"b": 0.0, "w": zeros},
        newton(lambda x, y: 0.5 * jnp.mean((A @ y[1:] + y[0] - b) ** 2)
               + 0.5 * jnp.exp(x[0]) * jnp.sum(y[1:] ** 2), np.zeros(5), 3))  # fmt: skip

    logistic = lambda A, s, y: jnp.mean(jnp.logaddexp(0.0, -s * (A @ y)))
    noisy = s.copy()
    noisy[:4] *= -1
    g = lambda x, y: logistic(A, noisy, y) + 0.5 * jnp.exp(x[0]) * jnp.sum(y**2)
    add("logistic regression, one penalty", lambda x, y: logistic(A2, s2, y) + small(x), g,
        np.zeros(1, np.float32), zeros, newton(g, zeros))  # fmt: skip
    g = lambda x, y: logistic(A, noisy, y) + 0.5 * jnp.sum(jnp.exp(x) * y**2)
    add("logistic regression, per feature", lambda x, y: logistic(A2, s2, y) + small(x), g,
        zeros, zeros, newton(g, zeros))  # fmt: skip
    k, k2 = np.argmax(A[:, :3], 1), np.argmax(A2[:, :3], 1)
    k[:3] = (k[:3] + 1) % 3

    def entropy(A: Any, k: Any, y: Any) -> Any:
        z = A @ jnp.reshape(y, (4, 3))
        return jnp.mean(jax.nn.logsumexp(z, 1) - z[jnp.arange(len(k)), k])

    g = lambda x, y: entropy(A, k, y) + 0.5 * jnp.exp(x[0]) * jnp.sum(y**2)
    add("softmax regression, three classes", lambda x, y: entropy(A2, k2, y) + small(x), g,
        np.zeros(1, np.float32), np.zeros(12, np.float32), newton(g, np.zeros(12)))  # fmt: skip
    counts, counts2 = np.round(np.exp(0.5 * b)), np.round(np.exp(0.5 * b2))
    poisson = lambda A, n, y: jnp.mean(jnp.exp(A @ y) - n * (A @ y))
    g = lambda x, y: poisson(A, counts, y) + 0.5 * jnp.exp(x[0]) * jnp.sum(y**2)
    add("Poisson regression", lambda x, y: poisson(A2, counts2, y) + small(x), g,
        np.zeros(1, np.float32), zeros, newton(g, 0.3 * w))  # fmt: skip

    wild = b.copy()
    wild[:3] += np.float32(5)
    bent = lambda r: jnp.sqrt(1 + r**2) - 1
    g = lambda x, y: jnp.mean(bent(A @ y - wild)) + 0.5 * jnp.exp(x[0]) * jnp.sum(y**2)
    add("pseudo-Huber regression", lambda x, y: loss(y) + small(x), g,
        np.zeros(1, np.float32), zeros, newton(g, w))  # fmt: skip
    huber = lambda r: jnp.where(jnp.abs(r) < 1, 0.5 * r**2, jnp.abs(r) - 0.5)
    g = lambda x, y: jnp.mean(huber(A @ y - wild)) + 0.5 * jnp.exp(x[0]) * jnp.sum(y**2)
    add("Huber regression", lambda x, y: loss(y) + small(x), g,
        np.zeros(1, np.float32), zeros, quasi_newton(g, w), smooth=False)  # fmt: skip
    hinge = lambda y: jnp.mean(jnp.maximum(0.0, 1 - noisy * (A @ y)) ** 2)
    g = lambda x, y: hinge(y) + 0.5 * jnp.exp(x[0]) * jnp.sum(y**2)
    add("squared hinge SVM", lambda x, y: logistic(A2, s2, y) + small(x), g,
        np.zeros(1, np.float32), zeros, quasi_newton(g, w), smooth=False)  # fmt: skip
    soft = lambda y: jnp.sum(jnp.sqrt(y**2 + 1e-2))
    g = lambda x, y: fit(y) + jnp.exp(x[0]) * soft(y)
    add("smoothed lasso", lambda x, y: loss(y) + small(x), g, np.full(1, -2, np.float32), zeros,
        newton(g, w))  # fmt: skip

    def lasso(x: Any) -> Any:
        y, penalty = np.zeros(4), float(np.exp(x[0]))
        for _ in range(3000):
            for j in range(4):
                rest = c[j] - H[j] @ y + H[j, j] * y[j]
                y[j] = np.sign(rest) * max(abs(rest) - penalty, 0.0) / H[j, j]
        return y

    add("lasso", lambda x, y: loss(y) + small(x),
        lambda x, y: fit(y) + jnp.exp(x[0]) * jnp.sum(jnp.abs(y)), np.full(1, -2, np.float32),
        zeros, lasso, smooth=False, expected="any")  # fmt: skip

    points = np.linspace(-1, 1, 12).astype(np.float32).astype(np.float64)
    wave = np.sin(3 * points).astype(np.float32).astype(np.float64)
    wave[::3] += 0.25
    far = (points[:, None] - points) ** 2
    odd = np.arange(12) % 2 == 1

    def kernel(x: Any) -> Any:
        return jnp.exp(-far * jnp.exp(x[0])) + 0 * x[1]

    def g_kernel(x: Any, y: Any) -> Any:
        K = kernel(x)[~odd][:, ~odd]
        return 0.5 * jnp.sum((K @ y - wave[~odd]) ** 2) + 0.5 * jnp.exp(x[1]) * y @ (K @ y)

    def f_kernel(x: Any, y: Any) -> Any:
        return 0.5 * jnp.mean((kernel(x)[odd][:, ~odd] @ y - wave[odd]) ** 2) + small(x)

    add("kernel ridge, width and penalty", f_kernel, g_kernel, np.zeros(2, np.float32),
        np.zeros(6, np.float32), newton(g_kernel, np.zeros(6), 3))  # fmt: skip

    weights = lambda x: jax.nn.sigmoid(x)
    g = lambda x, y: 0.5 * jnp.mean(weights(x) * (A[:8] @ y - wild[:8]) ** 2) + 0.01 * jnp.sum(y**2)
    add("data cleaning, sigmoid weights", lambda x, y: loss(y) + 1e-2 * jnp.sum(x**2), g,
        np.zeros(8, np.float32), zeros, newton(g, zeros, 3))  # fmt: skip
    g = lambda x, y: 0.5 * jnp.mean(x * (A[:8] @ y - wild[:8]) ** 2) + 0.05 * jnp.sum(y**2)
    add("data cleaning, weights in a box", lambda x, y: loss(y), g, np.full(8, 0.5, np.float32),
        zeros, newton(g, zeros, 3), bounds=(0.0, 1.0), x_set=lambda: pdbo.Box(0.0, 1.0)
    )  # fmt: skip
    g = lambda x, y: (0.5 * jnp.mean((A @ y - b) ** 2) + 0.5 * (x @ y - 2.0) ** 2
                      + 0.05 * jnp.sum(y**2))  # fmt: skip
    add("poisoning by a feature vector", lambda x, y: -loss(y), g, np.full(4, 0.1, np.float32),
        zeros, newton(g, zeros, 3), bounds=(-1.0, 1.0), x_set=lambda: pdbo.Box(-1.0, 1.0)
    )  # fmt: skip
    g = lambda x, y: (0.5 * jnp.mean((A[:5] @ y - b[:5] - x) ** 2)
                      + 0.5 * jnp.mean((A[5:] @ y - b[5:]) ** 2) + 0.05 * jnp.sum(y**2)
    )  # fmt: skip
    add("poisoning by labels", lambda x, y: -loss(y), g, np.zeros(5, np.float32), zeros,
        newton(g, zeros, 3), bounds=(-1.0, 1.0), x_set=lambda: pdbo.Box(-1.0, 1.0))  # fmt: skip
    g = lambda x, y: (0.5 * jnp.sum((jnp.reshape(x, (3, 4)) @ y - np.array([1.0, -1.0, 0.5])) ** 2)
                      + 0.05 * jnp.sum(y**2))  # fmt: skip
    start = rng.standard_normal((3, 4)).astype(np.float32)
    add("distillation to three points", lambda x, y: fit(y) + 1e-3 * jnp.sum(x**2), g, start,
        zeros, newton(g, zeros, 3))  # fmt: skip
    g = lambda x, y: 0.5 * jnp.sum((A[:4] @ y - x) ** 2) + 0.05 * jnp.sum(y**2)
    add("distillation to four labels", lambda x, y: fit(y), g, zeros, zeros,
        newton(g, zeros, 3))  # fmt: skip
    T, t = _single(rng.standard_normal((4, 5, 3)), rng.standard_normal((4, 5)))
    V, v = _single(rng.standard_normal((4, 5, 3)), rng.standard_normal((4, 5)))

    def g_tasks(x: Any, y: Any) -> Any:
        y = jnp.reshape(y, (4, 3))
        miss = jnp.einsum("tij,tj->ti", T, y) - t
        return 0.5 * jnp.sum(miss**2) + 0.5 * jnp.sum((y - x) ** 2)

    def f_tasks(x: Any, y: Any) -> Any:
        return 0.5 * jnp.sum((jnp.einsum("tij,tj->ti", V, jnp.reshape(y, (4, 3))) - v) ** 2)

    add("iMAML, quadratic tasks", f_tasks, g_tasks, np.zeros(3, np.float32),
        np.zeros((4, 3), np.float32), newton(g_tasks, np.zeros(12), 3))  # fmt: skip
    g = lambda x, y: jnp.sum(bent(A[:, :2] @ (x + y[:2]) - b)) + 2.0 * jnp.sum(y**2)
    add("meta-learned offset, robust", lambda x, y: loss(jnp.concatenate([x + y[:2], y[:2] * 0]))
        + small(x), g, np.zeros(2, np.float32), np.zeros(2, np.float32),
        newton(g, np.zeros(2)))  # fmt: skip
    wide, right = A[:2], b[:2]
    least = np.linalg.lstsq(wide, right, rcond=None)[0]
    add("least norm among inner minima", lambda x, y: 0.5 * jnp.sum(y**2) + 0.5 * (x - 1) ** 2,
        lambda x, y: 0.5 * jnp.sum((wide @ y - right) ** 2), 0.0, np.ones(4, np.float32),
        answers=((1.0, least),))  # fmt: skip
    near = np.array([1.0, 2.0, 3.0, 4.0])
    nearest = near - np.linalg.pinv(wide) @ (wide @ near - right)
    add("nearest among inner minima, from far", lambda x, y: jnp.sum((y - near) ** 2) + x**2,
        lambda x, y: 0.5 * jnp.sum((wide @ y - right) ** 2) + 0 * x, 3.0,
        np.full(4, 50, np.float32), answers=((0.0, nearest),))  # fmt: skip
    add("the toy of the README", lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),
        lambda x, y: 0.5 * y[0] ** 2 - x * y[0], 2.0, np.array([0.5, 0.5], np.float32),
        answers=((1.0, [1.0, 1.0]),))  # fmt: skip
    best = np.linalg.lstsq(A2, b2, rcond=None)[0]
    add("validation loss picks a null space", lambda x, y: loss(y + 0 * x) + 0.5 * x**2,
        lambda x, y: 0.5 * jnp.sum((wide @ y - wide @ best - x) ** 2), 1.0, zeros,
        answers=((0.0, best),))  # fmt: skip
    return found


def _markets() -> list[Case]:
    """Leaders and followers, tolls, prices, contracts."""
    found: list[Case] = []

    def add(name: str, f: Any, g: Any, x0: Any, y0: Any, *answers: Any, **more: Any) -> None:
        found.append(Case(name, f, g, x0, y0, answers, **more))

    add("Stackelberg duopoly", lambda x, y: -x * (10 - x - y) + x,
        lambda x, y: -y * (10 - x - y) + y, 1.0, 1.0, (4.5, 2.25))  # fmt: skip
    add("Stackelberg duopoly, quantities >= 0", lambda x, y: -x * (10 - x - y) + x,
        lambda x, y: -y * (10 - x - y) + y, 1.0, 1.0, (4.5, 2.25),
        x_set=pdbo.NonNegative, y_set=pdbo.NonNegative)  # fmt: skip
    add("a rival priced out", lambda x, y: -x * (10 - x - y) + x,
        lambda x, y: -y * (10 - x - y) + 8 * y, 0.5, 0.5, (4.5, 0.0),
        x_set=pdbo.NonNegative, y_set=pdbo.NonNegative)  # fmt: skip
    add("Cournot, a leader and two followers", lambda x, y: -x * (10 - x - jnp.sum(y)) + x,
        lambda x, y: jnp.sum(y) * (x - 9) + 0.5 * jnp.sum(y) ** 2 + 0.5 * jnp.sum(y**2), 1.0,
        np.ones(2, np.float32), (4.5, [1.5, 1.5]))  # fmt: skip
    add("toll on one of two roads", lambda x, y: -x * y,
        lambda x, y: y * (1 + x) + 0.5 * y**2 + 2 * (1 - y) + 0.5 * (1 - y) ** 2, 0.2, 0.5,
        (1.0, 0.5), y_set=lambda: pdbo.Box(0.0, 1.0))  # fmt: skip
    add("toll, roads on a simplex", lambda x, y: -x * y[0],
        lambda x, y: y[0] * (1 + x) + 0.5 * y[0] ** 2 + 2 * y[1] + 0.5 * y[1] ** 2, 0.2,
        np.array([0.5, 0.5], np.float32), (1.0, [0.5, 0.5]),
        x_set=lambda: pdbo.Box(0.0, 5.0), y_set=pdbo.Simplex)  # fmt: skip
    add("price of one product", lambda x, y: -(x - 1) * y, lambda x, y: 0.5 * y**2 - (5 - x) * y,
        1.5, 0.0, (3.0, 2.0), x_set=lambda: pdbo.Box(0.0, 10.0), y_set=pdbo.NonNegative
    )  # fmt: skip
    add("limit price", lambda x, y: -x * y, lambda x, y: 0.5 * y**2 - (3 - x) * y, 0.5, 0.5,
        (2.0, 1.0), x_set=lambda: pdbo.Box(0.0, 10.0), y_set=lambda: pdbo.Box(0.0, 1.0)
    )  # fmt: skip
    D, a, cost = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([4.0, 3.0]), np.array([1.0, 0.5])
    add("prices of two products", lambda x, y: -(x - cost) @ y,
        lambda x, y: 0.5 * y @ (D @ y) - (a - x) @ y, np.ones(2, np.float32),
        np.ones(2, np.float32), ((a + cost) / 2, np.linalg.solve(D, (a - cost) / 2)))  # fmt: skip
    add("tax with a target", lambda x, y: -x * y + 0.5 * (y - 1) ** 2,
        lambda x, y: 0.5 * y**2 - (3 - x) * y, 0.5, 0.5, (5 / 3, 4 / 3))  # fmt: skip
    add("wage and effort", lambda x, y: -(10 - x) * y, lambda x, y: 0.5 * y**2 - x * y, 1.0, 1.0,
        (5.0, 5.0))  # fmt: skip
    add("contract with log utility", lambda x, y: -(2 - x) * y,
        lambda x, y: y - x * jnp.log(1 + y), 1.5, 0.3, (1.5, 0.5),
        y_set=pdbo.NonNegative)  # fmt: skip
    add("security game", lambda x, y: y @ (1 - x),
        lambda x, y: y @ (x - np.array([1.0, 0.8, 0.6])) + 0.5 * y @ y,
        np.full(3, 1 / 3, np.float32), np.full(3, 1 / 3, np.float32), smooth=False,
        inner=lambda x: on_simplex(np.eye(3), np.asarray(x) - [1.0, 0.8, 0.6]),
        check=_security, x_set=pdbo.Simplex, y_set=pdbo.Simplex)  # fmt: skip
    add("robust choice: the worst case of a ball", lambda x, y: jnp.sum((x - 2) ** 2) + x @ y,
        lambda x, y: -x @ y, np.ones(2, np.float32), np.ones(2, np.float32),
        (np.full(2, 2 - 0.5**1.5), np.full(2, 0.5**0.5)), y_set=lambda: pdbo.Ball(1.0))  # fmt: skip
    add("minimax", lambda x, y: 0.5 * (x - 1) ** 2 + x * y - 0.5 * y**2,
        lambda x, y: -0.5 * (x - 1) ** 2 - x * y + 0.5 * y**2, 3.0, -1.0, (0.5, 0.5))  # fmt: skip
    rng = np.random.default_rng(5)
    R = rng.standard_normal((4, 6))
    S, mu = _single(R @ R.T / 6 + 0.05 * np.eye(4), rng.uniform(0.0, 1.0, 4))
    S = (S + S.T) / 2
    target = float(np.float32(0.8 * np.max(mu) + 0.2 * np.mean(mu)))
    found.append(Case(
        "portfolio on a simplex", lambda x, y: (mu @ y - target) ** 2 + 0.01 * x**2,
        lambda x, y: 0.5 * y @ (S @ y) - x * mu @ y, 0.1, np.full(4, 0.25, np.float32),
        inner=lambda x: on_simplex(S, -float(x[0]) * mu), smooth=False, y_set=pdbo.Simplex,
    ))  # fmt: skip
    one = np.ones(4)

    def balanced(x: Any) -> Any:
        system = np.block([[S, one[:, None]], [one, 0.0]])
        right = jnp.append(x[0] * mu, 1.0)
        return jnp.linalg.solve(system, right)[:4]

    found.append(Case(
        "portfolio with short sales", lambda x, y: (mu @ y - target) ** 2 + 0.01 * x**2,
        lambda x, y: 0.5 * y @ (S @ y) - x * mu @ y, 0.1, np.full(4, 0.25, np.float32),
        inner=balanced, y_set=lambda: pdbo.Affine(np.ones((1, 4)), np.ones(1)),
    ))  # fmt: skip
    return found


def _security(x: np.ndarray, y: np.ndarray, f: float) -> bool:
    """The defender's best by a fine grid on the simplex and Nelder-Mead from its best point."""
    value = lambda z: _defence(np.append(z, 1 - np.sum(z)))
    best = min((value(np.array([i, j]) / 60), i, j) for i in range(61) for j in range(61 - i))
    found = scipy.optimize.minimize(
        value, np.array(best[1:]) / 60, method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-13},
    )  # fmt: skip
    return f <= min(best[0], found.fun) + 1e-6 and abs(_defence(x) - f) <= 1e-6


def _defence(x: np.ndarray) -> float:
    if np.any(x < -1e-9):
        return np.inf
    return float(on_simplex(np.eye(3), x - [1.0, 0.8, 0.6]) @ (1 - x))


def _constrained() -> list[Case]:
    """Inner problems with sets, and states of equations."""
    found: list[Case] = []

    def add(name: str, f: Any, g: Any, x0: Any, y0: Any, *answers: Any, **more: Any) -> None:
        found.append(Case(name, f, g, x0, y0, answers, **more))

    near = lambda x, y: 0.5 * jnp.sum((y - x) ** 2)
    two, zero = np.full(2, 2, np.float32), np.zeros(2, np.float32)
    box = lambda: pdbo.Box(0.5, 1.5)
    add("box: De Silva", lambda x, y: jnp.sum(x**2 - 2 * x + y**2), near, two, two,
        ([0.5, 0.5], [0.5, 0.5]), y_set=box)  # fmt: skip
    add("box: Falk and Liu", lambda x, y: jnp.sum(x**2 - 3 * x + y**2), near, two, two,
        ([0.75, 0.75], [0.75, 0.75]), y_set=box)  # fmt: skip
    A = np.array([[1.0, 1.0, 1.0]])
    t = np.array([3.0, 0.0, 0.0])
    # y = x - (sum x - 1) / 3: the sum of y is 1; f is a least-squares problem in x
    P, q = np.eye(3) - 1 / 3, np.full(3, 1 / 3)
    x = np.linalg.solve(P.T @ P + 0.1 * np.eye(3), P.T @ (t - q))
    add("equality: nearest point of a plane",
        lambda x, y: jnp.sum((y - t) ** 2) + 0.1 * jnp.sum(x**2), near, np.zeros(3, np.float32),
        np.ones(3, np.float32), (x, P @ x + q), y_set=lambda: pdbo.Affine(A, np.ones(1))
    )  # fmt: skip
    rng = np.random.default_rng(7)
    M, b = _single(rng.standard_normal((6, 3)), rng.standard_normal(6))
    B = np.asarray(np.float32(rng.standard_normal((6, 2))), np.float64)
    found.append(Case(
        "non-negative least squares",
        lambda x, y: jnp.sum((y - np.array([1.0, 0.0, 0.5])) ** 2) + 0.1 * jnp.sum(x**2),
        lambda x, y: 0.5 * jnp.sum((M @ y - b - B @ x) ** 2), zero, np.ones(3, np.float32),
        inner=lambda x: scipy.optimize.nnls(M, b + B @ np.asarray(x))[0], smooth=False,
        y_set=pdbo.NonNegative,
    ))  # fmt: skip
    found.append(Case(
        "bounded least squares",
        lambda x, y: jnp.sum((y - np.array([1.0, 0.0, 0.5])) ** 2) + 0.1 * jnp.sum(x**2),
        lambda x, y: 0.5 * jnp.sum((M @ y - b - B @ x) ** 2), zero, np.zeros(3, np.float32),
        inner=lambda x: in_box(M.T @ M, -M.T @ (b + B @ np.asarray(x)), -0.4, 0.4), smooth=False,
        y_set=lambda: pdbo.Box(-0.4, 0.4),
    ))  # fmt: skip
    goal = np.array([2.0, 0.0])
    add("ball: the edge is best", lambda x, y: jnp.sum((y - goal) ** 2) + 0.1 * jnp.sum(x**2), near,
        np.array([0.1, 0.1], np.float32), zero, ([1.0, 0.0], [1.0, 0.0]),
        y_set=lambda: pdbo.Ball(1.0))  # fmt: skip
    aim = np.array([0.6, 0.8])
    add("ball: a linear inner function", lambda x, y: jnp.sum((y - aim) ** 2)
        + (jnp.sum(x**2) - 4) ** 2, lambda x, y: x @ y, np.array([1.0, 0.5], np.float32), zero,
        (-2 * aim, aim), y_set=lambda: pdbo.Ball(1.0))  # fmt: skip
    add("half-space", lambda x, y: jnp.sum((y - 1) ** 2) + jnp.sum((x - 1) ** 2), near, zero, zero,
        # outside it y = x - (x0 + x1 - 1) / 2: sum y is 1, and x pays for itself alone
        ([1.0, 1.0], [0.5, 0.5]),
        y_set=lambda: pdbo.Halfspace(np.ones(2), 1.0))  # fmt: skip
    want = np.array([0.2, 0.3, 0.5])
    soft = lambda x: jax.nn.softmax(jnp.asarray(x))
    found.append(Case(
        "entropy on a simplex", lambda x, y: jnp.sum((y - want) ** 2) + 0.01 * jnp.sum(x**2),
        lambda x, y: -x @ y + jnp.sum(y * jnp.log(y)), np.zeros(3, np.float32),
        np.full(3, 1 / 3, np.float32), inner=soft, y_set=pdbo.Simplex,
    ))  # fmt: skip
    share = np.array([0.5, 0.3, 0.2])
    found.append(Case(
        "a product of sets",
        lambda x, y: jnp.sum((y["a"] - share) ** 2) + (y["b"] - 1) ** 2 + 0.1 * jnp.sum(x**2),
        lambda x, y: 0.5 * jnp.sum((y["a"] - x[:3]) ** 2) + 0.5 * (y["b"] - x[3]) ** 2,
        np.zeros(4, np.float32), {"a": np.full(3, 1 / 3, np.float32), "b": 0.0},
        inner=lambda x: np.append(on_simplex(np.eye(3), -np.asarray(x[:3])), np.clip(x[3], 0, 0.5)),
        smooth=False, y_set=lambda: pdbo.Product({"a": pdbo.Simplex(), "b": pdbo.Box(0.0, 0.5)}),
    ))  # fmt: skip
    n = 20
    K = (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)) * n
    L = np.repeat(np.eye(5), 4, axis=0) / n
    bump = np.sin(np.pi * np.arange(1, n + 1) / (n + 1))
    G = np.linalg.solve(K, L)
    best = np.linalg.solve(G.T @ G + 1e-4 * np.eye(5), G.T @ bump)
    add("control of a heated rod", lambda x, y: 0.5 * jnp.sum((y - bump) ** 2)
        + 0.5e-4 * jnp.sum(x**2), lambda x, y: 0.5 * y @ (K @ y) - y @ (L @ x),
        np.zeros(5, np.float32), np.zeros(n, np.float32), (best, G @ best))  # fmt: skip
    found += _rods()
    g = lambda x, y: 0.5 * y @ (K @ y) + 0.25 * jnp.sum(y**4) - y @ (L @ x)
    found.append(Case(
        "control of a nonlinear rod",
        lambda x, y: 0.5 * jnp.sum((y - bump) ** 2) + 0.5e-4 * jnp.sum(x**2), g,
        np.zeros(5, np.float32), np.zeros(n, np.float32), inner=newton(g, np.zeros(n)),
    ))  # fmt: skip
    d = np.array([1.0, 2.0, 3.0])
    add("identification of stiffness", lambda x, y: jnp.sum((y - 1 / (d + 2)) ** 2),
        lambda x, y: 0.5 * y @ ((d + jnp.exp(x)) * y) - jnp.sum(y), np.zeros(3, np.float32),
        np.zeros(3, np.float32), (np.full(3, np.log(2)), 1 / (d + 2)))  # fmt: skip
    add("resource allocation", lambda x, y: -jnp.sum(jnp.log(1 + y)) + jnp.sum(x) ** 2,
        lambda x, y: 0.5 * jnp.sum((y - x) ** 2) + 0.5 * jnp.sum(y) ** 2,
        np.full(2, 0.5, np.float32), np.full(2, 0.5, np.float32), smooth=False,
        inner=lambda x: in_box(np.eye(2) + 1, -np.asarray(x), 0.0, np.inf),
        x_set=pdbo.NonNegative, bounds=(0.0, np.inf), y_set=pdbo.NonNegative)  # fmt: skip
    add("a plant and its sensor, lists", lambda x, y: (y[0] - 1) ** 2 + jnp.sum((y[1] + 1) ** 2)
        + 0.1 * x[0] ** 2, lambda x, y: (y[0] - x[0]) ** 2 + jnp.sum((y[1] - x[1]) ** 2),
        [0.0, zero], [0.0, zero], ([1 / 1.1, [-1.0, -1.0]], [1 / 1.1, [-1.0, -1.0]]))  # fmt: skip
    return found


def _rods() -> list[Case]:
    """A long rod, with a matrix of condition 4e4."""
    n = 800
    t = np.linspace(0, 1, n)
    L = np.stack([np.ones(n), t, np.sin(9 * t)], axis=1)
    G = np.linalg.solve((2 + 1e-4) * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1), L)
    size = np.max(np.abs(G))
    wanted, weak = size * np.sin(3 * t), np.sqrt(1e-3) * size * np.eye(3)
    best = np.linalg.lstsq(np.r_[G, weak], np.r_[wanted, np.zeros(3)], rcond=None)[0]

    def f(x: Any, y: Any) -> Any:
        return jnp.mean(((y - wanted) / size) ** 2) + 1e-3 / n * jnp.sum(x**2)

    def g(x: Any, y: Any) -> Any:
        bend = jnp.diff(y, prepend=0.0, append=0.0)
        return 0.5 * jnp.sum(bend**2) + 0.5e-4 * jnp.sum(y**2) - y @ (L @ x)

    start = np.zeros(3, np.float32), np.zeros(n, np.float32)
    return [Case("control of a rod of 800 points", f, g, *start, ((best, G @ best),))]


def cases() -> list[Case]:
    """The table."""
    return _learning() + _markets() + _constrained()


def scalable() -> list[Case]:
    """Twenty of them whose x and y are arrays and whose sets are boxes, if any."""
    kept = []
    for case in cases():
        arrays = all(isinstance(z, np.ndarray | float) for z in (case.x0, case.y0))
        sets = [s() if callable(s) else s for s in (case.x_set, case.y_set)]
        boxed = all(s is None or isinstance(s, pdbo.Box) for s in sets)
        if arrays and boxed and case.expected == "solved" and flat(case.y0).size <= 12:
            kept.append(case._replace(x_set=sets[0], y_set=sets[1]))
    return kept
