"""Per-sample gradients by hooks against autograd, sample by sample, and against a closed form."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from tasks.low_rank.attention import PROJECTIONS, attention_blocks
from tasks.low_rank.collector import GradientCollector, MomentCollector, gradients_from_embeddings, sample_losses
from tasks.low_rank.factorisations import Plain, spectrum
from tasks.low_rank.heads import split_heads
from tasks.low_rank.methods import importance_bases
from tasks.low_rank.statistics import calibrate, load_statistics, save_statistics
from tasks.quantisation.rotations import block_rotation
from tests.tasks.low_rank.tiny import HEAD, HIDDEN, randn, tiny_ids, tiny_model


def batches(ids: torch.Tensor, size: int) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": part, "labels": part} for part in ids.split(size)]


def gradients_by_autograd(model: nn.Module, ids: torch.Tensor, layer: int, p: str) -> list[torch.Tensor]:
    """One (h, E, H) gradient per sample, from a pass of its own each."""
    block = attention_blocks(model)[layer]
    weight = block.projection(p).weight
    found = []
    for row in ids:
        weight.requires_grad_(True)
        sample_losses(model(row[None]).logits, row[None]).sum().backward()
        found.append(split_heads(weight.grad.clone(), block.heads(p)))
        weight.grad = None
        weight.requires_grad_(False)
    return found


@pytest.fixture(scope="module")
def calibrated():
    model, ids = tiny_model(), tiny_ids()
    rotation = block_rotation(HIDDEN)
    return SimpleNamespace(
        model=model, ids=ids, rotation=rotation, layers=calibrate(model, batches(ids, 3), importance_bases, rotation, magnitudes=True)
    )


@pytest.mark.parametrize("p", PROJECTIONS)
def test_fisher_is_the_mean_square_of_single_samples_gradients(calibrated, p):
    each = gradients_by_autograd(calibrated.model, calibrated.ids, 1, p)
    by_hand = torch.stack([g.square() for g in each]).mean(0)
    torch.testing.assert_close(calibrated.layers[1].fisher[p], by_hand, rtol=2e-3, atol=1e-9)
    magnitude = torch.stack([g.abs() for g in each]).mean(0)
    torch.testing.assert_close(calibrated.layers[1].abs_gradient[p], magnitude, rtol=2e-3, atol=1e-6)
    assert float(calibrated.layers[1].fisher[p].min()) >= 0
    accumulated = torch.stack(each).mean(0).square()
    assert float(accumulated.sum()) < 0.9 * float(by_hand.sum())  # what an accumulated batch would have given


def test_one_sample_gives_its_squared_gradient():
    model, ids = tiny_model(), tiny_ids(1)
    found = calibrate(model, batches(ids, 1))[0].fisher["v"]
    torch.testing.assert_close(found, gradients_by_autograd(model, ids, 0, "v")[0].square(), rtol=2e-3, atol=1e-9)


def test_rotated_fisher_is_that_of_the_rotated_weight(calibrated):
    each = gradients_by_autograd(calibrated.model, calibrated.ids, 0, "k")
    by_hand = torch.stack([(calibrated.rotation @ g).square() for g in each]).mean(0)
    torch.testing.assert_close(calibrated.layers[0].fisher_rotated["k"], by_hand, rtol=2e-3, atol=1e-9)
    assert set(calibrated.layers[0].fisher_rotated) == {"k", "v"}


def test_batch_size_and_order_of_batches_do_not_matter(calibrated):
    other = calibrate(calibrated.model, batches(calibrated.ids.flip(0), 2))
    for p in PROJECTIONS:
        torch.testing.assert_close(other[1].fisher[p], calibrated.layers[1].fisher[p], rtol=1e-3, atol=1e-10)


@pytest.mark.parametrize(("p", "joint"), [("k", False), ("qkv", True)])
def test_importance_is_the_mean_squared_change_of_the_loss(calibrated, p, joint):
    bases = importance_bases(attention_blocks(calibrated.model), calibrated.layers)
    base = bases[1, p]
    if joint:
        parts = [gradients_by_autograd(calibrated.model, calibrated.ids, 1, name) for name in PROJECTIONS]
        each = [torch.cat([g.permute(1, 0, 2).flatten(1) for g in sample], 1) for sample in zip(*parts, strict=True)]
        changes = [torch.einsum("ek,eo,ko->k", base.left, g, base.right) * base.sigma for g in each]
    else:
        each = gradients_by_autograd(calibrated.model, calibrated.ids, 1, p)
        changes = [torch.einsum("hek,hed,hkd->hk", base.left, g, base.right) * base.sigma for g in each]
    by_hand = torch.stack([change.square() for change in changes]).mean(0)
    torch.testing.assert_close(calibrated.layers[1].importance[p], by_hand, rtol=5e-3, atol=1e-7)


def test_importance_predicts_what_removing_a_triple_costs():
    """To first order the loss changes by sigma u^T G v when a triple is scaled; checked by a finite difference."""
    model, ids = tiny_model(), tiny_ids(1)
    block = attention_blocks(model)[0]
    base = spectrum(block.weight("v"), Plain())
    found = calibrate(model, batches(ids, 1), lambda *_: {(0, "v"): base})[0].importance["v"][1, 0]
    weight, size = block.projection("v").weight, 1e-2
    losses = []
    for sign in (1, -1):
        change = sign * size * base.sigma[1, 0] * torch.outer(base.right[1, 0], base.left[1, :, 0])
        weight.data[HEAD : 2 * HEAD] += change
        losses.append(float(sample_losses(model(ids).logits.double(), ids)[0]))
        weight.data[HEAD : 2 * HEAD] -= change
    slope = (losses[0] - losses[1]) / (2 * size)
    assert slope**2 == pytest.approx(float(found), rel=0.05)


class LinearSoftmax(nn.Module):
    """Logits from one attention-shaped block whose values alone reach the output: softmax regression."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head_dim = 3
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(4, 3, bias=False) for _ in range(3))
            self.o_proj = nn.Identity()

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(5, 4), self.Block()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: torch.Tensor, **_: object) -> SimpleNamespace:
        x = self.embedding(input_ids)
        unused = 0 * (self.attention.q_proj(x) + self.attention.k_proj(x))
        return SimpleNamespace(logits=self.attention.v_proj(x) + unused)


