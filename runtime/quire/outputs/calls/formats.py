"""The formats of calls by the names of `--tool-call-parser`, and which one a chat template writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.outputs.calls import mistral
from quire.outputs.calls.glm import Glm4Parser
from quire.outputs.calls.grammar import NAME, Spelling
from quire.outputs.calls.hermes import CLOSE, OPEN, HermesParser
from quire.outputs.calls.llama import TAG, LlamaParser
from quire.outputs.calls.mistral import MistralParser
from quire.outputs.calls.parser import CallParser
from quire.outputs.calls.tagged import FUNCTION, FUNCTION_END, PARAMETER, Glm45Parser, QwenCoderParser


@dataclass(frozen=True)
class CallFormat:
    """parser: reads the calls. spelling: how a grammar makes the model write them. signs: words of chat templates that write so, all
    of one of these groups; no word of `without` is in them."""

    parser: type[CallParser]
    spelling: Spelling
    signs: Sequence[Sequence[str]]
    without: Sequence[str] = ()


FORMATS: dict[str, CallFormat] = {
    "glm45": CallFormat(
        Glm45Parser,
        Spelling(f"{OPEN}{NAME}\n", f"\n{CLOSE}", specials=(OPEN, CLOSE)),
        [["<arg_key>"]],
    ),
    "qwen3-coder": CallFormat(
        QwenCoderParser,
        Spelling(
            f"{OPEN}\n{FUNCTION}{NAME}>\n",
            f"\n{FUNCTION_END}\n{CLOSE}",
            specials=(OPEN, CLOSE),
        ),
        [[OPEN, FUNCTION, PARAMETER]],
    ),
    "mistral": CallFormat(
        MistralParser,
        Spelling(
            f"{mistral.OPEN}{NAME}{mistral.ARGS}",
            between="",
            specials=(mistral.OPEN, mistral.ARGS, mistral.CALL_ID),
        ),
        [[mistral.OPEN, mistral.ARGS]],
    ),
    "mistral-list": CallFormat(
        MistralParser,
        Spelling(
            f'{{"name": "{NAME}", "arguments": ',
            "}",
            between=", ",
            open=f"{mistral.OPEN}[",
            close="]",
            specials=(mistral.OPEN,),
        ),
        [[mistral.OPEN]],
    ),
    "llama3": CallFormat(
        LlamaParser,
        Spelling(f'{{"name": "{NAME}", "parameters": ', "}", one=True, specials=(TAG,)),
        [[TAG], ["ipython", '"parameters"']],
        without=[FUNCTION],
    ),
    "hermes": CallFormat(
        HermesParser,
        Spelling(f'{OPEN}\n{{"name": "{NAME}", "arguments": ', f"}}\n{CLOSE}", specials=(OPEN, CLOSE)),
        [[OPEN, "arguments"]],
        without=[FUNCTION, "<tool_calls>"],
    ),
    "glm4": CallFormat(Glm4Parser, Spelling(f"{NAME}\n", one=True), [["<|observation|>", "metadata"]]),
}
"""In the order in which templates are looked at."""

AUTO, NONE = "auto", "none"


def detected(template: str) -> str | None:
    """The name of the format that this chat template writes; None where no sign of one is in it."""
    for name, one in FORMATS.items():
        if any(word in template for word in one.without):
            continue
        if any(all(word in template for word in words) for words in one.signs):
            return name
    return None
