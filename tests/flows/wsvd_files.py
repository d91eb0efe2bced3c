"""Where the declaration and the parameters of wsvd lie: the one place to edit when they move."""

from pathlib import Path

from flows.wsvd import paper

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "params.yaml"
PAGE = ROOT / "docs/papers/wsvd.md"

__all__ = ["PAGE", "PARAMS", "ROOT", "paper"]
