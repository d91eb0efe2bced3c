from __future__ import annotations

import anndata
import numpy as np
import pandas as pd
import pytest

from tasks.diffusion.noise_training import DenoiserParams
from tasks.single_cell.dice import Dice, DiceParams
from tasks.single_cell.preprocessing import log_normalise
from tasks.single_cell.split_gibbs import GibbsParams

TINY = DiceParams(latents=2, denoiser=DenoiserParams(hidden=8, steps=20, batch=32), gibbs=GibbsParams(iterations=8, burn_in=2), n_sub=4)


def cells(n=90, d=20, seed=0, gap=4.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    x = rng.standard_normal((n, d))
    x[:, : d // 2] += gap * labels[:, None]
    return x, np.array(["T", "B"])[labels]


def counted(n=80, d=30, seed=0, depth=8.0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    means = np.where((np.arange(d) % 2 == labels[:, None]), 2 * depth, 0.5 * depth)
    counts = rng.poisson(means).astype(np.float32) + 1
    obs = pd.DataFrame({"type": np.array(["T", "B"])[labels]}, index=[f"c{i}" for i in range(n)])
    data = anndata.AnnData(log_normalise(counts), obs=obs, var=pd.DataFrame(index=[f"g{j}" for j in range(d)]))
    data.layers["counts"] = counts
    return data


def test_denoised_cells_find_their_class_and_say_how_sure_they_are():
    x, labels = cells()
    y, truth = cells(seed=1)
    dice = Dice(TINY, rho=0.8).fit(x, labels)
    found = dice.transform(y)
    assert found.classes == ("B", "T")
    assert np.mean(np.array(found.labels) == truth) > 0.95
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1)
    assert found.sets.any(axis=1).all()
    assert (found.spread > 0).all()
    assert found.entropy.shape == (90,)
    np.testing.assert_allclose(found.pca, dice.space.project(y))


def test_without_labels_there_are_none():
    x, _ = cells()
    found = Dice(TINY, rho=0.8).fit(x).transform(x[:4])
    assert found.classes == ()
    assert found.probabilities.shape == found.sets.shape == (4, 0)


def test_a_seed_gives_the_same_embedding_and_batches_do_not_mix_cells():
    x, _ = cells()
    a, b, c = (Dice(TINY, rho=0.8, seed=s).fit(x).transform(x[:10]).embedding for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    chunked = Dice(TINY.model_copy(update={"chunk": 4}), rho=0.8, seed=1).fit(x).transform(x[:10])
    assert chunked.embedding.shape == (10, 2)


def test_rho_follows_the_noise_of_the_query():
    x, labels = cells(400, gap=6.0)
    dice = Dice(TINY.model_copy(update={"denoiser": DenoiserParams(hidden=16, steps=150, batch=64)})).fit(x, labels)
    y, _ = cells(200, seed=1, gap=6.0)
    quiet = dice.choose_rho(y)
    loud = dice.choose_rho(y + 3 * np.random.default_rng(2).standard_normal(y.shape))
    assert loud > quiet
    assert dice.rho_table is not None
    assert dice.transform(y).rho == quiet


def test_genes_are_matched_by_name():
    reference, query = counted(), counted(20, seed=1)
    dice = Dice(TINY, rho=1.0).fit(reference, "type")
    shuffled = query[:, np.random.default_rng(0).permutation(query.n_vars)].copy()
    np.testing.assert_array_equal(dice.transform(query).embedding, dice.transform(shuffled).embedding)
    with pytest.raises(ValueError, match="lacks 3 of 30 genes, for example 'g27'"):
        dice.transform(query[:, :27].copy())


def test_counts_are_thinned_when_rho_is_chosen():
    dice = Dice(TINY).fit(counted(depth=20.0), "type")
    errors = []
    for depth in (20.0, 1.0):
        dice.choose_rho(counted(30, seed=1, depth=depth))
        errors.append(dice.rho_table["rmse_centred"].iloc[0])
    assert errors[1] > 1.5 * errors[0]  # fewer molecules are left of the slice


def test_counts_of_genes_that_the_reference_lacks_do_not_make_a_query_deep():
    reference, query = counted(depth=20.0), counted(30, seed=1, depth=1.0)
    more = anndata.AnnData(np.c_[query.X, np.zeros(30, np.float32)], var=pd.DataFrame(index=[*query.var_names, "other"]))
    more.layers["counts"] = np.c_[query.layers["counts"], np.full(30, 5000.0)]
    dice = Dice(TINY).fit(reference)
    dice.choose_rho(query)
    alone = dice.rho_table
    dice.choose_rho(more)
    pd.testing.assert_frame_equal(dice.rho_table, alone)


def test_a_shift_that_all_thinned_cells_share_does_not_choose_rho(monkeypatch):
    table = pd.DataFrame({"rho": [1.0, 2.0, 3.0], "rmse": [3.0, 2.0, 1.0], "rmse_centred": [1.0, 2.0, 3.0]})
    monkeypatch.setattr("tasks.single_cell.dice.score_rho", lambda *_: table)
    assert Dice(TINY).fit(counted()).choose_rho(counted(10, seed=1)) == 1.0
    assert Dice(TINY).fit(cells()[0]).choose_rho(cells(10, seed=1)[0]) == 3.0


def test_counts_on_another_scale_than_the_expression_are_left_alone(monkeypatch):
    reference, seen = counted(), []
    reference.X = reference.X / np.log(2)
    real = Dice._thinned
    monkeypatch.setattr(Dice, "_thinned", lambda *given: seen.append(1) or real(*given))
    Dice(TINY).fit(reference).choose_rho(counted(10, seed=1))
    assert not seen
    Dice(TINY).fit(counted()).choose_rho(counted(10, seed=1))
    assert seen


@pytest.mark.parametrize("with_counts", [False, True])
def test_saved_and_read_it_gives_the_same_numbers(tmp_path, with_counts):
    reference = counted() if with_counts else cells()[0]
    query = counted(10, seed=1) if with_counts else cells(10, seed=1)[0]
    dice = Dice(TINY).fit(reference)
    dice.save(tmp_path)
    again = Dice.load(tmp_path)
    first, second = dice.transform(query), again.transform(query)
    np.testing.assert_array_equal(first.embedding, second.embedding)
    assert first.rho == second.rho
    assert again.genes == dice.genes


def test_a_gene_without_variation_is_carried_along():
    x, _ = cells()
    x[:, 3] = 1.0
    dice = Dice(TINY, rho=1.0).fit(x)
    assert dice.transform(x[:5]).embedding.shape == (5, 2)
    assert len(dice.space.genes) == 19


def test_misuse_is_explained(tmp_path):
    x, labels = cells()
    with pytest.raises(ValueError, match="rho must be positive, got 0"):
        Dice(TINY, rho=0.0)
    with pytest.raises(RuntimeError, match="not fitted"):
        Dice(TINY).transform(x)
    with pytest.raises(FileNotFoundError, match=r"dice\.json is missing"):
        Dice.load(tmp_path)
    with pytest.raises(ValueError, match="no label column 'kind'; it has type"):
        Dice(TINY).fit(counted(), "kind")
    with pytest.raises(ValueError, match="label for each of 90 reference cells"):
        Dice(TINY).fit(x, labels[:5])
    dice = Dice(TINY, rho=1.0).fit(x)
    with pytest.raises(ValueError, match="20 genes, got 19 columns"):
        dice.transform(x[:, :19])
    with pytest.raises(ValueError, match="query has no cells"):
        dice.transform(x[:0])
    with pytest.raises(ValueError, match="1 NaN or infinite"):
        dice.transform(np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x))
