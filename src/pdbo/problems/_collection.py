"""The problems by name. The tests recompute their optima by brute force."""

from collections.abc import Callable
from typing import SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .._problem import Problem
from ..sets import Box, Product, Set, Simplex
from ._entry import Entry
from ._quadratic import random_quadratic

Values = Array | np.ndarray

_MB = "Mitsos & Barton, A Test Set for Bilevel Programs (2006), example "


def get(name: str, n: int | None = None) -> Entry:
    """Returns the problem of that name; `n` is the size of a family, None for all others."""
    if name not in _MAKERS:
        raise ValueError(f"unknown problem {name!r}; the names are {', '.join(names())}.")
    make, family = _MAKERS[name]
    if n is not None and not family:
        raise ValueError(f"problem {name!r} has one size only, got n = {n!r}.")
    if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
        raise ValueError(f"n must be a whole number >= 1, got {n!r}.")
    return make() if n is None else make(n)


def names() -> tuple[str, ...]:
    """The names of all problems."""
    return tuple(_MAKERS)


def _grid_minimum(
    g: Callable[..., Values], lo: float, hi: float, points: int = 2001
) -> Callable[[SupportsFloat], float]:
    """The minimum of g(x, .) over [lo, hi]: a grid, and twice a finer one around its best point."""

    def minimum(x: SupportsFloat) -> float:
        at_x, low, high = float(x), lo, hi
        best = np.inf
        for _ in range(3):
            y = np.linspace(low, high, points)
            values = g(at_x, y)
            at = int(np.argmin(values))
            best = min(best, float(values[at]))
            width = (high - low) / (points - 1)
            low, high = max(lo, y[at] - width), min(hi, y[at] + width)
        return best

    return minimum


def _mb(
    number: str,
    f: Callable[..., Values],
    g: Callable[..., Values],
    formula: str,
    f_star: float,
    *solutions: tuple[float, float],
    inner: str,
    x: tuple[float, float] = (-1.0, 1.0),
    y: tuple[float, float] = (-1.0, 1.0),
) -> Callable[[], Entry]:
    """One of the polynomial problems in one x and one y."""

    def make() -> Entry:
        return Entry(
            name=f"mb-{number}",
            problem=Problem(f, g, x_set=Box(*x), y_set=Box(*y)),
            formula=f"{formula}, x in {list(x)}, y in {list(y)}",
            f_star=f_star,
            solutions=solutions,
            inner_min=_grid_minimum(g, *y),
            start=(sum(x) / 2, sum(y) / 2),
            spread=(x, y),
            reference=_MB + number,
            tags=frozenset({"box", inner}),
        )

    return make


def _quartic(y: Values) -> Values:
    return 16 * y**4 + 2 * y**3 - 8 * y**2 - 1.5 * y + 0.5


def _g_321(x: Values, y: Values) -> Values:
    return (
        y**4
        + (4 / 30) * (1 - x) * y**3
        + (-0.02 * x**2 + 0.16 * x - 0.4) * y**2
        + (0.004 * x**3 - 0.036 * x**2 + 0.08 * x) * y
    )


