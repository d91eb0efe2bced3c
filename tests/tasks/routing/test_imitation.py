from __future__ import annotations

import pytest
import torch
from routing_twins import mixed, seeded

from tasks.routing.attention_model import AttentionModel
from tasks.routing.exact import arrays_of, solve_exactly
from tasks.routing.imitation import ImitationParams, imitate, replay
from tasks.routing.lazymask import lazy_decode
from tasks.routing.policies import nearest
from tasks.routing.tsptw import tsptw


@pytest.mark.parametrize("lookahead", ["tsl", "ssl", "local", "none"])
def test_a_replay_is_what_decoding_recorded_where_nothing_was_taken_back(lookahead):
    for instances in mixed(3, 8, 20):
        found = lazy_decode(instances, nearest(instances), 0, lookahead=lookahead, show_budget=False)
        straight = found.solved[:, 0]
        if not straight.any():
            continue
        record = replay(instances.take(straight), found.tours[straight], lookahead)
        for name in ("tours", "status", "backtracks", "calls", "current", "clock", "refined", "allowed", "exhausted", "relaxed"):
            assert torch.equal(getattr(record, name), getattr(found, name)[straight]), name


def test_a_tour_that_breaks_a_window_cannot_be_replayed():
    late = tsptw([[[0, 0], [3, 4], [1, 0]]], [[[0, 99], [0, 5], [0, 9]]])
    with pytest.raises(ValueError, match="tour 0 of instance 0 goes to node 2, which is not in the set at level 0"):
        replay(late, torch.tensor([[[0, 2, 1]]]))


def test_imitation_learns_the_tours_it_is_shown():
    instances = mixed(6, 7, 12)[1]
    tours = torch.stack([torch.as_tensor(solve_exactly(arrays).tour) for arrays in arrays_of(instances)])
    model = AttentionModel("tsptw", 16, 2, 1, 32, generator=seeded(1))
    seen = []
    options = ImitationParams(updates=80, batch=24, rate=5e-3)
    losses = imitate(model, instances, tours, options, seeded(2), lambda step, loss: seen.append(step))
    assert losses[-5:].mean() < 0.6 * losses[:5].mean()
    assert len(seen) == 80
    again = AttentionModel("tsptw", 16, 2, 1, 32, generator=seeded(1))
    assert (imitate(again, instances, tours, ImitationParams(updates=3, batch=24, rate=5e-3), seeded(2))[0] == losses[0]).all()


@pytest.mark.parametrize("bad", [{"updates": 0}, {"batch": 0}, {"rate": 0}, {"lookahead": "three"}])
def test_impossible_options_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ImitationParams(**bad)
