"""Hyperparameter optimisation: one ridge penalty per feature, learnt on validation data.

Half of the features are noise. A single penalty has to compromise. One per feature penalises most
of the noise heavily, but hardly three noise features that help by chance on the validation data.

Figure: the penalty learnt for each feature, noise in grey; a short bar is hardly any penalty.
"""

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import pdbo

jax.config.update("jax_enable_x64", True)
FEATURES, ROWS = 20, 40
keys = jax.random.split(jax.random.key(1), 2)
signal = jnp.arange(FEATURES) < FEATURES // 2
A = jax.random.normal(keys[0], (10 * ROWS, FEATURES))
b = A @ jnp.where(signal, 1.0, 0.0) + 2.0 * jax.random.normal(keys[1], (10 * ROWS,))
data = {
    "train": (A[:ROWS], b[:ROWS]),
    "valid": (A[ROWS : 4 * ROWS], b[ROWS : 4 * ROWS]),
    "test": (A[4 * ROWS :], b[4 * ROWS :]),
}


def error(w, part):
    """The mean squared error on a part of the data."""
    return jnp.mean((part[0] @ w - part[1]) ** 2)


problem = pdbo.Problem(
    f=lambda x, w, data: error(w, data["valid"]),
    g=lambda x, w, data: error(w, data["train"]) + jnp.mean(jnp.exp(x) * w**2),
    data=data,
    x_set=pdbo.Box(-4.0, 4.0),  # x are the logarithms of the penalties
)
x0, y0 = jnp.zeros(FEATURES), jnp.zeros(FEATURES)


def one_for_all():
    """The weights for the best penalty of a grid, by the normal equations."""
    X, t = data["train"]
    left = [X.T @ X + ROWS * p / FEATURES * jnp.eye(FEATURES) for p in jnp.logspace(-2, 3, 51)]
    return min((jnp.linalg.solve(m, X.T @ t) for m in left), key=lambda w: error(w, data["valid"]))


if __name__ == "__main__":
    sol = pdbo.solve(problem, x0, y0)
    for name, w in {"one for all": one_for_all(), "one per feature": sol.y}.items():
        valid, test = error(w, data["valid"]), error(w, data["test"])
        print(f"{name:16}validation {valid:.2f}  test {test:.2f}")
    print(f"certified: {sol.ok}")

    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    axes.bar(range(FEATURES), jnp.exp(sol.x), color=["#0072B2" if s else "#999999" for s in signal])
    axes.set(yscale="log", xlabel="feature (grey: noise)", ylabel="penalty learnt")
    figure.savefig("ridge.png", dpi=120)