_POLYNOMIALS = {
    "mb-3.10": _mb(
        "3.10",
        lambda x, y: y,
        lambda x, y: x * _quartic(y),
        "f = y, g = x (16y^4 + 2y^3 - 8y^2 - 1.5y + 0.5)",
        0.5,
        (1.0, 0.5),
        inner="basins",
        x=(0.1, 1.0),
    ),
    "mb-3.11": _mb(
        "3.11",
        lambda x, y: y,
        lambda x, y: x * _quartic(y),
        "f = y, g = x (16y^4 + 2y^3 - 8y^2 - 1.5y + 0.5)",
        -0.8,
        (0.0, -0.8),
        inner="many minima",
        y=(-0.8, 1.0),
    ),
    "mb-3.12": _mb(
        "3.12",
        lambda x, y: -x + x * y + 10 * y**2,
        lambda x, y: -x * y**2 + y**4 / 2,
        "f = -x + xy + 10y^2, g = -xy^2 + y^4/2",
        0.0,
        (0.0, 0.0),
        inner="many minima",
    ),
    "mb-3.13": _mb(
        "3.13",
        lambda x, y: x - y,
        lambda x, y: x * y**2 / 2 - x**3 * y,
        "f = x - y, g = xy^2/2 - x^3 y",
        -1.0,
        (0.0, 1.0),
        inner="many minima",
    ),
    "mb-3.14": _mb(
        "3.14",
        lambda x, y: (x - 0.25) ** 2 + y**2,
        lambda x, y: y**3 / 3 - x * y,
        "f = (x - 0.25)^2 + y^2, g = y^3/3 - xy",
        0.25,
        (0.25, 0.5),
        inner="many minima",
    ),
    "mb-3.15": _mb(
        "3.15",
        lambda x, y: x + y,
        lambda x, y: x * y**2 / 2 - y**3 / 3,
        "f = x + y, g = xy^2/2 - y^3/3",
        0.0,
        (-1.0, 1.0),
        inner="basins",
    ),
    "mb-3.16": _mb(
        "3.16",
        lambda x, y: 2 * x + y,
        lambda x, y: -x * y**2 / 2 - y**4 / 4,
        "f = 2x + y, g = -xy^2/2 - y^4/4",
        -2.0,
        (-1.0, 0.0),
        (-0.5, -1.0),
        inner="many minima",
    ),
    "mb-3.17": _mb(
        "3.17",
        lambda x, y: (x + 0.5) ** 2 + y**2 / 2,
        lambda x, y: x * y**2 / 2 + y**4 / 4,
        "f = (x + 0.5)^2 + y^2/2, g = xy^2/2 + y^4/4",
        0.1875,
        (-0.25, 0.5),
        (-0.25, -0.5),
        inner="many minima",
    ),
    "mb-3.18": _mb(
        "3.18",
        lambda x, y: -(x**2) + y**2,
        lambda x, y: x * y**2 - y**4 / 2,
        "f = -x^2 + y^2, g = xy^2 - y^4/2",
        -1.0,
        (1.0, 0.0),
        inner="many minima",
    ),
    "mb-3.19": _mb(
        "3.19",
        lambda x, y: x * y - y + y**2 / 2,
        lambda x, y: -x * y**2 + y**4 / 2,
        "f = xy - y + y^2/2, g = -xy^2 + y^4/2",
        -0.258076,
        (0.188580, 0.434259),
        inner="many minima",
    ),
    "mb-3.20": _mb(
        "3.20",
        lambda x, y: (x - 0.25) ** 2 + y**2,
        lambda x, y: y**3 / 3 - x**2 * y,
        "f = (x - 0.25)^2 + y^2, g = y^3/3 - x^2 y",
        0.3125,
        (0.5, 0.5),
        inner="many minima",
    ),
    "mb-3.21": _mb(
        "3.21",
        lambda x, y: (x + 0.6) ** 2 + y**2,
        _g_321,
        "f = (x + 0.6)^2 + y^2, g = y^4 + (4/30)(1 - x)y^3 + (-0.02x^2 + 0.16x - 0.4)y^2"
        " + (0.004x^3 - 0.036x^2 + 0.08x)y",
        0.209505,
        (-0.554455, 0.455446),
        inner="basins",
    ),
    "mb-3.24": _mb(
        "3.24",
        lambda x, y: x**2 - y,
        lambda x, y: ((y - 1 - 0.1 * x) ** 2 - 0.5 - 0.5 * x) ** 2,
        "f = x^2 - y, g = ((y - 1 - 0.1x)^2 - 0.5 - 0.5x)^2",
        -1.754718,
        (0.210662, 1.799096),
        inner="many minima",
        x=(0.0, 1.0),
        y=(0.0, 3.0),
    ),
}


def _toy_f(x: Float[Array, ""], y: Float[Array, "2"]) -> Float[Array, ""]:
    return 0.5 * ((1 - y[0]) ** 2 + (x - y[1]) ** 2)


