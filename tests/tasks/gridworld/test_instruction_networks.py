import numpy as np
import torch

from tasks.gridworld.instruction_networks import InstructionPolicy
from tasks.gridworld.instruction_worlds import WIDTH, words_of


def packed(mission, seed=0):
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(0, top, (7, 7)) for top in (11, 6, 4)], -1).ravel()
    return np.concatenate([cells, [2], words_of(mission)]).astype(np.int16)


def test_outputs_have_their_shapes_and_depend_on_view_and_words():
    policy = InstructionPolicy(7, seed=0, width=8)
    seen = np.stack([packed("go to the red ball"), packed("go to the blue ball"), packed("go to the red ball", 1)])
    assert seen.shape == (3, WIDTH)
    logits, values = policy.logits_and_values(seen)
    assert (logits.shape, values.shape) == ((3, 7), (3,))
    assert len({round(float(v), 6) for v in values.detach()}) == 3
    np.testing.assert_allclose(policy.behaviour(seen).sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(policy.appraise(seen), values.detach().numpy(), atol=1e-5)


def test_words_after_the_end_do_not_matter_and_weights_follow_the_seed():
    first, second = InstructionPolicy(7, 3, 8), InstructionPolicy(7, 3, 8)
    seen = packed("pick up the key")[None]
    assert torch.equal(first.logits(seen), second.logits(seen))
    assert not torch.equal(first.logits(seen), InstructionPolicy(7, 4, 8).logits(seen))
    assert first.appraise(np.empty((0, WIDTH), np.int16)).shape == (0,)
