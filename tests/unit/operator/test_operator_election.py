"""Who leads: the decision, electors that are stopped anywhere in simulated time, and what the fence lets out of the process."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire_operator import election
from quire_operator.cluster import lease
from quire_operator.cluster.fence import FencedTransport
from quire_operator.cluster.lease import LeaseStore
from quire_operator.election import Alone, Election
from quire_operator.errors import NotLeadingError
from quire_operator.policy.leadership import (
    LEAD_S,
    LEASE_S,
    RENEW_S,
    REQUEST_S,
    LeaseView,
    Sighting,
    next_move,
    sighted,
)
from scripted_api import scripted_api

HELD = LeaseView("other", "7", 10.0)


def test_what_to_do_about_the_lease() -> None:
    assert next_move("me", None, 0.0) == "create"
    assert next_move("me", Sighting(LeaseView("me", "1", 10.0), 0.0), 500.0) == "renew"
    assert next_move("me", Sighting(LeaseView("", "1", 10.0), 0.0), 0.0) == "take", "it was given back"
    assert next_move("me", Sighting(HELD, 100.0), 109.9) == "wait"
    assert next_move("me", Sighting(HELD, 100.0), 110.0) == "take"


def test_a_version_keeps_the_time_it_was_seen_first() -> None:
    first = sighted(None, HELD, 5.0)
    assert first is not None and sighted(first, HELD, 9.0) is first
    renewed = LeaseView("other", "8", 10.0)
    assert sighted(first, renewed, 9.0) == Sighting(renewed, 9.0)
    assert sighted(first, None, 9.0) is first, "it was deleted, and its holder may not know"
    assert sighted(first, None, 15.0) is None
    assert sighted(Sighting(LeaseView("", "7", 10.0), 5.0), None, 9.0) is None, "it was given back"


# -- several, stopped anywhere


@types.coroutine
def stop() -> Generator[None, None, None]:
    """Here the simulation may let time pass, or others act."""
    yield


class Server:
    """The Lease as the API server keeps it; the clock of all."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.lease: LeaseView | None = None
        self.versions = 0


class SlowStore:
    """Requests and answers take their time."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read(self) -> LeaseView | None:
        await stop()
        found = self._server.lease
        await stop()
        return found

    async def write(self, holder: str, before: LeaseView | None) -> LeaseView | None:
        await stop()
        server = self._server
        if (server.lease.version if server.lease else None) != (before.version if before else None):
            return None
        server.versions += 1
        server.lease = LeaseView(holder, str(server.versions), float(LEASE_S))
        written = server.lease
        await stop()
        return written


async def live(one: Election) -> None:
    while True:
        with contextlib.suppress(httpx2.ReadTimeout):
            await one.turn()
            await stop()


def electors(number: int) -> tuple[Server, list[Election], list[Coroutine[Any, Any, None]]]:
    server = Server()
    made = [Election(SlowStore(server), f"operator-{n}", clock=lambda: server.now) for n in range(number)]
    lives = [live(one) for one in made]
    for each in lives:
        each.send(None)  # up to its first request
    return server, made, lives


pauses = st.sampled_from([0.0, 0.0, 0.1, 1.0, 5.0, LEAD_S - 0.1, LEAD_S, LEASE_S - 0.1, LEASE_S, 60.0])
bursts = st.tuples(st.integers(0, 2), pauses, st.integers(1, 8), st.booleans())


@settings(max_examples=300, deadline=None)
@given(st.lists(bursts, max_size=40))
def test_there_are_never_two_and_one_in_the_end(happens: list[tuple[int, float, int, bool]]) -> None:
    """Each burst: some time passes, and one of them goes on by so many steps; perhaps the last answer is lost."""
    server, all_of_them, lives = electors(3)
    for who, pause_s, number, lost in happens:
        server.now += pause_s
        for _ in range(number):
            lives[who].send(None)
            assert sum(one.leading for one in all_of_them) <= 1
        if lost:
            lives[who].throw(httpx2.ReadTimeout("the answer is lost"))
    for _ in range(200):
        server.now += 0.1
        for each in lives:
            each.send(None)
            assert sum(one.leading for one in all_of_them) <= 1
    assert sum(one.leading for one in all_of_them) == 1
    for each in lives:
        each.close()


def test_who_saw_the_lease_that_somebody_deletes_waits_for_its_holder() -> None:
    server, [one, other], [life, others] = electors(2)
    while not one.leading:
        life.send(None)
    for _ in range(6):
        others.send(None)
    server.lease = None
    for _ in range(20):
        others.send(None)
        assert one.leading and not other.leading
    server.now += 2.0
    for _ in range(8):
        life.send(None)
    assert one.leading and server.lease is not None
    server.lease = None
    for _ in range(12):
        server.now += 1.0
        for _ in range(6):
            others.send(None)
            assert not (one.leading and other.leading)
    assert other.leading, "its holder is gone"
    for each in (life, others):
        each.close()


def test_an_answer_that_is_late_does_not_lengthen_the_lead() -> None:
    server, [one, other], [life, others] = electors(2)
    while server.lease is None:
        life.send(None)  # until the lease is written, and the answer under way
    for _ in range(6):
        others.send(None)
    server.now += 5.0
    life.send(None)
    assert one.leading
    server.now += LEASE_S - 5.0
    for _ in range(10):
        others.send(None)
        assert not (one.leading and other.leading)
    assert other.leading
    for each in (life, others):
        each.close()


def test_a_leader_that_slept_knows_when_it_wakes_up() -> None:
    server, [one], [life] = electors(1)
    for _ in range(8):
        life.send(None)
    assert one.leading
    one.require()
    server.now += LEAD_S
    assert not one.leading, "before it has asked anybody"
    with pytest.raises(NotLeadingError, match="operator-0 does not hold the lease"):
        one.require()
    life.close()


# -- with a server that is slow, in simulated time


class SimulatedTime(asyncio.SelectorEventLoop):
    """Its clock jumps to the next moment that somebody waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        look = self._selector.select

        def jump(timeout: float | None = None) -> Any:
            self.now += timeout or 0.0
            return look(0)

        self._selector.select = jump

    def time(self) -> float:
        return self.now


