"""The gpu profile's stages on a random LLaVA with a real processor and small files in the published layout."""

import pytest

from tasks.common.node import Inputs, NullLog
from tasks.low_rank.checkpoints import load_factors
from tasks.low_rank.comparison import Cell
from tasks.low_rank.statistics import load_statistics
from tasks.low_rank.train import Arm
from tasks.low_rank.vision_language_models import AskParams, CompressParams, evaluate, questions_of, short, train
from tests.tasks.vision_language.tiny_processor import save_science_qa, save_seed_bench, save_tiny_llava


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("vlm")
    where = {
        "model": str(save_tiny_llava(root / "tinyllava")),
        "data": {"scienceqa": str(save_science_qa(root / "qa")), "seed_bench": str(save_seed_bench(root / "seed"))},
        "dtype": "float32",
        "device": "cpu",
    }
    (root / "train").mkdir()
    arms = {"wsvd_r50": Arm(projections=("q", "k", "v"), allocation="global", steps=3, rate=1e-3)}
    metrics = train(CompressParams(**where, samples=2, arms=arms), Inputs(), root / "train", NullLog())
    return root, where, metrics


def test_training_calibrates_with_images_and_keeps_factors(place):
    root, _, metrics = place
    factors = load_factors(root / "train" / "wsvd_r50.safetensors")
    assert set(factors) == {(layer, p) for layer in (0, 1) for p in ("q", "k", "v")}
    assert metrics["fit_wsvd_r50.objective.tinyllava"] < metrics["fit_wsvd_r50.start.tinyllava"]
    layers = load_statistics(root / "train" / "statistics.safetensors")
    assert float(layers[0].fisher["k"].sum()) > 0
    assert layers[0].second_moment.shape == (32, 32)


def test_questions_are_answered_by_every_arm(place, tmp_path):
    root, where, _ = place
    params = AskParams(**where, cells={"svdllm": Cell(method="svdllm")}, tuned=("wsvd_r50",))
    metrics = evaluate(params, Inputs({"train-llava": root / "train"}), tmp_path, NullLog())
    for arm in ("dense", "svdllm_r50", "wsvd_r50"):
        for name, count in (("scienceqa", 3), ("seed_bench", 2)):
            assert 0 <= metrics[f"{arm}.accuracy.{name}_tinyllava"] <= 1
            assert metrics[f"{arm}.accuracy.{name}_tinyllava.n"] == count
    assert "wsvd_r50.accuracy.scienceqa_tinyllava-dense.accuracy.scienceqa_tinyllava" in metrics
    assert (tmp_path / "hits.parquet").is_file()


def test_names_of_models_become_parts_of_metrics():
    assert short("HuggingFaceTB/SmolVLM-Instruct/") == "smolvlminstruct"


def test_a_split_without_images_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"image": None, "question": "?", "choices": ["a", "b"], "answer": 0, "hint": ""}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test-0.parquet")
    with pytest.raises(ValueError, match="no question with an image"):
        questions_of("scienceqa", str(tmp_path), "test")
