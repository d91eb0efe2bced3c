import math

import numpy as np
import pytest
import torch

from tasks.training.averaging import MovingAverage
from tasks.training.loop import descend


def _target(w: torch.nn.Parameter) -> torch.Tensor:
    return (w - torch.tensor([1.0, -2.0])).square().sum()


def test_loop_equals_torchs_own_optimiser_and_schedule() -> None:
    mine, theirs = (torch.nn.Parameter(torch.tensor([3.0, 3.0])) for _ in range(2))
    losses = descend(lambda step: _target(mine), [mine], 40, rate=0.1, optimiser="adamw", weight_decay=0.01, schedule="cosine", clip=1.0)
    optimiser = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 40)
    expected = []
    for _ in range(40):
        optimiser.zero_grad()
        loss = _target(theirs)
        expected.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_([theirs], 1.0)
        optimiser.step()
        schedule.step()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    torch.testing.assert_close(mine, theirs)


def test_groups_keep_their_own_rates() -> None:
    fast, frozen = torch.nn.Parameter(torch.tensor([3.0, 3.0])), torch.nn.Parameter(torch.tensor([3.0, 3.0]))
    groups = [{"params": [fast]}, {"params": [frozen], "lr": 0.0}]
    descend(lambda step: _target(fast) + _target(frozen), groups, 5, rate=0.1)
    assert frozen.tolist() == [3.0, 3.0]
    assert fast.tolist() != [3.0, 3.0]


def test_average_and_callback_see_every_step() -> None:
    w = torch.nn.Parameter(torch.tensor([3.0, 3.0]))
    seen: list[tuple[int, float]] = []
    average = MovingAverage([w], decay=0.5)
    losses = descend(lambda step: _target(w), [w], 7, rate=0.1, average=average, after=lambda step, loss: seen.append((step, loss)))
    assert seen == list(enumerate(losses))
    with average.swapped_in():
        assert w[0].item() > 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"rate": 0.0}, "rate must be positive"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"parameters": []}, "no parameters"),
        ({"optimiser": "sgd"}, "unknown optimiser 'sgd'"),
        ({"schedule": "step"}, "schedule 'step'"),
    ],
)
def test_bad_arguments_are_refused(changes: dict[str, object], message: str) -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    arguments = {"parameters": [w], "steps": 3, "rate": 0.1} | changes
    with pytest.raises(ValueError, match=message):
        descend(lambda step: _target(w), **arguments)  # type: ignore[arg-type]


def test_a_loss_that_is_not_finite_stops_at_its_step() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(FloatingPointError, match="nan at step 2"):
        descend(lambda step: _target(w) * (math.nan if step == 2 else 1.0), [w], 5, rate=0.1)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone() -> None:
    w = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(FloatingPointError, match="gradient is not finite at step 0"):
        descend(lambda step: w.sqrt().sum(), [w], 5, rate=0.1)
    assert w.tolist() == [0.0, 0.0]
