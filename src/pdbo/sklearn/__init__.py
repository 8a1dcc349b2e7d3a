"""Linear models for scikit-learn that learn their own regularisation."""

try:
    import sklearn as _installed  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "sklearn":
        raise
    raise ModuleNotFoundError(
        "pdbo.sklearn needs scikit-learn: pip install scikit-learn.", name="sklearn"
    ) from None

from ._estimators import BilevelLogisticRegression, BilevelRidge

__all__ = ["BilevelLogisticRegression", "BilevelRidge"]
