from __future__ import annotations

import pytest
from pydantic import ValidationError

from tasks.common.node import Inputs, NullLog, Params
from tasks.common.plotting import COLOURS, figure


class Example(Params):
    rate: float = 0.5


def test_params_are_frozen_and_refuse_what_they_do_not_know():
    params = Example(rate=0.1)
    with pytest.raises(ValidationError, match="frozen"):
        params.rate = 0.2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Example(rat=0.1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="finite"):
        Example(rate=float("nan"))


def test_inputs_name_what_is_missing(tmp_path):
    (tmp_path / "rows.parquet").touch()
    inputs = Inputs({"prepare": tmp_path})
    assert inputs.file("prepare", "rows.parquet") == tmp_path / "rows.parquet"
    assert (list(inputs), len(inputs)) == (["prepare"], 1)
    with pytest.raises(KeyError, match=r"need 'train' is not bound to this stage \(bound: prepare\)"):
        inputs["train"]
    with pytest.raises(FileNotFoundError, match=r"rows.csv is missing \(the folder holds rows.parquet\)"):
        inputs.file("prepare", "rows.csv")
    with pytest.raises(KeyError, match="bound: none"):
        Inputs()["prepare"]


def test_null_log_passes_items_on_and_closes_figures():
    import matplotlib.pyplot as plt

    log = NullLog()
    assert list(log.progress(iter([3, 1]), total=2)) == [3, 1]
    before = plt.get_fignums()
    drawn, _ = figure()
    log.figure("plot", drawn)
    assert plt.get_fignums() == before


def test_figures_share_a_style_and_leave_no_trace():
    import matplotlib.pyplot as plt

    size = plt.rcParams["font.size"]
    drawn, axes = figure(5.0, 3.0, 1, 2)
    assert drawn.get_size_inches().tolist() == [5.0, 3.0]
    (line,) = axes[0].plot([0, 1])
    assert line.get_color() == COLOURS[0]
    assert not axes[1].spines["top"].get_visible()
    assert plt.rcParams["font.size"] == size
    NullLog().figure("plot", drawn)
