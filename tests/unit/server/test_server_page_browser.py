"""The web page in a real Chromium, against the real server over a scripted engine."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from browser import chromium
from live_server import ids_of, live_server
from scripted_engine import ScriptedEngine

pytest.importorskip("playwright", reason="of the dev group")
from playwright.async_api import Browser, Route, async_playwright, expect

from shown_page import opened, shown, text_of

# The first use may install the browser.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(1200)]

expect.set_options(timeout=30_000)  # the machine may be busy
PHONE = {"width": 360, "height": 640}
SETTINGS = {
    "Temperature": ("temperature", 0.25),
    "Max tokens": ("max_tokens", 9),
    "Top p": ("top_p", 0.5),
    "Top k": ("top_k", 7),
    "Min p": ("min_p", 0.125),
    "Seed": ("seed", 42),
}
FUNCTION = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}
HOSTILE = """<img src=x onerror="window.hacked = 1"> <script>window.hacked = 2</script>
<style>body { display: none }</style>
[one](javascript:window.hacked=3) [two](data:text/html,x) [three]( https://good.example/a )
![a picture](https://evil.example/p.png) <https://other.example/> <b onclick=x>bold</b>

# <i>title</i>

| <u>a</u> | b |
|---|---|
| `<s>` | </td></table><iframe src=https://evil.example> |

```html"onload="x
</code></pre><script>window.hacked = 4</script>
```"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        launched = await playwright.chromium.launch(executable_path=chromium())
        yield launched
        await launched.close()


async def test_an_answer_comes_while_it_is_written_and_the_conversation_goes_on(
    browser: Browser, tmp_path: Path
) -> None:
    async with opened(browser, tmp_path, "hello world", "and more") as view:
        engine = view.live.engine
        engine.hold()
        first = await view.ask("who are you?")
        assert text_of(first) == "<|im_start|>user\nwho are you?<|im_end|>\n<|im_start|>assistant\n"
        engine.step()
        await expect(view.answer.locator(".text").last).to_have_text("hello")  # one token
        await expect(view.answer).to_have_attribute("aria-busy", "true")
        await expect(view.answer).to_contain_text("TTFT")
        engine.release()
        await view.done()
        tokens = len(ids_of("hello world")) + 1
        await expect(view.answer.locator("footer")).to_contain_text(f"tokens/s · {tokens} tokens")
        await expect(view.prompt).to_be_focused()
        second = await view.ask("go on")
        assert "assistant\nhello world<|im_end|>\n<|im_start|>user\ngo on<|im_end|>" in text_of(second)
        await expect(view.answer).to_contain_text("and more")
        await view.done()

        await view.page.reload()
        assert await view.page.get_by_role("article").all_inner_texts() != []
        await expect(view.page.get_by_role("article")).to_have_count(4)
        await view.page.get_by_role("button", name="New chat").click()
        await expect(view.page.get_by_role("article")).to_have_count(0)
        assert text_of(await view.ask("anew")) == "<|im_start|>user\nanew<|im_end|>\n<|im_start|>assistant\n"


async def test_regenerate_and_copy(browser: Browser, tmp_path: Path) -> None:
    context = {"permissions": ["clipboard-read", "clipboard-write"]}
    async with opened(browser, tmp_path, "**one**", "two\n\n```py\nx = 1\n```", context=context) as view:
        first = await view.ask("hi")
        await expect(view.answer.locator("strong")).to_have_text("one")
        await view.answer.get_by_role("button", name="Copy").click()
        await expect(view.answer.get_by_role("button", name="Copied")).to_be_visible()
        assert await view.page.evaluate("navigator.clipboard.readText()") == "**one**"
        await view.answer.get_by_role("button", name="Regenerate").click()
        await expect(view.answer).to_contain_text("two")
        assert text_of(view.live.engine.requests[-1]) == text_of(first)
        await expect(view.page.get_by_role("article")).to_have_count(2)
        await view.answer.locator(".code").get_by_role("button", name="Copy").click()
        await expect(view.answer.locator(".code").get_by_role("button", name="Copied")).to_be_visible()
        assert await view.page.evaluate("navigator.clipboard.readText()") == "x = 1"


@pytest.mark.parametrize("way", ["click", "key"])
async def test_stop_ends_the_answer_in_the_engine(browser: Browser, tmp_path: Path, way: str) -> None:
    async with opened(browser, tmp_path, "hello hello hello") as view:
        engine = view.live.engine
        engine.hold()
        request = await view.ask("hi")
        engine.step()
        await expect(view.answer).to_contain_text("hello")
        if way == "click":
            await view.page.get_by_role("button", name="Stop").click()
        else:
            await view.prompt.press("Escape")
        await engine.until(lambda: request.request_id in engine.aborted)
        await view.done()
        await expect(view.answer.locator("footer")).to_contain_text("stopped")
        await expect(view.answer.locator(".text").last).to_have_text("hello")
        await expect(view.answer.get_by_role("alert")).to_be_hidden()
        engine.release()
        assert "assistant\nhello<|im_end|>" in text_of(await view.ask("and?"))


async def test_what_a_model_or_a_person_writes_is_never_html(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path, HOSTILE) as view:
        await view.ask(HOSTILE)
        await view.done()
        for words in ("<img src=x onerror=", "<script>window.hacked = 2</script>", "[one](javascript:window.hacked=3)",
                      "<b onclick=x>bold</b>", "<i>title</i>", "</td></table><iframe"):  # fmt: skip
            await expect(view.answer).to_contain_text(words)
        await expect(view.answer.locator("pre")).to_have_text("</code></pre><script>window.hacked = 4</script>")
        await expect(view.page.locator(".user .text")).to_have_text(HOSTILE)
        tags = await view.page.evaluate("[...document.querySelectorAll('#log *')].map(one => one.localName)")
        assert not {"script", "img", "iframe", "style", "b", "i", "u", "s", "object"} & set(tags)
        links = await view.page.evaluate("[...document.querySelectorAll('#log a')].map(one => [one.href, one.rel])")
        assert [address for address, _ in links] == [
            "https://good.example/a", "https://evil.example/p.png", "https://other.example/", "https://evil.example/"
        ]  # fmt: skip
        assert {rel for _, rel in links} == {"noopener noreferrer nofollow"}
        assert await view.page.evaluate("window.hacked") is None


async def test_the_policy_holds_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as view:
        for attempt in (
            "document.body.innerHTML = '<b>x</b>'",
            """new Promise((_, refuse) => {
                 addEventListener('securitypolicyviolation', event => refuse(new Error(event.effectiveDirective)));
                 const script = document.createElement('script');
                 script.append('window.hacked = 5');
                 document.body.append(script);
               })""",
            "fetch('https://evil.example/')",
            """new Promise((_, refuse) => {
                 addEventListener('securitypolicyviolation', event => refuse(new Error(event.effectiveDirective)));
                 const image = new Image(); image.src = 'https://evil.example/p.png';
               })""",
        ):
            with pytest.raises(Exception, match=r"TrustedHTML|trusted-types|script-src|Failed to fetch|img-src"):
                await view.page.evaluate(f"async () => {{ return await ({attempt}) }}")
        assert await view.page.evaluate("window.hacked") is None
        assert any("connect-src" in fault for fault in view.faults)
        view.faults.clear()
        view.requests = [one for one in view.requests if not one.url.startswith("https://evil.example")]


async def test_markdown(browser: Browser, tmp_path: Path) -> None:
    text = (
        "## Title #\nfirst *line*\nsecond __line__ ~~gone~~ snake_case_name 2 * 3 * 4 \\*plain\\*\n\n"
        "1. one\n2. two\n   - inner `code`\n   - ***both***\n\n3. three\n\n> quoted\n> > twice\n\n---\n"
        "| a | b |\n|:--|--:|\n| 1 | 2 \\| 3 |\n\nsee https://a.example/x?y=(1). and [**b**](https://b.example)"
    )
    async with opened(browser, tmp_path, text) as view:
        await view.ask("hi")
        await view.done()
        written = view.answer.locator(".text").last
        await expect(written.locator("h2")).to_have_text("Title")
        await expect(written.locator("em").first).to_have_text("line")
        await expect(written.locator("del")).to_have_text("gone")
        await expect(written.locator("> p").first).to_contain_text("snake_case_name 2 * 3 * 4 *plain*")
        await expect(written.locator("> p").first.locator("br")).to_have_count(1)
        await expect(written.locator("> ol > li")).to_have_count(3)
        await expect(written.locator("ol li li")).to_have_text(["inner code", "both"])
        await expect(written.locator("strong em, em strong")).to_have_text("both")
        await expect(written.locator("blockquote blockquote")).to_have_text("twice")
        await expect(written.locator("hr")).to_have_count(1)
        await expect(written.locator("td")).to_have_text(["1", "2 | 3"])
        await expect(written.locator("a").first).to_have_attribute("href", "https://a.example/x?y=(1")
        await expect(written.locator("a").last).to_have_attribute("href", "https://b.example")


async def test_markdown_that_grows_is_the_markdown_of_the_whole_in_little_time(
    browser: Browser, tmp_path: Path
) -> None:
    """Random texts piece by piece, and texts made to be slow."""
    async with opened(browser, tmp_path) as view:
        differing, slowest = await view.page.evaluate(
            """async () => {
              const { Markdown } = await import("./page/markdown.js");
              const pieces = ["a", " ", "\\n", "\\n\\n", "*", "**", "_", "`", "```", "~~", "[", "](https://x.example)", "!", "|", "|---|", "> ",
                              "- ", "1. ", "# ", "\\\\", "<b>", "https://y.example", "   ", "\\t", "\\r\\n", "a\\rb", "é", "😀", "---"];
              let state = 7;
              const random = (below) => (state = (state * 48271) % 2147483647) % below;
              const differing = [];
              for (let round = 0; round < 300; round++) {
                const grown = document.createElement("div"), whole = document.createElement("div");
                const growing = new Markdown(grown);
                let text = "";
                for (let n = random(40); n >= 0; n--) growing.update((text += pieces[random(pieces.length)]));
                new Markdown(whole).update(text);
                if (grown.outerHTML !== whole.outerHTML) differing.push(text);
              }
              let slowest = 0;
              for (const piece of ["[", "*a ", "_a", "**a", "`a``", "<a", "> ", "- ", "|", "| a |\\n|-|\\n", "~~", "![](", "*a_b", "\\n- a\\n  ", "# #",
                                   "https://", "[a](", "1. > ", "# \\r"]) {
                const began = performance.now();
                new Markdown(document.createElement("div")).update(piece.repeat(10000));
                slowest = Math.max(slowest, performance.now() - began);
              }
              return [differing, slowest];
            }"""
        )
        assert differing == []
        assert slowest < 3000


async def test_a_key_is_asked_for_where_one_is_needed(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path, "hello", api_key=("sécret",)) as view:
        page = view.page
        dialog = page.get_by_role("dialog", name="This server needs a key")
        await expect(dialog).to_be_visible()
        await expect(page.locator("#state")).to_have_text("needs a key")
        await dialog.get_by_label("API key").fill("wrong")
        await dialog.get_by_role("button", name="Use it").click()
        await expect(dialog.get_by_role("alert")).to_have_text("The server does not know that key.")
        await dialog.get_by_role("button", name="Not now").click()
        await expect(dialog).to_be_hidden()
        await view.say("hi")
        await expect(dialog).to_be_visible()
        await dialog.get_by_label("API key").fill("sécret")
        await dialog.get_by_label("API key").press("Enter")
        await expect(view.answer).to_contain_text("hello")
        await expect(page.locator("#state")).to_have_text("ready")
        await expect(page.get_by_label("Model")).to_have_value("tiny")
        assert await page.evaluate("[localStorage.length, sessionStorage.getItem('quire.key')]") == [0, "sécret"]
        assert not [one for one in view.requests if "cret" in one.url]

        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("button", name="Forget the key").click()
        await expect(page.locator("#state")).to_have_text("needs a key")
        assert await page.evaluate("sessionStorage.getItem('quire.key')") is None


async def test_errors_are_said_in_words(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path, "hello", max_num_seqs=1, max_queue_size=0) as view:
        engine, alert = view.live.engine, view.answer.get_by_role("alert")
        engine.hold()
        request = await view.ask("hi")
        engine.step()
        engine.fail(request.request_id, "the weights are on fire")
        await expect(alert).to_contain_text("he weights are on fire")
        await expect(view.answer).to_contain_text("hello")  # what came before stays

        await view.page.get_by_role("button", name="Try again").click()
        await engine.until(lambda: len(engine.requests) == 2)
        second = await view.live.chat()
        assert second.status_code == 503
        engine.release()
        await view.done()
        await expect(alert).to_be_hidden()

        await view.set(Top_p=0)
        await view.say("and now?")
        await expect(alert).to_contain_text("op_p must be above 0")
        await view.set(Top_p="", Tools="{")
        await view.page.get_by_role("button", name="Try again").click()
        await expect(view.page.get_by_label("Tools")).to_be_focused()
        assert "no JSON" in await view.page.get_by_label("Tools").evaluate("one => one.validationMessage")
        await view.set(Tools="")

        engine.hold()
        await view.page.get_by_role("button", name="Close").click()
        await view.page.get_by_role("button", name="Try again").click()
        await engine.until(lambda: len(engine.requests) == 3)
        engine.die("killed by SIGKILL (out of memory?)")
        await expect(alert).to_have_text("The engine failed: killed by SIGKILL (out of memory?).")


async def test_a_full_queue_and_a_server_that_is_gone(browser: Browser, tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: ids_of("hello"), max_model_len=4096)
    async with live_server(tmp_path, engine, max_num_seqs=1, max_queue_size=0) as live:
        engine.hold()
        async with shown(browser, live) as view:
            running = asyncio.create_task(live.complete())
            await engine.until(lambda: len(engine.requests) == 1)
            await view.say("hi")
            alert = view.answer.get_by_role("alert")
            await expect(alert).to_have_text(
                "The queue is full: 0 requests wait, --max-queue-size is 0. Try again in 1 s."
            )
            engine.release()
            await running
            await view.page.route("**/v1/chat/completions", lambda route: route.abort("connectionreset"))
            await view.page.get_by_role("button", name="Try again").click()
            await expect(alert).to_have_text("The server cannot be reached.")
            await view.page.route("**/load", lambda route: route.abort("connectionrefused"))
            await expect(view.page.locator("#state")).to_have_text("cannot be reached")


async def test_settings_reach_the_engine_and_stay_in_the_tab(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as view:
        page = view.page
        first = await view.ask("plain")
        assert first.params.temperature == 1.0 and not first.params.stop
        await view.done()
        body = json.loads(view.asked("v1/chat/completions")[-1].post_data or "")
        assert body.keys() == {"model", "messages", "stream", "stream_options"}
        for label, (_, value) in SETTINGS.items():
            await view.set(**{label: value})
        await view.set(System_prompt="be brief", Stop_strings="END\n two ")
        await page.reload()
        await page.get_by_label("Model").select_option("alias")
        params = (request := await view.ask("hi")).params
        assert {name: getattr(params, name) for name, _ in SETTINGS.values()} == dict(SETTINGS.values())
        assert list(params.stop) == ["END", " two "]
        assert text_of(request).startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nplain")
        assert json.loads(view.asked("v1/chat/completions")[-1].post_data or "")["model"] == "alias"
        await view.done()
        assert await page.evaluate("localStorage.length") == 0
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("button", name="Back to defaults").click()
        await expect(page.get_by_label("Temperature")).to_have_value("")
        assert (await view.ask("hi")).params.seed is None


async def test_reasoning_is_folded(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path, "well, *hm*</think>the answer", reasoning_parser="deepseek") as view:
        await view.ask("hi")
        await view.done()
        await expect(view.answer.locator("> .text")).to_have_text("the answer")
        thought = view.answer.locator("details .text")
        await expect(thought).to_be_hidden()
        await view.answer.get_by_text("Reasoning").click()
        await expect(thought).to_have_text("well, hm")


async def test_calls_of_tools_are_shown_and_answered(browser: Browser, tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "look_up", "arguments": {"word": "<b>"}}\n</tool_call>'
    async with opened(browser, tmp_path, call, "it is bold") as view:
        await view.set(Tools=json.dumps([FUNCTION]))
        await view.ask("what is b?")
        await view.done()
        await expect(view.answer.locator(".call code")).to_have_text('look_up({\n  "word": "<b>"\n})')
        await view.answer.get_by_label("Result").fill("a tag")
        await view.page.get_by_role("button", name="Send results").click()
        await expect(view.answer).to_contain_text("it is bold")
        told = text_of(view.live.engine.requests[-1])
        assert '{"name": "look_up", "arguments": {"word": "<b>"}}' in told and "a tag" in told.split("</tool_call>")[-1]


async def test_a_model_without_a_template_goes_on_with_the_text(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path, " upon a time", " there was", template=None) as view:
        note = view.page.get_by_role("note")
        await expect(note).to_be_hidden()
        assert text_of(await view.ask("Once")) == "Once"
        await expect(note).to_contain_text("no chat template")
        await expect(view.answer.locator("> .text")).to_have_text("upon a time")
        await view.done()
        assert text_of(await view.ask(",")) == "Once upon a time,"
        await view.done()
        assert [len(view.asked(f"v1/{path}")) for path in ("chat/completions", "completions")] == [1, 2]


@pytest.mark.parametrize("late", ["before the answer", "after the answer"])
async def test_a_model_asked_before_its_name_is_known_is_remembered(
    browser: Browser, tmp_path: Path, late: str
) -> None:
    async with opened(browser, tmp_path, " upon a time", " there was", template=None) as view:
        named, answered = asyncio.Event(), asyncio.Event()

        async def hold(event: asyncio.Event, route: Route) -> None:
            await event.wait()
            await route.continue_()

        await view.page.route("**/v1/models", functools.partial(hold, named))
        await view.page.route("**/v1/chat/completions", functools.partial(hold, answered))
        await view.page.reload()
        await view.say("Once")
        for event in (named, answered) if late == "before the answer" else (answered, named):
            event.set()
            if event is named:
                await expect(view.page.get_by_label("Model", exact=True)).to_be_enabled()
            else:
                await view.done()
        await expect(view.page.get_by_role("note")).to_contain_text("no chat template")
        await view.ask(",")
        await view.done()
        assert [len(view.asked(f"v1/{path}")) for path in ("chat/completions", "completions")] == [1, 2]


async def test_gauges_move_and_rest_while_the_page_is_hidden(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as view:
        page, engine = view.page, view.live.engine
        await expect(page.locator("#state")).to_have_text("ready")
        await page.clock.install()
        await page.reload()
        await expect(page.locator("#state")).to_have_text("ready")
        engine.hold()
        engine.num_waiting = 3
        await view.ask("hi")
        engine.step()
        await view.live.http.get("/load")
        await page.clock.run_for(2500)
        await expect(page.get_by_label("Running", exact=True)).to_have_text("1")
        await expect(page.get_by_label("KV cache", exact=True)).to_have_attribute("aria-valuenow", "1")
        await expect(page.locator("#cache-text")).to_have_text("1 %")

        hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
        await page.evaluate(hide % "true" + "; document.dispatchEvent(new Event('visibilitychange'))")
        await page.clock.run_for(1000)
        before = len(view.asked("load"))
        await page.clock.run_for(120_000)
        assert len(view.asked("load")) == before
        engine.release()
        await view.done()
        await page.evaluate(hide % "false" + "; document.dispatchEvent(new Event('visibilitychange'))")
        await expect(page.get_by_label("Running", exact=True)).to_have_text("0")
        await expect(page.locator("#cache-text")).to_have_text("0 %")
        assert len(view.asked("load")) > before


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser, tmp_path: Path, scheme: str) -> None:
    wide = f"{'w' * 300}\n\n```\n{'c' * 300}\n```\n\n| {' | '.join('column' for _ in range(20))} |\n{'|---' * 20}|\n"
    context = {"viewport": PHONE, "color_scheme": scheme, "is_mobile": True, "has_touch": True}
    async with opened(browser, tmp_path, wide, context=context) as view:
        page = view.page
        await view.ask("u" * 300)
        await view.done()
        width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth)"
        assert await page.evaluate(width) == 360
        outside = """[...document.querySelectorAll('header *, #composer *, .turn, footer *')].filter(one => one.checkVisibility() &&
                     !one.matches('.hidden') && (one.getBoundingClientRect().right > 360 || one.getBoundingClientRect().left < 0)).map(one => one.outerHTML)"""
        assert await page.evaluate(outside) == []
        assert await page.evaluate("document.querySelector('#log').scrollWidth <= 360")
        await page.get_by_role("button", name="Settings").tap()
        await expect(page.get_by_label("Temperature")).to_be_in_viewport()
        assert await page.evaluate(width) == 360
        await page.get_by_role("button", name="Close").tap()
        await expect(view.prompt).to_be_in_viewport()
        back, text = await page.evaluate(
            "(style => [style.backgroundColor, style.color])(getComputedStyle(document.body))"
        )
        assert (luminance(back) > luminance(text)) == (scheme == "light")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_everything_has_a_name_and_can_be_read(browser: Browser, tmp_path: Path, scheme: str) -> None:
    text = "hm</think>text `code` [link](https://x.example)\n\n```\nblock\n```"
    async with opened(browser, tmp_path, text, context={"color_scheme": scheme}, reasoning_parser="deepseek") as view:
        page = view.page
        await view.ask("hi")
        await view.done()
        await view.set()
        nameless = """[...document.querySelectorAll('button, input, select, textarea, [role=region], [role=meter], [tabindex]')].filter(
            one => !(one.labels?.length || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') ||
            (one.localName === 'button' && one.textContent.trim()))).map(one => one.outerHTML)"""
        assert await page.evaluate(nameless) == []
        pairs = await page.evaluate(
            """() => {
              const found = [];
              for (const one of document.querySelectorAll('body *')) {
                if (!one.checkVisibility() || ![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
                let under = one;
                while (under && getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)') under = under.parentElement;
                found.push([one.outerHTML.slice(0, 80), getComputedStyle(one).color, getComputedStyle(under).backgroundColor]);
              }
              return found;
            }"""
        )
        assert len(pairs) > 20
        assert [pair for pair in pairs if contrast(*pair[1:]) < 4.5] == []


async def test_with_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, tmp_path) as view:
        page = view.page
        await expect(view.prompt).to_be_focused()
        await page.keyboard.type("one")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("two")
        await page.keyboard.press("Enter")
        await view.done()
        assert "user\none\ntwo<|im_end|>" in text_of(view.live.engine.requests[-1])
        await expect(view.prompt).to_be_focused()
        await page.get_by_role("button", name="Settings").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("System prompt")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Settings")).to_be_focused()
        seen = set()
        await view.prompt.focus()
        for _ in range(30):
            await page.keyboard.press("Tab")
            seen.add(await page.evaluate("document.activeElement.textContent || document.activeElement.id"))
        assert {"Send", "New chat", "Settings", "Copy", "Regenerate"} <= seen


def luminance(color: str) -> float:
    """Relative luminance of `rgb(r, g, b)` (WCAG 2)."""
    channels = [int(part) / 255 for part in color.removeprefix("rgb(").rstrip(")").split(", ")]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
