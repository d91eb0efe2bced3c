from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from diffusion_stages import PAPER

from flows import lsp as declared
from tasks.masked_diffusion import real_models
from tasks.masked_diffusion.prefix_schedule import LspParams
from tasks.masked_diffusion.scheduler_evaluation import COMPARED, decay_excess, growth_of_work, pairs, slope
from tasks.masked_diffusion.scoring import SCORED


def test_decay_by_hand():
    assert decay_excess([[24, 18, 14, 11, 9, 7, 3]], 0.25, 0) == pytest.approx(0.75)  # 11 -> 9 where 8.25 would do
    assert decay_excess([[24, 20]], 0.25, 2) == 0.0
    assert decay_excess([[7, 6]], 0.25, 0) == 0.0  # too few to be looked at
    assert decay_excess([[24]], 0.25, 0) == -18.0  # all at once


def test_work_of_one_token_per_call_is_cubic_and_of_the_prefix_rule_quadratic():
    found = growth_of_work((64, 128, 256), 0, LspParams(), prompt=1)
    quota = found["quota"][64]
    assert quota == {"nfe": 64, "token_forwards": 64 * 65, "attn_pairs": 64 * 65**2}
    assert slope({n: v["attn_pairs"] for n, v in found["quota"].items()}) == pytest.approx(3.0, abs=0.05)
    assert slope({n: v["attn_pairs"] for n, v in found["literal"].items()}) < 2.2
    bound = (1 / 0.25 + 1) * 64 + 64
    assert found["literal"][64]["token_forwards"] < bound < found["literal_uncached"][64]["token_forwards"]


def test_slope_is_the_exponent():
    assert slope({n: 3.0 * n**1.7 for n in (10, 20, 50)}) == pytest.approx(1.7)


def test_the_declaration_names_the_pairs_that_are_reported():
    assert set(declared.PAIRS) == set(pairs())
    assert set(declared.REAL_PAIRS) == set(real_models.PAIRED)
    assert declared.SCORED == SCORED
    assert declared.COMPARED == COMPARED


def test_tables_hold_every_arm_of_every_model(smoke):
    root, metrics, _ = smoke
    table = pd.read_parquet(root / "evaluate/decoded.parquet")
    assert set(table.arm) == set(declared.ARMS)
    assert table.groupby(["arm", "seed"]).size().eq(6).all()
    means = table[table.arm == "lsp"].groupby("seed").nfe.mean()
    assert metrics["evaluate"]["lsp.nfe.trace"] == pytest.approx(means.mean())
    assert metrics["evaluate"]["lsp.runs.trace"] == 1.0
    assert metrics["evaluate"]["quota.nfe.trace"] == 8.0
    both = [table[table.arm == arm].groupby("seed").em.mean() for arm in ("lsp", "quota")]
    assert metrics["evaluate"]["lsp.em.trace-quota.em.trace"] == pytest.approx(float(np.mean(both[0] - both[1])))


def test_reduced_arms_are_compared_on_what_both_decoded(smoke, tmp_path):
    from diffusion_stages import SECTIONS, STAGES

    from tasks.common.node import Inputs, NullLog

    root = smoke[0]
    node, model, needs = STAGES["evaluate"]
    params = model(**{**SECTIONS["smoke"]["evaluate"], "reduced": {"quota": 0.5}})
    metrics = node(params, Inputs({need: root / need for need in needs}), tmp_path, NullLog())
    table = pd.read_parquet(tmp_path / "decoded.parquet")
    assert table[table.arm == "quota"].groupby("seed").size().eq(3).all()
    first = table[table.program < 3]
    both = [first[first.arm == arm].groupby("seed").em.mean() for arm in ("lsp", "quota")]
    assert metrics["lsp.em.trace-quota.em.trace"] == pytest.approx(float(np.mean(both[0] - both[1])))


def test_claims_read_metrics_of_stages_that_exist():
    assert {claim.id for claim in PAPER.claims} == {
        "half_the_calls",
        "less_work_than_scattered",
        "one_boundary",
        "geometric_decay",
        "quadratic_instead_of_cubic",
        "floor_is_needed",
        "cache_is_harmless",
        "cache_saves_time",
    }
