"""Minari data sets as whole episodes with a sparse reward, and back: which trajectories count as successes is a rule.

Data sets come from the local Minari store by their identifier, or from a folder in Minari's format; nothing is downloaded here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from tasks.common.assets import AssetMissing
from tasks.offline_rl.episodes import Episodes
from tasks.offline_rl.minari_data import flatten_observations, load_minari

Rule = Literal["auto", "reward", "info", "quantile"]
"""`reward`: a step with the largest of two rewards; `info`: Minari's `infos["success"]`; `quantile`: return above a quantile of all;
`auto`: the first of these that applies."""


def open_minari(dataset: str) -> Any:
    """A Minari data set by identifier, or by the path of its folder.

    Raises:
        AssetMissing: if minari or the data set is not there, with the command that gets it.
        ValueError: for a folder that is not in Minari's format.
    """
    folder = Path(dataset).expanduser()
    if not folder.is_dir():
        return load_minari(dataset)
    try:
        import minari
    except ImportError:
        raise AssetMissing("minari", "pip install 'iclr2026-flows[offline-rl]'") from None
    for place in (folder / "data", folder):
        if (place / "metadata.json").is_file() or (place / "main_data.hdf5").is_file():
            return minari.MinariDataset(place)
    holds = ", ".join(sorted(p.name for p in folder.iterdir())[:5]) or "nothing"
    raise ValueError(f"{folder} is not a Minari data set (it holds {holds}); expected data/main_data.hdf5 or data/metadata.json")


def read_minari_episodes(dataset: Any, rule: Rule = "auto", quantile: float = 0.75, limit: int | None = None) -> Episodes:
    """Episodes with reward 1 at the step of success and 0 elsewhere.

    With `reward` and `info` an episode ends at its first success; with `quantile` it keeps its length, and its last step has the reward.

    Args:
        dataset: from `open_minari`.
        rule: see `Rule`.
        quantile: of the returns, for `quantile`.
        limit: read so many episodes only.

    Raises:
        ValueError: for actions that are no bounded box, a rule that does not apply, or a quantile outside (0, 1).
    """
    low, high = (getattr(dataset.action_space, end, None) for end in ("low", "high"))
    if low is None or low.ndim != 1 or not np.isfinite([low, high]).all():
        raise ValueError(f"needs a bounded one-dimensional box of actions, got {dataset.action_space}")
    if not 0 < quantile < 1:
        raise ValueError(f"quantile must lie in (0, 1), got {quantile}")
    indices = list(dataset.episode_indices)[:limit]
    raw = [e for e in dataset.iterate_episodes(indices) if len(e.rewards)]
    chosen = _choose(rule, raw)
    level = float(np.quantile([float(np.sum(e.rewards)) for e in raw], quantile)) if chosen == "quantile" else 0.0
    top = max(float(np.max(e.rewards)) for e in raw) if chosen == "reward" else 0.0
    columns: list[list[np.ndarray]] = [[] for _ in range(8)]
    for number, episode in enumerate(raw):
        achieved = _achieved(episode, chosen, level, top)
        first = int(np.argmax(achieved)) + 1 if achieved.any() else len(achieved)
        states = flatten_observations(episode.observations).astype(np.float32)
        flags = np.zeros(first, bool)
        won, ended, cut = (flags.copy() for _ in range(3))
        won[-1] = achieved[first - 1]
        # Success ends the task; so does what the environment calls a termination (a fall), with no reward.
        ended[-1] = won[-1] or bool(episode.terminations[first - 1])
        cut[-1] = not ended[-1]
        parts = (states[:first], np.asarray(episode.actions, np.float32)[:first], won.astype(float), states[1 : first + 1])
        for column, part in zip(columns, (*parts, ended, cut, won, np.full(first, number)), strict=True):
            column.append(part)
    obs, action, reward, following, terminated, truncated, success, episode = (np.concatenate(c) for c in columns)
    about = {"minari": _identifier(dataset), "rule": chosen, "level": level, "environment": _environment(dataset)}
    return Episodes(
        obs,
        np.clip(action, low, high),
        reward,
        following,
        terminated,
        truncated,
        success,
        episode,
        low=np.asarray(low, float),
        high=np.asarray(high, float),
        about=about,
    )


def _choose(rule: Rule, raw: list[Any]) -> str:
    if not raw:
        raise ValueError("the data set holds no episode with a step")
    labelled = all(isinstance(e.infos, dict) and "success" in e.infos for e in raw)
    values = np.unique(np.concatenate([np.unique(e.rewards) for e in raw]))
    if rule == "info" and not labelled:
        raise ValueError('rule "info" needs infos["success"] in every episode, which this data set lacks; use "reward" or "quantile"')
    if rule == "reward" and len(values) > 2:
        raise ValueError(f'rule "reward" needs a sparse reward of at most two values, got {len(values)} of them; use "quantile"')
    if rule != "auto":
        return rule
    if len(values) == 2:
        return "reward"
    return "info" if labelled else "quantile"


def _achieved(episode: Any, rule: str, level: float, top: float) -> np.ndarray:
    """Whether the task was achieved in each step, (T,)."""
    rewards = np.asarray(episode.rewards, float)
    if rule == "info":
        return np.asarray(episode.infos["success"], bool).reshape(-1)[-len(rewards) :]
    if rule == "reward":
        return rewards >= top if top > 0 or rewards.min() < top else np.zeros(len(rewards), bool)
    out = np.zeros(len(rewards), bool)
    out[-1] = rewards.sum() > level
    return out


def _identifier(dataset: Any) -> str:
    return str(dataset.spec.dataset_id)


def _environment(dataset: Any) -> str | None:
    return str(dataset.env_spec.id) if dataset.env_spec is not None else None


def flatten_one(observation: Any) -> np.ndarray:
    """A single observation as a state (d,), in the order in which `read_minari_episodes` puts coordinates."""
    if isinstance(observation, dict):
        return np.asarray(flatten_observations({key: np.asarray(value)[None] for key, value in observation.items()})[0])
    return np.asarray(observation, float).reshape(-1)


def export_minari(episodes: Episodes, identifier: str, environment: str | None = None, description: str = "") -> Any:
    """Write episodes to the local Minari store (`MINARI_DATASETS_PATH`) and return the data set.

    Args:
        episodes: what to write; observations are flat boxes.
        identifier: `namespace/name-v0`.
        environment: gymnasium id that the data set names, or None.
        description: for readers.

    Raises:
        AssetMissing: if minari is not installed.
        ValueError: by minari, for a bad identifier or one that exists.
    """
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        raise AssetMissing("minari", "pip install 'iclr2026-flows[offline-rl]'") from None
    from gymnasium.spaces import Box

    buffers = []
    for e in range(episodes.n_episodes):
        rows = slice(episodes.starts[e], episodes.starts[e] + episodes.lengths[e])
        buffers.append(
            EpisodeBuffer(
                id=e,
                observations=np.concatenate([episodes.obs[rows], episodes.next_obs[rows][-1:]]),
                actions=episodes.action[rows],
                rewards=episodes.reward[rows].tolist(),
                terminations=episodes.terminated[rows].tolist(),
                truncations=episodes.truncated[rows].tolist(),
                infos={"success": np.r_[False, episodes.success[rows]]},
            )
        )
    d = episodes.obs.shape[1]
    spec = None
    if environment:
        from tasks.offline_rl.rollout_continuous import make_environment

        spec = make_environment(environment).spec
    return minari.create_dataset_from_buffers(
        identifier,
        buffers,
        env=spec,
        observation_space=Box(-np.inf, np.inf, (d,), episodes.obs.dtype),
        action_space=Box(
            episodes.low.astype(episodes.action.dtype), episodes.high.astype(episodes.action.dtype), dtype=episodes.action.dtype
        ),
        algorithm_name="scripted",
        author="iclr2026-flows",
        author_email="none@example.org",
        code_permalink="https://example.org",
        description=description or "sparse-reward trajectories of scripted behaviour",
        data_format="hdf5",
    )
