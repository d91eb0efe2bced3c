import numpy as np
import torch

from tasks.creativity.transformer import TransformerParams, TransformerPolicy
from tasks.creativity.triangles import make_task, training_strings

TINY = TransformerParams(layers=1, width=16, heads=2, steps=200, batch=64, rate=0.01)


def test_probabilities_are_of_vertices_alone_and_look_back_only():
    policy = TransformerPolicy(6, TINY, 0)
    triples = torch.tensor([[0, 1, 2], [0, 1, 5], [0, 3, 2]])
    log_p = policy.log_probabilities(triples)
    assert log_p.shape == (3, 3, 6)
    torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(3, 3))
    torch.testing.assert_close(log_p[0], log_p[1])  # the last vertex is not looked at
    torch.testing.assert_close(log_p[0, :2], log_p[2, :2])
    assert not torch.allclose(log_p[0, 2], log_p[2, 2])


def test_weights_follow_the_seed_and_a_saved_model_is_the_same(tmp_path):
    from safetensors.torch import load_model, save_model

    triples = torch.tensor([[0, 1, 2]])
    first, second, other = TransformerPolicy(6, TINY, 0), TransformerPolicy(6, TINY, 0), TransformerPolicy(6, TINY, 1)
    assert torch.equal(first.log_probabilities(triples), second.log_probabilities(triples))
    assert not torch.equal(first.log_probabilities(triples), other.log_probabilities(triples))
    save_model(first, str(tmp_path / "a.safetensors"))
    load_model(other, str(tmp_path / "a.safetensors"))
    assert torch.equal(first.log_probabilities(triples), other.log_probabilities(triples))


def test_pretraining_teaches_triangles():
    task = make_task(8, 3, 2, 0.34, np.random.default_rng(3))
    policy = TransformerPolicy(8, TINY, 0)
    before = task.valid(policy.sample(400, np.random.default_rng(0))).mean()
    losses = policy.pretrain(*training_strings(task, 400, np.random.default_rng(1)), TINY, np.random.default_rng(2))
    assert losses[-10:].mean() < losses[:10].mean() - 0.5
    assert task.valid(policy.sample(400, np.random.default_rng(0))).mean() > before + 0.2
