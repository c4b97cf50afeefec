"""Block tables and the prefix cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.kvcache.hashing import BlockHasher
from quire.kvcache.manager import BlockTable, KVCacheManager


def filled(kv: KVCacheManager, tokens: list[int], context: bytes = b"") -> BlockTable:
    """A table that went through the pool like a sequence of these tokens."""
    table = kv.table(context)
    start = kv.adopt(table, kv.find_prefix(table, tokens))
    assert kv.grow(table, tokens, start, len(tokens), [])
    return table


def hits(kv: KVCacheManager, tokens: list[int], context: bytes = b"") -> int:
    return kv.find_prefix(kv.table(context), tokens).num_tokens


def test_grow_is_all_or_nothing() -> None:
    kv = KVCacheManager(3, 4)
    table = filled(kv, list(range(8)))
    assert not kv.grow(table, list(range(17)), 8, 17, [])
    assert (len(table.blocks), kv.pool.num_free) == (2, 1)
    assert kv.grow(table, list(range(12)), 8, 12, [])
    assert kv.pool.num_free == 0
    kv.release(table)
    assert kv.pool.num_free == 3
    assert list(table.block_ids) == []


def test_a_full_prompt_hit_leaves_a_token_to_compute() -> None:
    kv = KVCacheManager(8, 4)
    kv.release(filled(kv, list(range(8))))
    assert hits(kv, list(range(8))) == 4
    assert hits(kv, list(range(9))) == 8
    assert hits(kv, [0]) == 0
    assert hits(kv, []) == 0


def test_a_block_counts_only_after_all_before_it() -> None:
    kv = KVCacheManager(8, 2)
    kv.release(filled(kv, [1, 2, 3, 4, 5, 6]))
    assert hits(kv, [9, 9, 3, 4, 5, 6, 7]) == 0
    assert hits(kv, [1, 2, 9, 9, 5, 6, 7]) == 2


def test_contexts_do_not_share() -> None:
    kv = KVCacheManager(8, 2)
    kv.release(filled(kv, [1, 2, 3, 4], b"tenant a"))
    assert hits(kv, [1, 2, 3, 4, 5], b"tenant a") == 4
    assert hits(kv, [1, 2, 3, 4, 5], b"tenant b") == 0
    assert hits(kv, [1, 2, 3, 4, 5]) == 0


def test_nothing_is_found_without_prefix_caching() -> None:
    kv = KVCacheManager(8, 2, enable_prefix_caching=False)
    kv.release(filled(kv, [1, 2, 3, 4]))
    assert hits(kv, [1, 2, 3, 4, 5]) == 0


def test_shared_blocks_are_held_by_each() -> None:
    kv = KVCacheManager(8, 2)
    one, two = filled(kv, [1, 2, 3, 4, 5]), filled(kv, [1, 2, 3, 4, 6])
    assert one.block_ids[:2] == two.block_ids[:2]
    assert kv.pool.num_used == 4
    kv.release(one)
    assert kv.pool.num_used == 3
    kv.release(two)
    assert kv.pool.num_used == 0
    assert kv.pool.check() == []


def test_a_prefix_outlives_its_tail() -> None:
    kv = KVCacheManager(4, 2)
    kv.release(filled(kv, [1, 2, 3, 4, 5, 6, 7, 8]))
    held = filled(kv, [11, 12, 13, 14])
    assert hits(kv, [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 4
    kv.release(held)


def test_keys_are_secret_and_strong() -> None:
    def keys(hasher: BlockHasher) -> list[bytes]:
        out: list[bytes] = []
        hasher.extend(out, hasher.root(), [1, 2, 3, 4], 4)
        return out

    assert keys(BlockHasher(2)) != keys(BlockHasher(2))
    assert keys(BlockHasher(2, b"s")) == keys(BlockHasher(2, b"s"))
    assert len(keys(BlockHasher(2))[0]) == 16


@given(
    tokens=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    block_size=st.integers(1, 5),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_keys_do_not_depend_on_when_they_are_made(tokens: list[int], block_size: int, cuts: list[int]) -> None:
    hasher = BlockHasher(block_size, b"s")
    root = hasher.root()
    whole: list[bytes] = []
    hasher.extend(whole, root, tokens, len(tokens))
    assert len(whole) == len(set(whole)) == len(tokens) // block_size
    pieces: list[bytes] = []
    for cut in sorted(min(cut, len(tokens)) for cut in cuts):
        hasher.extend(pieces, root, tokens, cut)
    hasher.extend(pieces, root, tokens, len(tokens))
    assert pieces == whole


def ended(kv: KVCacheManager, tokens: list[int]) -> BlockTable:
    """A sequence whose tokens were all computed has come and gone."""
    table = filled(kv, tokens)
    kv.publish_tail(table, tokens, len(tokens))
    kv.release(table)
    return table


def test_a_block_that_is_filled_in_part_is_found() -> None:
    kv = KVCacheManager(8, 4)
    ended(kv, list(range(10)))
    assert hits(kv, list(range(11))) == hits(kv, [*range(10), 99, 99]) == 10
    assert hits(kv, list(range(10))) == 8, "of two tokens there, one must be computed"
    assert hits(kv, [*range(9), 99, 99]) == 8
    assert hits(kv, list(range(3))) == 0
    assert hits(kv, list(range(11)), b"tenant") == 0
    ended(kv, [7, 8])
    assert hits(kv, [7, 8, 9]) == 2
    assert hits(KVCacheManager(8, 4, enable_prefix_caching=False), list(range(11))) == 0


def test_who_finds_it_writes_into_it_and_the_next_into_a_copy() -> None:
    kv = KVCacheManager(8, 4)
    ended(kv, list(range(6)))
    one, two = kv.table(), kv.table()
    copies: list[tuple[int, int]] = []
    tail = kv.find_prefix(one, [*range(6), 7]).tail
    assert tail is not None
    assert kv.adopt(one, kv.find_prefix(one, [*range(6), 7])) == 6
    assert kv.grow(one, [*range(6), 7], 6, 7, copies)
    assert copies == [] and one.blocks[1] is tail
    assert kv.adopt(two, kv.find_prefix(two, [*range(6), 8])) == 6
    assert kv.grow(two, [*range(6), 8], 6, 7, copies)
    assert copies == [(tail.id, two.blocks[1].id)] and two.blocks[1] is not tail
    assert kv.pool.num_used == 3
    assert kv.pool.check() == []


def test_its_name_changes_as_it_fills() -> None:
    kv = KVCacheManager(8, 4)
    ended(kv, list(range(5)))
    ended(kv, list(range(7)))
    assert hits(kv, [*range(7), 99]) == 7
    assert hits(kv, [*range(5), 99]) == 4, "a block has one name"
    ended(kv, list(range(8)))
    assert hits(kv, [*range(8), 99]) == 8
    assert hits(kv, [*range(7), 99]) == 4
    assert kv.pool.check() == []


def test_a_block_that_a_step_was_about_to_fill_keeps_its_name() -> None:
    kv = KVCacheManager(8, 4)
    table = filled(kv, list(range(8)))
    kv.publish_tail(table, list(range(8)), 6)  # aborted while the last two are computed
    kv.release(table)
    assert hits(kv, [*range(8), 99]) == 8


def test_what_was_begun_before_all_was_forgotten_is_not_found() -> None:
    kv = KVCacheManager(8, 4)
    short, longer = filled(kv, [1, 2, 3]), filled(kv, [5, 6, 7])
    kv.pool.forget_all()
    kv.publish_tail(short, [1, 2, 3], 3)
    assert kv.grow(longer, [5, 6, 7, 8], 3, 4, [])
    assert hits(kv, [1, 2, 3, 4]) == hits(kv, [5, 6, 7, 8, 9]) == 0
    kv.release(short)
    kv.release(longer)
    kv.release(filled(kv, [5, 6, 7, 8]))
    assert hits(kv, [5, 6, 7, 8, 9]) == 4
