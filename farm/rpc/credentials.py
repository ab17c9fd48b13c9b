"""Credentials: what a client shows to a tracker, and by what it knows the tracker.

Owns: finding them for an address (environment, then the user's own files), keeping them, connection
strings. Does not own: what a token allows, or channels.

Invariant: a file that others may read, or that is not this user's, is never used; a token goes over a
network only to a tracker that proved to have the certificate named here.

Notes
-----
Files are TOML, one for each address, in ``FARM_CREDENTIALS``, else ``kernel-farm/credentials`` below
``XDG_CONFIG_HOME`` or ``~/.config``. ``FARM_TOKEN`` and ``FARM_CA`` (a PEM file) go before them.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import os
import re
import ssl
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from farm.core.files import write_atomic
from farm.core.tokens import parse_token
from farm.errors import InvalidInput, NotAllowed, TrackerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN_VARIABLE = "FARM_TOKEN"
CA_VARIABLE = "FARM_CA"
FOLDER_VARIABLE = "FARM_CREDENTIALS"
INSECURE_VARIABLE = "FARM_INSECURE"
CERTIFICATE_NAME = "kernel-farm"
"""The name in every tracker's certificate: clients trust one certificate, whatever the host's name."""
MAX_FILE_BYTES = 64 << 10
FETCH_TIMEOUT_S = 5.0

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HERE = {"localhost", "0.0.0.0", "::", "[::]", ""}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token, and the certificate (PEM) by which the tracker is known; empty: plain text."""

    token: str = field(default="", repr=False)
    ca: bytes = field(default=b"", repr=False)


NOTHING = Credentials()


def find(address: str) -> Credentials:
    """Return this user's credentials for an address: environment first, then the file; or nothing.

    Raises
    ------
    NotAllowed
        The file is not this user's alone.
    InvalidInput
        A file is malformed, or FARM_CA names none.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    kept = load(address)
    return Credentials(parse_token(token).text if token else kept.token, _ca() or kept.ca)


def token_source(address: str) -> Callable[[], str]:
    """Return a function that gives the token for an address, as it is now.

    The file is read again when it has changed, as when a tracker on this machine was started again.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if token:
        text = parse_token(token).text
        return lambda: text
    path = path_of(address)
    if path is None:
        return lambda: ""
    return _FileToken(path)


class _FileToken:
    """The token in a file, read when the file changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        try:
            found = self._path.stat()
        except OSError:
            return self._token  # a tracker that ended took it away; its calls fail in any case
        mark = (found.st_mtime_ns, found.st_ino)
        if mark != self._seen:
            self._token = _read(self._path).token
            self._seen = mark
        return self._token


def load(address: str) -> Credentials:
    """Return the credentials kept for an address, or nothing; raises as `find`."""
    path = path_of(address)
    return _read(path) if path is not None else NOTHING


def save(address: str, credentials: Credentials, *, pid: int = 0) -> Path:
    """Keep credentials for an address; others cannot read them.

    Parameters
    ----------
    pid
        The tracker's process, if they are worth nothing once it has ended.

    Raises
    ------
    OSError
        The folder cannot be written.
    InvalidInput
        There is no home folder.
    """
    path = path_of(address)
    if path is None:
        raise InvalidInput(f"credentials: no home folder; set {FOLDER_VARIABLE} to a folder")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = [f'token = "{credentials.token}"', f"pid = {pid}"]
    if credentials.ca:
        lines.append(f'ca = """\n{credentials.ca.decode()}"""')
    write_atomic(path, ("\n".join(lines) + "\n").encode())  # mkstemp: readable by its owner only
    return path


def forget(address: str, token: str) -> None:
    """Drop what is kept for an address, if it is still this token."""
    path = path_of(address)
    if path is not None and path.exists() and _read(path).token == token:
        path.unlink(missing_ok=True)


def prune() -> None:
    """Drop credentials of trackers on this machine whose process has ended."""
    folder = folder_of()
    if folder is None or not folder.is_dir():
        return
    for path in folder.glob("*.toml"):
        with contextlib.suppress(OSError, InvalidInput, NotAllowed):
            pid = _document(path).get("pid", 0)
            if isinstance(pid, int) and pid > 0 and not Path(f"/proc/{pid}").exists():
                path.unlink(missing_ok=True)


def folder_of() -> Path | None:
    """Return the folder of this user's credentials; None if there is no home folder."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    if chosen:
        return Path(chosen)
    config = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        base = Path(config) if Path(config).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        return None
    return base / "kernel-farm" / "credentials"


