"""Verdicts in scikit-learn's own manner: a meta-estimator, and features of a table.

`WithVerdict` is a multi-label classifier that also says which inputs it should not be trusted on.
`TableFeatures` makes features for detectors of the columns of a table.
"""

from __future__ import annotations

from nescio.sklearn.table_features import TableFeatures
from nescio.sklearn.with_verdict import WithVerdict

__all__ = ["TableFeatures", "WithVerdict"]
