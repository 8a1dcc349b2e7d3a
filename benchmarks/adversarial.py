"""Problems meant to make the default say ok wrongly, or fail.

Each has its solutions, local ones included, in closed form or by a scan in NumPy. `expected` says
whether it should be solved, should be refused, or whether anything but a false ok will do.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

import pdbo

from .first_problems import Case

Answer = tuple[Any, Any]


def _case(
    name: str, f: Any, g: Any, x0: Any, y0: Any, *answers: Answer, expected: str = "solved",
    **more: Any,
) -> Case:  # fmt: skip
    return Case(name, f, g, x0, y0, answers, expected=expected, **more)


def _follow(x: Any, y: Any) -> Any:
    """The inner function whose minimum is x."""
    return 0.5 * jnp.sum((y - x) ** 2)


def _box(lo: Any, hi: Any) -> Callable[[], pdbo.Box]:
    return lambda: pdbo.Box(lo, hi)


def _vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def along(value: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[..., bool]:
    """A check for scalar x: y is the inner solution and f is a local minimum along it."""

    def check(x: np.ndarray, y: np.ndarray, f: float) -> bool:
        at = float(x[0])
        if not np.max(np.abs(y - np.ravel(inner(at)))) <= 1e-5 * (1 + np.max(np.abs(y))):
            return False
        aside = [at + s * h for s in (1, -1) for h in (1e-4, 1e-3, 1e-2)]
        return all(value(z) >= value(at) - 1e-9 * (1 + abs(value(at))) for z in aside)

    return check


def _starts() -> list[Case]:
    """Starts at maxima, saddles, and where the gradient of f is zero."""
    square = _box(-1.0, 1.0)
    wells = lambda x, y: 0.25 * (y**2 - 1) ** 2 - x * y
    y = np.linspace(1, 1.5, 500001)
    k = int(np.argmin((y**3 - y - 0.1) ** 2 + (y - 1) ** 2))
    return [
        _case("a maximum of f", lambda x, y: -(y**2), _follow, 0.0, 0.0, (1.0, 1.0), (-1.0, -1.0),
              x_set=square),
        _case("a maximum of fourth order", lambda x, y: -(y**4), _follow, 0.0, 0.0, (1.0, 1.0),
              (-1.0, -1.0), expected="any", x_set=square),
        _case("a maximum, then a minimum", lambda x, y: (y**2 - 1) ** 2, _follow, 0.0, 0.0,
              (1.0, 1.0), (-1.0, -1.0)),
        _case("a saddle of f", lambda x, y: y[0] ** 2 - y[1] ** 2, _follow, _vector(0, 0),
              _vector(0, 0), ([0.0, 1.0], None), ([0.0, -1.0], None), x_set=square),
        _case("a monkey saddle of f", lambda x, y: y[0] ** 3 - 3 * y[0] * y[1] ** 2, _follow,
              _vector(0, 0), _vector(0, 0), ([1.0, 1.0], None), ([1.0, -1.0], None),
              ([-1.0, 0.0], None), expected="any", x_set=square),
        _case("an inflection of f", lambda x, y: y**3, _follow, 0.0, 0.0, (-1.0, -1.0),
              expected="any", x_set=square),
        _case("a saddle in the flat directions of g",
              lambda x, y: (y[0] - 1) ** 2 + (y[1] ** 2 - 1) ** 2, lambda x, y: (y[0] - x) ** 2,
              0.0, _vector(0, 0), (1.0, [1.0, 1.0]), (1.0, [1.0, -1.0])),
        _case("a maximum of g", lambda x, y: (x - 0.1) ** 2 + (y - 1) ** 2, wells, 0.0, 0.0,
              (y[k] ** 3 - y[k], y[k])),
        _case("a saddle of g", lambda x, y: (y[0] - 1) ** 2 + (y[1] - 2) ** 2 + 0.1 * x**2,
              lambda x, y: 0.25 * (y[0] ** 2 - 1) ** 2 + 0.5 * y[1] ** 2 - x * y[1], 0.0,
              _vector(0, 0), (2 / 1.1, [1.0, 2 / 1.1]), (2 / 1.1, [-1.0, 2 / 1.1])),
        _case("zero gradient of f", lambda x, y: (y - 1) ** 2, lambda x, y: (y - x) ** 2, 3.0, 1.0,
              (1.0, 1.0)),
        _case("zero gradient of f, the toy",
              lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2),
              lambda x, y: 0.5 * y[0] ** 2 - x * y[0], 2.5, _vector(1, 2.5), (1.0, [1.0, 1.0])),
        _case("zero gradient of f in x and y", lambda x, y: (y - 1) ** 2 + (x - 3) ** 2, _follow,
              3.0, 1.0, (2.0, 2.0)),
        _case("zero gradients of f and g", lambda x, y: (y**2 - 4) ** 2 + x**2,
              lambda x, y: 0.25 * y**4 - 0.5 * x**2 * y**2, 0.0, 0.0, expected="any",
              check=along(lambda x: (x**2 - 4) ** 2 + x**2, lambda x: x)),
        _case("the start is the solution", lambda x, y: (y - 1) ** 2, _follow, 1.0, 1.0,
              (1.0, 1.0)),
        _case("a start far away", lambda x, y: (y - 1) ** 2, _follow, 1e7, -1e7, (1.0, 1.0)),
        _case("a start outside its sets", lambda x, y: (y - 3) ** 2, _follow, 7.0, -9.0,
              (1.0, 1.0), x_set=square, y_set=square),
    ]  # fmt: skip


def _endless() -> list[Case]:
    """No inner minimum, or no lowest f."""
    near = lambda x, y: (x - 1) ** 2 + y**2
    no = {"expected": "refused"}
    A = np.array([[1.0, 0.5], [-1.0, 0.3], [2.0, -0.2], [-0.7, 0.4]])
    s = np.sign(A[:, 0])
    return [
        _case("g = exp(-y)", near, lambda x, y: jnp.exp(-y) + 0 * x, 0.0, 0.0, **no),
        _case("g = exp(-y), f without y", lambda x, y: (x - 1) ** 2,
              lambda x, y: jnp.exp(x - y), 0.0, 0.0, **no),
        _case("g = exp(-y), a bounded f", lambda x, y: (x - 1) ** 2 + 1 / (1 + y**2),
              lambda x, y: jnp.exp(-y), 0.0, 0.0, **no),
        _case("g = log(1 + exp(-y))", near, lambda x, y: jnp.logaddexp(0.0, x - y), 0.0, 0.0, **no),
        _case("g linear", near, lambda x, y: (1 + x**2) * y, 0.0, 0.0, **no),
        _case("g = x y: minima at x = 0 alone", near, lambda x, y: x * y, 0.5, 0.5, (0.0, 0.0),
              expected="any"),
        _case("g = y^3", near, lambda x, y: y**3 + 0 * x, 0.0, 0.5, **no),
        _case("g = y^3 from 0", near, lambda x, y: y**3 + 0 * x, 0.0, 0.0, **no),
        _case("g = y^3 - 3 y: a local minimum", near, lambda x, y: y**3 - 3 * y + 0 * x, 0.0, 1.0,
              **no),
        _case("g = -y^2", near, lambda x, y: -(y**2) + x, 0.0, 0.0, **no),
        _case("g = 1 / (1 + y^2)", near, lambda x, y: 1 / (1 + (y - x) ** 2), 0.5, 0.0, **no),
        _case("g = arctan(y)", near, lambda x, y: jnp.arctan(y - x), 0.0, 0.0, **no),
        _case("g = (1 - u v)^2 + u^2", lambda x, y: (x - 1) ** 2 + jnp.sum(y**2) * 1e-3,
              lambda x, y: (1 - y[0] * y[1]) ** 2 + y[0] ** 2 + 0 * x, 0.0, _vector(1, 1), **no),
        _case("logistic regression of separable data",
              lambda x, y: (x - 1) ** 2 + jnp.mean(jnp.logaddexp(0.0, -s * (A @ y))),
              lambda x, y: jnp.mean(jnp.logaddexp(0.0, -s * (A @ y))), 0.0, _vector(0, 0), **no),
        _case("g of a saddle", near, lambda x, y: (y**2 - 1) * (1 - 0.1 * y**2), 0.0, 0.3, **no),
        _case("f linear", lambda x, y: x + 0 * y, _follow, 1.0, 1.0, **no),
        _case("f = -y^2", lambda x, y: -(y**2), _follow, 0.5, 0.5, **no),
        _case("f falls along a flat direction of g", lambda x, y: x**2 - y[0],
              lambda x, y: (y[1] - x) ** 2, 1.0, _vector(0, 0), **no),
        _case("f = -log(1 + x^2)", lambda x, y: -jnp.log(1 + y**2), _follow, 1.0, 1.0, **no),
        _case("f = exp(x)", lambda x, y: jnp.exp(y), _follow, 1.0, 1.0, **no),
        _case("f = 1 / (1 + x^2)", lambda x, y: 1 / (1 + y**2), _follow, 1.0, 1.0, **no),
        _case("f = y^3 - 3 y: a local minimum", lambda x, y: y**3 - 3 * y, _follow, 0.5, 0.5,
              (1.0, 1.0), expected="any"),
        _case("f not attained: a sigmoid", lambda x, y: (y - 1) ** 2,
              lambda x, y: (y - 1 / (1 + jnp.exp(-x))) ** 2, 0.0, 0.5, expected="any",
              check=lambda x, y, f: f < 1e-12),
        _case("ridge whose best penalty is exp(-inf)", lambda x, y: (y - 2) ** 2,
              lambda x, y: (y - 2) ** 2 + jnp.exp(x) * y**2, 0.0, 0.0, expected="any",
              check=lambda x, y, f: abs(y[0] - 2 / (1 + np.exp(x[0]))) < 1e-6 and f < 1e-8),
    ]  # fmt: skip


def _basins() -> list[Case]:
    """Inner problems with several valleys; a false ok beyond the radius searched is counted too."""

    def far(place: float, width: float) -> Any:
        return lambda x, y: (1 - jnp.exp(-((y - x) ** 2)) - 2 * jnp.exp(-((y - place) / width) ** 2)
                             + 1e-6 * y**2)  # fmt: skip

    f = lambda x, y: (x - 1) ** 2 + 0.1 * y**2
    tilted = lambda x, y: (y**2 - 1) ** 2 + 0.3 * y + 0 * x
    roots = np.roots([4, 0, -4, 0.3])
    low = float(np.min(roots.real))
    cosine = lambda x, y: -jnp.cos(y) + 0.01 * (y - x) ** 2

    def bottom(x: float) -> float:
        y = np.linspace(x - 8, x + 8, 160001)
        z = float(y[np.argmin(-np.cos(y) + 0.01 * (y - x) ** 2)])
        for _ in range(50):
            z -= (np.sin(z) + 0.02 * (z - x)) / (np.cos(z) + 0.02)
        return z

    def deep(place: float) -> Callable[..., bool]:
        return lambda x, y, f: abs(y[0] - place) < 0.05 and abs(x[0] - 1) < 0.05

    more = {"expected": "any"}
    return [
        _case("a far basin at y = 20", f, far(20, 3), 0.0, 0.0, check=deep(20), **more),
        _case("a far, narrow basin at y = 20", f, far(20, 1), 0.0, 0.0, check=deep(20), **more),
        _case("a far basin at y = -300", f, far(-300, 60), 0.0, 0.0, check=deep(-300), **more),
        _case("two wells, the start in the higher", lambda x, y: (x - 1) ** 2 + (y - 1) ** 2,
              tilted, 0.0, 1.0, (1.0, low)),
        _case("two wells, f prefers the higher", lambda x, y: (x - 1) ** 2 + (y - 1) ** 2,
              lambda x, y: (y**2 - 1) ** 2 + 0.01 * y + 0 * x, 0.0, 1.0,
              (1.0, float(np.min(np.roots([4, 0, -4, 0.01]).real)))),
        _case("two wells, x decides between them", lambda x, y: (x + 0.5) ** 2 + (y - 1) ** 2,
              lambda x, y: (y**2 - 1) ** 2 - x * y, -0.5, -1.0, (0.0, 1.0), (-0.5, None),
              expected="any",
              check=lambda x, y, f: abs(y[0] ** 3 - y[0] - x[0] / 4) < 1e-6 and x[0] * y[0] > 0
              and abs((x[0] + 0.5) + (y[0] - 1) / (4 * (3 * y[0] ** 2 - 1))) < 1e-4),
        _case("a tie of two wells", lambda x, y: (x - 1) ** 2 + (y - 0.5) ** 2,
              lambda x, y: (y**2 - 1) ** 2 + 0 * x, 0.0, -0.9, (1.0, 1.0), (1.0, -1.0)),
        _case("a tie of four wells", lambda x, y: (x - 1) ** 2 + jnp.sum((y - 0.5) ** 2),
              lambda x, y: jnp.sum((y**2 - 1) ** 2) + 0 * x, 0.0, _vector(-0.9, 0.9),
              *[(1.0, [a, b]) for a in (1.0, -1.0) for b in (1.0, -1.0)]),
        _case("cosines", lambda x, y: (x - 10) ** 2 + y**2, cosine, 0.0, 0.0, expected="any",
              check=along(lambda x: (x - 10) ** 2 + bottom(x) ** 2, bottom)),
        _case("cosines, from afar", lambda x, y: (x - 1) ** 2 + 0.1 * y**2, cosine, 9.0, 19.0,
              expected="any", check=along(lambda x: (x - 1) ** 2 + 0.1 * bottom(x) ** 2, bottom)),
        _case("mb-3.14", lambda x, y: (x - 0.25) ** 2 + y**2, lambda x, y: y**3 / 3 - x * y, 0.0,
              0.0, (0.25, 0.5), x_set=_box(-1.0, 1.0), y_set=_box(-1.0, 1.0)),
        _case("mb-3.20", lambda x, y: (x - 0.25) ** 2 + y**2, lambda x, y: y**3 / 3 - x**2 * y,
              0.0, 0.0, (0.5, 0.5), (-0.5, 0.5), expected="any", x_set=_box(-1.0, 1.0),
              y_set=_box(-1.0, 1.0)),
        _case("mb-3.13", lambda x, y: x - y, lambda x, y: x * y**2 / 2 - x**3 * y, 0.5, 0.5,
              (0.0, 1.0), expected="any", x_set=_box(-1.0, 1.0), y_set=_box(-1.0, 1.0)),
        _case("a rank that drops", lambda x, y: (y - 1) ** 2 + 0.5 * (x - 1) ** 2,
              lambda x, y: 0.5 * x**2 * y**2, 0.7, 0.5, (0.0, 1.0), (1.0, 0.0), expected="any"),
        _case("Rosenbrock inside", lambda x, y: jnp.sum((y - 2) ** 2) + 0.1 * x**2,
              lambda x, y: (x - y[0]) ** 2 + 100 * (y[1] - y[0] ** 2) ** 2, -1.0, _vector(-1.2, 1),
              check=along(lambda x: (x - 2) ** 2 + (x**2 - 2) ** 2 + 0.1 * x**2,
                          lambda x: [x, x**2])),
        _case("many minima of f", lambda x, y: jnp.sin(10 * y) + 0.1 * x**2, _follow, 2.0, 2.0,
              check=along(lambda x: np.sin(10 * x) + 0.1 * x**2, lambda x: x)),
    ]  # fmt: skip


def _curvatures() -> list[Case]:
    """Weak directions, minima of higher order, kinks."""
    turn = np.array([[np.cos(0.5), np.sin(0.5)], [-np.sin(0.5), np.cos(0.5)]])
    found = []
    for power in (4, 6, 8, 10, 12):
        weak = 10.0**-power
        found.append(_case(
            f"curvature 1e-{power}", lambda x, y: (y[1] - 1) ** 2 + (x - 1) ** 2,
            lambda x, y, c=weak: 0.5 * (y[0] - x) ** 2 + 0.5 * c * y[1] ** 2, 0.0, _vector(0, 0.5),
            (1.0, [1.0, 0.0]), expected="solved",
        ))  # fmt: skip
    for power in (4, 6, 8, 10, 12):
        weak = 10.0**-power
        found.append(_case(
            f"curvature 1e-{power}, turned",
            lambda x, y: ((turn @ y)[1] - 1) ** 2 + (x - 1) ** 2,
            lambda x, y, c=weak: 0.5 * ((turn @ y)[0] - x) ** 2 + 0.5 * c * (turn @ y)[1] ** 2, 0.0,
            np.array([0, 0.5]), (1.0, turn.T @ [1.0, 0.0]),
            expected="solved" if power < 9 else "any", double=True,
        ))  # fmt: skip
    bent = lambda x, y: (y - 1) ** 2 + (x - 2) ** 2
    found += [
        _case("g = (y - x)^4", bent, lambda x, y: (y - x) ** 4, 0.0, 0.5, (1.5, 1.5),
              expected="any", close=1e-3),
        _case("g = y^4", lambda x, y: (y - 1) ** 2 + (x - 1) ** 2, lambda x, y: y**4 + 0 * x, 0.0,
              0.5, (1.0, 0.0), expected="any", close=2e-2),
        _case("g = y^6", lambda x, y: (y - 1) ** 2 + (x - 1) ** 2, lambda x, y: y**6 + 0 * x, 0.0,
              0.5, (1.0, 0.0), expected="any", close=5e-2),
        _case("a quartic direction", lambda x, y: (y[0] - 1) ** 2 + (y[1] - 1) ** 2 + 0.1 * x**2,
              lambda x, y: (y[0] - x) ** 2 + y[1] ** 4, 0.0, _vector(0, 0.5),
              (1 / 1.1, [1 / 1.1, 0.0]), expected="any", close=2e-2),
        _case("quartic plus weak quadratic", lambda x, y: (y - 1) ** 2 + (x - 1) ** 2,
              lambda x, y: y**4 + 1e-6 * y**2 + 0 * x, 0.0, 0.5, (1.0, 0.0), expected="any",
              close=1e-3),
        _case("f of fourth order", lambda x, y: (y - 1) ** 4, _follow, 0.0, 0.0, (1.0, 1.0),
              expected="any", close=1e-2),
        _case("g = |y - x|", bent, lambda x, y: jnp.abs(y - x), 0.0, 0.5, (1.5, 1.5),
              expected="any", close=1e-3),
        _case("g = |y - x| + y^2 / 2", lambda x, y: (y - 2) ** 2 + 0.1 * (x - 3) ** 2,
              lambda x, y: jnp.abs(y - x) + 0.5 * y**2, 0.0, 0.5, (3.0, 1.0), expected="any",
              close=1e-3),
        _case("a half-line of inner minima", lambda x, y: (y - 2) ** 2 + (x - 1) ** 2,
              lambda x, y: jnp.maximum(0.0, y - x) ** 2, 0.0, 0.0, (1.5, 1.5), expected="any",
              close=1e-3),
        _case("an interval of inner minima", lambda x, y: (y - 2) ** 2 + (x - 1) ** 2,
              lambda x, y: jnp.maximum(0.0, y - x) ** 2 + jnp.maximum(0.0, x - 1 - y) ** 2, 0.0,
              0.0, (1.5, 1.5), expected="any", close=1e-3),
        _case("f = |y - 1|", lambda x, y: jnp.abs(y - 1) + 0.1 * x**2, _follow, 0.0, 0.0,
              (1.0, 1.0), expected="any", close=1e-3),
        _case("a limit price, from above", lambda x, y: -x * y,
              lambda x, y: 0.5 * y**2 - (3 - x) * y, 2.9, 0.5, (2.0, 1.0),
              x_set=_box(0.0, 10.0), y_set=_box(0.0, 1.0)),
        _case("a limit price, from no demand", lambda x, y: -x * y,
              lambda x, y: 0.5 * y**2 - (3 - x) * y, 5.0, 0.0, (2.0, 1.0), expected="any",
              check=lambda x, y, f: x[0] > 3 and y[0] == 0, x_set=_box(0.0, 10.0),
              y_set=_box(0.0, 1.0)),
        _case("a limit price, linear", lambda x, y: -x * y, lambda x, y: (x - 3) * y, 1.0, 0.5,
              (3.0, 1.0), expected="any", close=1e-3, x_set=_box(0.0, 10.0), y_set=_box(0.0, 1.0)),
        _case("a limit price in a basket", lambda x, y: -jnp.sum(x * y),
              lambda x, y: 0.5 * jnp.sum(y**2) - jnp.sum((np.array([3.0, 4.0]) - x) * y),
              _vector(0.5, 0.5), _vector(0.5, 0.5), ([2.0, 3.0], [1.0, 1.0]),
              x_set=_box(0.0, 10.0), y_set=_box(0.0, 1.0)),
    ]  # fmt: skip
    return found


def _sets() -> list[Case]:
    """Weakly active bounds, tiny and degenerate sets."""
    up = pdbo.NonNegative
    both = lambda a, b: lambda x, y: jnp.sum((x - a) ** 2) + jnp.sum((y - b) ** 2)
    return [
        _case("a bound that is reached exactly", lambda x, y: x**2 + y**2, _follow, 1.0, 1.0,
              (0.0, 0.0), y_set=up),
        _case("a kink at a bound", lambda x, y: x**2 + y, _follow, 1.0, 1.0, (0.0, 0.0), y_set=up),
        _case("a bound left", lambda x, y: x**2 - y, _follow, -1.0, 0.0, (0.5, 0.5), y_set=up,
              expected="any", check=lambda x, y, f: False),
        _case("a bound kept", lambda x, y: (x + 1) ** 2 + y, _follow, 1.0, 1.0, (-1.0, 0.0),
              y_set=up),
        _case("a bound of x reached exactly", lambda x, y: y**2, _follow, 1.0, 1.0, (0.0, 0.0),
              x_set=up),
        _case("both bounds at once", lambda x, y: (x + 2) ** 2 + y**2, _follow, 1.0, 1.0,
              (0.0, 0.0), x_set=up, y_set=up),
        _case("a bound far away", both(1.0, 2.0), _follow, 0.0, 0.0, (1.5, 1.5),
              x_set=_box(-1e12, 1e12), y_set=_box(-1e12, 1e12)),
        _case("a tiny box", lambda x, y: (x - 1) ** 2 + (y - 1) ** 2, _follow, 0.0, 0.0,
              (1.0, 1e-9), y_set=_box(-1e-9, 1e-9)),
        _case("a box of one point", both(2.0, 2.0), _follow, 1.0, 1.0, (1.0, 1.0),
              x_set=_box(1.0, 1.0)),
        _case("an inner box of one point", both(2.0, 2.0), _follow, 1.0, 1.0, (2.0, 1.0),
              y_set=_box(1.0, 1.0)),
        _case("a box with one side", both(2.0, 2.0), _follow, _vector(0, 0), _vector(0, 0),
              ([1.0, 2.0], [1.0, 2.0]), x_set=lambda: pdbo.Box(np.array([1.0, -np.inf]),
                                                                np.array([1.0, np.inf]))),
        _case("a simplex of one entry", both(2.0, 0.0), _follow, _vector(0), _vector(1),
              ([2.0], [1.0]), y_set=pdbo.Simplex),
        _case("a vertex of a simplex", both(np.array([2.0, 0.0, 0.0]), 0.0), _follow,
              _vector(0, 0, 0), _vector(1 / 3, 1 / 3, 1 / 3),
              check=_vertex, y_set=pdbo.Simplex),
        _case("a vertex reached exactly", both(np.array([1.0, 0.0, 0.0]), np.array([1.0, 0, 0])),
              _follow, _vector(0, 0, 0), _vector(1 / 3, 1 / 3, 1 / 3),
              ([1.0, 0.0, 0.0], [1.0, 0.0, 0.0]), y_set=pdbo.Simplex),
        _case("the edge of a ball reached exactly", both(np.array([1.0, 0.0]), np.array([1.0, 0])),
              _follow, _vector(0, 0), _vector(0, 0), ([1.0, 0.0], [1.0, 0.0]),
              y_set=lambda: pdbo.Ball(1.0)),
        _case("a ball of radius zero", both(np.array([1.0, 0.0]), 1.0), _follow, _vector(0, 0),
              _vector(0, 0), ([1.0, 0.0], [0.0, 0.0]), y_set=lambda: pdbo.Ball(0.0)),
        _case("a tiny ball", both(np.array([1.0, 0.0]), np.array([1.0, 0.0])), _follow,
              _vector(0, 0.1), _vector(0, 0), ([1.0, 0.0], [1e-8, 0.0]),
              y_set=lambda: pdbo.Ball(1e-8)),
        _case("a half-space touched", both(0.5, 0.5), _follow, _vector(0, 0), _vector(0, 0),
              ([0.5, 0.5], [0.5, 0.5]), y_set=lambda: pdbo.Halfspace(np.ones(2), 1.0)),
        _case("an affine set of one point", both(2.0, 0.0), _follow, _vector(0, 0), _vector(1, 3),
              ([2.0, 2.0], [1.0, 3.0]), y_set=lambda: pdbo.Affine(np.eye(2), np.array([1.0, 3.0]))),
        _case("an affine set with a spare row", both(1.0, 1.0), _follow, _vector(0, 0),
              _vector(0.5, 0.5), check=lambda x, y, f: abs(np.sum(y) - 1) < 1e-7
              and abs(y[0] - y[1]) < 1e-5 and abs(f - 0.5) < 1e-6,
              y_set=lambda: pdbo.Affine(np.array([[1.0, 1.0], [2.0, 2.0]]), np.array([1.0, 2.0]))),
        _case("flat directions and a box", lambda x, y: (y[0] - 1) ** 2 + (y[1] - 5) ** 2 + 0 * x,
              lambda x, y: (y[0] - x) ** 2, 0.0, _vector(0, 0), (1.0, [1.0, 2.0]),
              y_set=_box(-2.0, 2.0)),
        _case("flat directions and a simplex",
              lambda x, y: jnp.sum((y - np.array([0.2, 0.5, 0.3])) ** 2) + (x - 0.4) ** 2,
              lambda x, y: (y[0] - x) ** 2, 0.5, _vector(1 / 3, 1 / 3, 1 / 3),
              check=lambda x, y, f: abs(y[0] - x[0]) < 1e-6 and abs(f - _thirds()) < 1e-7,
              y_set=pdbo.Simplex),
    ]  # fmt: skip


def _thirds() -> float:
    """The lowest f of the flat directions on a simplex: y0 = x, the rest moves alike."""
    x = np.linspace(0, 1, 2000001)
    return float(np.min((x - 0.2) ** 2 + 0.5 * (x - 0.2) ** 2 + (x - 0.4) ** 2))


def _vertex(x: np.ndarray, y: np.ndarray, f: float) -> bool:
    """|x - (2, 0, 0)|^2 + |y|^2 with y the projection of x: by symmetry x = (2 - 2s, s, s)."""
    s = np.linspace(-1, 1, 2000001)
    a, b = 2 - 2 * s, s
    first = np.clip((1 + 2 * (a - b)) / 3, 0, 1)
    value = (a - 2) ** 2 + 2 * b**2 + first**2 + (1 - first) ** 2 / 2
    return f <= np.min(value) + 1e-6


def _units() -> list[Case]:
    """Mixed units, huge multipliers, constants, values that are not finite."""
    toy = lambda x, y: 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2)
    inner = lambda x, y: 0.5 * y[0] ** 2 - x * y[0]
    start, answer = (2.0, _vector(0.5, 0.5)), (1.0, [1.0, 1.0])
    found = []
    for name, a, b, c in (
        ("g 1e-8", 1.0, 1e-8, 0.0), ("f 1e8", 1e8, 1.0, 0.0), ("g 1e-8, f 1e8", 1e8, 1e-8, 0.0),
        ("g 1e8, f 1e-8", 1e-8, 1e8, 0.0), ("g 1e-20, f 1e12", 1e12, 1e-20, 0.0),
        ("g 1e20", 1.0, 1e20, 0.0), ("1e10 added to g", 1.0, 1.0, 1e10),
        ("1e10 added to g 1e-4", 1.0, 1e-4, 1e10),
    ):  # fmt: skip
        found.append(_case(
            f"the toy, {name}", lambda x, y, a=a: a * toy(x, y),
            lambda x, y, b=b, c=c: b * inner(x, y) + c, *start, answer,
        ))  # fmt: skip
    square = lambda x, y: (y - 2) ** 2
    return [
        *found,
        _case("1e10 added to f", lambda x, y: toy(x, y) + 1e10, inner, *start, answer,
              expected="any", close=1e-3),
        _case("1e10 added to g of x", lambda x, y: (y - 1) ** 2, lambda x, y: (y - x) ** 2
              + 1e10 * (1 + x**2), 0.0, 0.0, (1.0, 1.0)),
        _case("x in millions", lambda x, y: (y[0] - 1.5) ** 2 + (y[1] - 0.3) ** 2,
              lambda x, y: 0.5 * (y[0] - 1e-6 * x[0]) ** 2 + 0.5 * (y[1] - x[1]) ** 2,
              _vector(0, 0), _vector(0, 0), ([1.5e6, 0.3], [1.5, 0.3])),
        _case("x and y in millions", lambda x, y: 1e-12 * (y[0] - 1.5e6) ** 2 + (y[1] - 0.3) ** 2,
              lambda x, y: 0.5 * (y[0] - x[0]) ** 2 + 0.5 * (y[1] - x[1]) ** 2, _vector(1e6, 0),
              _vector(1e6, 0), ([1.5e6, 0.3], [1.5e6, 0.3])),
        _case("x in millionths", lambda x, y: (y - 2) ** 2, lambda x, y: (y - 1e6 * x) ** 2, 0.0,
              0.0, (2e-6, 2.0), close=1e-9),
        _case("y in billions", lambda x, y: (1e-9 * y - 2) ** 2 + 0.1 * x**2,
              lambda x, y: (1e-9 * y - x) ** 2, 0.0, 0.0, (2 / 1.1, 2e9 / 1.1)),
        _case("log: NaN below zero", square, lambda x, y: y - x * jnp.log(y), 0.5, 0.1, (2.0, 2.0)),
        _case("log of x in f", lambda x, y: -jnp.log(x) + y, _follow, 0.01, 0.01, (1.0, 1.0)),
        _case("a square root of x in f", lambda x, y: (jnp.sqrt(x) - 2) ** 2 + 0.1 * y, _follow,
              0.01, 0.01, check=along(lambda x: (np.sqrt(x) - 2) ** 2 + 0.1 * x, lambda x: x)),
        _case("a barrier", lambda x, y: (y - 0.9) ** 2, lambda x, y: -jnp.log(1 - y**2) - x * y,
              0.0, 0.0, (2 * 0.9 / (1 - 0.81), 0.9)),
        _case("NaN beyond the solution", lambda x, y: (y - 1) ** 2 + 0 * jnp.sqrt(1.1 - x), _follow,
              -5.0, 0.0, (1.0, 1.0)),
        _case("NaN at the start", lambda x, y: (y - 1) ** 2, lambda x, y: y - x * jnp.log(y), 1.0,
              -1.0, expected="refused"),
        _case("overflow away from the solution", square,
              lambda x, y: jnp.exp(y - x) - (y - x), 0.0, 800.0, (2.0, 2.0), expected="any"),
    ]  # fmt: skip


def _shapes() -> list[Case]:
    """Functions that ignore an argument, pytrees, precisions."""
    f = lambda x, y: (x - 1) ** 2 + (y - 2) ** 2
    some = lambda x, y, t: abs(y[0] - t(x[0])) < 1e-6
    return [
        _case("g without x", lambda x, y: (x - 1) ** 2 + y**2, lambda x, y: (y - 3) ** 2, 0.0, 0.0,
              (1.0, 3.0)),
        _case("f without x", lambda x, y: (y - 0.5) ** 2, lambda x, y: (y - jnp.sin(x)) ** 2, 0.0,
              0.0, check=lambda x, y, f: f < 1e-10 and some(x, y, np.sin)),
        _case("f without y", lambda x, y: (x - 1) ** 2, lambda x, y: (y - x**2) ** 2, 0.0, 0.0,
              (1.0, 1.0)),
        _case("f constant", lambda x, y: 0 * x + 1, _follow, 0.3, 0.0,
              check=lambda x, y, f: some(x, y, lambda z: z)),
        _case("g constant", f, lambda x, y: 0 * x * y, 0.0, 0.0, (1.0, 2.0)),
        _case("g of x alone", f, lambda x, y: x**2, 0.0, 0.0, (1.0, 2.0)),
        _case("f and g without x", lambda x, y: (y - 2) ** 2, lambda x, y: (y - 1) ** 2, 0.3, 0.0,
              check=lambda x, y, f: abs(y[0] - 1) < 1e-6),
        _case("f = g", f, f, 0.0, 0.0, (1.0, 2.0)),
        _case("f = -g", lambda x, y: -((y - x) ** 2) + (x - 1) ** 2, lambda x, y: (y - x) ** 2, 0.0,
              3.0, (1.0, 1.0)),
        _case("whole numbers as the start", f, _follow, 0, 0, (1.5, 1.5), expected="any"),
        _case("dicts in dicts", lambda x, y: (x["a"]["b"] - 1) ** 2 + jnp.sum((y["c"] - 2) ** 2),
              lambda x, y: jnp.sum((y["c"] - x["a"]["b"]) ** 2), {"a": {"b": 0.0}},
              {"c": np.zeros((1, 1), np.float32)}, (1.5, 1.5)),
        _case("lists and tuples", lambda x, y: (x[0] - 1) ** 2 + (y[0][0] - 2) ** 2,
              lambda x, y: (y[0][0] - x[0]) ** 2, [0.0], ((0.0,),), (1.5, 1.5)),
        _case("single arrays in a 64-bit session",
              lambda x, y: jnp.sum((x - 1) ** 2) + jnp.sum((y - 2) ** 2), _follow, _vector(0, 0),
              _vector(0, 0), ([1.5, 1.5], [1.5, 1.5]), double=True, close=1e-4),
        _case("double arrays in a default session",
              lambda x, y: jnp.sum((x - 1 / 3) ** 2) + jnp.sum((y - 2 / 3) ** 2), _follow,
              np.zeros(2), np.zeros(2), ([0.5, 0.5], [0.5, 0.5]), close=1e-9),
        _case("x as one entry of a matrix", lambda x, y: jnp.sum((y - 1) ** 2), _follow,
              np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32), ([1.0], [1.0])),
        _case("a hundred entries of x", lambda x, y: jnp.sum((y - 1) ** 2), _follow,
              np.zeros(100, np.float32), np.zeros(100, np.float32), (np.ones(100), np.ones(100))),
        _case("more x than y", lambda x, y: (y - 1) ** 2 + 0.1 * jnp.sum(x**2),
              lambda x, y: (y - jnp.sum(x)) ** 2, np.zeros(5, np.float32), 0.0,
              (np.full(5, 1 / 5.1), 5 / 5.1)),
        _case("more x than y, x not unique", lambda x, y: (y - 1) ** 2,
              lambda x, y: (y - jnp.sum(x)) ** 2, np.zeros(5, np.float32), 0.0,
              check=lambda x, y, f: abs(np.sum(x) - 1) < 1e-6 and abs(y[0] - 1) < 1e-6),
        _case("functions with jnp.where", lambda x, y: jnp.where(y > 0, (y - 1) ** 2, 1 - 2 * y),
              _follow, -3.0, 0.0, (1.0, 1.0)),
    ]  # fmt: skip


def cases() -> list[Case]:
    """The table."""
    made = [_starts, _endless, _basins, _curvatures, _sets, _units, _shapes]
    return [case for make in made for case in make()]
