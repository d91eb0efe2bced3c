from __future__ import annotations

import math

import pytest
import torch
from routing_twins import mixed, seeded

from tasks.routing.attention_model import AttentionModel, Encoded
from tasks.routing.lazymask import Step, lazy_decode


def small(problem="tsptw", **options):
    return AttentionModel(problem, 8, 2, 1, 16, generator=seeded(1), **options).double()


def slow_scores(model: AttentionModel, encoded_h, instances, step, b, s):
    """One decision with plain sums over heads and nodes."""
    width, heads = model.width, model.heads
    size = width // heads
    h = encoded_h[int(step.rows[b])]
    keys, values, pointer = model.project(h).chunk(3, -1)
    one_hot = torch.zeros(9, dtype=h.dtype)
    one_hot[min(int(step.refined[b, s]), 4)] = 1
    one_hot[5 + int(step.exhausted[b, s])] = 1
    one_hot[7 + int(step.relaxed[b, s])] = 1
    clock = step.clock[b, s] / instances.scale[int(step.rows[b])]
    query = model.query_node(h[int(step.current[b, s])]) + model.query_state(torch.cat([clock[None], one_hot]))
    allowed = step.allowed[b, s].nonzero()[:, 0]
    glimpse = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        weights = torch.stack([(query[part] * keys[j, part]).sum() / math.sqrt(size) for j in allowed]).softmax(0)
        glimpse.append(sum(w * values[j, part] for w, j in zip(weights, allowed, strict=True)))
    mixed_heads = model.combine(torch.cat(glimpse))
    return torch.stack([10 * torch.tanh((mixed_heads * pointer[j]).sum() / math.sqrt(width)) for j in range(h.shape[0])])


@pytest.mark.parametrize("kind", range(3))
def test_decisions_equal_plain_sums(kind):
    instances = mixed(3, 6, 3)[kind]
    model = small(instances.problem)
    with torch.no_grad():
        h = model.layers[0](torch.cat([model.depot(instances.features()[:, :1, :2]), model.customer(instances.features()[:, 1:])], 1))
    found = lazy_decode(instances, model.scorer(instances), 3, samples=2, generator=seeded(0), training=True)
    for level in (0, 2, 4):
        step = Step(
            torch.arange(3),
            *(getattr(found, name)[..., level] for name in ("current", "clock")),
            found.allowed[:, :, level],
            *(getattr(found, name)[..., level] for name in ("refined", "exhausted", "relaxed")),
        )
        with torch.no_grad():
            fast = model.scores(model.encode(instances), step)
            for b in range(3):
                for s in range(2):
                    assert torch.allclose(fast[b, s], slow_scores(model, h, instances, step, b, s), atol=1e-10)


def test_the_likelihood_of_a_tour_is_the_sum_over_the_final_stack():
    """Replayed choice by choice: probabilities of a softmax over the set from which the choice was last made."""
    instances = mixed(8, 8, 6)[0]
    model = small()
    steps = []
    base = model.scorer(instances)

    def watching(step):
        steps.append(step)
        return base(step)

    found = lazy_decode(instances, watching, 4, training=True, samples=3, generator=seeded(2))
    assert found.backtracks.sum() > 0
    with torch.no_grad():
        fast, entropy = model.tour_log_probs(model.encode(instances), found)
        for b in range(6):
            for s in range(3):
                total, mean = 0.0, []
                for level in range(7):
                    step = Step(
                        torch.tensor([b]),
                        *(getattr(found, name)[b : b + 1, s : s + 1, level] for name in ("current", "clock", "allowed")),
                        *(getattr(found, name)[b : b + 1, s : s + 1, level] for name in ("refined", "exhausted", "relaxed")),
                    )
                    allowed = step.allowed[0, 0]
                    p = base(step)[0, 0][allowed].softmax(0)
                    chosen = int(allowed[: int(found.tours[b, s, level + 1])].sum())
                    total += float(p[chosen].log())
                    mean.append(float(-(p * p.log()).sum()))
                assert fast[b, s].item() == pytest.approx(total, abs=1e-9)
                assert entropy[b, s].item() == pytest.approx(sum(mean) / 7, abs=1e-9)


def test_the_gradient_of_the_likelihood_equals_finite_differences():
    instances = mixed(8, 6, 2)[1]
    model = small()
    found = lazy_decode(instances, model.scorer(instances), 4, training=True)

    def value():
        log_p, entropy = model.tour_log_probs(model.encode(instances), found)
        return log_p.sum() + 0.3 * entropy.sum()

    value().backward()
    checked = 0
    for parameter in model.parameters():
        at = int(torch.randint(parameter.numel(), (1,), generator=seeded(parameter.numel())))
        with torch.no_grad():
            flat = parameter.view(-1)
            old = float(flat[at])
            flat[at] = old + 1e-6
            up = float(value())
            flat[at] = old - 1e-6
            down = float(value())
            flat[at] = old
        assert parameter.grad.view(-1)[at].item() == pytest.approx((up - down) / 2e-6, abs=2e-5)
        checked += 1
    assert checked > 10


def test_without_refinement_the_state_is_not_seen_and_weights_are_interchangeable():
    instances = mixed(3, 7, 4)[0]
    with_state, without = small(), small(refinement=False)
    without.load_state_dict(with_state.state_dict())
    step = Step(
        torch.arange(4),
        torch.zeros((4, 1), dtype=torch.long),
        torch.zeros((4, 1), dtype=torch.float64),
        torch.ones((4, 1, 7), dtype=torch.bool),
        *(torch.full((4, 1), value) for value in (2, True, True)),
    )
    calm = step._replace(refined=torch.zeros((4, 1), dtype=torch.long), exhausted=~step.exhausted, relaxed=~step.relaxed)
    with torch.no_grad():
        a, b = (model.scores(model.encode(instances), step) for model in (with_state, without))
        c, d = (model.scores(model.encode(instances), calm) for model in (with_state, without))
    assert not torch.allclose(a, c)
    assert torch.equal(b, d)
    assert torch.equal(c, d)


def test_many_prunings_are_one_class():
    instances = mixed(3, 5, 1)[1]
    model = small()
    base = Step(
        torch.arange(1),
        torch.zeros((1, 1), dtype=torch.long),
        torch.zeros((1, 1), dtype=torch.float64),
        torch.ones((1, 1, 5), dtype=torch.bool),
        torch.full((1, 1), 4),
        *(torch.zeros((1, 1), dtype=torch.bool) for _ in range(2)),
    )
    with torch.no_grad():
        four, nine = (model.scores(model.encode(instances), base._replace(refined=torch.full((1, 1), c))) for c in (4, 9))
    assert torch.equal(four, nine)


def test_weights_are_a_function_of_the_generator_and_encodings_of_the_instance():
    assert all(torch.equal(a, b) for a, b in zip(small().parameters(), small().parameters(), strict=True))
    instances = mixed(3, 6, 2)[1]
    encoded = small().encode(instances)
    assert isinstance(encoded.detach(), Encoded)
    assert not encoded.detach().keys.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((10, 3, 1, 8), "width must be a multiple of heads, got 10 and 3"), ((8, 2, 0, 8), "must be at least 1, got")],
)
def test_bad_sizes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        AttentionModel("tsptw", *arguments)


def test_instances_of_another_problem_are_refused():
    with pytest.raises(ValueError, match="trained for tspdl, got instances of tsptw"):
        small("tspdl").encode(mixed(1, 5)[0])
