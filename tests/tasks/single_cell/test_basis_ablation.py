from __future__ import annotations

import pandas as pd
import pytest
from pydantic import ValidationError

from tasks.single_cell.basis_ablation import BasisParams


def test_every_basis_is_scored_with_and_without_denoising(pipeline):
    root, metrics, _ = pipeline
    table = pd.read_parquet(root / "train-basis/scores.parquet")
    assert set(table["arm"]) == {"basis_2", "pca_basis_2", "basis_target", "pca_basis_target"}
    assert set(table["target"]) == {"setup1"}
    assert set(table["seed"]) == {0}
    assert metrics["train-basis"]["basis_2.silhouette.setup1.n"] == 1


def test_the_targets_own_basis_finds_other_coordinates(pipeline):
    root, _, _ = pipeline
    table = pd.read_parquet(root / "train-basis/scores.parquet")
    scores = pd.read_parquet(root / "evaluate-baselines/scores.parquet")
    own = table[(table["arm"] == "pca_basis_target") & (table["metric"] == "silhouette")]["value"].item()
    main = scores[(scores["arm"] == "pca") & (scores["metric"] == "silhouette") & (scores["target"] == "setup1") & (scores["seed"] == 0)]
    assert own != main["value"].item()


def test_rho_must_be_positive():
    with pytest.raises(ValidationError):
        BasisParams(relative=0)
