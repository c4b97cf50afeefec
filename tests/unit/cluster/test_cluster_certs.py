"""Certificates: who may be whom."""

import datetime
from ipaddress import IPv4Address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster import certs
from cluster.layout import Machine, Network

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return certs.issue(Network(), (Machine(1), Machine(2)), NOW)


def load(files: dict[str, bytes], name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files[f"{name}.crt"])


def attribute(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    return str(certificate.subject.get_attributes_for_oid(oid)[0].value)


def test_all_but_the_front_proxy_are_signed_by_the_common_authority(files: dict[str, bytes]) -> None:
    ca, front_ca = load(files, "ca"), load(files, "front-ca")
    for name in ("apiserver", "admin", "kcm", "sched", "proxy", "dns", "apiserver-kubelet", "node-1", "node-2"):
        load(files, name).verify_directly_issued_by(ca)
    load(files, "front").verify_directly_issued_by(front_ca)
    assert ca.public_key() != front_ca.public_key()
    assert "front-ca.key" not in files, "nobody else can join the front proxy's authority"


def test_a_node_is_its_own_user_and_server(files: dict[str, bytes]) -> None:
    node = load(files, "node-2")
    assert attribute(node, NameOID.COMMON_NAME) == "system:node:node-2"
    assert attribute(node, NameOID.ORGANIZATION_NAME) == "system:nodes"
    names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert IPv4Address("198.18.254.12") in names.get_values_for_type(x509.IPAddress)
    uses = list(node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert uses == [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


def test_the_api_server_is_known_by_every_name_that_clients_use(files: dict[str, bytes]) -> None:
    names = load(files, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    addresses = {str(address) for address in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"127.0.0.1", "198.18.254.10", "198.19.0.1"}


def test_the_clock_may_be_an_hour_off(files: dict[str, bytes]) -> None:
    for name in ("ca", "admin"):
        certificate = load(files, name)
        assert certificate.not_valid_before_utc < NOW < certificate.not_valid_after_utc
        assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
