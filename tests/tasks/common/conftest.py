"""Puts this folder on the path: a function that runs in another process must be importable there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
