"""Whether an object in the cluster is what we want already, so that nothing needs to be written. Pure.

Two tests together: the hash of what was applied last (kept in an annotation: catches fields we no longer want), and
a comparison of every wanted field with the live one (catches edits by others). Defaults the API server adds are no drift.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from quire_operator import labels

_FACTORS = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+|[0-9]+\.)(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


def marked(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """`wanted` with the hash of itself in an annotation: what is sent."""
    metadata = wanted["metadata"]
    notes = {**metadata.get("annotations", {}), labels.APPLIED_HASH: digest(wanted)}
    return {**wanted, "metadata": {**metadata, "annotations": notes}}


def settled(full: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Applying `full` would change nothing. Items of a list carry neither apiVersion nor kind, so these do not count."""
    return all(matches(value, live.get(key)) for key, value in full.items() if key not in ("apiVersion", "kind"))


def dropped(wanted: Any, written: Any, path: str = "") -> str | None:
    """Path of the first field of `wanted` that the server took and threw away, as it does where a feature gate is off."""
    if isinstance(wanted, Mapping) and isinstance(written, Mapping):
        for key, value in wanted.items():
            if value and key not in written:
                return f"{path}.{key}".removeprefix(".")
            lost = dropped(value, written.get(key), f"{path}.{key}")
            if lost is not None:
                return lost
    if isinstance(wanted, list) and isinstance(written, list) and len(wanted) == len(written):
        for number, (one, other) in enumerate(zip(wanted, written, strict=True)):
            lost = dropped(one, other, f"{path}[{number}]")
            if lost is not None:
                return lost
    return None


def digest(wanted: Mapping[str, Any]) -> str:
    """Hash of an object as we apply it."""
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def matches(wanted: Any, live: Any) -> bool:
    """Every field of `wanted` is in `live` with an equal value; `live` may have more."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return not wanted and live is None
        return all(matches(value, live.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return not wanted and live is None
        return len(wanted) == len(live) and all(map(matches, wanted, live))
    if wanted == live:
        return True
    return _same_quantity(wanted, live)


def _same_quantity(wanted: Any, live: Any) -> bool:
    one, other = _number(wanted), _number(live)
    return one is not None and one == other


def _number(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _QUANTITY.fullmatch(str(value))
    return Decimal(match[1]) * _FACTORS[match[2] or ""] if match else None
