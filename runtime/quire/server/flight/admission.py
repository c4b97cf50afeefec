"""May a request come now? Whole, or not at all: one request is one that waits, however many prompts and answers it has. Pure."""

from __future__ import annotations

from collections.abc import Collection

from quire.config import ServeConfig
from quire.errors import RequestError
from quire.server.flight.work import AnyWork

MAX_SEQUENCES = 1024
"""Of one request."""
MOST_SEQUENCES = 16 * MAX_SEQUENCES
"""Of all requests, in the engine. A few words may ask for a thousand answers, each of which takes some KiB here and there while it waits."""


def check_sequences(num_sequences: int) -> None:
    """Raises RequestError where a request has more than may ever come."""
    if num_sequences > MAX_SEQUENCES:
        raise RequestError(
            f"prompts times n (or best_of) must be at most {MAX_SEQUENCES}, got {num_sequences}; send several requests",
            param="n",
            code="invalid_value",
        )


def queue_full(
    jobs: Collection[AnyWork], num_there: int, num_sequences: int, config: ServeConfig, *, engine_has_queue: bool
) -> str | None:
    """Why a request of so many sequences may not come now; None where it may.

    jobs: in flight, in the order in which they came. num_there: sequences that the engine has. engine_has_queue: it let some wait when
    it reported last, so that a place which seems free is none (memory for instance).
    """
    free = 0 if engine_has_queue else config.max_num_seqs - sum(job.num_live for job in jobs if job.begun)
    waiting = 0
    for job in jobs:
        if not job.begun:
            waiting += free <= 0
            free -= job.num_live
    if free <= 0 and waiting >= config.max_queue_size:
        return f"the queue is full: {waiting} requests wait, --max-queue-size is {config.max_queue_size}"
    most = max(MOST_SEQUENCES, config.max_queue_size + config.max_num_seqs)
    if num_there and num_there + num_sequences > most:
        return f"the queue is full: {num_there} sequences run and wait here, {most} may, and this request has {num_sequences}"
    return None
