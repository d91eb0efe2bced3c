"""Three ways to match k losses that are means over rows: Adam, L-BFGS, damped Gauss-Newton.

A problem is `per_row`: synthetic rows X (m, p) -> squared errors (m, k), whose means over rows should equal `goal` (k,). Row i
influences only its own line, which makes the Jacobian of all k means cost p forward derivatives. Everything is torch, in the
precision of X.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

PerRow = Callable[["torch.Tensor"], "torch.Tensor"]


def mismatch(per_row: PerRow, x: torch.Tensor, goal: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Objective mean_j w_j (mean_i per_row(x)_ij - goal_j)^2, a scalar."""
    return ((per_row(x).mean(0) - goal).square() * weight).mean()


def descend_adam(objective: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, steps: int, rate: float) -> torch.Tensor:
    """Adam with cosine decay to zero."""
    import torch

    x = x.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        objective(x).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return x.detach()


def descend_lbfgs(objective: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, iterations: int) -> torch.Tensor:
    """L-BFGS; x should be float64."""
    import torch
    from scipy.optimize import minimize

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.as_tensor(flat, dtype=x.dtype, device=x.device).reshape(x.shape).requires_grad_()
        value = objective(at)
        (slope,) = torch.autograd.grad(value, at)
        return float(value.detach()), slope.reshape(-1).double().cpu().numpy()

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-15, "gtol": 1e-12, "maxcor": 20}
    found = minimize(value_and_slope, x.reshape(-1).double().cpu().numpy(), jac=True, method="L-BFGS-B", options=options)
    return torch.as_tensor(found.x, dtype=x.dtype, device=x.device).reshape(x.shape)


def descend_gauss_newton(per_row: PerRow, x: torch.Tensor, goal: torch.Tensor, weight: torch.Tensor, iterations: int) -> torch.Tensor:
    """Damped Gauss-Newton (Levenberg, 1944; Marquardt, 1963): the shortest step that matches the linearised losses.

    Solved in the k losses or the m p coordinates, whichever are fewer; x should be float64.
    """
    import torch

    x = x.clone()
    root = (weight / len(goal)).sqrt()
    error = (per_row(x).mean(0) - goal) * root
    damping = 1e-3
    for _ in range(iterations):
        value = float(error.square().sum())
        if value < 1e-20 or damping > 1e10:
            break
        slopes = jacobian(per_row, x) * root  # (m p, k)
        wide = slopes.shape[0] >= slopes.shape[1]
        gram = slopes.T @ slopes if wide else slopes @ slopes.T
        side = error if wide else slopes @ error
        floor = float(gram.diagonal().mean())
        for _ in range(20):
            shifted = gram + damping * floor * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            solved = torch.cholesky_solve(side[:, None], torch.linalg.cholesky(shifted))[:, 0]
            trial = x - (slopes @ solved if wide else solved).reshape(x.shape)
            new = (per_row(trial).mean(0) - goal) * root
            if float(new.square().sum()) < value:
                x, error, damping = trial, new, max(damping / 5, 1e-10)
                break
            damping *= 4
        else:
            break
    return x


def jacobian(per_row: PerRow, x: torch.Tensor) -> torch.Tensor:
    """Derivatives (m p, k) of the k means with respect to the rows, by p forward derivatives that move all rows at once."""
    import torch

    columns = []
    for c in range(x.shape[1]):
        direction = torch.zeros_like(x)
        direction[:, c] = 1.0
        columns.append(torch.func.jvp(per_row, (x,), (direction,))[1])  # (m, k)
    stacked = torch.stack(columns, dim=1) / len(x)  # (m, p, k)
    return stacked.reshape(x.numel(), -1)
