from __future__ import annotations

import conformal_stages
import numpy as np
import pytest
from pydantic import ValidationError

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.conformal import datasets


def test_privileged_information_is_no_feature_and_splits_are_disjoint(smoke):
    root, metrics, _ = smoke
    for name in conformal_stages.SMOKE["prepare"]["data"]:
        rows = read_parquet(root / f"prepare/rows-{name}.parquet")
        features = rows[[c for c in rows.columns if c.startswith("x_")]]
        assert not any((features[c] == rows["z_0"]).all() for c in features.columns)
        assert features.shape[1] == metrics["prepare"][f"features.{name}"]
        plan = read_parquet(root / f"prepare/splits-{name}.parquet")
        assert not plan.duplicated(["split", "row"]).any()
        assert plan.loc[plan["masked"], "observed"].isna().all()
        clean = plan[~plan["masked"]]
        np.testing.assert_array_equal(clean["observed"], rows["y"].to_numpy()[clean["row"]])
        sizes = plan.groupby(["split", "part"]).size().unstack()
        np.testing.assert_allclose(sizes.div(sizes.sum(axis=1), axis=0), [[0.5, 0.1, 0.2, 0.2]] * len(sizes), atol=0.005)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": ("boston",)}, "unknown data set 'boston'; known: ames, bio, chicago"),
        ({"data": ()}, "data must name each set once"),
        ({"data": ("ames", "ames")}, "data must name each set once"),
        ({"rate": 0.3}, "less than 0.25"),
        ({"splits": 0}, "greater than or equal to 1"),
        ({"mechanism": "lost"}, "'missing', 'noisy' or 'dispersive'"),
    ],
)
def test_impossible_preparations_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        datasets.PrepareParams(**change)


def test_unknown_table_names_the_known_ones(tmp_path):
    with pytest.raises(KeyError, match="unknown data set 'boston'; known: ames, bio"):
        datasets.read_table("boston", tmp_path)


def test_missing_official_file_says_where_it_comes_from(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"CASP.csv is missing.*archive.ics.uci.edu"):
        datasets.prepare(datasets.PrepareParams(data=("bio",), folder=str(tmp_path)), Inputs(), tmp_path / "out", NullLog())


def test_labels_of_real_sets_are_standardised(smoke):
    for name in set(datasets.PACKAGED):
        y = read_parquet(smoke[0] / f"prepare/rows-{name}.parquet")["y"]
        assert (y.mean(), y.std(ddof=0)) == pytest.approx((0.0, 1.0), abs=1e-9)
