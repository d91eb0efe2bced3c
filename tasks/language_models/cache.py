"""The one place that knows how transformers keeps keys and values: prefill, append, crop, repeat, read.

Releases rename the cache's arguments and change what `crop` takes; everything else in the tree goes through this adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class KeyValueCache:
    """Keys and values of a decoder model for one batch of contexts of equal length.

    Keys and values of layer `i` have shape (B, H_kv, n, d). Cropping never copies, so `fork` before writing to a shared prefix.

    Example:
        >>> cache = KeyValueCache(model)                       # doctest: +SKIP
        >>> logits = cache.append(context_ids)                 # (B, 1, vocabulary), after the whole context
        >>> answer = cache.append(answer_ids, keep=0)          # (B, T, vocabulary), one row per new token
        >>> cache.crop(context_ids.shape[1])                   # forget the answer
    """

    def __init__(self, model: Any, store: Any = None) -> None:
        from transformers import DynamicCache

        self.model = model
        self.store = DynamicCache(config=model.config) if store is None else store

    @property
    def length(self) -> int:
        """Tokens stored, n."""
        return int(self.store.get_seq_length())

    def append(self, ids: torch.Tensor, *, keep: int = 1, positions: torch.Tensor | None = None, **arguments: Any) -> torch.Tensor:
        """Run the model over new tokens and keep their keys and values.

        Args:
            ids: (B, T) token ids that follow what is stored.
            keep: logits of the last `keep` tokens are returned; 0 for all T.
            positions: (B, T) position ids; None to count on from `length`.
            arguments: passed to the model (`attention_mask`, ...).

        Returns:
            Logits (B, keep or T, vocabulary), in the model's dtype.

        Raises:
            ValueError: if no token is given or the positions end before the last token.
        """
        import torch

        from tasks.language_models.pretrained import check_length

        if ids.ndim != 2 or ids.shape[1] == 0:
            raise ValueError(f"ids must have shape (B, T) with T >= 1, got {tuple(ids.shape)}")
        start = self.length
        check_length(self.model, start + ids.shape[1])
        if positions is None:
            positions = torch.arange(start, start + ids.shape[1], device=ids.device).expand(ids.shape[0], -1)
        with torch.inference_mode():
            found = self.model(ids, cache=self.store, use_cache=True, position_ids=positions, logits_to_keep=keep, **arguments)
        logits: torch.Tensor = found.logits
        return logits

    def crop(self, length: int) -> None:
        """Forget everything after the first `length` tokens.

        Raises:
            ValueError: if fewer are stored, or `length` is negative.
        """
        stored = self.length
        if not 0 <= length <= stored:
            raise ValueError(f"length must lie in 0..{stored} (what is stored), got {length}")
        if length < stored:
            self.store.crop(length - stored)  # transformers counts the tokens to remove, negatively

    def batch_repeat(self, times: int) -> None:
        """Repeat every row `times` times; the copies of one row are neighbours.

        Raises:
            ValueError: if `times` is less than 1.
        """
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        self.store.batch_repeat_interleave(times)

    def batch_select(self, rows: torch.Tensor) -> None:
        """Keep these rows of the batch, in this order."""
        self.store.batch_select_indices(rows)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each (B, H_kv, n, d)."""
        layer: Any = self.store.layers[index]
        return layer.keys, layer.values

    @property
    def layers(self) -> int:
        """Number of layers that hold something."""
        return len(self.store.layers)

    def fork(self) -> KeyValueCache:
        """A copy that can grow by itself; the bytes stored so far are shared until one of the two writes."""
        from transformers import DynamicCache

        twin = DynamicCache(config=self.model.config)
        for index in range(self.layers):
            keys, values = self.layer(index)
            twin.update(keys, values, index)
        return KeyValueCache(self.model, twin)


def prefill(model: Any, ids: torch.Tensor, *, keep: int = 1) -> tuple[KeyValueCache, torch.Tensor]:
    """Cache of a context and the logits (B, keep, vocabulary) of its last tokens.

    Args:
        model: a transformers causal language model.
        ids: (B, T) token ids.
        keep: as in `KeyValueCache.append`.
    """
    cache = KeyValueCache(model)
    return cache, cache.append(ids, keep=keep)
