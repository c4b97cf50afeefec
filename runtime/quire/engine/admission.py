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
        blocks = -(-(total - 1) // self.block_size)  # the last token generated is never computed, so it needs no slot
        if blocks > self.num_blocks:
            return (
                f"the request needs {blocks} KV blocks for {total} tokens, but the pool has {self.num_blocks}; "
                "lower max_tokens, or raise --kv-cache-memory or --num-blocks"
            )
        lowest, highest = min(tokens), max(tokens)
        if lowest < 0 or highest >= self.vocab_size:
            bad = lowest if lowest < 0 else highest
            return f"prompt token id {bad} is outside the model's vocabulary of {self.vocab_size}"
        try:
            request.params.check_ids(self.vocab_size, stops=False)
        except RequestError as exc:
            return str(exc)
        return None
