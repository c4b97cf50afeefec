"""The books of the KV cache: who holds which block, compared with what the pools say. For idle moments and tests."""

from __future__ import annotations

from collections import Counter

from quire.engine.scheduler import Scheduler
from quire.engine.sequence import State


def faults(scheduler: Scheduler) -> list[str]:
    """Violated invariants of sequences and pools together, in words; empty where all is well. Linear in the pools."""
    held, stored = holders(scheduler)
    found = [*scheduler.kv.pool.check(), *scheduler.kv.pool.check_holders(held)]
    if scheduler.swap is not None:
        found += [f"host pool: {fault}" for fault in scheduler.swap.pool.check()]
        found += [f"host pool: {fault}" for fault in scheduler.swap.pool.check_holders(stored)]
    for sequence in scheduler.sequences():
        table, name = sequence.table, sequence.request_id
        if list(table.block_ids) != [block.id for block in table.blocks]:
            found.append(f"{name}: block ids differ from blocks")
        if sequence.state is State.RUNNING:
            if len(table.blocks) * scheduler.kv.block_size < sequence.num_computed:
                found.append(f"{name}: fewer slots than computed tokens")
        elif table.blocks:
            found.append(f"{name} does not run but holds blocks")
        if bool(sequence.host_blocks) != (sequence.state is State.SWAPPED):
            found.append(f"{name} is {sequence.state.name} and holds {len(sequence.host_blocks)} host blocks")
    return found


def holders(scheduler: Scheduler) -> tuple[Counter[int], Counter[int]]:
    """How many sequences hold each block, by id: in the device's pool, and in the host's."""
    held = Counter(block.id for sequence in scheduler.sequences() for block in sequence.table.blocks)
    stored = Counter(block.id for sequence in scheduler.sequences() for block in sequence.host_blocks)
    return held, stored


def heal(scheduler: Scheduler) -> None:
    """Make the pools agree with the sequences, which are right: what nobody holds is free again."""
    held, stored = holders(scheduler)
    scheduler.kv.pool.rebuild(held)
    if scheduler.swap is not None:
        scheduler.swap.pool.rebuild(stored)
