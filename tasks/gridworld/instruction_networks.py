"""Actor and critic that read an instruction: convolutions over the view, a recurrent encoder over the words."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tasks.gridworld.instruction_worlds import LONGEST, WORDS
from tasks.rl.networks import generator


class InstructionNetwork(nn.Module):
    """Three convolutions over embedded cells, a GRU over embedded words, two layers on both.

    Args:
        outputs: A for an actor, 1 for a critic.
        rng: of the weights.
        width: channels, hidden units and size of the GRU.
        last_gain: factor of the last layer's weights.
    """

    def __init__(self, outputs: int, rng: torch.Generator, width: int = 128, last_gain: float = 1.0) -> None:
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(count, width) for count in (11, 6, 4))  # type, colour, state
        self.direction = nn.Embedding(4, width)
        self.words = nn.Embedding(len(WORDS), width, padding_idx=0)
        self.reader = nn.GRU(width, width, batch_first=True)
        layers = [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3)]
        self.eyes = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(9 * width + 2 * width, width), nn.Tanh(), nn.Linear(width, outputs))
        initialise(self, rng)
        with torch.no_grad():
            next(self.head[-1].parameters()).mul_(last_gain)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Observations (N, WIDTH), whole numbers -> (N, outputs)."""
        cells = observation[:, :147].reshape(-1, 7, 7, 3)
        seen = sum(embed(cells[..., i]) for i, embed in enumerate(self.kinds))  # (N, 7, 7, C)
        words = observation[:, 148 : 148 + LONGEST]
        read, _ = self.reader(self.words(words))
        last = (words != 0).sum(1).clamp_min(1) - 1
        told = read[torch.arange(len(words), device=words.device), last]
        joint = torch.cat([self.eyes(seen.permute(0, 3, 1, 2)), self.direction(observation[:, 147]), told], 1)
        found: torch.Tensor = self.head(joint)
        return found


class InstructionPolicy:
    """Actor and critic over packed observations (N, WIDTH); nothing is tabulated."""

    def __init__(self, actions: int, seed: int, width: int = 128, device: str = "cpu") -> None:
        self.actor: nn.Module = InstructionNetwork(actions, generator(seed, 0), width, last_gain=0.1).to(device)
        self.critic: nn.Module = InstructionNetwork(1, generator(seed, 1), width).to(device)
        self._device = device

    def logits(self, observation: np.ndarray) -> torch.Tensor:
        """Action logits (N, A)."""
        found: torch.Tensor = self.actor(self._tensor(observation))
        return found

    def logits_and_values(self, observation: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Action logits (N, A) and values (N,)."""
        inputs = self._tensor(observation)
        return self.actor(inputs), self.critic(inputs)[:, 0]

    def behaviour(self, observation: np.ndarray) -> np.ndarray:
        """Action probabilities (N, A)."""
        with torch.no_grad():
            return np.asarray(self.logits(observation).softmax(-1).cpu().numpy())

    def appraise(self, observation: np.ndarray) -> np.ndarray:
        """Values (N,), in parts that fit into memory."""
        parts = np.array_split(observation, -(-len(observation) // 4096)) if len(observation) else []
        with torch.no_grad():
            return np.concatenate([self.critic(self._tensor(part))[:, 0].cpu().numpy() for part in parts] or [np.empty(0, np.float32)])

    def refresh(self) -> None:
        """Nothing to forget."""

    def _tensor(self, observation: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(observation.astype(np.int64)).to(self._device)


def initialise(network: nn.Module, rng: torch.Generator) -> None:
    """Xavier weights, small normal embeddings, biases 0, all from one generator."""
    embeddings = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim == 1:
                weight.zero_()
            elif id(weight) in embeddings:
                weight.normal_(0.0, 0.1, generator=rng)
            else:
                nn.init.xavier_uniform_(weight, generator=rng)
