"""Makes and renews the CA and the serving certificate of the metrics API. Pure but for randomness: time is given.

The CA lives ten years and is replaced in its last; the old one stays in the bundle until it ends, so that connections
made meanwhile verify. The serving certificate lives ninety days and is replaced after sixty.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=3650)
CA_RENEW = timedelta(days=365)
LEAF_LIFE = timedelta(days=90)
LEAF_RENEW = timedelta(days=30)
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Bundle:
    """PEM texts. `ca_bundle` begins with the CA that signs now; older ones that are still valid follow."""

    ca_bundle: str
    ca_key: str
    certificate: str
    key: str

    @property
    def expires(self) -> datetime:
        return x509.load_pem_x509_certificate(self.certificate.encode()).not_valid_after_utc


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The names a client in the cluster may use; the aggregator uses the third."""
    return (service, f"{service}.{namespace}", f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


def renewed(bundle: Bundle | None, names: tuple[str, ...], now: datetime) -> Bundle | None:
    """The bundle to use from now on, or None when the present one is good for a while yet."""
    if bundle is None:
        return _with_new_ca((), names, now)
    try:
        authorities = x509.load_pem_x509_certificates(bundle.ca_bundle.encode())
        leaf = x509.load_pem_x509_certificate(bundle.certificate.encode())
        ca_key = serialization.load_pem_private_key(bundle.ca_key.encode(), None)
        leaf_key = serialization.load_pem_private_key(bundle.key.encode(), None)
        leaf.verify_directly_issued_by(authorities[0])
        intact = authorities[0].public_key() == ca_key.public_key() and leaf.public_key() == leaf_key.public_key()
        names_now = _dns_names(leaf)
    except Exception as error:
        # Whatever is wrong with a stored bundle (emptied, edited, half-written), a new one heals it.
        raise BundleError(f"the stored certificate cannot be used: {error}") from error
    if not intact:
        raise BundleError("the stored certificate and its key do not belong together")
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise BundleError("the stored certificate was made by somebody else")
    if authorities[0].not_valid_after_utc - now < CA_RENEW:
        return _with_new_ca(tuple(ca for ca in authorities if ca.not_valid_after_utc > now), names, now)
    if leaf.not_valid_after_utc - now < LEAF_RENEW or set(names) != names_now:
        return _bundle(tuple(authorities), ca_key, names, now)
    return None


class BundleError(ValueError):
    """A stored bundle that cannot be read; `renewed(None, …)` makes a new one."""


def _with_new_ca(older: tuple[x509.Certificate, ...], names: tuple[str, ...], now: datetime) -> Bundle:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "quire-operator metrics CA")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(subject, subject, key.public_key(), now, CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _bundle((certificate, *older), key, names, now)


def _bundle(
    authorities: tuple[x509.Certificate, ...], ca_key: ec.EllipticCurvePrivateKey, names: tuple[str, ...], now: datetime
) -> Bundle:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[2])])
    leaf = (
        _builder(subject, authorities[0].subject, key.public_key(), now, LEAF_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    return Bundle("".join(_pem(each) for each in authorities), _key_pem(ca_key), _pem(leaf), _key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
    )


def _dns_names(certificate: x509.Certificate) -> set[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(names.get_values_for_type(x509.DNSName))


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