def _toy_g(x: Float[Array, ""], y: Float[Array, "2"]) -> Float[Array, ""]:
    return 0.5 * y[0] ** 2 - x * y[0]


def _toy() -> Entry:
    return Entry(
        name="toy",
        problem=Problem(_toy_f, _toy_g),
        formula="f = (1 - y1)^2/2 + (x - y2)^2/2, g = y1^2/2 - x y1, free",
        f_star=0.0,
        solutions=((1.0, np.ones(2)),),
        inner_min=lambda x: -0.5 * float(x) ** 2,
        start=(2.0, np.array([0.5, 0.5])),
        spread=((-3.0, 3.0), (-3.0, 3.0)),
        reference="Sow et al. (2022), the illustrative example",
        tags=frozenset({"convex inner", "many minima", "free"}),
    )


def _sine() -> Entry:
    return Entry(
        name="sine",
        problem=Problem(
            lambda x, y: x**2 + y**2,
            lambda x, y: jnp.sin(x + y),
            x_set=Box(-10.0, 10.0),
            y_set=Box(-10.0, 10.0),
        ),
        formula="f = x^2 + y^2, g = sin(x + y), x and y in [-10, 10]",
        f_star=np.pi**2 / 8,
        solutions=((-np.pi / 4, -np.pi / 4),),
        inner_min=lambda x: -1.0,
        start=(3.0, 3.0),
        spread=((-10.0, 10.0), (-10.0, 10.0)),
        reference="Sow et al. (2022), after Liu et al. (2021), with a = 0",
        tags=frozenset({"many minima", "box"}),
    )


def _bda(n: int = 10) -> Entry:
    def f(x: Float[Array, " n"], y: dict[str, Array]) -> Float[Array, ""]:
        return 0.5 * jnp.sum((x - y["y2"]) ** 2) + 0.5 * jnp.sum((y["y1"] - 1) ** 2)

    def g(x: Float[Array, " n"], y: dict[str, Array]) -> Float[Array, ""]:
        return 0.5 * jnp.sum(y["y1"] ** 2) - jnp.sum(x * y["y1"])

    one = np.ones(n)
    return Entry(
        name="bda",
        problem=Problem(f, g),
        formula="f = |x - y2|^2/2 + |y1 - e|^2/2, g = |y1|^2/2 - <x, y1>, free",
        f_star=0.0,
        solutions=((one, {"y1": one, "y2": one}),),
        inner_min=lambda x: -0.5 * float(np.sum(np.asarray(x, float) ** 2)),
        start=(0 * one, {"y1": 0 * one, "y2": 0 * one}),
        spread=((-3.0, 3.0), (-3.0, 3.0)),
        reference="Liu et al., A Generic First-Order Algorithmic Framework for Bi-Level "
        "Programming Beyond Lower-Level Singleton (2020)",
        tags=frozenset({"convex inner", "many minima", "free", "family"}),
    )


def _bvfim_sine(n: int = 2) -> Entry:
    miss = 1.5 * np.pi - 4  # distance of x = y - c = 2 from the nearest row of minima
    x_star = 2 + n * miss / (n + 1)
    y_star = 2 + 1.5 * np.pi - x_star
    return Entry(
        name="bvfim-sine",
        problem=Problem(
            lambda x, y: (x - 2) ** 2 + jnp.sum((y - 4) ** 2),
            lambda x, y: jnp.sum(jnp.sin(x + y - 2)),
        ),
        formula="f = (x - 2)^2 + |y - 4|^2, g = sum_i sin(x + y_i - 2), free",
        f_star=n * miss**2 / (n + 1),
        solutions=((x_star, np.full(n, y_star)),),
        inner_min=lambda x: -float(n),
        start=(3.0, np.full(n, 3.0)),
        spread=((-10.0, 10.0), (-10.0, 10.0)),
        reference="Liu et al., A Value-Function-based Interior-point Method for Non-convex "
        "Bi-level Optimization (2021), with a = c = 2",
        tags=frozenset({"many minima", "free", "family"}),
    )


