"""Toll setting: a road owner's best prices when drivers choose the cheaper road.

The owner sets the tolls x of two roads. Drivers split over these and a free one, y in the simplex,
until nobody gains by changing: they minimise Beckmann's potential of travel time and tolls.
Eliminating the tolls leaves a concave quadratic, so the answer can be checked by hand.

Figure: the shares of drivers on the roads at the best tolls.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import pdbo

jax.config.update("jax_enable_x64", True)  # more digits than float32 has
TIME = np.array([2.0, 3.0, 6.0])  # minutes on the empty roads; the last road is free of charge
CONGESTION = np.array([2.0, 1.0, 3.0])


def loss(x, y):
    """The owner's loss: minus the revenue."""
    return -(x @ y[:2])


def potential(x, y):
    """The drivers' potential: at its minimum every road in use costs the same."""
    return TIME @ y + 0.5 * CONGESTION @ y**2 + x @ y[:2]


problem = pdbo.Problem(loss, potential, x_set=pdbo.Box(0.0, 10.0), y_set=pdbo.Simplex(1.0))
x0, y0 = jnp.ones(2), jnp.array([0.25, 0.25, 0.5])


def by_hand():
    """Equal costs give x_i = t_3 + c_3 (1 - y_1 - y_2) - t_i - c_i y_i; maximise x @ y over y."""
    t, c = TIME, CONGESTION
    flows = np.linalg.solve(2 * (np.diag(c[:2]) + c[2]), t[2] + c[2] - t[:2])
    return t[2] + c[2] * (1 - flows.sum()) - t[:2] - c[:2] * flows, flows


if __name__ == "__main__":
    sol = pdbo.solve(problem, x0, y0)
    tolls, flows = by_hand()
    print(f"certified: {sol.ok}")
    print("tolls  ", *(f"{v:.2f}" for v in sol.x), " by hand", *(f"{v:.2f}" for v in tolls))
    print("flows  ", *(f"{v:.2f}" for v in sol.y[:2]), " by hand", *(f"{v:.2f}" for v in flows))
    print(f"revenue {-sol.f:.2f}       by hand {tolls @ flows:.2f}")

    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.bar(["road 1", "road 2", "free road"], sol.y, color=["#0072B2", "#D55E00", "#999999"])
    axes.set(ylabel="share of drivers", title=f"tolls {sol.x[0]:.2f} and {sol.x[1]:.2f}")
    figure.savefig("toll.png", dpi=120)
