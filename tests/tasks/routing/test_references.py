from __future__ import annotations

import numpy as np
import pytest

from tasks.common.formats import read_parquet
from tasks.common.node import Inputs, NullLog
from tasks.routing.datasets import PrepareParams, SetParams
from tasks.routing.datasets import prepare as prepare_sets
from tasks.routing.references import ReferenceParams, SolverParams, prepare


def test_solvers_are_compared_with_the_exact_cost(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    prepare_sets(PrepareParams(sets={"hard": SetParams(nodes=7, test=6, validation=2)}), Inputs(), data, NullLog())
    params = ReferenceParams(
        pyvrp=SolverParams(sets=("hard",), instances=5, effort=40), ortools=SolverParams(sets=("hard",), instances=2, effort=20)
    )
    metrics = prepare(params, Inputs({"prepare": data}), out, NullLog())
    table = read_parquet(out / "references.parquet")
    assert table.groupby("solver").size().to_dict() == {"ortools": 2, "pyvrp": 5}
    assert metrics["pyvrp.ins_infeas.hard"] == 0
    assert metrics["pyvrp.gap.hard"] == pytest.approx(0, abs=1e-4)
    assert (table["gap"] > -1e-9).all()
    assert np.isfinite(list(metrics.values())).all()
    assert "seconds" not in table
