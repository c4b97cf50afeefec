"""kopf's part leaves no trace in the objects and only ever says "look again"."""

from __future__ import annotations

from typing import Any

import kopf
import pytest

from quire_operator import labels
from quire_operator.handlers import WATCHED_CHILDREN, build_registry, build_settings
from quire_operator.spec import Key


def handlers(looked: list[Key], seen: list[tuple[Key, str]]) -> tuple[Any, ...]:
    registry = build_registry(looked.append, lambda key, version: seen.append((key, version)))
    assert not registry._changing.get_all_handlers(), "these would store a diff base"
    assert not registry._spawning.get_all_handlers(), "timers and daemons would add a finalizer"
    return tuple(registry._watching.get_all_handlers())


async def test_an_event_only_names_whom_to_look_at() -> None:
    looked: list[Key] = []
    seen: list[tuple[Key, str]] = []
    own, *children = handlers(looked, seen)
    await own.fn(meta={"namespace": "demo", "name": "smol", "resourceVersion": "7"})
    assert seen == [(Key("demo", "smol"), "7")]
    resource = kopf.Resource(group="", version="v1", plural="pods", kind="Pod")
    mark = {"namespace": "demo", "name": "p", "labels": {labels.DEPLOYMENT: "smol"}}
    await children[0].fn(meta=mark, resource=resource)
    await children[0].fn(meta={"namespace": "demo", "name": "foreign"}, resource=resource)
    assert looked == [Key("demo", "smol")] * 2


def test_every_child_kind_is_watched_by_label_on_the_server() -> None:
    assert len(handlers([], [])) == 1 + len(WATCHED_CHILDREN)
    settings = build_settings()
    for selector in WATCHED_CHILDREN:
        assert settings.watching.label_selectors[selector] == labels.DEPLOYMENT


@pytest.mark.parametrize("name", ["server_timeout", "client_timeout", "connect_timeout"])
def test_a_silent_watch_ends_by_itself(name: str) -> None:
    assert getattr(build_settings().watching, name) is not None


def test_nothing_of_kopf_is_stored_under_a_foreign_prefix() -> None:
    settings = build_settings()
    assert settings.scanning.disabled and settings.peering.standalone and not settings.posting.enabled
    assert settings.persistence.finalizer.startswith("operator.quire.dev/")
