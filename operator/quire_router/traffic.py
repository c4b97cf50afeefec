"""How requests are shared between the revisions of one LLMDeployment. Pure: the dice are an argument.

The operator writes weights into the status; they hold while a strategy that moves requests by weight is under way.
Otherwise no revision is preferred. A revision whose pods are not ready, or were tried for this request already, leaves its
share to the others; one with weight 0 answers only where nobody else can.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from quire_router.endpoints import Endpoint

BY_WEIGHT = ("Canary", "BlueGreen")

Weights = tuple[tuple[str, int], ...]
"""(revision, percent of the requests); empty: every endpoint alike."""


def parse_weights(status: Mapping[str, Any]) -> Weights:
    """Weights of an LLMDeployment's status; none unless a strategy by weight is under way and somebody has a share."""
    if (status.get("rollout") or {}).get("strategy") not in BY_WEIGHT:
        return ()
    weights = tuple((str(item["name"]), int(item.get("weight") or 0)) for item in status.get("revisions") or ())
    return weights if any(weight > 0 for _, weight in weights) else ()


def of_one_revision(endpoints: Sequence[Endpoint], weights: Weights, dice: random.Random) -> Sequence[Endpoint]:
    """Those of the endpoints that the next request may go to: of a revision drawn by weight, or all of them."""
    by_revision: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_revision.setdefault(endpoint.revision, []).append(endpoint)
    shares = [(name, weight) for name, weight in weights if weight > 0 and name in by_revision]
    if not shares:
        return endpoints
    (name,) = dice.choices([name for name, _ in shares], [weight for _, weight in shares])
    return by_revision[name]
