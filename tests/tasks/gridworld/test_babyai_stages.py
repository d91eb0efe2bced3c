import pytest

from flows.polychromic import paper
from tasks.common.node import Inputs, NullLog
from tasks.gridworld.babyai_stages import BabyAIParams, evaluate, prepare, train
from tasks.rl.fine_tuning import Arm

SMALL = {"minibatch": 64, "epochs": 1}


def test_a_tiny_level_goes_through_all_stages(tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERS_THREADS", "1")
    arms = {"ppo": Arm(episodes=4, **SMALL), "poly": Arm(objective="polychromic", episodes=1, states=1, vines=4, **SMALL)}
    params = BabyAIParams(
        env_id="BabyAI-GoToObjMazeS4R2-v0",
        source="bot",
        demonstrated=6,
        configs=1,
        arms=arms,
        env_steps=60,
        seeds=1,
        width=8,
        epochs=2,
        tries=4,
        horizon=16,
    )
    folders = [tmp_path / n for n in ("prepare", "train", "evaluate")]
    for folder in folders:
        folder.mkdir()
    made = prepare(params, Inputs(), folders[0], NullLog())
    trained = train(params, Inputs({"prepare-babyai_goto": folders[0]}), folders[1], NullLog())
    judged = evaluate(params, Inputs({"train-babyai_goto": folders[1]}), folders[2], NullLog())
    assert made["expert.steps.babyai_goto"] > 0
    for arm in arms:
        assert 60 <= trained[f"{arm}.env_steps.babyai_goto"] < 60 + 4 * 16 + 16 * 4
        assert 0 <= judged[f"{arm}.pass1.babyai_goto"] <= 1
    declared = {s.name: s.metric_names("gpu") for s in paper.stages if "babyai_goto" in s.name}
    for kind, found in (("prepare", made), ("train", trained), ("evaluate", judged)):
        assert {n for n in found if not n.endswith((".lo", ".hi", ".se", ".n"))} <= declared[f"{kind}-babyai_goto"]


@pytest.mark.parametrize("change", [{"source": "human"}, {"configs": 0}, {"arms": {}}])
def test_impossible_parameters_are_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        BabyAIParams(**change)
