"""Structured outputs: which tokens may come next, so that the whole answer is what the request asked for.

    gate       which of the requests that the scheduler holds may go on, since their grammar is compiled
    processor  a logits processor: a bit mask over the vocabulary per row
    client     all grammars of the engine: a bounded number of them, by content
    handle     one grammar: on its way, ready, or of no use; what its worker knows of a sequence
    nursery    the engine's end of the processes
    worker     the processes: the nursery forks workers; a worker compiles one grammar, then answers with masks
    protocol   what they say to each other; limits: what a grammar may cost, from the flags
    library    the one module that knows llguidance; ebnf: grammars with `::=` as it reads them

**Why processes.** Grammars come from users. The library can neither be interrupted nor be kept from overflowing its stack
(docs/adr/007). So every grammar lives in a process forked for it, with limits on CPU time and memory
that the kernel enforces: what explodes takes down its own worker, and with it the requests that use this grammar, which are
at fault by definition. Workers are forked from one nursery process that has read the tokenizer and does nothing else; it
starts with the first structured request, so that an engine without any pays nothing.

All but `worker`, `library` and `ebnf` is in the engine's thread and never waits, but for a tenth of a second where masks are late.
What a worker answers depends on the grammar and on the tokens told to it, nothing else; it can be told them again at any time.
"""
