"""As much of Triton's language as the kernels use, on torch tensors: programs run one after the other, pointers are tensors with offsets.

It runs a kernel's own source, so that indices, masks and the running softmax are tested where there is no GPU. What the tensor cores ask of
`dot` (one type, no dimension under 16) is asserted; what a compiler would refuse, or how fast it is, it cannot tell.
"""

from __future__ import annotations

import itertools
import sys
import types
from typing import Any

import pytest
import torch
from torch import Tensor


class Pointer:
    """A tensor's storage and offsets into it; like the device, it refuses to read what lies outside."""

    def __init__(self, storage: Tensor, offset: Any = 0) -> None:
        self.storage, self.offset = storage, torch.as_tensor(offset)
        self.dtype = types.SimpleNamespace(element_ty=storage.dtype)

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
    pointer.storage[at[mask]] = torch.as_tensor(value).to(pointer.storage.dtype).expand(at.shape)[mask]


def dot(a: Tensor, b: Tensor, input_precision: str = "tf32") -> Tensor:
    assert a.dtype == b.dtype
    assert min(*a.shape, *b.shape) >= 16
    assert input_precision == "ieee"
    return a.float() @ b.float()


class Program:
    """Numbers of the program that runs now."""

    ids = (0, 0)


def language() -> types.ModuleType:
    module: Any = types.ModuleType("triton.language")
    module.constexpr = type("constexpr", (), {})
    module.program_id = lambda axis: torch.tensor(Program.ids[axis], dtype=torch.int32)
    module.arange = lambda a, b: torch.arange(a, b, dtype=torch.int32)
    module.zeros = lambda shape, dtype: torch.zeros(shape, dtype=dtype)
    module.full = lambda shape, value, dtype: torch.full(shape, value, dtype=dtype)
    module.load, module.store, module.dot = load, store, dot
    module.sum = lambda x, axis: x.sum(axis)
    module.max = lambda x, axis: x.amax(axis)
    module.trans = lambda x: x.T
    module.minimum = lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b))
    module.maximum = lambda a, b: torch.maximum(torch.as_tensor(a), torch.as_tensor(b))
    module.where = lambda c, a, b: torch.where(c, torch.as_tensor(a), torch.as_tensor(b))
    for name in ("exp2", "log2", "cos", "sin", "float32", "int64"):
        setattr(module, name, getattr(torch, name))
    return module


class Launch:
    """`kernel[grid](...)`: every program of the grid, one after the other."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*arguments: Any, num_warps: int = 4, num_stages: int = 2, **constants: Any) -> None:
            given = [Pointer(a.view(-1)) if isinstance(a, Tensor) else a for a in arguments]
            for ids in itertools.product(*map(range, grid)):
                Program.ids = ids
                self.kernel(*given, **constants)

        return run


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test, what `import triton` finds."""
    module: Any = types.ModuleType("triton")
    module.jit, module.language = Launch, language()
    monkeypatch.setitem(sys.modules, "triton", module)
    monkeypatch.setitem(sys.modules, "triton.language", module.language)
