"""Tables with words and gaps become matrices of numbers: categories as integer codes, missing numbers as 0.

The codes follow the sorted names of the categories, so they do not depend on the order of the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


def encode(frame: pd.DataFrame) -> pd.DataFrame:
    """All columns as float64: numbers as they are (missing: 0), everything else as codes of its sorted values (missing: -1).

    Raises:
        ValueError: for two columns of one name.

    >>> import pandas as pd
    >>> encode(pd.DataFrame({"size": [1.5, None], "cut": ["ideal", "fair"]})).to_numpy().tolist()
    [[1.5, 1.0], [0.0, 0.0]]
    """
    import pandas as pd

    if not frame.columns.is_unique:
        raise ValueError(f"frame has columns of one name: {sorted(set(frame.columns[frame.columns.duplicated()].map(str)))}")
    columns = {}
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):
            columns[name] = column.astype(float).fillna(0.0).to_numpy()
        else:
            codes, _ = pd.factorize(column.astype("string"), sort=True)
            columns[name] = codes.astype(float)
    return pd.DataFrame(columns)


def most_correlated(features: pd.DataFrame, target: NDArray[np.float64], more_values_than: int = 10) -> str:
    """Name of the feature with the largest absolute correlation with the target, among those with many distinct values.

    Args:
        features: encoded features, (n, d).
        target: (n,).
        more_values_than: features with at most this many distinct values do not compete.

    Raises:
        ValueError: if no feature has that many values, or the target has no spread.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"same": [1.0] * 4, "close": [0.0, 1.0, 2.0, 4.0], "far": [1.0, -1.0, 2.0, -2.0]})
    >>> most_correlated(table, np.arange(4.0), more_values_than=2)
    'close'
    """
    wide = [name for name in features.columns if features[name].nunique() > more_values_than]
    if not wide:
        raise ValueError(f"features: none of {features.shape[1]} has more than {more_values_than} distinct values")
    if not np.std(target) > 0:
        raise ValueError(f"target: nothing correlates with {target.size} values whose standard deviation is {np.std(target)}")
    strength = [abs(float(np.corrcoef(features[name].to_numpy(), target)[0, 1])) for name in wide]
    return str(wide[int(np.argmax(strength))])


def standardise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shift to mean 0 and scale to standard deviation 1 (ddof = 0), shape (n,).

    Raises:
        ValueError: for no values, NaN or infinite ones, or if all are equal.

    >>> standardise(np.array([1.0, 3.0])).tolist()
    [-1.0, 1.0]
    """
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"values: need finite numbers, got {values.size}, of which {int((~np.isfinite(values)).sum())} are not finite")
    spread = float(values.std())
    if spread == 0.0:
        raise ValueError(f"values: all {values.size} are equal to {values[0]}; nothing to standardise")
    return np.asarray((values - values.mean()) / spread)
