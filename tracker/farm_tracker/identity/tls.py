"""The tracker's certificate: made at first start, known to clients by its fingerprint.

Owns: the key and the certificate in the data folder. Does not own: how clients come to know it
(`farm.rpc.credentials`).

Invariant: the key is readable by the tracker's user only; certificate and key belong together.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farm.core.files import write_atomic
from farm.errors import InfrastructureError
from farm.rpc.credentials import CERTIFICATE_NAME

if TYPE_CHECKING:
    from pathlib import Path

KEY_FILE = "tls.key"
CERTIFICATE_FILE = "tls.pem"
VALID_DAYS = 3650


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def certificate_in(folder: Path, wall: float) -> Certificate:
    """Return the certificate of a data folder, made if it is the first time.

    Parameters
    ----------
    wall
        Seconds since the Unix epoch, from which a new one is valid for ten years (a day earlier for clocks that
        are behind).

    Raises
    ------
    InfrastructureError
        There is none and the package that makes one is not installed.
    """
    key_path, certificate_path = folder / KEY_FILE, folder / CERTIFICATE_FILE
    if key_path.exists() and certificate_path.exists():
        return Certificate(certificate_path.read_bytes(), key_path.read_bytes())
    made = _make(wall)
    write_atomic(key_path, made.key)
    write_atomic(certificate_path, made.certificate)
    os.chmod(certificate_path, 0o644)  # noqa: PTH101 - it is what clients are given
    return made


def _make(wall: float) -> Certificate:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    except ImportError as error:
        raise InfrastructureError(
            f"tls: cannot make a certificate ({error}); install kernel-farm[tls], or listen on loopback with "
            "--plaintext"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, CERTIFICATE_NAME)])
    start = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - datetime.timedelta(days=1))
        .not_valid_after(start + datetime.timedelta(days=VALID_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(CERTIFICATE_NAME)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    encoding = serialization.Encoding.PEM
    return Certificate(
        builder.sign(key, hashes.SHA256()).public_bytes(encoding),
        key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )
