"""Label selectors as the HorizontalPodAutoscaler sends them."""

from __future__ import annotations

import pytest

from quire_operator import labels
from quire_operator.metrics_api.selector import parse_selector, selects

POD = {**labels.stable_selector("smol"), "tier": "gold"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (labels.selector_text(labels.stable_selector("smol")), True),
        (labels.selector_text(labels.stable_selector("other")), False),
        ("tier==gold", True),
        ("tier!=gold", False),
        ("missing!=x", True),
        ("tier in (silver, gold)", True),
        ("tier in (silver)", False),
        ("tier notin (silver),quire.dev/role", True),
        ("missing notin (a)", True),
        ("missing in (a)", False),
        ("tier", True),
        ("!tier", False),
        ("!missing", True),
        ("missing", False),
    ],
)
def test_selectors(text: str, expected: bool) -> None:
    assert selects(parse_selector(text), POD) is expected


@pytest.mark.parametrize("text", ["a b", "=x", "tier in gold", "tier >> 3"])
def test_nonsense_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse_selector(text)
