"""Points spread evenly."""

import numpy as np
from jaxtyping import Float


def kronecker(count: int, shift: Float[np.ndarray, " n"]) -> Float[np.ndarray, "count n"]:
    """Points of the unit cube: multiples of powers of the generalised golden ratio, mod 1.

    Reference: Roberts, The Unreasonable Effectiveness of Quasirandom Sequences (2018).
    """
    golden = 2.0
    for _ in range(60):
        golden = (1 + golden) ** (1 / (len(shift) + 1))
    powers = golden ** -np.arange(1.0, len(shift) + 1)
    return (np.asarray(shift) + np.outer(np.arange(count), powers)) % 1
