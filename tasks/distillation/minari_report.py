"""Stage that tries Bellman matching where the paper says that it does not suit: a Minari (D4RL) data set, gpu profile only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from tasks.common.node import Inputs, Log, Metrics
from tasks.common.statistics import paired, summarise
from tasks.distillation.bellman import MatchingConfig, bellman_losses, distil_transitions, relative_loss_error
from tasks.distillation.predictors import BankConfig, draw_bank, to
from tasks.distillation.subsets import random_rows
from tasks.offline_rl.fqi import FqiConfig, QNetworks, fit_networks
from tasks.offline_rl.minari_data import MinariParams, action_grid, load_minari, make_discrete
from tasks.offline_rl.rollout import rollout_returns
from tasks.offline_rl.transitions import Standardiser, TdBatch, read_transitions, td_batch


class MinariReportParams(MinariParams):
    """As the stage that reads the data, and one matching, one learner.

    Attributes:
        size: synthetic transitions m.
        predictors: k.
        gamma: discount.
        matching: how.
        learner: fitted Q iteration.
        episodes: per policy.
        device: where torch works.
    """

    size: int = Field(300, ge=1)
    predictors: int = Field(1000, ge=1)
    gamma: float = Field(0.99, ge=0, lt=1)
    matching: MatchingConfig = MatchingConfig(optimiser="adam", steps=400)
    learner: FqiConfig = FqiConfig()
    episodes: int = Field(10, ge=1)
    device: str = "cpu"


def evaluate(params: MinariReportParams, inputs: Inputs, out: Path, log: Log) -> Metrics:
    """Node: metrics `{full,rand,syn_many}.return.minari`, `{rand,syn_many}.heldout_loss_error.minari`, and their differences."""
    dataset = load_minari(params.dataset)
    found: dict[str, list[float]] = {}
    for s in log.progress(range(params.seeds), desc="seeds"):
        for name, value in _one_seed(params, dataset, inputs.file("prepare-minari", f"minari.{s}.parquet"), s).items():
            found.setdefault(name, []).append(value)
    metrics: Metrics = {}
    for name, values in found.items():
        metrics |= summarise(name, values)
    for quantity in ("return.minari", "heldout_loss_error.minari"):
        metrics |= paired(f"syn_many.{quantity}-rand.{quantity}", found[f"syn_many.{quantity}"], found[f"rand.{quantity}"])
    return metrics


def _one_seed(params: MinariReportParams, dataset: object, path: Path, s: int) -> dict[str, float]:
    data = read_transitions(path)
    standardise = Standardiser.of(data.obs)
    batch = td_batch(data, standardise, data.reward)
    space = dataset.action_space  # type: ignore[attr-defined]
    n_actions = int(space.n) if hasattr(space, "n") else len(action_grid(space, params.levels))
    rng = np.random.default_rng([params.seed, s, 4])
    unit = float(np.sqrt(np.mean(batch.reward**2)))
    law = BankConfig()
    bank, heldout = (
        to(bank, bank.reward_scale.dtype, params.device)
        for k in (params.predictors, 400)
        for bank in [draw_bank(law, k, data.dimension, n_actions, unit, rng, np.random.default_rng([params.seed, s, 6]))]
    )
    sets: dict[str, TdBatch] = {"full": batch, "rand": batch.take(random_rows(len(batch), params.size, rng))}
    targets = bellman_losses(batch, bank, params.gamma)
    sets["syn_many"] = distil_transitions(sets["rand"], targets, bank, params.gamma, params.matching).batch
    truth = bellman_losses(batch, heldout, params.gamma)
    starts = [int(x) for x in rng.integers(2**31, size=params.episodes)]
    values = {}
    for arm, rows in sets.items():
        networks = fit_networks([rows], params.gamma, n_actions, [s], params.learner, params.device)[-1]

        def policy(states: np.ndarray, networks: QNetworks = networks) -> np.ndarray:
            return networks.greedy(standardise(states))

        returns = rollout_returns(lambda: make_discrete(dataset, params.levels), policy, 1, starts)
        values[f"{arm}.return.minari"] = float(returns.mean())
        if arm != "full":
            values[f"{arm}.heldout_loss_error.minari"] = relative_loss_error(bellman_losses(rows, heldout, params.gamma), truth)
    return values
