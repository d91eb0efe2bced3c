"""A local Minari store with a small data set in the official format."""

import gymnasium
import numpy as np


def write_store() -> None:
    """Write `test/pendulum-v0`, three episodes of 30 steps of a continuous-action task, to `MINARI_DATASETS_PATH`."""
    import minari

    env = gymnasium.make("Pendulum-v1", max_episode_steps=30)
    described = {"author": "a", "author_email": "a@example.org", "code_permalink": "https://example.org", "algorithm_name": "random"}
    buffers = [play(env, seed) for seed in range(3)]
    minari.create_dataset_from_buffers(
        "test/pendulum-v0", buffers, env=env, eval_env=env.spec, description="random actions", data_format="hdf5", **described
    )


def play(env, seed):
    """One episode of random actions in Minari's own buffer."""
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(seed)
    states, steps, over = [env.reset(seed=seed)[0]], [], False
    while not over:
        action = rng.uniform(-2, 2, 1).astype(np.float32)
        state, reward, terminated, truncated, _ = env.step(action)
        states.append(state)
        steps.append((action, reward, terminated, truncated))
        over = terminated or truncated
    actions, rewards, terminations, truncations = (list(column) for column in zip(*steps, strict=True))
    return EpisodeBuffer(
        id=seed,
        observations=np.array(states),
        actions=np.array(actions),
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
    )
