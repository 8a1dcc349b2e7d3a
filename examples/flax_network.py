"""A network in Flax that learns which of its training examples to trust.

Every fifth target is corrupted. Each example has a weight sigmoid(x) in the training loss, learnt
so that the network does well on a few clean points.

Figure: the weight learnt for each training example; orange ones are corrupted.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from matplotlib.figure import Figure

import pdbo


class Network(nnx.Module):
    """Two layers."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden, self.out = nnx.Linear(1, 24, rngs=rngs), nnx.Linear(24, 1, rngs=rngs)

    def __call__(self, inputs):
        """The network's values."""
        return self.out(jnp.tanh(self.hidden(inputs)))


graph, y0 = nnx.split(Network(nnx.Rngs(0)), nnx.Param)
x0 = jnp.zeros(30)
points = jnp.linspace(-2, 2, 60)[:, None]
corrupt = jnp.arange(30) % 5 == 0
targets = jnp.sin(2 * points[::2]) + jnp.where(corrupt[:, None], 3.0, 0.0)
data = {"train": (points[::2], targets), "valid": (points[1::2], jnp.sin(2 * points[1::2]))}


def errors(weights, batch):
    """The squared error of every example."""
    return ((nnx.merge(graph, weights)(batch[0]) - batch[1]) ** 2)[:, 0]


problem = pdbo.Problem(
    f=lambda x, w, data: jnp.mean(errors(w, data["valid"])),
    g=lambda x, w, data: jnp.mean(jax.nn.sigmoid(x) * errors(w, data["train"])),
    data=data,
)
solver = pdbo.PDBO(primal_step=0.02, dual_step=0.1, inner_step=0.1, smoothing=0.0, dual_bound=5.0)

if __name__ == "__main__":
    sol = pdbo.solve(problem, x0, y0, solver, steps=10_000, every=10_000)
    kept = jax.nn.sigmoid(sol.x)
    print(f"validation loss {problem.outer(x0, y0):.1f}, then below 0.1: {sol.f < 0.1}")
    print(f"corrupted examples with a weight below 1/4: {jnp.sum(kept[corrupt] < 0.25)} of 6")
    print(f"clean examples with a weight above 1/4: {jnp.sum(kept[~corrupt] > 0.25)} of 24")

    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    axes.bar(range(30), kept, color=["#D55E00" if c else "#0072B2" for c in corrupt])
    axes.set(xlabel="training example (orange: corrupted)", ylabel="weight learnt")
    figure.savefig("flax_network.png", dpi=120)
