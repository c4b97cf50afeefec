"""What scanners print, as findings, and which of them are accepted. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Accepted = Mapping[str, Mapping[str, str]]
"""Kind of file (chart, pods, dockerfiles), then the check's id: the reason."""


@dataclass(frozen=True)
class Finding:
    """One check that did not pass. kind: what was looked at (chart, pods, dockerfiles)."""

    kind: str
    check: str
    where: str
    says: str


def of_checkov(kind: str, printed: str) -> list[Finding]:
    """`checkov --output json`: one report, or a list of them where several frameworks found something to read."""
    reports = json.loads(printed)
    failed = [
        check
        for report in (reports if isinstance(reports, list) else [reports])
        for check in report.get("results", {}).get("failed_checks", ())
    ]
    return [
        Finding(kind, each["check_id"], f"{each['file_path']} {each['resource']}", each["check_name"])
        for each in failed
    ]


def of_trivy(kind: str, printed: str) -> list[Finding]:
    """`trivy config --format json`."""
    results: Sequence[dict[str, Any]] = json.loads(printed).get("Results") or ()
    return [
        Finding(kind, each["ID"], result["Target"], each["Message"])
        for result in results
        for each in result.get("Misconfigurations", ())
    ]


def of_hadolint(kind: str, printed: str) -> list[Finding]:
    """`hadolint --format json`."""
    return [
        Finding(kind, each["code"], f"{each['file']}:{each['line']}", each["message"]) for each in json.loads(printed)
    ]


def judged(findings: Sequence[Finding], accepted: Accepted) -> list[str]:
    """A line for each finding that nobody accepted, and for each reason that nothing needs."""
    seen = {(each.kind, each.check) for each in findings}
    wrong = sorted(
        {
            f"{each.check} {re.sub(r'[.]app[.]kubernetes[.]io/.*', '', each.where)}: {each.says}"
            for each in findings
            if each.check not in accepted.get(each.kind, {})
        }
    )
    stale = [
        f"{check} of {kind} is accepted and found nowhere: remove it from accepted.yaml"
        for kind, reasons in accepted.items()
        for check in reasons
        if (kind, check) not in seen
    ]
    return [*wrong, *stale]
