"""What denoising costs: CPU seconds per 1,000 cells, and how they grow with cells, genes and levels of the reverse chain.

All in one process on one thread, the median of some repetitions, sizes side by side. The prior is a fresh network of the cpu
profile's size: what it has learnt does not change what it costs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tasks.diffusion.noise_training import DenoiserParams
from tasks.single_cell.priors import DiffusionPrior, fit_diffusion_prior
from tasks.single_cell.split_gibbs import GaussianLikelihood, GibbsParams, run_chains

LATENTS = 15


def seconds(cells: int, genes: int, prior: DiffusionPrior, chain: GibbsParams, repeat: int) -> tuple[float, float]:
    """Median CPU seconds of (likelihood set-up, chain) for so many cells and genes."""
    import torch

    rng = np.random.default_rng(0)
    loadings = np.linalg.qr(rng.standard_normal((genes, LATENTS)))[0]
    x = rng.standard_normal((cells, genes))
    setup, sampling = [], []
    for _ in range(repeat):
        begun = time.process_time()
        likelihood = GaussianLikelihood(x, loadings, 1.0)
        ready = time.process_time()
        run_chains(likelihood, prior, chain, torch.Generator().manual_seed(0))
        setup.append(ready - begun)
        sampling.append(time.process_time() - ready)
    return statistics.median(setup), statistics.median(sampling)


def main() -> None:
    """Measure and print one line per size."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sweeps", type=int, default=10, help="Gibbs sweeps that are timed; printed times are for 46, the default")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    latents = np.random.default_rng(1).standard_normal((1000, LATENTS))
    spent = []
    for steps in (1, 50, 150):  # the first one pays for imports
        begun = time.process_time()
        prior, _ = fit_diffusion_prior(latents, DenoiserParams(hidden=96, steps=steps), seed=0)
        spent.append(time.process_time() - begun)
    training = (spent[2] - spent[1]) * 10
    chain = GibbsParams(rho_start=1.0, iterations=arguments.sweeps, burn_in=0)
    full = GibbsParams().iterations / arguments.sweeps
    print(f"{training:8.2f} CPU s  training of the prior, 1,000 steps, whatever the number of cells")
    sizes = [(f"{n:>6,} cells, 2,000 genes, 16 levels", n, 2000, 16) for n in (250, 1000, 4000)]
    sizes += [(f" 1,000 cells, {d:>5,} genes, 16 levels", 1000, d, 16) for d in (500, 8000)]
    sizes += [(f" 1,000 cells, 2,000 genes, {levels} levels", 1000, 2000, levels) for levels in (8, 64)]
    for name, cells, genes, levels in sizes:
        setup, sampling = seconds(cells, genes, prior.with_steps(levels), chain, arguments.repeat)
        per_thousand = (setup + full * sampling) * 1000 / cells
        print(f"{per_thousand:8.2f} CPU s per 1,000 cells  {name}  (projection {setup:.3f} s, chain {full * sampling:.2f} s)")


if __name__ == "__main__":
    main()
