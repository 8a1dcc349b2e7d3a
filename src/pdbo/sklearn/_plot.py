"""A picture of the learned penalties."""

from typing import Any

import numpy as np


def plot(model: Any, ax: Any = None) -> Any:
    """The penalties of features or groups; hollow where all weights are zero."""
    import matplotlib.pyplot as plt

    ax = plt.subplots()[1] if ax is None else ax
    penalty = np.atleast_2d(np.asarray(model.penalty_, float))
    used = np.any(np.atleast_2d(model.coef_) != 0, axis=0)
    names, what = getattr(model, "feature_names_in_", None), "feature"
    if penalty.size == 1:
        names, what, used = None, "all features", np.array([True])
    elif penalty.shape[1] != used.size or model.per == "group":
        names, what = model.groups_, "group"
        used = np.bincount(np.unique(model.groups, return_inverse=True)[1], used) > 0
    place = np.arange(penalty.shape[1])
    for row in np.where(penalty > 0, penalty, np.nan):
        (line,) = ax.plot(place[used], row[used], "o", label="in use")
        ax.plot(place[~used], row[~used], "o", mfc="none", color=line.get_color(), label="zero")
    ax.set(yscale="log", xlabel=what, ylabel="penalty")
    if names is not None and len(names) <= 30:
        ax.set_xticks(place, [str(name) for name in names], rotation=90)
    if not np.all(used):
        ax.legend()
    return ax