def test_the_fisher_of_softmax_regression_is_analytic():
    """The gradient of one token's loss is x (softmax(logits) - onehot)^T."""
    model = LinearSoftmax()
    torch.nn.init.normal_(model.attention.v_proj.weight, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 1], [0, 2], [4, 0]])  # one prediction per sample, targets below 3
    with torch.no_grad():
        x = model.embedding(ids[:, 0])
        error = model.attention.v_proj(x).softmax(-1) - nn.functional.one_hot(ids[:, 1], 3)
    by_hand = (x[:, :, None] * error[:, None, :]).square().mean(0)
    found = calibrate(model, [{"input_ids": ids, "labels": ids}])[0]
    torch.testing.assert_close(found.fisher["v"][0], by_hand, rtol=1e-4, atol=1e-9)


def test_moments_leave_padding_out():
    model, ids = tiny_model(), tiny_ids(2, 12)
    padded = torch.cat([ids, torch.zeros(2, 5, dtype=torch.long)], 1)
    mask = torch.cat([torch.ones(2, 12, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)], 1)
    labels = torch.where(mask.bool(), padded, -100)
    plain = calibrate(model, [{"input_ids": ids, "labels": ids}])
    found = calibrate(model, [{"input_ids": padded, "attention_mask": mask, "labels": labels}])
    torch.testing.assert_close(found[1].second_moment, plain[1].second_moment, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[1].fisher["k"], plain[1].fisher["k"], rtol=1e-3, atol=1e-10)


def test_nothing_is_left_behind_in_the_model():
    model = tiny_model()
    model.get_input_embeddings().weight.requires_grad_(True)
    calibrate(model, batches(tiny_ids(2), 1))
    modules = [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert modules == []
    assert [p.requires_grad for p in model.parameters()].count(True) == 1
    assert all(p.grad is None for p in model.parameters())


def test_a_samples_loss_is_the_mean_over_its_own_labels():
    logits, labels = randn(2, 6, 9), torch.tensor([[1, 2, 3, 4, 5, 6], [-100, -100, -100, -100, 7, 8]])
    expected = [nn.functional.cross_entropy(rows[:-1], ids[1:]) for rows, ids in zip(logits, labels, strict=True)]  # means over labels
    torch.testing.assert_close(sample_losses(logits, labels), torch.stack(expected))


def test_an_empty_set_and_samples_without_labels_are_refused():
    model = tiny_model()
    with pytest.raises(ValueError, match="calibration set is empty"):
        calibrate(model, [])
    with pytest.raises(ValueError, match="calibration set is empty"):
        MomentCollector(model).statistics()
    with pytest.raises(ValueError, match="calibration set is empty"):
        GradientCollector(model).add_to([])
    ids = tiny_ids(1)
    with pytest.raises(ValueError, match="no labelled token"):
        calibrate(model, [{"input_ids": ids, "labels": torch.full_like(ids, -100)}])


def test_gradients_need_the_right_context():
    model, ids = tiny_model(), tiny_ids(1)
    with GradientCollector(model), pytest.raises(ValueError, match="gradients_from_embeddings"):
        model(ids)
    with GradientCollector(model) as collector, gradients_from_embeddings(model):
        sample_losses(model(ids).logits, ids).sum().backward()
    assert collector.samples == 1


def test_statistics_survive_their_file(calibrated, tmp_path):
    save_statistics(tmp_path / "s.safetensors", calibrated.layers)
    found = load_statistics(tmp_path / "s.safetensors")
    assert len(found) == len(calibrated.layers)
    for ours, theirs in zip(found, calibrated.layers, strict=True):
        assert torch.equal(ours.second_moment, (theirs.second_moment.tril() + theirs.second_moment.tril(-1).T))
        assert torch.equal(ours.abs_mean, theirs.abs_mean)
        assert set(ours.importance) == {"q", "k", "v", "qkv"}
        for kind in ("fisher", "abs_gradient", "fisher_rotated"):
            for p, value in getattr(theirs, kind).items():
                assert torch.equal(getattr(ours, kind)[p], value.to(torch.bfloat16).float())
