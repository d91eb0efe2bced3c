"""Just enough of Triton, in torch, to run a kernel's own source block by block without a GPU.

Pointers are a flat tensor and offsets; a masked load reads nothing where the mask is false, and an unmasked one must lie inside. What the
tensor cores ask of `dot` (one type, no dimension under 16) is asserted. This says nothing about compilation, registers or time.
"""

from __future__ import annotations

import itertools
import types
from typing import Any

import torch


class Pointer:
    def __init__(self, memory: torch.Tensor, offsets: Any = 0) -> None:
        self.memory, self.offsets = memory, torch.as_tensor(offsets)
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offsets + other)

    def at(self, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.ones_like(self.offsets, dtype=torch.bool) if mask is None else mask
        offsets, mask = torch.broadcast_tensors(self.offsets, mask)
        inside = offsets[mask]
        assert bool(((inside >= 0) & (inside < len(self.memory))).all()), "an access outside of the tensor"
        return offsets, mask


def load(pointer: Pointer, mask: torch.Tensor | None = None, other: float = 0) -> torch.Tensor:
    offsets, mask = pointer.at(mask)
    found = torch.full(offsets.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.memory[offsets[mask]]
    return found


def store(pointer: Pointer, value: torch.Tensor, mask: torch.Tensor | None = None) -> None:
    offsets, mask = pointer.at(mask)
    pointer.memory[offsets[mask]] = value.expand(offsets.shape)[mask].to(pointer.memory.dtype)


def dot(a: torch.Tensor, b: torch.Tensor, input_precision: str = "tf32") -> torch.Tensor:
    assert a.dtype == b.dtype
    assert min(*a.shape, *b.shape) >= 16
    assert input_precision == "ieee"
    return a.float() @ b.float()


class Launcher:
    def __init__(self, kernel: Any, language: Any) -> None:
        self.kernel, self.language = kernel, language

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*arguments: Any, num_warps: int, num_stages: int, **constants: Any) -> None:
            pointers = [Pointer(a.view(-1)) if isinstance(a, torch.Tensor) else a for a in arguments]
            for block in itertools.product(*map(range, grid)):
                self.language.program_id = lambda axis, block=block: torch.tensor(block[axis])
                self.kernel(*pointers, **constants)

        return launch


def modules() -> dict[str, Any]:
    """What to put into `sys.modules`."""
    language = types.ModuleType("triton.language")
    language.__dict__.update(
        {name: getattr(torch, name) for name in ("arange", "where", "maximum", "minimum", "exp2", "cos", "sin", "float32", "int64")},
        constexpr=type("constexpr", (), {}),
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
        max=lambda x, axis: x.amax(axis),
        sum=lambda x, axis: x.sum(axis),
        trans=lambda x: x.T,
        load=load,
        store=store,
        dot=dot,
    )
    triton = types.ModuleType("triton")
    triton.__dict__.update(language=language, jit=lambda kernel: Launcher(kernel, language))
    return {"triton": triton, "triton.language": language}
