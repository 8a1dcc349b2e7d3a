"""Linear models for scikit-learn that learn their own regularisation."""

try:
    import sklearn as _installed  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "pdbo.sklearn needs scikit-learn: pip install scikit-learn.", name="sklearn"
    ) from None

from ._base import PenaltyWarning
from ._classification import BilevelLogisticRegression
from ._regression import BilevelElasticNet, BilevelGroupLasso, BilevelLasso, BilevelRidge

__all__ = [
    "BilevelElasticNet",
    "BilevelGroupLasso",
    "BilevelLasso",
    "BilevelLogisticRegression",
    "BilevelRidge",
    "PenaltyWarning",
]
