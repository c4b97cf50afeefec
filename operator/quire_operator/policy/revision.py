"""The revision: a hash of the whole rendered pod template, so any change that matters rolls and none that does not. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

LENGTH = 8


def revision_of(template: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits; independent of the order of keys, dependent on the order of lists."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]
