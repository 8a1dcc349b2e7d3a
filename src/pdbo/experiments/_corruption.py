"""Published ways to corrupt the labels of images, and the cleaning problem that goes with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float

    from .. import Problem
    from ._images import Images

    Split = dict[str, dict[str, np.ndarray]]


class Protocol(NamedTuple):
    """How labels are corrupted, and how a method is scored.

    In each of them exactly half of the training labels are replaced.

    Attributes:
        source: where it is from.
        train, validation: how many images train and validate, if there are enough.
        size: images in a batch, for f and for g.
        anew: whether a label is drawn from all ten classes, and so may be the right one; else it is
            always a wrong one.
        untouched: whether images count as clean if their label was not replaced; else if it is
            right.
        own_test: whether the test images are the data set's; else 10,000 further training images.
        standard: whether pixels are standardised by the mean and deviation over training images.
        boxed: whether x in [0, 1] is the weight of an image, from 0.5; else it is a logit, from 0.
        ridge: the weight of the squared parameters in the inner function.
    """

    source: str
    train: int = 5000
    validation: int = 5000
    size: int = 100
    anew: bool = True
    untouched: bool = True
    own_test: bool = True
    standard: bool = False
    boxed: bool = False
    ridge: float = 0.0


PROTOCOLS = {
    "ours": Protocol("always a wrong label", anew=False, ridge=5e-5),
    "V-PBGD": Protocol(
        "Shen & Chen, On Penalty-based Bilevel Gradient Descent Method, 2023", own_test=False
    ),
    "BOME": Protocol(
        "Ye, Liu, Wright, Stone & Liu, BOME! Bilevel Optimization Made Easy, 2022",
        train=50_000, size=500, untouched=False, standard=True, boxed=True, ridge=1e-3,
    ),
}  # fmt: skip


def draw(found: Images, seed: list[int], protocol: Protocol, share: float = 1.0) -> Split:
    """The images of one split; a share of them if fewer are wanted.

    Of a data set that is too small every part has the same share.
    """
    rng = np.random.default_rng(seed)
    tested = 0 if protocol.own_test else 10_000
    wanted = protocol.train + protocol.validation + tested
    share = min(share, len(found.labels) / wanted)
    sizes = [int(share * n) for n in (protocol.train, protocol.validation, tested)]
    order = rng.permutation(len(found.labels))
    train, validation, test = np.split(order[: sum(sizes)], np.cumsum(sizes)[:2])
    true = found.labels[train]
    replaced = np.zeros(len(train), bool)
    replaced[rng.permutation(len(train))[: len(train) // 2]] = True
    if protocol.anew:
        other = rng.integers(0, 10, len(train))
    else:
        other = (true + rng.integers(1, 10, len(train))) % 10
    labels = np.where(replaced, other, true).astype(np.int32)
    mean, deviation = np.float32(0), np.float32(1)
    if protocol.standard:
        mean = found.pixels[train].mean(dtype=np.float32)
        deviation = found.pixels[train].std(dtype=np.float32) + np.float32(1e-4)

    def part(pixels: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        return {"X": (pixels - mean) / deviation, "y": labels.astype(np.int32)}

    held = (found.test_pixels, found.test_labels)
    if not protocol.own_test:
        held = found.pixels[test], found.labels[test]
    return {
        "train": part(found.pixels[train], labels)
        | {"index": np.arange(len(train), dtype=np.int32)},
        "validation": part(found.pixels[validation], found.labels[validation]),
        "test": part(*held),
        "clean": {"clean": ~replaced if protocol.untouched else labels == true},
    }


def problem(
    data: Split, protocol: Protocol, scale: float = 1.0
) -> tuple[Problem, Float[Array, " images"]]:
    """The problem in mini-batches, and the start of x; `scale` is the unit of logits."""
    import jax.numpy as jnp

    from .. import Batches, Box, Free, Problem
    from .cleaning import outer

    count = len(data["train"]["y"])
    numbers = {"scale": scale, "ridge": protocol.ridge}
    train = data["train"] | {k: np.full(count, v, np.float32) for k, v in numbers.items()}
    sizes = (min(protocol.size, len(data["validation"]["y"])), min(protocol.size, count))
    batches = Batches(data["validation"], train, sizes)
    if protocol.boxed:
        x0 = jnp.full(count, 0.5, jnp.float32)
        return Problem(outer, by_weight, batches, x_set=Box(0.0, 1.0)), x0
    return Problem(outer, by_logit, batches, x_set=Free()), jnp.zeros(count, jnp.float32)


def by_logit(x: Array, w: dict[str, Array], batch: dict[str, Array]) -> Float[Array, ""]:
    """The inner function, with weights sigmoid(scale * x)."""
    import jax

    return by_weight(jax.nn.sigmoid(batch["scale"][0] * x), w, batch)


def by_weight(x: Array, w: dict[str, Array], batch: dict[str, Array]) -> Float[Array, ""]:
    """The inner function, with weights x."""
    import jax

    from .cleaning import losses

    squares = sum((leaf**2).sum() for leaf in jax.tree.leaves(w))
    weighted = x[batch["index"]] * losses(w, batch["X"], batch["y"])
    return weighted.mean() + batch["ridge"][0] * squares


def f1(
    x: Float[Array, " images"], clean: Bool[Array, " images"], protocol: Protocol
) -> Float[Array, ""]:
    """The F1 score for finding the clean images."""
    import jax.numpy as jnp

    kept = x > 0.5 if protocol.boxed else x >= 0 if protocol.anew else x > 0
    return 2 * jnp.sum(kept & clean) / jnp.maximum(jnp.sum(kept) + jnp.sum(clean), 1)
