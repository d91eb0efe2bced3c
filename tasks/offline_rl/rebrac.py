"""ReBRAC (Tarasov et al., NeurIPS 2023): TD3+BC with the behaviour penalty in the critic's target too, and layer-normalised critics.

The paper minimises beta_1 |pi(s) - a|^2 - Q / mean|Q|. TD3+BC takes the mean over the a action coordinates and weighs Q instead, so the
same minimum has alpha = 1 / (a beta_1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from tasks.offline_rl.value_learning import ValueConfig

if TYPE_CHECKING:
    import torch

    from tasks.offline_rl.td3bc import Td3Bc


class ReBracConfig(ValueConfig):
    """ReBRAC.

    Attributes:
        actor_penalty: beta_1, of |pi(s) - a|^2 beside the normalised Q.
        critic_penalty: beta_2, of |pi'(s') - a'|^2 in the target.
        noise: of the target policy's smoothing.
    """

    actor_penalty: float = Field(0.05, gt=0)
    critic_penalty: float = Field(0.01, ge=0)
    noise: float = Field(0.2, ge=0)


def rebrac(generators: Sequence[torch.Generator], d: int, a: int, config: ReBracConfig, device: str = "cpu") -> Td3Bc:
    """P learners, see `tasks.offline_rl.td3bc`.

    Example:
        >>> import torch
        >>> rebrac([torch.Generator().manual_seed(0)], 3, 2, ReBracConfig(hidden=(8,))).config.layer_norm
        True
    """
    from tasks.offline_rl.td3bc import Td3Bc, Td3BcConfig

    shared = {name: getattr(config, name) for name in ValueConfig.model_fields}
    return Td3Bc(
        generators,
        d,
        a,
        Td3BcConfig(
            **shared, alpha=1 / (a * config.actor_penalty), noise=config.noise, critic_penalty=config.critic_penalty, layer_norm=True
        ),
        device,
    )
