"""From texts and token ids to prompts that fit the model, cut where that was asked for.

What is cut off is the end, as a text's beginning says most about it; the special tokens around it stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from quire.errors import RequestError
from quire.server.bodies.prompts import beside, checked_text, given_ids, too_long
from quire.server.flight.frontend import Frontend
from quire.server.pooling.job import Prompt


async def prompts_of(
    frontend: Frontend,
    inputs: Sequence[str | list[int]],
    keep: int | None,
    *,
    names: Sequence[str],
    add_special_tokens: bool = True,
) -> list[Prompt]:
    """A prompt for each. keep: tokens that are used of it; None: all. names: of the fields they come from. Raises RequestError that names
    the field."""
    tokenizer = frontend.tokenizer
    checked = [
        await checked_text(frontend, given, name, truncated=keep is not None)
        if isinstance(given, str)
        else await given_ids(frontend, given, name)
        for given, name in zip(inputs, names, strict=True)
    ]

    def encoded(given: str | list[int]) -> list[int]:
        if not isinstance(given, str):
            return given[:keep]
        if keep is not None:
            given = tokenizer.beginning(given, keep)
        ids = tokenizer.encode(given, add_special_tokens=add_special_tokens)
        if keep is None or len(ids) <= keep:
            return ids
        return cut(ids, tokenizer.encode(given, add_special_tokens=False), keep)

    def run() -> Iterator[Prompt]:
        for given, name in zip(checked, names, strict=True):
            ids = encoded(given)
            check_length(frontend, ids, name)
            yield Prompt.of(ids)

    num_chars = sum(len(given) for given in checked if isinstance(given, str))
    return await beside(num_chars, lambda: list(run()))


def check_length(frontend: Frontend, ids: Sequence[int], name: str) -> None:
    """Raises RequestError where there are no tokens, or more than the model takes."""
    if not ids:
        raise RequestError(f"{name} must not be empty", param=name, code="invalid_value")
    check_fits(frontend, ids, name)


def check_fits(frontend: Frontend, ids: Sequence[int], name: str) -> None:
    """Raises RequestError where the model cannot take so many tokens."""
    limit = frontend.ready.max_model_len
    if len(ids) > limit:
        raise too_long(f"{name} has {len(ids)} tokens", limit, name)


def cut(ids: list[int], own: list[int], keep: int) -> list[int]:
    """The first tokens of a text, with what stands before and behind it: `keep` in all. own: the text's tokens in ids."""
    around = len(ids) - len(own)
    before = next((at for at in range(around + 1) if ids[at : at + len(own)] == own), None)
    if before is None:  # special tokens that are not put around the text
        return ids[:keep]
    if keep <= around:
        raise truncated_to_nothing(around, keep)
    return [*ids[: before + keep - around], *ids[before + len(own) :]]


def truncated_to_nothing(around: int, keep: int) -> RequestError:
    """What is said where only special tokens would be left. around: how many of them there are."""
    return RequestError(
        f"truncate_prompt_tokens must be above {around}, the number of special tokens that every prompt has here, got {keep}",
        param="truncate_prompt_tokens",
        code="invalid_value",
    )


def numbered(param: str, count: int) -> list[str]:
    """The names of the items of a field, in messages: that of the field where there is only one."""
    return [param] if count == 1 else [f"{param}.{place}" for place in range(count)]
