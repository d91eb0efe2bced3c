"""Where things lie: the checkout, its profiles, and the names of folders and files in each.

The cpu profile is the checkout itself; gpu and smoke are DVC projects nested in it, from which shared files are `../` away.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flows.engine.declare import PROFILES, DeclarationError, Profile
from tasks.common.formats import write_atomically

PARAMS = "params.yaml"
ENVIRONMENT = "environment.yaml"


def find_root(start: Path | None = None) -> Path:
    """The checkout that holds `start` (default: the current folder).

    Raises:
        FileNotFoundError: if no folder upwards holds `params.yaml` and `flows/`.
    """
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        if (folder / PARAMS).is_file() and (folder / "flows").is_dir():
            return folder
    raise FileNotFoundError(f"{here} is not inside a checkout of the collection (no params.yaml beside flows/); change into one")


@dataclass(frozen=True)
class Project:
    """One profile of one checkout. Relative names are relative to `home`, where DVC runs its commands."""

    root: Path
    profile: Profile = "cpu"

    @classmethod
    def here(cls, profile: str = "cpu", start: Path | None = None) -> Project:
        """The project around the current folder.

        Raises:
            DeclarationError: for an unknown profile.
        """
        for known in PROFILES:
            if profile == known:
                return cls(find_root(start), known)
        raise DeclarationError.of("--profile", "unknown profile", profile, PROFILES)

    @property
    def home(self) -> Path:
        """Folder of the DVC project."""
        return self.root if self.profile == "cpu" else self.root / self.profile

    @property
    def up(self) -> str:
        """What leads from `home` to the checkout: empty, or `../`."""
        return "" if self.profile == "cpu" else "../"

    def figures(self, slug: str) -> str:
        """Folder of the small figures that git keeps."""
        return f"docs/figures/{slug}" if self.profile == "cpu" else f"report/figures/{slug}"

    @property
    def scorecard(self) -> Path:
        """The judged claims."""
        return self.home / "report" / "scorecard.json"

    @property
    def page(self) -> Path:
        """The page that people read."""
        return self.home / "report" / "index.html"

    @property
    def database(self) -> Path:
        """The MLflow database, one for all profiles."""
        return self.root / "tracking" / "mlflow.db"


def folder(slug: str, stage: str) -> str:
    """Output folder of a stage, relative to the project's home."""
    return f"data/{slug}/{stage}"


def results(slug: str) -> str:
    """The paper's metrics that git keeps, relative to the project's home."""
    return f"report/results/{slug}.json"


def read_yaml(path: Path) -> Any:
    """Parse a YAML file with the C loader.

    Raises:
        DeclarationError: if it is not YAML or not UTF-8, naming the file and the place.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DeclarationError(f"{path}: not YAML ({' '.join(str(error).split())}); mend it or restore it from git") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Parse a YAML file that must hold a mapping; empty for an empty file.

    Raises:
        DeclarationError: if it is not YAML, or holds something else.
    """
    found = read_yaml(path)
    if found is not None and not isinstance(found, dict):
        raise DeclarationError(f"{path}: must be a mapping, got a {type(found).__name__}; mend it or restore it from git")
    return found or {}


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file that can be made anew; empty where it is missing, cannot be read, or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects in a list that was read from a file; none if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


@cache
def _parameters(path: Path, _mtime_ns: int) -> dict[str, Any]:
    return read_mapping(path)


def parameters(root: Path) -> dict[str, Any]:
    """All of `params.yaml`; read again when the file changes."""
    path = root / PARAMS
    return _parameters(path, path.stat().st_mtime_ns)


def section(root: Path, path: tuple[str, ...]) -> dict[str, Any] | None:
    """A section of `params.yaml`, or None if it is not there.

    Raises:
        DeclarationError: if something else than a mapping stands there.
    """
    value: Any = parameters(root)
    for place, key in enumerate(path):
        if key not in value:
            return None
        value = value[key] if value[key] is not None else {}
        if not isinstance(value, dict):
            raise DeclarationError.of(PARAMS, f"section {'.'.join(path[: place + 1])} must be a mapping, got", value)
    for name in value:
        if not isinstance(name, str):
            raise DeclarationError.of(PARAMS, f"section {'.'.join(path)} must hold names of parameters, got", name, hint="quote it")
    return dict(value)


def write_if_changed(path: Path, text: str) -> bool:
    """Make a file hold `text`, whole or not at all; returns whether it had to be written."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
    return True
