"""Structured outputs: which tokens may come next, so that the whole answer is what the request asked for.

    gate       holds a request back until its grammar is compiled          (engine's thread)
    processor  a logits processor: a bit mask over the vocabulary per row  (engine's thread)
    client     the engine's end: one worker for each grammar, a bounded cache of them
    worker     the other end: compiles one grammar, then answers with masks (a process of its own)
    library    the one module that knows llguidance

**Why processes.** Grammars come from users. The library can neither be interrupted nor be kept from overflowing its stack
(docs/adr/007). So every grammar lives in a process forked for it, with limits on CPU time and memory
that the kernel enforces: what explodes takes down its own worker, and with it the requests that use this grammar, which are
at fault by definition. Workers are forked from one nursery process that has read the tokenizer and does nothing else; it
starts with the first structured request, so that an engine without any pays nothing.

What a worker answers depends on the grammar and on the tokens told to it, nothing else; it can be told them again at any time.
"""
