"""What scanners print is read, each finding needs a reason, and each reason a finding. The scanners themselves run in `make lint-chart`."""

from __future__ import annotations

import json

from lint_chart.findings import Finding, judged, of_checkov, of_hadolint, of_trivy
from lint_chart.scanners import accepted

ONE = Finding("chart", "CKV_K8S_11", "/a.yaml Deployment.n.d", "CPU limits should be set")
CHECKOV = {"results": {"failed_checks": [{"check_id": "CKV_K8S_11", "file_path": "/a.yaml", "resource": "Deployment.n.d",
                                          "check_name": "CPU limits should be set"}]}}  # fmt: skip


def test_reports_are_read() -> None:
    assert of_checkov("chart", json.dumps(CHECKOV)) == of_checkov("chart", json.dumps([CHECKOV])) == [ONE]
    assert of_checkov("chart", json.dumps({"passed": 0, "failed": 0})) == [], "it found nothing to read"
    trivy = {
        "Results": [
            {"Target": "a.yaml"},
            {"Target": "b.yaml", "Misconfigurations": [{"ID": "KSV-0011", "Message": "m"}]},
        ]
    }
    assert of_trivy("chart", json.dumps(trivy)) == [Finding("chart", "KSV-0011", "b.yaml", "m")]
    assert of_trivy("chart", "{}") == []
    hadolint = [{"code": "DL3008", "file": "D", "line": 7, "message": "pin"}]
    assert of_hadolint("dockerfiles", json.dumps(hadolint)) == [Finding("dockerfiles", "DL3008", "D:7", "pin")]


def test_a_finding_needs_a_reason_and_a_reason_a_finding() -> None:
    assert judged([ONE], {"chart": {"CKV_K8S_11": "why"}}) == []
    [line] = judged([ONE], {"pods": {}})
    assert line.startswith("CKV_K8S_11 ") and "CPU limits" in line
    [line] = judged([], {"chart": {"CKV_K8S_11": "why"}})
    assert "found nowhere" in line
    elsewhere = {"chart": {"CKV_K8S_11": "why"}}
    assert len(judged([Finding("pods", *("CKV_K8S_11", "w", "s"))], elsewhere)) == 2, "a reason is for one kind of file"


def test_every_reason_is_a_sentence() -> None:
    table = accepted()
    assert set(table) == {"chart", "pods", "dockerfiles"}
    assert all(len(reason) > 8 and reason.endswith(".") for reasons in table.values() for reason in reasons.values())
