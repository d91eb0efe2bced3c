"""Building blocks of the numba kernels: bfloat16 bits as numbers, counting bits, a product, a small random generator.

Keys and values in bfloat16 reach numba as uint16, since numba knows no such type: `as_float` shifts them back into float32, and leaves
float32 alone, so that one kernel serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Floating-point freedoms that vector code needs; infinities and NaN keep their meaning."""
Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function) -> Function:
    """Compile a kernel, which runs without the interpreter's lock; kept on disk beside its source."""
    compiled: Any = numba.njit(fastmath=FAST, nogil=True, cache=True)(function)
    return cast(Function, compiled)


def inline(function: Function) -> Function:
    """Compile a piece of a kernel."""
    compiled: Any = numba.njit(fastmath=FAST, nogil=True)(function)
    return cast(Function, compiled)


def _as_float(typingctx: Any, x: Any) -> Any:
    """Float32 of a float32, or of the bits of a bfloat16 (uint16)."""
    if x not in (types.float32, types.uint16):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.args[0] == types.float32:
            return arguments[0]
        wide = builder.zext(arguments[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(x), generate


def _count_bits(typingctx: Any, x: Any) -> Any:
    """Number of ones in a uint64, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def _fetch(typingctx: Any, rows: Any, row: Any, column: Any) -> Any:
    """Ask for the cache line of `rows[row, column]`, which will be read soon."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer_to: Any = cgutils.get_item_pointer
        place = pointer_to(context, builder, signature.args[0], array, arguments[1:], wraparound=False, boundscheck=False)
        byte, whole = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, whole, whole, whole])
        intrinsic_function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        to_read, near, data = (ir.Constant(whole, value) for value in (0, 3, 1))
        builder.call(intrinsic_function, [builder.bitcast(place, byte), to_read, near, data])
        return context.get_dummy_value()

    return types.void(rows, types.intp, types.intp), generate


as_float: Any = intrinsic(_as_float)
fetch: Any = intrinsic(_fetch)
count_bits: Any = intrinsic(_count_bits)


@inline
def product(q: Any, row: Any) -> Any:
    """Inner product of float32 `q` and a row of a cache, in float32."""
    total = np.float32(0.0)
    for c in range(q.shape[0]):
        total += q[c] * as_float(row[c])
    return total


@inline
def fetch_row(rows: Any, row: int) -> None:
    """Ask for a whole row: rows of an index list lie anywhere, so that the processor cannot guess the next one."""
    for column in range(0, rows.shape[1], 64 // rows.itemsize):
        fetch(rows, row, column)


@inline
def next_random(state: Any) -> Any:
    """The next 64 random bits of a one-entry state (splitmix64; Steele et al. 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inline
def random_below(state: Any, n: Any) -> Any:
    """A random integer in 0..n-1 from the upper 32 bits; n is far below 2^32, so that the bias does not matter."""
    return np.int64(((next_random(state) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
