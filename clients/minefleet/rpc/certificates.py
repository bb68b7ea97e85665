"""The fleet's own certificate authority: makes it once, and makes and verifies certificates of roles."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from minefleet.core.atomic_files import write_whole
from minefleet.core.errors import ConfigError
from minefleet.rpc.credentials import CA_FILE, CERTIFICATE_FILE, DOMAIN, KEY_FILE, ROLES, KeyPair, role_among

CA_KEY_FILE = "ca.key"
CA_DAYS = 3650
DAYS = 365
OWNER_ONLY = 0o600
CLOCK_SKEW = timedelta(minutes=5)
"""A certificate begins so much earlier than now, for clocks that are behind."""


def init(directory: Path, *, days: int = DAYS, keep_authority: bool = False) -> list[Path]:
    """Makes an authority, and a certificate for each role. Returns the roles' folders.

    Args:
        directory: Where to.
        days: How long the roles' certificates are valid.
        keep_authority: Take the authority that is there, if one is: what roles have shown so far stays valid.

    Raises:
        ConfigError: If there is an authority already that is not to be kept, or the folder cannot be written.
    """
    if not (directory / CA_KEY_FILE).exists():
        with _writing(directory):
            _make_authority(directory)
    elif not keep_authority:
        raise ConfigError(
            f"{directory} has an authority already; `minefleet certs issue` makes a certificate of it, "
            "--keep-authority all of them"
        )
    return [issue(directory, role, days=days) for role in ROLES]


def _make_authority(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    key, name = ec.generate_private_key(ec.SECP256R1()), _named("minefleet")
    root = (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write(directory / CA_FILE, root)
    _write_key(directory / CA_KEY_FILE, key)


def issue(directory: Path, role: str, *, out: Path | None = None, days: int = DAYS) -> Path:
    """Makes a certificate for a role. Returns its folder, by default the role's in the authority's.

    Raises:
        ConfigError: If there is no authority, or the folder cannot be written.
    """
    try:
        root = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
        signer = load_pem_private_key((directory / CA_KEY_FILE).read_bytes(), None)
    except OSError as error:
        raise ConfigError(
            f"{directory} has no authority ({error.strerror}): `minefleet certs init` makes one"
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the authority in {directory} is damaged: {error}") from error
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    certificate = (
        _builder(_named(role), root.subject, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(role + DOMAIN)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    folder = out or directory / role
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(folder / CA_FILE, root)
        _write_key(folder / KEY_FILE, key)
        _write(folder / CERTIFICATE_FILE, certificate)
    return folder


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Writes a key that only its owner can read, from its first byte on."""
    write_whole(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(), OWNER_ONLY)


def _write(path: Path, certificate: x509.Certificate) -> None:
    write_whole(path, certificate.public_bytes(Encoding.PEM).decode())


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write certificates to {directory}: {error.strerror}") from error


def verify(pair: KeyPair, folder: Path, role: str) -> None:
    """Checks what was read from a role's folder.

    Raises:
        ConfigError: If it is damaged, another role's, of another authority, or not valid now.
    """
    try:
        root, own = x509.load_pem_x509_certificate(pair.authority), x509.load_pem_x509_certificate(pair.certificate)
        public = load_pem_private_key(pair.key, None).public_key()
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{folder} holds no certificate and key of `minefleet certs`: {error}") from error
    if role_of(own) != role:
        raise ConfigError(f"{folder / CERTIFICATE_FILE} is for {role_of(own) or 'no role'}, and this is the {role}")
    if _encoded(public) != _encoded(own.public_key()):
        raise ConfigError(f"{folder / KEY_FILE} is not the key of {folder / CERTIFICATE_FILE}")
    try:
        own.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise ConfigError(f"{folder / CERTIFICATE_FILE} is not signed by {folder / CA_FILE}") from error
    for name, each in ((CERTIFICATE_FILE, own), (CA_FILE, root)):
        if not each.not_valid_before_utc <= datetime.now(UTC) <= each.not_valid_after_utc:
            raise ConfigError(
                f"{folder / name} is valid from {each.not_valid_before_utc:%Y-%m-%d} to "
                f"{each.not_valid_after_utc:%Y-%m-%d}, not now: `minefleet certs issue` makes a new one"
            )


def role_of(certificate: x509.Certificate) -> str:
    """The role that a certificate says; empty where it says none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return role_among(names.get_values_for_type(x509.DNSName))


def _encoded(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded
