"""The language model's stages on a tiny random model: their folders and what tests run them with."""

from pathlib import Path

from tasks.common.node import Inputs, NullLog
from tasks.language_models.smollm2 import SmolLM2Params
from tasks.language_models.smollm2 import prepare as prepare_model
from tasks.low_rank.calibration import CalibrateParams, calibrate
from tasks.low_rank.comparison import Cell
from tasks.low_rank.prepared import PrepareParams, prepare
from tasks.low_rank.train import Arm

ARMS = {
    "wsvd_kv": Arm(steps=6, keep_every=3),
    "row_kv": Arm(weighting="row", steps=6, keep_every=3),
    "unweighted_kv": Arm(weighting="none", steps=6, keep_every=3),
    "wsvd_r50": Arm(projections=("q", "k", "v"), allocation="global", steps=4, keep_every=2),
}
CELLS = {
    "svd": Cell(method="svd"),
    "diagonal": Cell(method="diagonal"),
    "permuted": Cell(method="permuted"),
    "qsvd_global": Cell(method="qsvd", allocation="global"),
    "qsvd_same_cache": Cell(method="qsvd", rank=20),
    "head_white": Cell(method="head_white", kept=(0.5, 0.8)),
    "head_white_kv": Cell(method="head_white", projections=("k", "v")),
    "head_white_2_kv": Cell(method="head_white", projections=("k", "v"), sequences=2),
    "head_white_all_kv": Cell(method="head_white", projections=("k", "v"), sequences=4),
}


def made_folders(root: Path) -> dict[str, Path]:
    """Folders of all stages, of which those before training have run."""
    made = {name: root / name for name in ("warmstart", "prepare", "train-calibrate", "train", "evaluate")}
    for folder in made.values():
        folder.mkdir()
    prepare_model(SmolLM2Params(source="random"), Inputs(), made["warmstart"], NullLog())
    prepare(PrepareParams(seeds=2, calibration=4, held_out=2, evaluation=3, tokens=24), Inputs(made), made["prepare"], NullLog())
    calibrate(CalibrateParams(seeds=2, batch=2), Inputs(made), made["train-calibrate"], NullLog())
    return made
