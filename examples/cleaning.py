"""Data hyper-cleaning: finding wrong labels by their effect on validation data.

A third of the training labels are wrong. Every image has a weight sigmoid(x) in the training loss,
learnt so that the classifier does well on a small clean set. The inner problem is strongly convex,
so implicit differentiation works well here.

Figure: how many images got which weight, by whether their label is right.
"""

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits

import pdbo

TRAIN, WRONG = 600, 200
images, labels = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(labels))
images, labels = images[order].astype(np.float32) / 16, labels[order]
noisy = labels.copy()
noisy[:WRONG] = (labels[:WRONG] + rng.integers(1, 10, WRONG)) % 10  # never the right one
parts = {"train": slice(TRAIN), "valid": slice(TRAIN, 900), "test": slice(900, None)}
data = {k: (jnp.asarray(images[s]), jnp.asarray(noisy[s])) for k, s in parts.items()}


def losses(w, batch):
    """The cross-entropy of every image."""
    scores = jax.nn.log_softmax(batch[0] @ w)
    return -jnp.take_along_axis(scores, batch[1][:, None], 1)[:, 0]


def training(x, w, data):
    """The weighted training loss with a little weight decay."""
    weighted = jax.nn.sigmoid(x) * losses(w, data["train"])
    return jnp.mean(weighted) + 1e-3 * jnp.sum(w**2)


problem = pdbo.Problem(lambda x, w, data: jnp.mean(losses(w, data["valid"])), training, data)
x0, y0 = jnp.zeros(TRAIN), jnp.zeros((64, 10))
solver = pdbo.solvers.AIDConjugateGradient(500.0, inner_step=1.0, inner_steps=20, linear_steps=10)

if __name__ == "__main__":
    sol = pdbo.solve(problem, x0, y0, solver, steps=150, every=150)
    weight = np.asarray(jax.nn.sigmoid(sol.x))
    low, high = np.mean(weight[:WRONG] < 0.5), np.mean(weight[WRONG:] > 0.5)
    print(f"wrong labels with a weight below 1/2: {100 * low:.0f} per cent")
    print(f"right labels with a weight above 1/2: {100 * high:.0f} per cent")
    right = jnp.argmax(data["test"][0] @ sol.y, 1) == data["test"][1]
    print(f"accuracy on the test images: {100 * jnp.mean(right):.0f} per cent")

    axes = (figure := Figure(figsize=(5, 3.2), layout="constrained")).subplots()
    axes.hist([weight[:WRONG], weight[WRONG:]], 20, label=["wrong label", "right label"])
    axes.set(xlabel="weight learnt", ylabel="images")
    axes.legend()
    figure.savefig("cleaning.png", dpi=120)
