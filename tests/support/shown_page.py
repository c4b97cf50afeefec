"""The web page in a browser, as tests use it. Needs Playwright."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Locator, Page, Request, expect

from live_server import BACKEND, Live, ids_of, live_server
from quire.request import AddRequest
from scripted_engine import ScriptedEngine


class Shown:
    """The page, all it asked for, and all that went wrong in it."""

    def __init__(self, page: Page, live: Live) -> None:
        self.page = page
        self.live = live
        self.requests: list[Request] = []
        self.faults: list[str] = []
        page.on("request", lambda request: self.requests.append(request))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda said: self.faults.append(said.text) if said.type in ("error", "warning") else None)

    @property
    def prompt(self) -> Locator:
        return self.page.get_by_label("Message")

    @property
    def answer(self) -> Locator:
        """The last one."""
        return self.page.get_by_label("Answer", exact=True).last

    async def say(self, text: str) -> None:
        await self.prompt.fill(text)
        await self.prompt.press("Enter")

    async def ask(self, text: str) -> AddRequest:
        """Say it, and wait until the engine has it."""
        engine = self.live.engine
        before = len(engine.requests)
        await self.say(text)
        await engine.until(lambda: len(engine.requests) > before)
        return engine.requests[-1]

    async def done(self) -> None:
        await expect(self.page.get_by_role("button", name="Send", exact=True)).to_be_visible()

    async def set(self, **fields: Any) -> None:
        """Fill in settings by their labels, with _ for blanks."""
        if await self.page.get_by_label("Settings", exact=True).is_hidden():
            await self.page.get_by_role("button", name="Settings").click()
        for label, value in fields.items():
            await self.page.get_by_label(label.replace("_", " "), exact=True).fill(str(value))

    def asked(self, path: str) -> list[Request]:
        return [one for one in self.requests if one.url == f"{self.live.url}/{path}"]


@asynccontextmanager
async def shown(browser: Browser, live: Live, **options: Any) -> AsyncIterator[Shown]:
    """The page of a server. Nothing it does may go to another origin or fail unseen."""
    context = await browser.new_context(**options)
    context.set_default_timeout(30_000)
    view = Shown(await context.new_page(), live)
    try:
        await view.page.goto(live.url)
        yield view
        assert all(one.url.startswith(live.url) for one in view.requests)
        assert [fault for fault in view.faults if not fault.startswith("Failed to load resource")] == []
    finally:
        await context.close()


@asynccontextmanager
async def opened(
    browser: Browser, folder: Path, *replies: str, context: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[Shown]:
    """The page over an engine that gives these answers in turn, the last one for ever."""
    engine = ScriptedEngine(replying(replies or ("hello",)), max_model_len=4096)
    async with live_server(folder, engine, **config) as live, shown(browser, live, **(context or {})) as view:
        yield view


def replying(replies: Sequence[str]) -> Any:
    left = list(replies)
    return lambda _: ids_of(left.pop(0) if len(left) > 1 else left[0])


def text_of(request: AddRequest) -> str:
    return BACKEND.decode(request.prompt_token_ids, skip_special_tokens=False)