def _iaptt() -> Entry:
    return Entry(
        name="iaptt",
        problem=Problem(
            lambda x, y: x + x * y,
            lambda x, y: -jnp.sin(x * y),
            x_set=Box(1.0, 10.0),
            y_set=Box(-2.0, 2.0),
        ),
        formula="f = x + xy, g = -sin(xy), x in [1, 10], y in [-2, 2]",
        f_star=-2.75 * np.pi,
        solutions=((2.75 * np.pi, -2.0),),
        inner_min=lambda x: -1.0,
        start=(5.5, 0.0),
        spread=((1.0, 10.0), (-2.0, 2.0)),
        reference="Liu et al., Towards Gradient-based Bilevel Optimization with Non-convex "
        "Followers and Beyond (2021)",
        tags=frozenset({"many minima", "box"}),
    )


def _vpbgd() -> Entry:
    def f(x: Float[Array, ""], y: Float[Array, ""]) -> Float[Array, ""]:
        wave = jnp.cos(4 * y + 2) / (1 + jnp.exp(2 - 4 * x))
        return wave + 0.5 * jnp.log((4 * x - 2) ** 2 + 1)

    return Entry(
        name="vpbgd",
        problem=Problem(
            f,
            lambda x, y: (x + y) ** 2 + x * jnp.sin(x + y) ** 2,
            x_set=Box(0.0, 3.0),
        ),
        formula="f = cos(4y + 2)/(1 + exp(2 - 4x)) + ln((4x - 2)^2 + 1)/2, "
        "g = (x + y)^2 + x sin^2(x + y), x in [0, 3], y free",
        f_star=0.199911,
        solutions=((1.215145, -1.215145),),
        inner_min=lambda x: 0.0,
        start=(1.5, 0.0),
        spread=((0.0, 3.0), (-5.0, 5.0)),
        reference="Shen & Chen, On Penalty-based Bilevel Gradient Descent Method (2023)",
        tags=frozenset({"unique"}),
    )


def _penalty_trap() -> Entry:
    return Entry(
        name="penalty-trap",
        problem=Problem(
            lambda x, y: jnp.sin(y - 2 * np.pi / 3) ** 2,
            lambda x, y: y**2 + 2 * jnp.sin(y) ** 2,
            x_set=Box(-1.0, 1.0),
        ),
        formula="f = sin^2(y - 2pi/3), g = y^2 + 2 sin^2(y), x in [-1, 1] has no effect, y free",
        f_star=0.75,
        solutions=((0.0, 0.0),),
        inner_min=lambda x: 0.0,
        start=(0.0, 2.0),
        spread=((-1.0, 1.0), (-5.0, 5.0)),
        reference="Shen & Chen, On Penalty-based Bilevel Gradient Descent Method (2023)",
        tags=frozenset({"unique"}),
    )


def _coreset() -> Entry:
    corners = np.array([[1.0, 3.0], [3.0, 1.0], [-2.0, 2.0], [-3.0, -2.0]])
    target = np.array([3.0, -2.0])

    def f(x: Float[Array, "4"], y: Float[Array, "2"], data: dict[str, Array]) -> Float[Array, ""]:
        return 0.1 * jnp.sum((y - data["target"]) ** 2)

    def g(x: Float[Array, "4"], y: Float[Array, "2"], data: dict[str, Array]) -> Float[Array, ""]:
        return jnp.sum((jax.nn.softmax(x) @ data["corners"] - y) ** 2)

    return Entry(
        name="coreset",
        problem=Problem(f, g, data={"corners": corners, "target": target}),
        formula="f = |y - (3, -2)|^2/10, g = |softmax(x) P - y|^2, "
        "P = (1, 3), (3, 1), (-2, 2), (-3, -2), free",
        f_star=0.72,
        solutions=((np.array([-20.0, np.log(4.0), -20.0, 0.0]), np.array([1.8, 0.4])),),
        inner_min=lambda x: 0.0,
        start=(np.zeros(4), np.zeros(2)),
        spread=((-3.0, 3.0), (-3.0, 3.0)),
        reference="Liu, Ye, Wright, Stone & Liu, BOME! Bilevel Optimization Made Easy (2022), the "
        "toy coreset",
        tags=frozenset({"convex inner", "unique", "free", "not attained"}),
    )


