"""Fair reweighting: training weights of two groups, chosen so that the worse-off group does well.

The minority is small. The weights minimise a smooth maximum of the groups' validation losses.

Figure: the validation losses of both groups, with weights by size and with those learnt.
"""

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

import pdbo

jax.config.update("jax_enable_x64", True)
SIZES, DIRECTIONS = jnp.array([180.0, 20.0]), jnp.array([[1.0, 0.2], [0.2, 1.0]])


def draw(key, count, direction):
    """Points in the plane and their labels, one in ten of them flipped."""
    side = jnp.sign((points := jax.random.normal(key, (count, 2))) @ direction)
    return points, jnp.where(jnp.arange(count) % 10 == 0, -side, side)


keys = jax.random.split(jax.random.key(0), 4)
train = [draw(keys[i], int(SIZES[i]), DIRECTIONS[i]) for i in (0, 1)]
valid = [draw(keys[i + 2], 100, DIRECTIONS[i]) for i in (0, 1)]


def losses(w, groups):
    """The mean logistic loss of each group."""
    return jnp.stack([jnp.mean(jax.nn.softplus(-labels * (z @ w))) for z, labels in groups])


def training(x, w, data):
    """The training loss with weights x for the groups."""
    return x @ losses(w, data[0]) + 1e-2 * jnp.sum(w**2)


def worst(x, w, data):
    """A smooth maximum of the groups' validation losses."""
    return 0.05 * jax.nn.logsumexp(losses(w, data[1]) / 0.05)


problem = pdbo.Problem(worst, training, (train, valid), x_set=pdbo.Simplex(1.0))
x0, y0 = SIZES / SIZES.sum(), jnp.zeros(2)  # by size: every example has the same weight

if __name__ == "__main__":
    sol = pdbo.solve(problem, x0, y0)
    descend = lambda _, w: w - jax.grad(training, 1)(x0, w, problem.data)  # noqa: E731
    plain = jax.lax.fori_loop(0, 500, descend, y0)
    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    for shift, name, x, w in ((-0.2, "by size", x0, plain), (0.2, "learnt", sol.x, sol.y)):
        found = losses(w, valid)
        print(f"{name:8} weights {x[0]:.2f} {x[1]:.2f}  losses {found[0]:.2f} {found[1]:.2f}")
        axes.bar(jnp.arange(2) + shift, found, 0.4, label=f"weights {name}")
    print(f"certified: {sol.ok}")
    axes.set(xticks=[0, 1], xticklabels=["majority", "minority"], ylabel="validation loss")
    axes.legend()
    figure.savefig("robust.png", dpi=120)
