"""What the Triton kernels share: where Triton comes from, and how a cache is divided among programs.

Split-KV decoding gives every program a part of the cache, in whole blocks; the parts are merged by `online_softmax.merge_parts`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64
"""Entries that a program reads at once."""
LOG2_E = 1.4426950408889634


def import_triton() -> tuple[Any, Any]:
    """`triton` and `triton.language`, imported when a kernel is first wanted.

    Raises:
        ImportError: without triton.
    """
    try:
        import triton
        import triton.language
    except ImportError:
        raise ImportError("this kernel needs triton, which torch's CUDA builds bring; install it with: pip install triton") from None
    return triton, triton.language


def padded(width: int) -> int:
    """The power of two, at least 16, to which a width is padded on chip.

    Example:
        >>> padded(28), padded(9), padded(64)
        (32, 16, 64)
    """
    return max(16, 1 << (width - 1).bit_length())


def division(length: int, splits: int) -> tuple[int, int]:
    """(number of parts, entries in each) of a list: whole blocks, the last part may be shorter, none is empty.

    Example:
        >>> division(1000, 4), division(100, 8)
        ((4, 256), (2, 64))
    """
    per_split = math.ceil(math.ceil(length / max(splits, 1)) / BLOCK) * BLOCK
    return max(1, math.ceil(length / per_split)), per_split


def default_splits(rows: int, length: int, processors: int) -> int:
    """Parts such that four programs wait for every multiprocessor, as long as each has a block to do.

    Example:
        >>> default_splits(rows=8, length=3277, processors=132)
        52
    """
    return max(1, min(math.ceil(length / BLOCK), math.ceil(4 * processors / rows)))


def processors(tensor: Tensor) -> int:
    """Multiprocessors of the CUDA device that holds a tensor."""
    return int(torch.cuda.get_device_properties(tensor.device).multi_processor_count)
