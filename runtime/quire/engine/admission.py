"""What can never be served, with the numbers: asked once, before a request enters the queue. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import RequestError
from quire.request import AddRequest


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of this engine. block_size in tokens; vocab_size is the model's output size."""

    max_model_len: int
    num_blocks: int
    block_size: int
    vocab_size: int

    def prompt_fault(self, tokens: list[int]) -> str | None:
        """Why a prompt cannot be computed, although it were alone and nothing were to follow; None where it can."""
        if not tokens:
            return "the prompt is empty; it must have at least one token"
        if len(tokens) > self.max_model_len:
            return f"the prompt has {len(tokens)} tokens, the model's length is {self.max_model_len}"
        return self._blocks_fault(len(tokens), len(tokens), "shorten it") or self._ids_fault(tokens)

    def fault(self, request: AddRequest) -> str | None:
        """Why a request does not fit, although it were alone; None where it does."""
        tokens, limit = request.prompt_token_ids, request.params.max_tokens
        if not tokens:
            return "the prompt is empty; it must have at least one token"
        if len(tokens) == self.max_model_len and limit == 1 and request.params.prompt_logprobs is not None:
            total = self.max_model_len + 1  # the prompt is scored; the token behind it is drawn and never computed
        elif len(tokens) >= self.max_model_len:
            return f"the prompt has {len(tokens)} tokens, the model's length is {self.max_model_len}, one must be left"
        elif (total := self.max_model_len if limit is None else len(tokens) + limit) > self.max_model_len:
            return (
                f"the prompt has {len(tokens)} tokens and max_tokens is {limit}, together {total}, "
                f"but the model's length is {self.max_model_len}"
            )
        # the last token generated is never computed, so it needs no slot
        found = self._blocks_fault(total - 1, total, "lower max_tokens") or self._ids_fault(tokens)
        if found is not None:
            return found
        try:
            request.params.check_ids(self.vocab_size, stops=False)
        except RequestError as exc:
            return str(exc)
        return None

    def _blocks_fault(self, num_computed: int, num_tokens: int, remedy: str) -> str | None:
        blocks = -(-num_computed // self.block_size)
        if blocks <= self.num_blocks:
            return None
        return (
            f"the request needs {blocks} KV blocks for {num_tokens} tokens, but the pool has {self.num_blocks}; "
            f"{remedy}, or raise --kv-cache-memory or --num-blocks"
        )

    def _ids_fault(self, tokens: list[int]) -> str | None:
        lowest, highest = min(tokens), max(tokens)
        if lowest >= 0 and highest < self.vocab_size:
            return None
        bad = lowest if lowest < 0 else highest
        return f"prompt token id {bad} is outside the model's vocabulary of {self.vocab_size}"
