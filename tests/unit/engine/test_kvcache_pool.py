"""The block pool: order of reuse, references, what can be found."""

from __future__ import annotations

import pytest

from quire.kvcache.pool import BlockPool


def test_takes_every_block_once() -> None:
    pool = BlockPool(5)
    assert [pool.take().id for _ in range(5)] == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 5)
    assert pool.check() == []
    with pytest.raises(AssertionError, match="empty pool"):
        pool.take()


def test_unnamed_blocks_are_reused_before_named_ones() -> None:
    pool = BlockPool(3)
    named, plain, spare = pool.take(), pool.take(), pool.take()
    pool.publish(named, b"key")
    pool.release([named, plain])
    assert [block.id for block in pool.free_blocks()] == [plain.id, named.id]
    pool.release([spare])
    assert pool.take() is spare


def test_named_blocks_are_evicted_least_recently_used_first_and_tails_first() -> None:
    pool = BlockPool(4)
    first = [pool.take(), pool.take()]
    second = [pool.take(), pool.take()]
    for block in first + second:
        pool.publish(block, bytes([block.id]))
    pool.release(reversed(first))
    pool.release(reversed(second))
    assert [pool.take() for _ in range(4)] == [first[1], first[0], second[1], second[0]]
    assert pool.find(bytes([first[0].id])) is None


def test_a_found_block_leaves_the_free_list_from_the_middle() -> None:
    pool = BlockPool(3)
    blocks = [pool.take() for _ in range(3)]
    for block in blocks:
        pool.publish(block, bytes([block.id]))
    pool.release(blocks)
    found = pool.find(bytes([1]))
    assert found is blocks[1]
    pool.hold(found)
    pool.hold(found)
    assert [block.id for block in pool.free_blocks()] == [0, 2]
    pool.release([found])
    assert pool.num_free == 2
    pool.release([found])
    assert [block.id for block in pool.free_blocks()] == [0, 2, 1]
    assert pool.check() == []


def test_the_first_of_two_equal_blocks_is_found() -> None:
    pool = BlockPool(2)
    one, two = pool.take(), pool.take()
    pool.publish(one, b"same")
    pool.publish(two, b"same")
    assert pool.find(b"same") is one
    assert two.key is None
    pool.release([one, two])
    assert pool.take() is two
    assert pool.find(b"same") is one


def test_forgetting_keeps_holders() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.publish(block, b"key")
    pool.forget_all()
    assert pool.find(b"key") is None
    assert (block.references, pool.num_used) == (1, 1)
    pool.publish(block, b"other")
    assert pool.check() == []


def test_releasing_twice_is_noticed() -> None:
    pool = BlockPool(2)
    block = pool.take()
    pool.release([block])
    with pytest.raises(AssertionError, match="released by nobody"):
        pool.release([block])


def test_check_reports_what_is_wrong() -> None:
    pool = BlockPool(3)
    block = pool.take()
    block.references = 0
    assert any("held by nobody" in fault for fault in pool.check())
    block.references = 1
    pool.num_free += 1
    assert any("counted free" in fault for fault in pool.check())
