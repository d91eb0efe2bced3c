from __future__ import annotations

import hashlib
import pickle
from importlib import metadata

import pytest

from tasks.common.assets import AssetMissing, check_digest, packaged_files, require_package


def test_the_right_version_passes_and_files_are_found():
    require_package("numpy", metadata.version("numpy"))
    files = packaged_files("numpy")
    assert files["numpy/__init__.py"].is_file()


def test_absent_and_other_versions_say_how_to_install():
    with pytest.raises(AssetMissing, match=r"no-such-package is not installed; install it with: pip install no-such-package==1.0"):
        require_package("no-such-package", "1.0")
    with pytest.raises(AssetMissing, match=f"numpy is installed as {metadata.version('numpy')}, but the results belong to 0.1") as caught:
        require_package("numpy", "0.1")
    assert (caught.value.name, caught.value.how_to_install) == ("numpy", "pip install numpy==0.1")


def test_digests_tell_missing_and_damaged_files(tmp_path):
    path = tmp_path / "weights.bin"
    with pytest.raises(AssetMissing, match=r"weights.bin is missing; install it with: pip install x"):
        check_digest(path, "0" * 64, "pip install x")
    path.write_bytes(b"weights")
    check_digest(path, hashlib.sha256(b"weights").hexdigest(), "pip install x")
    path.write_bytes(b"weighty")
    with pytest.raises(AssetMissing, match=r"weights.bin is damaged \(SHA-256 "):
        check_digest(path, hashlib.sha256(b"weights").hexdigest(), "pip install x")


def test_the_error_arrives_whole_from_another_process():
    sent = AssetMissing("weights.bin", "pip install x", "is damaged")
    arrived = pickle.loads(pickle.dumps(sent))
    assert (type(arrived), str(arrived), arrived.name, arrived.how_to_install) == (AssetMissing, str(sent), sent.name, sent.how_to_install)
