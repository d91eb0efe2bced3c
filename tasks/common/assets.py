"""Models and data that ship inside packages: presence, version and digest are checked before anything is read."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path


class AssetMissing(RuntimeError):
    """A packaged model or data set is not installed, or is damaged; the message carries the command that installs it."""

    def __init__(self, name: str, how_to_install: str, why: str = "is not installed") -> None:
        super().__init__(f"{name} {why}; install it with: {how_to_install}")
        self.name, self.how_to_install, self.why = name, how_to_install, why

    def __reduce__(self) -> tuple[type[AssetMissing], tuple[str, str, str]]:
        """Pickle by what it was made from, so that it arrives whole from a pool of processes."""
        return type(self), (self.name, self.how_to_install, self.why)


def require_package(package: str, version: str) -> None:
    """Refuse to go on unless exactly this version of a data-carrying package is installed.

    Raises:
        AssetMissing: if it is absent or another version, whose tables may differ.
    """
    command = f"pip install {package}=={version}"
    try:
        found = metadata.version(package)
    except metadata.PackageNotFoundError:
        raise AssetMissing(package, command) from None
    if found != version:
        raise AssetMissing(package, command, f"is installed as {found}, but the results belong to {version}")


@cache
def packaged_files(package: str) -> dict[str, Path]:
    """Installed files of a distribution, by their path inside it."""
    return {str(f): Path(str(f.locate())) for f in metadata.files(package) or ()}


def check_digest(path: Path, sha256: str, how_to_install: str) -> None:
    """Compare a file with the digest that the results belong to.

    Raises:
        AssetMissing: if the file is absent or its SHA-256 differs.
    """
    if not path.is_file():
        raise AssetMissing(path.name, how_to_install, "is missing")
    seen = hashlib.sha256(path.read_bytes()).hexdigest()
    if seen != sha256:
        raise AssetMissing(path.name, how_to_install, f"is damaged (SHA-256 {seen[:12]}..., expected {sha256[:12]}...)")