def path_of(address: str) -> Path | None:
    """Return the file for an address; names of this machine are one."""
    folder = folder_of()
    host, _, port = address.rpartition(":")
    name = "127.0.0.1" if host in _HERE else host.strip("[]").lower()
    safe = re.sub(r"[^a-z0-9.-]", "_", name)[:200]
    return None if folder is None else folder / f"{safe}_{port}.toml"


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach ``host:port``."""
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def check_may_send(address: str, ca: bytes) -> None:
    """Check that a connection to an address is encrypted or stays on this machine.

    Raises
    ------
    NotAllowed
        It would cross a network in plain text, and FARM_INSECURE=1 does not ask for that.
    """
    here = is_loopback(address) or address.rpartition(":")[0] in _HERE
    if ca or here or os.environ.get(INSECURE_VARIABLE, "") == "1":
        return
    raise NotAllowed(
        f"tracker {address}: its certificate is not known here, so nothing is sent to it; use "
        f"`farm connect STRING` (the tracker prints the string) or set {CA_VARIABLE}, or "
        f"{INSECURE_VARIABLE}=1 for plain text"
    )


@dataclass(frozen=True, slots=True)
class ConnectString:
    """``farm://TOKEN@HOST:PORT?sha256=HEX``: all that is needed to reach a tracker from elsewhere."""

    address: str
    token: str = field(repr=False)
    fingerprint: str = ""

    def __str__(self) -> str:
        """Return the text, with the token."""
        token = f"{self.token}@" if self.token else ""
        pin = f"?sha256={self.fingerprint}" if self.fingerprint else ""
        return f"farm://{token}{self.address}{pin}"

    @staticmethod
    def parse(text: str) -> ConnectString:
        """Return what a text says; raises InvalidInput, which does not repeat the token."""
        with contextlib.suppress(ValueError):
            parts = urlsplit(text) if len(text) <= 1024 else urlsplit("")
            pins = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
            fingerprint = pins.pop("sha256", [""])[0]
            good = parts.scheme == "farm" and parts.port and not pins and not parts.path
            if good and (not fingerprint or _SHA256.fullmatch(fingerprint)):
                address = parts.netloc.rpartition("@")[2]
                token = parts.username or ""
                return ConnectString(address, parse_token(token).text if token else "", fingerprint)
        raise InvalidInput(
            "connect: malformed text; use farm://TOKEN@HOST:PORT?sha256=HEX as the tracker's side "
            "prints it"
        )


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (PEM), 64 hex digits."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate.decode())).hexdigest()


def fetch_certificate(address: str, fingerprint: str) -> bytes:
    """Return a tracker's certificate (PEM), if it is the one with this fingerprint.

    Raises
    ------
    NotAllowed
        Somebody with another certificate answers.
    TrackerUnreachable
        Nobody answers, or not with TLS.
    """
    host, _, port = address.rpartition(":")
    try:
        pem = ssl.get_server_certificate((host.strip("[]"), int(port)), timeout=FETCH_TIMEOUT_S)
    except (OSError, ValueError) as error:
        raise TrackerUnreachable(
            f"tracker: nobody answers with TLS at {address} ({error}); check the address"
        ) from error
    found = fingerprint_of(pem.encode())
    if not hmac.compare_digest(found, fingerprint):
        raise NotAllowed(
            f"tracker {address}: its certificate is another one (sha256 {found}); somebody else "
            "answers there, or it was set up again: ask whoever runs it"
        )
    return pem.encode()


def _ca() -> bytes:
    name = os.environ.get(CA_VARIABLE, "")
    if not name:
        return b""
    try:
        with Path(name).open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise InvalidInput(
            f"{CA_VARIABLE}: {name[:300]} cannot be read ({error.strerror}); name a PEM file"
        ) from error
    if b"BEGIN CERTIFICATE" not in data:
        raise InvalidInput(f"{CA_VARIABLE}: {name[:300]} is no certificate; name a PEM file")
    return data


def _read(path: Path) -> Credentials:
    value = _document(path)
    token, ca = value.get("token", ""), value.get("ca", "")
    if not isinstance(token, str) or not isinstance(ca, str):
        raise InvalidInput(f"credentials: {path} is malformed; remove it")
    return Credentials(token, ca.encode())


def _document(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise NotAllowed(
                    f"credentials: others may read {path}; remove it, or make it yours alone "
                    "(chmod 600)"
                )
            text = file.read(MAX_FILE_BYTES).decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"credentials: {path} cannot be read ({error}); remove it") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"credentials: {path} is malformed ({error}); remove it") from error