class LateStore:
    """Each request takes `answer_s`, half of it until the server does it; every `hangs`-th is never answered, nor done."""

    def __init__(self, server: Server, answer_s: float, hangs: int = 0) -> None:
        self._server = server
        self.answer_s = answer_s
        self._hangs = hangs
        self._asked = 0

    async def _half(self) -> None:
        await asyncio.sleep(self.answer_s / 2)

    async def _arrive(self) -> None:
        self._asked += 1
        if self._hangs and self._asked % self._hangs == 0:
            await asyncio.sleep(REQUEST_S)
            raise TimeoutError
        await self._half()

    async def read(self) -> LeaseView | None:
        await self._arrive()
        found = self._server.lease
        await self._half()
        return found

    async def write(self, holder: str, before: LeaseView | None) -> LeaseView | None:
        await self._arrive()
        server = self._server
        if (server.lease.version if server.lease else None) != (before.version if before else None):
            await self._half()
            return None
        server.versions += 1
        server.lease = written = LeaseView(holder, str(server.versions), float(LEASE_S))
        await self._half()
        return written


@pytest.mark.parametrize(("answer_s", "hangs"), [(0.01, 0), (1.9, 0), (2.5, 0), (4.0, 0), (0.01, 3), (1.0, 4)], ids=str)
def test_a_leader_stays_it_when_the_server_is_slow_or_an_answer_does_not_come(answer_s: float, hangs: int) -> None:
    async def scene() -> tuple[list[bool], float]:
        loop, server, told = asyncio.get_running_loop(), Server(), list[bool]()
        stores = [LateStore(server, answer_s, hangs), LateStore(server, answer_s)]
        one, other = (
            Election(store, name, clock=loop.time) for store, name in zip(stores, ("one", "other"), strict=True)
        )
        leads = asyncio.Event()

        def changed() -> None:
            told.append(one.leading)
            leads.set()

        one.changed = changed
        parts = [asyncio.create_task(one.run())]
        await leads.wait()
        parts.append(asyncio.create_task(other.run()))
        while loop.time() < 600.0:
            await asyncio.sleep(0.05)
            assert not other.leading
        parts[0].cancel()
        died = loop.time()
        while not other.leading:
            await asyncio.sleep(0.05)
            assert not (one.leading and other.leading)
        parts[1].cancel()
        await asyncio.gather(*parts, return_exceptions=True)
        return told, loop.time() - died

    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        told, failover_s = runner.run(scene())
    assert told == [True], "it is told once that it leads, and never that it does so again"
    assert failover_s < LEASE_S + RENEW_S + 3 * answer_s


async def test_a_lease_that_is_another_one_or_gone_is_not_held_and_an_answer_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted_api() as api:
        client = api.client()
        store = LeaseStore(client, "demo", "quire-operator")
        assert await store.read() is None
        first = await store.write("me", None)
        assert first is not None and first.holder == "me" and await store.write("other", None) is None
        second = await store.write("me", first)
        assert second is not None and await store.write("me", first) is None, "it has changed"
        api.objects.clear()
        assert await store.write("me", second) is None and await store.read() is None
        await client.close()

        silence, open_ = asyncio.Event(), list[asyncio.Task[None] | None]()

        async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_.append(asyncio.current_task())
            await silence.wait()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        api.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setattr(lease, "REQUEST_S", 0.05)
        client = api.client()
        store = LeaseStore(client, "demo", "quire-operator")
        async with asyncio.timeout(60):
            for request in (store.read(), store.write("me", None), store.write("me", second)):
                with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
                    await request
        await client.close()
        silence.set()
        await asyncio.gather(*(each for each in open_ if each is not None))
        server.close()


