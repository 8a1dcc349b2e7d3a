"""A network in Equinox with one weight decay per layer, learnt on validation data.

An Equinox module is a pytree: its arrays are y, the logarithms of the decays are x, and both move
together. The bound on the multiplier keeps fixed steps stable.

Figure: the trained network, the training data and the validation data.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import pdbo

keys = jax.random.split(jax.random.key(3), 3)
points = jax.random.uniform(keys[0], (48, 1), minval=-2, maxval=2)
values = jnp.sin(3 * points) + 0.3 * jax.random.normal(keys[1], points.shape)
data = {"train": (points[:16], values[:16]), "valid": (points[16:], values[16:])}
network = eqx.nn.MLP(1, 1, 32, 1, activation=jnp.tanh, key=keys[2])
y0, static = eqx.partition(network, eqx.is_array)
x0 = [jnp.array(-7.0)] * 2


def predict(weights, inputs):
    """The network's values."""
    return jax.vmap(eqx.combine(weights, static))(inputs)


def loss(weights, batch):
    """The mean squared error."""
    return jnp.mean((predict(weights, batch[0]) - batch[1]) ** 2)


def training(x, weights, data):
    """The training loss with a weight decay exp(x) per layer."""
    decays = zip(x, weights.layers, strict=True)
    penalty = sum(jnp.exp(s) * jnp.sum(layer.weight**2) for s, layer in decays)
    return loss(weights, data["train"]) + penalty


problem = pdbo.Problem(lambda x, w, data: loss(w, data["valid"]), training, data)
solver = pdbo.PDBO(primal_step=0.01, dual_step=0.1, inner_step=0.05, smoothing=0.0, dual_bound=5.0)

if __name__ == "__main__":
    sol = pdbo.solve(problem, x0, y0, solver, steps=20_000, every=20_000)
    print(f"validation loss {loss(y0, data['valid']):.1f}, then below 0.2: {sol.f < 0.2}")
    print("log decay per layer:", *(f"{s:.1f}" for s in sol.x))

    grid = jnp.linspace(-2, 2, 200)[:, None]
    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    axes.plot(grid, predict(sol.y, grid), color="#0072B2", label="network")
    axes.plot(*data["train"], "o", color="#D55E00", label="training data")
    axes.plot(*data["valid"], ".", color="#999999", label="validation data")
    axes.legend()
    figure.savefig("equinox_network.png", dpi=120)