def _tracking(
    name: str, slope: float, f_star: float, point: float, source: str
) -> Callable[[], Entry]:
    def make() -> Entry:
        return Entry(
            name=name,
            problem=Problem(
                lambda x, y: jnp.sum(x**2 - slope * x + y**2),
                lambda x, y: jnp.sum((x - y) ** 2),
                y_set=Box(0.5, 1.5),
            ),
            formula=f"f = sum_i x_i^2 - {slope:g}x_i + y_i^2, g = |x - y|^2, "
            "x in R^2 free, y in [0.5, 1.5]^2",
            f_star=f_star,
            solutions=((np.full(2, point), np.full(2, point)),),
            inner_min=lambda x: float(np.sum((np.asarray(x, float) - np.clip(x, 0.5, 1.5)) ** 2)),
            start=(np.zeros(2), np.ones(2)),
            spread=((-3.0, 3.0), (0.5, 1.5)),
            reference=source,
            tags=frozenset({"convex inner", "unique", "box"}),
        )

    return make


def _toll() -> Entry:
    def g(x: Float[Array, ""], y: dict[str, Array]) -> Float[Array, ""]:
        left, right = y["left"], y["right"]
        toll = 2 * x
        return 8 * left[0] + (toll + 3) * left[1] + (toll + 4) * right[0] + 6 * right[1]

    def inner_min(x: SupportsFloat) -> float:
        toll = 2 * float(x)
        return min(8.0, toll + 3) + min(6.0, toll + 4)

    y_set: Set = Product({"left": Simplex(), "right": Simplex()})
    last, first = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    return Entry(
        name="toll-5",
        problem=Problem(
            lambda x, y: -x * (y["left"][1] + y["right"][0]),
            g,
            x_set=Box(0.0, 10.0),
            y_set=y_set,
        ),
        formula="f = -x (y2 + y3), g = 8y1 + (2x + 3)y2 + (2x + 4)y3 + 6y4, x in [0, 10], "
        "y1 + y2 = 1, y3 + y4 = 1, y >= 0",
        f_star=-2.5,
        solutions=((2.5, {"left": last, "right": last}),),
        inner_min=inner_min,
        start=(5.0, {"left": (first + last) / 2, "right": (first + last) / 2}),
        spread=((0.0, 10.0), (0.0, 1.0)),
        reference="a toll-setting problem after Labbe, Marcotte & Savard (1998)",
        tags=frozenset({"convex inner", "many minima", "simplex"}),
    )


def _quadratic(n: int = 10) -> Entry:
    return random_quadratic(n, 2 * n, n)


_MAKERS: dict[str, tuple[Callable[..., Entry], bool]] = {
    "toy": (_toy, False),
    "sine": (_sine, False),
    **{name: (make, False) for name, make in _POLYNOMIALS.items()},
    "bda": (_bda, True),
    "bvfim-sine": (_bvfim_sine, True),
    "iaptt": (_iaptt, False),
    "vpbgd": (_vpbgd, False),
    "penalty-trap": (_penalty_trap, False),
    "coreset": (_coreset, False),
    "desilva": (
        _tracking(
            "desilva",
            2.0,
            -1.0,
            0.5,
            "De Silva, Sensitivity Formulas for Nonlinear Factorable Programming (1978), as in the "
            "collection BOLIB",
        ),
        False,
    ),
    "falk-liu": (
        _tracking(
            "falk-liu",
            3.0,
            -2.25,
            0.75,
            "Falk & Liu, On bilevel programming, Part I: General nonlinear cases (1995), as in the "
            "collection BOLIB, which gives -2.1962 for the optimum",
        ),
        False,
    ),
    "toll-5": (_toll, False),
    "quadratic": (_quadratic, True),
}
