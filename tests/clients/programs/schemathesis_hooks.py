"""Bodies that get past the first look: for the served model, with few fields, messages of texts and short answers, half of them with small numbers.

A body of forty fields at random always has one that is out of bounds, and then no other is looked at.
"""

from __future__ import annotations

import json
import random
from typing import Any

import schemathesis

PROMPTS = frozenset({"prompt", "messages", "input"})
NEEDED = PROMPTS | {"max_tokens", "tokens", "text_1", "text_2", "query", "documents", "stream"}
FEW = 3
SMALL = 6


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    """See the module. The same body always becomes the same one."""
    if not isinstance(body, dict):
        return body
    chance = random.Random(json.dumps(body, sort_keys=True, default=repr))
    others = sorted(name for name in body if isinstance(name, str) and name not in NEEDED)
    kept = NEEDED.union(chance.sample(others, min(len(others), chance.randint(0, FEW))))
    few = {name: value for name, value in body.items() if name in kept}
    if isinstance(few.get("model"), str) and chance.random() < 0.9:
        del few["model"]
    if PROMPTS & few.keys() and chance.random() < 0.9:
        few["max_tokens"] = chance.randint(1, SMALL)
    if isinstance(few.get("messages"), list) and chance.random() < 0.7:
        few["messages"] = [said(one) for one in few["messages"][:SMALL]]
    return small(few) if chance.random() < 0.5 else few


def said(message: Any) -> Any:
    """A message that is a text, whatever its parts were."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return message
    content = message.get("content")
    return {"role": message["role"], "content": content if isinstance(content, str) else json.dumps(content)[:40]}


def small(value: Any) -> Any:
    """Its numbers brought near 0, where most bounds are."""
    if isinstance(value, dict):
        return {name: small(one) for name, one in value.items()}
    if isinstance(value, list):
        return [small(one) for one in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return value % SMALL
    if isinstance(value, float):
        return value % 1.0
    return value
