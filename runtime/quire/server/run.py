"""The server process: listen, load, serve, drain, end.

The socket listens before the model is loaded, so that probes get answers (`/health/live` 200, `/health/ready` 503 with
the stage). SIGTERM or SIGINT drains: ready turns 503 at once, new requests are refused, running ones may finish within
`drain_timeout`; a second signal ends at once. The end of the engine process ends this one, with its last words.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import uvicorn

from quire.config import ServeConfig
from quire.engine import host
from quire.errors import ConfigError, ModelError, OverloadedError, QuireError
from quire.models.generation_config import SamplingDefaults, sampling_defaults
from quire.models.source import ModelFiles, resolve, resolve_tokenizer
from quire.server.announcement import announcement
from quire.server.app import create_app
from quire.server.edge.listener import CLOSE_TIMEOUT_S, listen, uvicorn_config
from quire.server.edge.tls import tls_context
from quire.server.flight.engine import Engine, EngineStart
from quire.server.flight.frontend import Frontend
from quire.text import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from quire.server.edge.tracing import Tracing

_log = logging.getLogger(__name__)

EXIT_AT_ONCE = 128 + signal.SIGTERM

Say = Callable[[str], None]


def serve(config: ServeConfig, start_engine: EngineStart, *, say: Say) -> int:
    """Run until a signal or a failure; returns the exit status or raises the QuireError that ended it.

    say: prints one line for the person at the terminal.
    """
    host.return_long_blocks()
    return asyncio.run(_Process(config, start_engine, say).run())


class _Server(uvicorn.Server):
    """Signals are handled by `_Process`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@dataclass
class _Loaded:
    engine: Engine
    tokenizer: Tokenizer


class _Process:
    def __init__(self, config: ServeConfig, start_engine: EngineStart, say: Say) -> None:
        self._config = config
        self._start_engine = start_engine
        self._say = say
        self._frontend = Frontend(config)
        self._engine: Engine | None = None
        self._signals = 0
        self._signalled = asyncio.Event()
        self._at_once = asyncio.Event()
        self._tracing = _tracing(config, self._frontend)
        app = create_app(self._frontend, trace=None if self._tracing is None else self._tracing.record)
        self._server = _Server(uvicorn_config(app, config, tls=tls_context(config)))

    async def run(self) -> int:
        listener = listen(self._config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        http = asyncio.create_task(self._server.serve([listener]), name="http")
        engine = asyncio.create_task(self._load_and_pump(), name="engine")
        stop = asyncio.create_task(self._drain(), name="drain")
        try:
            await asyncio.wait({http, engine, stop}, return_when=asyncio.FIRST_COMPLETED)
            if engine.done() and not self._signals:
                await self._close(http)
                engine.result()  # raises: the engine never ends by itself
            if http.done():
                http.result()
            return EXIT_AT_ONCE if self._at_once.is_set() else 0
        finally:
            await self._close(http)
            for task in (stop, engine):
                task.cancel()
            await asyncio.gather(stop, engine, return_exceptions=True)
            if self._engine is not None:
                await self._engine.close(at_once=self._at_once)
            listener.close()
            if self._tracing is not None:
                await asyncio.to_thread(self._tracing.close)

    async def _load_and_pump(self) -> None:
        loaded = await self._load()
        self._announce(loaded.engine)
        await self._frontend.pump()

    async def _load(self) -> _Loaded:
        frontend, config = self._frontend, self._config
        deadline = asyncio.timeout(config.load_timeout)
        try:
            async with deadline:
                frontend.stage = "finding the model"
                files = await asyncio.to_thread(
                    resolve,
                    config.model,
                    revision=config.revision,
                    with_code=config.trust_remote_code,
                    say=self._say,
                )
                frontend.named(files.name)
                defaults = self._read_defaults(files)
                frontend.stage = "starting the engine"
                began = time.monotonic()
                engine_start = asyncio.ensure_future(self._start_engine())
                try:
                    tokenizer = await asyncio.to_thread(self._read_tokenizer, files)
                    frontend.metrics.startup("tokenizer", time.monotonic() - began)
                    self._engine = await engine_start
                finally:
                    if not engine_start.done():
                        engine_start.cancel()
                        await asyncio.gather(engine_start, return_exceptions=True)
                    elif self._engine is None and not engine_start.cancelled() and engine_start.exception() is None:
                        self._engine = engine_start.result()
        except TimeoutError:
            if not deadline.expired():
                raise
            error = ModelError(
                f"the model was not ready within {config.load_timeout:g} s (--load-timeout) while {frontend.stage}"
            )
            frontend.die(error)
            raise error from None
        except QuireError as exc:
            frontend.die(exc)
            raise
        frontend.attach(self._engine, tokenizer, {}, defaults)
        return _Loaded(self._engine, tokenizer)

    def _read_tokenizer(self, files: ModelFiles) -> Tokenizer:
        config = self._config
        path = resolve_tokenizer(config, files, say=self._say).path
        return load_tokenizer(path, chat_template=config.chat_template, name=self._frontend.names[0])

    def _read_defaults(self, files: ModelFiles) -> SamplingDefaults:
        defaults = sampling_defaults(self._config.generation_config, files)
        if defaults.notice:
            _log.info("%s", defaults.notice)
        return defaults

    def _announce(self, engine: Engine) -> None:
        frontend = self._frontend
        took_s = time.monotonic() - frontend.started_s
        self._say(announcement(self._config, engine.ready, frontend.names[0], took_s))

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._at_once.set()
            self._server.force_exit = True
            return
        self._frontend.drain()
        self._signalled.set()

    async def _drain(self) -> None:
        """From the first signal until nothing runs, the time is over, or a second signal comes."""
        await self._signalled.wait()
        frontend, timeout_s = self._frontend, self._config.drain_timeout
        if frontend.num_in_flight:
            self._say(
                f"draining: {frontend.num_in_flight} requests may go on for {timeout_s:g} s; a second signal ends now"
            )
        drained = asyncio.ensure_future(frontend.drained())
        at_once = asyncio.ensure_future(self._at_once.wait())
        try:
            await asyncio.wait({drained, at_once}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in (drained, at_once):
                waiter.cancel()
        if frontend.num_in_flight:
            frontend.cut(OverloadedError("the server was shut down", reason="draining", retry_after_s=1))

    async def _close(self, http: asyncio.Task[None]) -> None:
        """Stop listening; open answers end (their jobs have ended or failed), idle connections are closed."""
        self._server.should_exit = True
        if not http.done():
            await asyncio.wait({http}, timeout=CLOSE_TIMEOUT_S + 5)


def _tracing(config: ServeConfig, frontend: Frontend) -> Tracing | None:
    if config.otlp_endpoint is None:
        return None
    if not config.otlp_endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint must be an http or https address, got {config.otlp_endpoint}")
    try:
        from quire.server.edge.tracing import Tracing  # the SDK of OpenTelemetry: an extra
    except ModuleNotFoundError as exc:
        raise ConfigError(f"--otlp-endpoint needs the package {exc.name}: pip install 'quire[otel]'") from None
    return Tracing(config.otlp_endpoint, model=lambda: frontend.names[0])
