from __future__ import annotations

import pytest
import torch
from routing_twins import mixed, seeded

from tasks.routing.attention_model import AttentionModel
from tasks.routing.generators import random_tsptw
from tasks.routing.lazymask import lazy_decode
from tasks.routing.training import RouteParams, penalised_cost, reinforce, train_policy
from tasks.routing.tsptw import tsptw
from tasks.training.averaging import MovingAverage


def small(problem="tsptw"):
    return AttentionModel(problem, 8, 2, 1, 16, generator=seeded(1))


def draws(seed):
    generator = seeded(seed)
    return lambda count: random_tsptw(count, 7, "hard", generator)


def test_the_penalty_counts_excess_and_violated_nodes():
    late = tsptw([[[0, 0], [3, 4], [3, 4]]], [[[0, 99], [0, 4], [0, 4.5]]])
    tours = torch.tensor([[[0, 1, 2]]])
    assert penalised_cost(late, tours, 2.0).item() == pytest.approx(10 + 2 * (1 + 0.5 + 2))
    assert penalised_cost(late, tours, 0.0).item() == pytest.approx(10)


def test_without_windows_the_cost_is_the_length():
    free = tsptw(torch.rand((3, 6, 2), generator=seeded(0)), torch.tensor([0.0, torch.inf]).expand(3, 6, 2))
    _, decoded = reinforce(small(), free, RouteParams(), seeded(1))
    assert torch.equal(penalised_cost(free, decoded.tours), free.length(decoded.tours))
    assert (decoded.backtracks == 0).all()


def test_a_route_without_backtracking_is_that_with_budget_zero_and_unseen_state():
    """R = 0 in training without the refinement state is PIP: the same tours with the same seed."""
    instances = mixed(5, 9, 6)[0]
    model = AttentionModel("tsptw", 8, 2, 1, 16, refinement=False, generator=seeded(1))
    _, a = reinforce(model, instances, RouteParams(route="nobt"), seeded(3))
    _, b = reinforce(model, instances, RouteParams(route="bt", budget=0), seeded(3))
    assert torch.equal(a.tours, b.tours)
    assert (a.backtracks == 0).all()
    assert a.relaxed.any()


def test_every_sample_is_a_complete_tour_and_backtracking_keeps_more_windows():
    instances = mixed(5, 12, 20)[0]
    shares = {}
    for route in ("nobt", "bt"):
        _, decoded = reinforce(small(), instances, RouteParams(route=route, budget=20), seeded(3))
        assert (decoded.tours.sort(-1).values == torch.arange(12)).all()
        assert decoded.tours.shape == (20, 12, 12)
        shares[route] = decoded.solved.double().mean().item()
    assert shares["bt"] > shares["nobt"]


def test_training_shortens_tours_without_windows():
    """Twelve random places: from a random order to one that prefers what is near."""
    generator = seeded(0)

    def free(count):
        locs = torch.rand((count, 12, 2), generator=generator, dtype=torch.float64)
        return tsptw(locs, torch.tensor([0.0, torch.inf]).expand(count, 12, 2))

    model, test = small(), free(64)
    before = test.length(lazy_decode(test, model.scorer(test), 0).tours).mean()
    seen = []
    options = RouteParams(route="nobt", updates=25, batch=16, samples=8, rate=1e-2)
    losses = train_policy(model, free, options, seeded(1), lambda step, about: seen.append((step, dict(about))))
    after = test.length(lazy_decode(test, model.scorer(test), 0).tours).mean()
    assert after < 0.9 * before
    assert losses.shape == (25,)
    assert [step for step, _ in seen] == list(range(25))
    assert seen[0][1]["infeasible"] == 0


def test_training_is_a_function_of_its_seeds():
    def weights(seed):
        model = small()
        average = MovingAverage(model.parameters(), 0.5)
        train_policy(model, draws(2), RouteParams(updates=3, batch=4, samples=3, budget=3), seeded(seed), average=average)
        average.copy_to_parameters()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_entropy_has_a_gradient_of_its_own():
    instances = mixed(5, 6, 4)[1]
    values = [reinforce(small(), instances, RouteParams(samples=4, entropy=weight), seeded(1))[0].item() for weight in (0.0, 0.5)]
    assert values[1] < values[0]


@pytest.mark.parametrize("bad", [{"budget": -1}, {"updates": 0}, {"rate": 0}, {"samples": 1}, {"penalty": -1}, {"route": "both"}])
def test_impossible_options_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        RouteParams(**bad)
