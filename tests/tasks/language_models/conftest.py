from __future__ import annotations

import pytest

from tasks.language_models.pretrained import load_model
from tasks.language_models.random_llama import RandomLlamaParams, random_llama


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny Llama with three query heads per key/value head."""
    path = tmp_path_factory.mktemp("llama")
    random_llama(RandomLlamaParams(), path)
    return path


@pytest.fixture(scope="session")
def loaded(folder):
    return load_model(folder, dtype="float32")


@pytest.fixture
def model(loaded):
    return loaded[0]


@pytest.fixture
def tokenizer(loaded):
    return loaded[1]
