"""The gpu profile's negative result on a small data set of the official format."""

def test_the_gpu_stages_run_on_a_small_data_set(store, tmp_path):
    common = {"dataset": "test/pendulum-v0", "steps": 60, "seeds": 2}
    folder = tmp_path / "prepare-minari"
    folder.mkdir()
    assert prepare(MinariParams(**common), Inputs(), folder, NullLog())["behaviour.return.minari"] < 0
    params = MinariReportParams(
        **common,
        size=10,
        predictors=20,
        matching=MatchingConfig(optimiser="adam", steps=30),
        learner=FqiConfig(iterations=2, steps=2),
        episodes=1,
    )
    runs = [evaluate(params, Inputs({"prepare-minari": folder}), tmp_path, NullLog()) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0]["syn_many.heldout_loss_error.minari"] < runs[0]["rand.heldout_loss_error.minari"]
