"""Devices that are there, and one that is not."""

import doctest

import pytest
from pydantic import ValidationError

from tasks.common.node import Params
from tasks.training import devices as module


class Options(Params):
    device: module.PresentDevice = "cpu"


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", ["abacus", "xpu:7", ""])
def test_a_device_that_is_not_there_is_refused(name):
    with pytest.raises(ValidationError, match=f"torch has no device '{name}' on this machine; say cpu"):
        Options(device=name)
    assert Options().device == "cpu"
