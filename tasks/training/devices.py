"""Names of torch devices, checked where a person writes them."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


def present_device(name: str) -> str:
    """The name, if torch has that device on this machine.

    Raises:
        ValueError: if it has not.

    Example:
        >>> present_device("cpu")
        'cpu'
    """
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):  # torch says AssertionError where it was built without the device
        raise ValueError(f"torch has no device {name!r} on this machine; say cpu") from None
    return name


PresentDevice = Annotated[str, AfterValidator(present_device)]
"""A field of options: `device: PresentDevice = "cpu"`."""
