"""From logits to tokens: an ordered pipeline over the rows of a step, all rows at once.

    logits [R, V]
      -> logits processors      what may be drawn, and how likely (`processors`, `penalties`, `plugins`, the grammar's mask)
      -> temperature            greedy rows end here: the likeliest token
      -> min-p, typical-p, top-k, top-p   (`restrict`)
      -> draw                   counter-based noise (`draw`)
    raw logits -> logprobs      before any processor (`logprobs`)

**How a processor joins.** A logits processor is an object with the two methods of `LogitsProcessor`: `wants(params)` is
asked once per request, `apply(logits, where, rows)` changes float32 logits [N, V] in place, once per step for all rows
that want it: `logits[where[i]]` belongs to `rows[i]`. It forbids a token by -inf. What it must remember of a request
goes into `row.scratch` under its own key and must follow from `row.params` and `row.tokens` alone, so that preemption,
a copy of the sequence and a restart cannot change an answer. What goes wrong for one row is returned, never raised.
`default_processors` gives the order; a grammar's mask comes last, so that nothing lifts what it forbids.

A step none of whose requests wants a processor pays for none: their rows are neither copied nor visited.
"""

from quire.engine.sampling.pipeline import LogitsProcessor, Row, Sampler

__all__ = ["LogitsProcessor", "Row", "Sampler"]
