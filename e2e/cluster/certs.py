"""Certificates of a cluster, made in memory. Pure: names in, PEM files out; `local` writes them.

Two authorities: `ca` for everybody, `front-ca` for API aggregation only. With one for both, any client certificate would
be one common-name check away from impersonating every user.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cluster.layout import Machine, Network

LIFETIME = datetime.timedelta(days=3650)
FRONT_PROXY_CLIENT = "front-proxy-client"
DNS_USER = "quire:coredns"

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Subject:
    """What one certificate says and may be used for."""

    name: str
    common_name: str
    organization: str | None = None
    dns: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    server: bool = False
    client: bool = True


@dataclass(frozen=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def subjects(network: Network, nodes: tuple[Machine, ...]) -> Iterator[Subject]:
    """Every certificate that the common authority signs."""
    names = (
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    )
    addresses = ("127.0.0.1", network.address(0), network.api_service)
    yield Subject("apiserver", "kube-apiserver", dns=names, addresses=addresses, server=True, client=False)
    yield Subject("apiserver-kubelet", "kube-apiserver-kubelet-client", "system:masters")
    yield Subject("admin", "quire:admin", "system:masters")
    yield Subject("kcm", "system:kube-controller-manager")
    yield Subject("sched", "system:kube-scheduler")
    yield Subject("proxy", "system:kube-proxy")
    yield Subject("dns", DNS_USER)
    for node in nodes:
        yield Subject(
            node.name,
            f"system:node:{node.name}",
            "system:nodes",
            dns=(node.name,),
            addresses=(network.address(node.index), "127.0.0.1"),
            server=True,
        )


def issue(network: Network, nodes: tuple[Machine, ...], now: datetime.datetime) -> dict[str, bytes]:
    """File name -> PEM for the whole cluster: `NAME.crt`, `NAME.key`, and `sa.pub`."""
    ca, front_ca = _authority("quire-cluster", now), _authority("quire-front-proxy", now)
    files = {
        "ca.crt": _pem(ca.certificate),
        "ca.key": _key_pem(ca.key),
        "front-ca.crt": _pem(front_ca.certificate),
    }
    for subject in subjects(network, nodes):
        files |= _signed(ca, subject, now)
    files |= _signed(front_ca, Subject("front", FRONT_PROXY_CLIENT), now)
    accounts = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    files["sa.key"] = _key_pem(accounts)
    files["sa.pub"] = accounts.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return files


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + LIFETIME)
    )


def _authority(common_name: str, now: datetime.datetime) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _signed(authority: Authority, subject: Subject, now: datetime.datetime) -> dict[str, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)]
    if subject.organization:
        attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, subject.organization))
    uses = [ExtendedKeyUsageOID.SERVER_AUTH] * subject.server + [ExtendedKeyUsageOID.CLIENT_AUTH] * subject.client
    builder = (
        _builder(x509.Name(attributes), authority.certificate.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in subject.dns]
    names += [x509.IPAddress(IPv4Address(address)) for address in subject.addresses]
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(authority.key, hashes.SHA256())
    return {f"{subject.name}.crt": _pem(certificate), f"{subject.name}.key": _key_pem(key)}


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
