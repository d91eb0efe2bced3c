"""Where the declaration and the parameters of wsvd lie: the one place to edit when they move."""

from pathlib import Path

from flows.drafts.wsvd import paper

ROOT = Path(__file__).parents[2]
PARAMS = ROOT / "flows/drafts/wsvd.params.yaml"
PAGE = ROOT / "flows/drafts/wsvd.md"

__all__ = ["PAGE", "PARAMS", "ROOT", "paper"]
