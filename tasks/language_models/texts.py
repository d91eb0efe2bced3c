"""English with code in it, from what is installed anyway: the docstrings of well-known packages, as token sequences of one length.

Calibration and evaluation never share a source file: a file belongs to one side by the digest of its path. A draw is seeded, and the
digest of its text says whether another machine, with the locked packages, drew the same.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

PACKAGES = ("numpy", "scipy", "pandas", "sklearn")
Side = Literal["calibration", "evaluation"]
SIDES: tuple[Side, ...] = ("calibration", "evaluation")
SHORTEST = 400
"""Characters below which a docstring is left out."""


@dataclass(frozen=True)
class TokenTexts:
    """Sequences of one length.

    Attributes:
        ids: (n, T) int64 token ids.
        sha256: digest of the ids.
    """

    ids: torch.Tensor
    sha256: str

    @property
    def fingerprint(self) -> float:
        """The first 32 bits of the digest as a number, for metrics."""
        return float(int(self.sha256[:8], 16))


def token_sequences(
    tokenizer: Any, count: int, length: int, seed: int, side: Side = "evaluation", packages: Sequence[str] = PACKAGES
) -> TokenTexts:
    """Draw `count` sequences of `length` tokens of docstrings, files in random order, joined by blank lines.

    Args:
        tokenizer: of the model that reads them.
        count: how many sequences.
        length: tokens in each.
        seed: of the order of the files.
        side: `calibration` or `evaluation`; the two never share a file.
        packages: installed packages, by import name.

    Raises:
        ValueError: for an unknown side, numbers below 1, or too little text.
        ModuleNotFoundError: for a package that is not installed.
    """
    import torch

    if count < 1 or length < 2:
        raise ValueError(f"need count >= 1 and length >= 2, got {count} and {length}")
    found: list[int] = []
    for text in documents(seed, side, packages):
        found += tokenizer(text + "\n\n", add_special_tokens=False, verbose=False).input_ids
        if len(found) >= count * length:
            ids = torch.tensor(found[: count * length], dtype=torch.int64).reshape(count, length)
            return TokenTexts(ids, hashlib.sha256(ids.numpy().tobytes()).hexdigest())
    raise ValueError(
        f"ask for less text or add packages: {', '.join(packages)} hold {len(found)} tokens for {side}, fewer than {count} x {length}"
    )


def documents(seed: int, side: Side = "evaluation", packages: Sequence[str] = PACKAGES) -> Iterator[str]:
    """The docstrings of one side, a file's together, files in an order drawn from the seed."""
    if side not in SIDES:
        raise ValueError(f"side must be one of {', '.join(SIDES)}, got {side!r}")
    files = [(name, path) for name, path in source_files(packages) if side_of(name) == side]
    for place in np.random.default_rng(seed).permutation(len(files)):
        texts = docstrings(files[place][1])
        if texts:
            yield "\n\n".join(texts)


def source_files(packages: Sequence[str] = PACKAGES) -> list[tuple[str, Path]]:
    """(name inside the package, path) of every Python file, tests left out, sorted by name."""
    found = []
    for package in packages:
        spec = find_spec(package)  # finds, does not execute
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"package {package!r} is not installed; pip install it, or name other packages")
        root = Path(spec.submodule_search_locations[0])
        names = (path.relative_to(root.parent).as_posix() for path in root.rglob("*.py"))
        found += [(name, root.parent / name) for name in names if "test" not in name]
    return sorted(found)


def side_of(name: str) -> Side:
    """A quarter of the files are for calibration, by the digest of their name."""
    return "calibration" if hashlib.sha256(name.encode()).digest()[0] < 64 else "evaluation"


def docstrings(path: Path) -> list[str]:
    """Docstrings of a file that are long enough to be prose, in the file's order, each once."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return []
    owners = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    owners.sort(key=lambda n: getattr(n, "lineno", 0))
    found = dict.fromkeys(ast.get_docstring(n) or "" for n in owners)
    return [text for text in found if len(text) >= SHORTEST]
