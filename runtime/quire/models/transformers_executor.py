"""The executor around a model of transformers: a flattened batch as one row, [1, T], and its two halves apart.

Nothing here imports transformers; a model is a torch module that takes `input_ids` and `position_ids`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from quire.models.executor import SMALL_CHUNK, Batch, KVPool
from quire.models.transformers_attention import AttentionLayer, PagedStep, attending


class _Hidden:
    """What a body returns: hidden states as attribute and as first element, nothing else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _Given(nn.Module):
    """Stands where the body was and returns what it is given."""

    hidden: Tensor

    def forward(self, *_: Any, **__: Any) -> _Hidden:
        return _Hidden(self.hidden)


class Halves:
    """A causal model, taken apart: its body makes hidden states, the rest of it (head, scales, caps) makes logits.

    The model cannot be called whole afterwards.
    """

    def __init__(self, model: nn.Module, body: str) -> None:
        """body: name of the module whose `last_hidden_state` the rest reads."""
        parent, _, name = body.rpartition(".")
        self._body = model.get_submodule(body)
        self._rest = model
        self._given = _Given()
        setattr(model.get_submodule(parent), name, self._given)

    def hidden(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [T, H] of a flattened batch [T], after the last norm."""
        output = self._body(input_ids=token_ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False)
        hidden: Tensor = output.last_hidden_state.squeeze(0)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of hidden states [R, H]."""
        self._given.hidden = hidden.unsqueeze(0)
        token_ids = torch.zeros(1, hidden.shape[0], dtype=torch.int64, device=hidden.device)  # only their shape is read
        logits: Tensor = self._rest(input_ids=token_ids, use_cache=False).logits.squeeze(0)
        return logits


class TransformersExecutor:
    """See `executor.Executor`."""

    name = "transformers"
    batch_invariant = False
    small_chunk = SMALL_CHUNK

    def __init__(
        self,
        model: nn.Module,
        layers: tuple[AttentionLayer, ...],
        body: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Takes the model apart; see `Halves`."""
        self.dtype = dtype
        self.device = device
        self._layers = {model.get_submodule(layer.module): layer for layer in layers}
        self._halves = Halves(model, body)

    @torch.inference_mode()
    def forward(self, batch: Batch, kv: KVPool) -> Tensor:
        """Hidden states [R, H] of the rows asked for; writes the batch's keys and values."""
        with attending(PagedStep(self._layers, batch, kv, self.dtype)):
            hidden = self._halves.hidden(batch.token_ids, batch.positions)
        return hidden.index_select(0, batch.logit_rows)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of hidden states [R, H]."""
        return self._halves.logits(hidden)
