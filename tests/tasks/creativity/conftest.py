from __future__ import annotations

import importlib.util
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("polychromic_conftest", Path(__file__).parents[1] / "rl" / "conftest.py")
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)
smoke, _one_thread = _MODULE.smoke, _MODULE._one_thread
