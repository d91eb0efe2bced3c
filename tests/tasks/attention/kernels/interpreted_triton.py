"""As much of Triton's language as the kernel uses, on torch tensors: programs run one after the other, pointers are tensors with offsets.

It runs the kernel's own source, so that indices, masks and the running softmax are tested where there is no GPU; what a compiler would
refuse, or how fast it is, it cannot tell.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import torch
from torch import Tensor


class Pointer:
    """A tensor's storage and offsets into it; like the device, it refuses to read what lies outside."""

    def __init__(self, storage: Tensor, offset: Any = 0) -> None:
        self.storage, self.offset = storage, torch.as_tensor(offset)

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.storage, self.offset + more)

    def places(self, mask: Any) -> tuple[Tensor, Tensor]:
        at, mask = torch.broadcast_tensors(self.offset, torch.as_tensor(mask))
        assert ((at >= 0) & (at < self.storage.numel()))[mask].all(), "a program reads or writes outside of a tensor"
        return at.long(), mask


def load(pointer: Pointer, mask: Any = True, other: float = 0) -> Tensor:
    at, mask = pointer.places(mask)
    return torch.where(mask, pointer.storage[torch.where(mask, at, 0)], torch.tensor(other, dtype=pointer.storage.dtype))


def store(pointer: Pointer, value: Any, mask: Any = True) -> None:
    at, mask = pointer.places(mask)
    pointer.storage[at[mask]] = torch.as_tensor(value, dtype=pointer.storage.dtype).expand(at.shape)[mask]


class Program:
    """Numbers of the program that runs now."""

    ids = (0, 0)


def language() -> types.ModuleType:
    module: Any = types.ModuleType("triton.language")
    module.constexpr = int
    module.float32, module.int64 = torch.float32, torch.int64
    module.program_id = lambda axis: torch.tensor(Program.ids[axis], dtype=torch.int32)
    module.arange = lambda a, b: torch.arange(a, b, dtype=torch.int32)
    module.zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype)
    module.load, module.store = load, store
    module.sum = lambda x, axis: x.sum(axis)
    module.max = lambda x, axis: x.amax(axis)
    module.minimum = lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b))
    module.maximum = lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
    module.exp2, module.log2 = torch.exp2, torch.log2
    module.where = lambda c, a, b: torch.where(c, torch.as_tensor(a), torch.as_tensor(b))
    return module


class Launch:
    """`kernel[grid](...)`: every program of the grid, one after the other."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, num_warps: int = 4, **constants: int) -> None:
            given = [Pointer(a.view(-1)) if isinstance(a, Tensor) else a for a in arguments]
            for ids in itertools.product(*(range(size) for size in grid)):
                Program.ids = ids
                self.kernel(*given, **constants)

        return run


def triton() -> types.ModuleType:
    module: Any = types.ModuleType("triton")
    module.jit, module.language = Launch, language()
    return module
