import numpy as np
import pytest

from tasks.gridworld.instruction_worlds import WIDTH, WORDS, InstructionWorlds, bot_demonstrations, minari_demonstrations, words_of
from tasks.rl.rollouts import replay, roll_out

LEVEL = "BabyAI-GoToObjMazeS4R2-v0"


def walker(seen):
    return np.tile(np.float32([[0.2, 0.2, 0.5, 0.02, 0.02, 0.04, 0.02]]), (len(seen), 1))


def test_a_copied_state_goes_on_as_the_original_would():
    worlds = InstructionWorlds(LEVEL, np.arange(2), horizon=25)
    config, uniforms = np.array([0, 1]), np.random.default_rng(0).random((25, 2))
    episode = roll_out(worlds, worlds.reset(config), config, walker, uniforms)
    assert episode.observation.shape == (25, 2, WIDTH)
    steps = episode.length // 2
    saved = worlds.save(replay(worlds, config, episode.action, steps), np.array([0, 1]))
    tail = np.stack([np.pad(uniforms[s:, i], (0, s)) for i, s in enumerate(steps)], 1)
    vine = roll_out(worlds, saved, config, walker, tail, begin=steps)
    np.testing.assert_array_equal(vine.returns, episode.returns)
    np.testing.assert_array_equal(vine.length, episode.length - steps)


def test_copies_do_not_share_a_world():
    worlds = InstructionWorlds(LEVEL, np.arange(1), horizon=25)
    saved = worlds.save(worlds.reset(np.array([0])), np.array([0, 0]))
    before = worlds.place(saved)
    for action in (2, 2, 1, 2, 2):
        worlds.step(saved.take(np.array([0])), np.array([action]))
    assert saved.envs[1].step_count == 0
    assert worlds.place(saved)[1] == before[1]


def test_the_bots_demonstrations_solve_the_level_when_replayed():
    seen, action = bot_demonstrations(LEVEL, np.array([0]), 60)
    worlds = InstructionWorlds(LEVEL, np.array([0]), horizon=60)
    state = worlds.reset(np.array([0]))
    for o, a in zip(seen, action, strict=True):
        np.testing.assert_array_equal(worlds.observe(state)[0], o)
        state, success = worlds.step(state, np.array([a]))
    assert success[0]


def test_every_instruction_of_the_hardest_level_can_be_read():
    worlds = InstructionWorlds("BabyAI-BossLevel-v0", np.arange(3), horizon=10)
    assert (worlds.observe(worlds.reset(np.arange(3)))[:, 148:] > 0).any(1).all()


def test_words_and_levels_that_are_unknown_are_refused():
    assert len(WORDS) == len(set(WORDS))
    with pytest.raises(ValueError, match="unknown words"):
        words_of("go to the purple dragon")
    with pytest.raises(ValueError, match="40 words"):
        words_of("go " * 41)
    with pytest.raises(NotImplementedError, match="no rooms"):
        InstructionWorlds("MiniGrid-Empty-5x5-v0", np.arange(1))


def test_minari_episodes_become_steps(monkeypatch):
    """A stand-in with the fields of minigrid's data sets: one observation more than actions."""
    from types import SimpleNamespace

    shown = {"image": np.zeros((4, 7, 7, 3), np.uint8), "direction": np.arange(4), "mission": ["go to the red ball"] * 4}
    episode = SimpleNamespace(observations=shown, actions=np.array([2, 1, 0]))
    store = SimpleNamespace(iterate_episodes=lambda: iter([episode] * 5))
    monkeypatch.setattr("tasks.offline_rl.minari_data.load_minari", lambda name: store)
    seen, action = minari_demonstrations("minigrid/BabyAI-GoTo/optimal-v0", 5)
    assert seen.shape == (6, WIDTH)
    assert action.tolist() == [2, 1, 0, 2, 1, 0]
    assert seen[:3, 147].tolist() == [0, 1, 2]


def test_a_missing_data_set_says_how_to_get_it(monkeypatch, tmp_path):
    from tasks.common.assets import AssetMissing

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(AssetMissing, match="minari download minigrid/BabyAI-GoTo/optimal-v0"):
        minari_demonstrations("minigrid/BabyAI-GoTo/optimal-v0", 5)