# -- as it runs


class Memory:
    def __init__(self, lease: LeaseView | None = None) -> None:
        self.lease = lease
        self.fails: Exception | None = None

    async def read(self) -> LeaseView | None:
        if self.fails is not None:
            raise self.fails
        return self.lease

    async def write(self, holder: str, before: LeaseView | None) -> LeaseView | None:
        number = int(before.version) + 1 if before is not None else 1
        self.lease = LeaseView(holder, str(number), 10.0)
        return self.lease


async def test_it_is_told_when_it_leads_and_when_not_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(election, "RENEW_S", 0.001)
    store, now = Memory(), 0.0
    one = Election(store, "me", clock=lambda: now)
    turned = asyncio.Event()
    one.changed = turned.set
    task = asyncio.create_task(one.run())
    async with asyncio.timeout(20):
        await turned.wait()
        assert one.leading and store.lease is not None and store.lease.holder == "me"
        turned.clear()
        store.fails = httpx2.ConnectError("no API server")
        now += LEAD_S
        await turned.wait()
    assert not one.leading
    assert [each.message for each in caplog.records].count("the lease cannot be read or renewed: no API server") == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_that_slept_is_told_that_it_leads_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It renews at its first turn; what came before that was not acted on, and only a new look at everything finds it."""
    monkeypatch.setattr(election, "RENEW_S", 0.001)
    now, told = 0.0, asyncio.Event()
    one = Election(Memory(), "me", clock=lambda: now)
    one.changed = told.set
    task = asyncio.create_task(one.run())
    async with asyncio.timeout(20):
        await told.wait()
        told.clear()
        now += LEAD_S
        assert not one.leading
        await told.wait()
    assert one.leading
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_leader_that_ends_gives_the_lease_back_and_others_do_not() -> None:
    mine, theirs = Memory(), Memory(LeaseView("other", "3", 10.0))
    for store in (mine, theirs):
        one = Election(store, "me", clock=lambda: 0.0)
        await one.turn()
        await one.release()
        assert not one.leading
    assert mine.lease is not None and mine.lease.holder == ""
    assert theirs.lease == LeaseView("other", "3", 10.0)


async def test_who_ends_while_it_takes_the_lease_gives_it_back_too() -> None:
    """The server did it, and the answer did not come."""

    class Slow(Memory):
        written = asyncio.Event()

        async def write(self, holder: str, before: LeaseView | None) -> LeaseView | None:
            found = await super().write(holder, before)
            if holder:
                self.written.set()
                await asyncio.Event().wait()
            return found

    store = Slow()
    one = Election(store, "me", clock=lambda: 0.0)
    turn = asyncio.create_task(one.turn())
    async with asyncio.timeout(20):
        await store.written.wait()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        assert store.lease is not None and store.lease.holder == "me" and not one.leading
        await one.release()
    assert store.lease.holder == ""


async def test_without_an_election_one_leads() -> None:
    alone = Alone()
    alone.require()
    assert alone.leading
    await alone.release()


# -- the fence


class Wire:
    """A server that keeps what arrives, and answers a request that is whole."""

    def __init__(self) -> None:
        self.heard = b""
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.closed.clear()
        while data := await reader.read(65536):
            self.heard += data
            if self.heard.startswith(b"GET") or self.heard.endswith(b"\r\n\r\n{}"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        self.closed.set()


async def ask(wire: Wire, require: Callable[[], None], method: str) -> None:
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = FencedTransport(require, verify=ssl.create_default_context())
    try:
        async with asyncio.timeout(20), httpx2.AsyncClient(transport=transport) as client:
            body = None if method == "GET" else b"{}"
            await client.request(method, f"http://127.0.0.1:{port}/", content=body)
    finally:
        async with asyncio.timeout(20):
            await wire.closed.wait()
        server.close()


def allowed(times: int) -> Callable[[], None]:
    left = iter(range(times))

    def require() -> None:
        if next(left, None) is None:
            raise NotLeadingError("asleep too long")

    return require


async def test_what_is_allowed_and_what_only_reads_passes() -> None:
    write, read = Wire(), Wire()
    await ask(write, allowed(2), "PATCH")
    await ask(read, allowed(0), "GET")
    assert write.heard.endswith(b"{}") and read.heard.startswith(b"GET")


async def test_a_write_that_is_late_leaves_without_its_body() -> None:
    head, nothing = Wire(), Wire()
    with pytest.raises(NotLeadingError):
        await ask(head, allowed(1), "PATCH")
    assert b"content-length: 2" in head.heard.lower() and head.heard.endswith(b"\r\n\r\n")
    with pytest.raises(NotLeadingError):
        await ask(nothing, allowed(0), "PATCH")
    assert nothing.heard == b""
