"""The certificate's life: made, kept, renewed in time, healed when broken."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from quire_operator.metrics_api.certificates import BundleError, renewed, service_names

NAMES = service_names("quire-operator", "quire-system")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_first_bundle_is_valid_for_the_names_of_the_service() -> None:
    bundle = renewed(None, NAMES, NOW)
    assert bundle is not None
    leaf = x509.load_pem_x509_certificate(bundle.certificate.encode())
    (authority,) = x509.load_pem_x509_certificates(bundle.ca_bundle.encode())
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert "quire-operator.quire-system.svc" in names
    assert renewed(bundle, NAMES, NOW + timedelta(days=59)) is None


def test_the_leaf_is_renewed_long_before_it_ends_under_the_same_ca() -> None:
    first = renewed(None, NAMES, NOW)
    assert first is not None
    second = renewed(first, NAMES, NOW + timedelta(days=61))
    assert second is not None
    assert second.ca_bundle == first.ca_bundle and second.certificate != first.certificate
    assert second.expires > NOW + timedelta(days=149)


def test_a_new_ca_keeps_the_old_one_trusted_until_it_ends() -> None:
    first = renewed(None, NAMES, NOW)
    assert first is not None
    late = NOW + timedelta(days=3650 - 364)
    second = renewed(first, NAMES, late)
    assert second is not None
    new, old = x509.load_pem_x509_certificates(second.ca_bundle.encode())
    x509.load_pem_x509_certificate(second.certificate.encode()).verify_directly_issued_by(new)
    assert [old] == x509.load_pem_x509_certificates(first.ca_bundle.encode())
    assert renewed(second, NAMES, late + timedelta(days=1)) is None


def test_another_service_name_makes_another_leaf() -> None:
    first = renewed(None, NAMES, NOW)
    assert renewed(first, service_names("other", "quire-system"), NOW) is not None


def test_a_broken_bundle_is_told_and_a_new_one_can_be_made() -> None:
    first, other = renewed(None, NAMES, NOW), renewed(None, NAMES, NOW)
    assert first is not None and other is not None
    for broken in (replace(first, certificate=""), replace(first, key=other.key), replace(first, ca_key=other.ca_key)):
        with pytest.raises(BundleError):
            renewed(broken, NAMES, NOW)


def test_a_bundle_of_another_make_is_replaced_rather_than_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            "quire_operator.metrics_api.certificates.ec.generate_private_key",
            lambda _: rsa.generate_private_key(public_exponent=65537, key_size=2048),
        )
        made = renewed(None, NAMES, NOW)
    assert made is not None
    with pytest.raises(BundleError, match="somebody else"):
        renewed(made, NAMES, NOW + timedelta(days=61))
