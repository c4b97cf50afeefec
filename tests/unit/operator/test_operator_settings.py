"""Settings come from QUIRE_OPERATOR_* and a bad one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire_operator.errors import SettingsError
from quire_operator.settings import PREFIX, Settings, load_settings


def test_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_OPERATOR_WATCH_NAMESPACES", "a, b,")
    monkeypatch.setenv("QUIRE_OPERATOR_RUNTIME_IMAGE", "quire/runtime:dev-1")
    monkeypatch.setenv("QUIRE_OPERATOR_METRICS_API", "false")
    monkeypatch.setenv("QUIRE_OPERATOR_LOG_LEVEL", "INFO")
    settings = load_settings()
    assert settings.watch_namespaces == ("a", "b")
    assert settings.runtime_image == "quire/runtime:dev-1"
    assert settings.metrics_api is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCRAPE_INTERVAL_S", "0"),
        ("ROUTER_URL", "http://x/v1"),
        ("RUNTIME_IMAGE_PULL_POLICY", "Often"),
        ("WORKERS", "many"),
    ],
)
def test_a_bad_one_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"QUIRE_OPERATOR_{name}", value)
    with pytest.raises(SettingsError, match=f"QUIRE_OPERATOR_{name}='{value}'"):
        load_settings()


def test_each_setting_is_documented_with_its_default() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "operator.md").read_text()
    for name, field in Settings.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        shown = "-" if field.default in ((), "") else f"`{default}`"
        assert f"| `{PREFIX}{name.upper()}` | {shown} | {field.description} |" in text, name
