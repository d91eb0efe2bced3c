import numpy as np
import torch
from toy_corridor import policy

from tasks.rl.networks import generator, mlp


def test_tables_hold_what_the_networks_say_until_the_weights_change():
    p = policy()
    seen = np.array([3, 1, 3, 8])
    direct = p.actor(p.features).softmax(-1).detach().numpy()
    np.testing.assert_allclose(p.behaviour(seen), direct[seen], atol=1e-6)
    np.testing.assert_allclose(p.appraise(seen), p.critic(p.features)[:, 0].detach().numpy()[seen], atol=1e-6)
    with torch.no_grad():
        p.actor[0].weight.add_(1.0)
    np.testing.assert_allclose(p.behaviour(seen), direct[seen], atol=1e-6)
    p.refresh()
    assert np.abs(p.behaviour(seen) - direct[seen]).max() > 1e-4


def test_repeated_observations_have_the_gradient_of_separate_ones():
    p, seen = policy(), np.array([2, 5, 2, 2])
    (p.logits(seen)[:, 0] * torch.arange(4.0)).sum().backward()
    together = [w.grad.clone() for w in p.actor.parameters()]
    p.actor.zero_grad()
    for i, row in enumerate(seen):
        (p.actor(p.features[row])[0] * float(i)).backward()
    for a, w in zip(together, p.actor.parameters(), strict=True):
        torch.testing.assert_close(a, w.grad)


def test_weights_are_a_function_of_the_seed_alone():
    torch.rand(3)
    first, second, other = (mlp([4, 3, 2], generator(*seed))[0].weight for seed in ((1, 2), (1, 2), (2, 1)))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
