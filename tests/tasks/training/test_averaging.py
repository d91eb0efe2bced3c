import numpy as np
import pytest
import torch

from tasks.training.averaging import MovingAverage


def test_average_is_that_of_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(3, 2, generator=generator)), torch.nn.Parameter(torch.randn(4, generator=generator))]
    average = MovingAverage(parameters, decay=0.8)
    slow = [p.detach().numpy().astype(float) for p in parameters]
    for step in range(1, 60):
        for parameter in parameters:
            parameter.data += torch.randn(parameter.shape, generator=generator)
        average.update()
        decay = min(0.8, step / (step + 10))
        slow = [decay * a + (1 - decay) * p.detach().numpy() for a, p in zip(slow, parameters, strict=True)]
    before = [p.detach().clone() for p in parameters]
    with average.swapped_in():
        for a, p in zip(slow, parameters, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), a, atol=1e-5)
    assert all(torch.equal(a, p.detach()) for a, p in zip(before, parameters, strict=True))
    average.copy_to_parameters()
    np.testing.assert_allclose(parameters[0].detach().numpy(), slow[0], atol=1e-5)


def test_no_decay_follows_the_parameters() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    average = MovingAverage([parameter], decay=0.0)
    parameter.data.fill_(5.0)
    average.update()
    with average.swapped_in():
        assert parameter.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_impossible_decay_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must lie"):
        MovingAverage([torch.nn.Parameter(torch.zeros(1))], decay)
