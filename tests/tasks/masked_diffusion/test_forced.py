from __future__ import annotations

import pytest
import torch
from diffusion_twins import MASK, small_model

from tasks.masked_diffusion.decoding import Specials
from tasks.masked_diffusion.forced import ForcedDenoiser
from tasks.masked_diffusion.prefix_schedule import LspParams, lsp_decode


def test_predictions_and_margins_are_the_given_ones():
    found = lsp_decode(ForcedDenoiser(2, [3, 4, 5], [1.0, 2.0, 7.0], 9), [2, 2], 3, Specials(MASK), LspParams(), keep_margins=True)
    assert found.tokens == [3, 4, 5]
    assert found.trace.margins[0].tolist() == [1.0, 2.0, 7.0]


def test_a_network_inside_is_run_but_not_asked():
    network, calls = small_model(), []
    network.register_forward_hook(lambda *given: calls.append(1))
    denoiser = ForcedDenoiser(2, [3, 4, 5], [9.0] * 3, 9, network)
    found = lsp_decode(denoiser, [2, 2], 3, Specials(MASK), LspParams(beta=1.0))
    assert found.tokens == [3, 4, 5]
    assert len(calls) == found.counters.nfe
    assert denoiser.new_cache(4)._keys.shape[0] == 2  # the network's layers


def test_logits_cannot_be_changed_from_outside():
    denoiser = ForcedDenoiser(1, [3], [2.0], 9)
    positions = torch.arange(2)
    denoiser(torch.zeros(1, 2), positions, None).fill_(0)
    assert denoiser(torch.zeros(1, 2), positions, None)[0, 1].argmax() == 3


def test_bad_margins_are_refused():
    with pytest.raises(ValueError, match="must be of one length, got 2 and 1"):
        ForcedDenoiser(1, [3, 4], [1.0], 9)
    with pytest.raises(ValueError, match=r"margins must be at least 0, got -1"):
        ForcedDenoiser(1, [3], [-1.0], 9)
