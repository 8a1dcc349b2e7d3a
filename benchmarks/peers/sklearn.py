"""scikit-learn: one penalty for all weights, by its cross-validated fit or by a search of fits.

An iteration is one value of the penalty. `cv` is LogisticRegressionCV on the one split, `optuna`
a study whose every trial is one LogisticRegression.
"""

from typing import Any

import numpy as np
import optuna
import scipy.sparse
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss

from .worker import serve

RANGE = (-8.0, 6.0)  # of the logarithm of the penalty, as everywhere in the suite


def design(data: dict[str, np.ndarray], name: str) -> Any:
    """The design matrix, dense or sparse."""
    if name in data:
        return data[name]
    values, rows, columns = (data[f"{name}.{part}"] for part in ("values", "rows", "columns"))
    return scipy.sparse.csr_array((values, (rows, columns)), shape=tuple(data[f"{name}.shape"]))


class Search:
    """What both kinds of search share."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        self.settings = job["settings"]
        self.A, self.A_val = design(data, "A"), design(data, "A_val")
        self.b, self.b_val = data["b"], data["b_val"]
        self.shape, self.size = data["x0"].shape, data["y0"].size
        self.fits = 0
        self.x, self.y = np.zeros(self.shape), np.zeros_like(data["y0"])

    def strength(self, x: Any) -> Any:
        """The C that exp(x) / 2 times the mean square of the weights stands for."""
        return self.size / (np.exp(x) * len(self.b))

    def point(self) -> tuple[np.ndarray, np.ndarray]:
        """The penalty, the same for every weight, and the weights fitted with it."""
        return np.broadcast_to(self.x, self.shape), self.y

    def calls(self) -> None:
        """Not counted: the solver is compiled code."""


class CrossValidated(Search):
    """LogisticRegressionCV with as many values of C as there are iterations."""

    def advance(self, steps: int) -> None:
        """One fit of the whole path, finer each time it is asked to go on."""
        self.fits += steps
        grid = np.linspace(*RANGE, self.fits) if self.fits > 1 else np.array([np.mean(RANGE)])
        both = scipy.sparse.vstack if scipy.sparse.issparse(self.A) else np.concatenate
        split = np.arange(len(self.b)), len(self.b) + np.arange(len(self.b_val))
        model = LogisticRegressionCV(
            Cs=self.strength(grid),
            cv=[split],
            scoring="neg_log_loss",
            fit_intercept=False,
            refit=False,
            use_legacy_attributes=False,
            l1_ratios=(0.0,),
            max_iter=self.settings["max_iter"],
        ).fit(both([self.A, self.A_val]), np.concatenate([self.b, self.b_val]))
        self.x = np.log(self.size / (float(model.C_) * len(self.b)))
        self.y = model.coef_.T


class Study(Search):
    """A study of Optuna."""

    def __init__(self, job: dict[str, Any], data: dict[str, np.ndarray]):
        super().__init__(job, data)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
        self.best = np.inf

    def advance(self, steps: int) -> None:
        """Run `steps` more trials."""
        self.study.optimize(self._trial, n_trials=steps)

    def _trial(self, trial: optuna.Trial) -> float:
        x = trial.suggest_float("x", *RANGE)
        model = LogisticRegression(
            C=float(self.strength(x)), fit_intercept=False, max_iter=self.settings["max_iter"]
        ).fit(self.A, self.b)
        loss = log_loss(self.b_val, model.predict_proba(self.A_val))
        if loss < self.best:
            self.best, self.x, self.y = loss, np.asarray(x), model.coef_.T
        return loss


MODES = {"cv": CrossValidated, "optuna": Study}

if __name__ == "__main__":
    serve(lambda job, data: MODES[job["settings"]["mode"]](job, data))
