"""Credentials: where they are found, whom they are shown, strings that carry them."""

from __future__ import annotations

import os

import pytest

from farm.core.tokens import new_token
from farm.errors import InvalidInput, NotAllowed
from farm.rpc import credentials
from farm.rpc.channels import channel
from farm.rpc.credentials import ConnectString, Credentials

TOKEN = new_token(bytes).text
OTHER = new_token(lambda count: b"\1" * count).text
PEM = b"-----BEGIN CERTIFICATE-----\nQUJD\n-----END CERTIFICATE-----\n"
PIN = "b5d4045c3f466fa91fe2cc6abe79232a1a57cdf104f7a26e716e0a1e2789df78"  # SHA-256 of b"ABC"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name in ("FARM_TOKEN", "FARM_CA", "FARM_INSECURE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FARM_CREDENTIALS", str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_credentials_saved_are_found_by_every_name_of_this_machine(folder):
    path = credentials.save("127.0.0.1:7460", Credentials(TOKEN, PEM))
    assert path.parent == folder
    assert (path.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)
    for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::]"):
        assert credentials.find(f"{host}:7460") == Credentials(TOKEN, PEM)
    assert credentials.find("127.0.0.1:7461") == Credentials()
    assert TOKEN not in repr(credentials.find("127.0.0.1:7460"))


def test_credentials_of_the_environment_go_first(monkeypatch, tmp_path):
    credentials.save("h:1", Credentials(TOKEN, PEM))
    monkeypatch.setenv("FARM_TOKEN", OTHER)
    assert credentials.find("h:1") == Credentials(OTHER, PEM)
    (tmp_path / "ca.pem").write_bytes(PEM * 2)
    monkeypatch.setenv("FARM_CA", str(tmp_path / "ca.pem"))
    assert credentials.find("h:1") == Credentials(OTHER, PEM * 2)
    assert credentials.token_source("h:1")() == OTHER


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_ca_that_is_none_is_refused(monkeypatch, tmp_path, content):
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    monkeypatch.setenv("FARM_CA", str(tmp_path / "ca.pem"))
    with pytest.raises(InvalidInput, match="FARM_CA"):
        credentials.find("h:1")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_credentials_that_others_can_read_are_refused(mode):
    path = credentials.save("h:1", Credentials(TOKEN))
    path.chmod(mode)
    with pytest.raises(NotAllowed, match="others may read"):
        credentials.find("h:1")


@pytest.mark.parametrize("text", [b"token = ", b"token = 3\n", b"\xff", b'token = "x"\nca = 1\n'])
def test_credentials_malformed_are_refused(text):
    path = credentials.save("h:1", Credentials(TOKEN))
    path.write_bytes(text)
    with pytest.raises(InvalidInput, match="remove it"):
        credentials.load("h:1")


def test_token_source_follows_the_file():
    source = credentials.token_source("h:1")
    assert source() == ""
    credentials.save("h:1", Credentials(TOKEN))
    assert source() == TOKEN
    credentials.save("h:1", Credentials(OTHER))
    assert source() == OTHER


def test_credentials_are_forgotten_by_whoever_left_them_only():
    path = credentials.save("h:1", Credentials(TOKEN))
    credentials.forget("h:1", OTHER)
    assert path.exists()
    credentials.forget("h:1", TOKEN)
    assert not path.exists()


def test_prune_drops_those_of_ended_processes_only():
    kept = credentials.save("h:1", Credentials(TOKEN))
    lives = credentials.save("h:2", Credentials(TOKEN), pid=os.getpid())
    ended = credentials.save("h:3", Credentials(TOKEN), pid=2**22 + 1)
    credentials.prune()
    assert (kept.exists(), lives.exists(), ended.exists()) == (True, True, False)


def test_connection_over_a_network_in_plain_text_is_refused_unless_asked_for(monkeypatch):
    with pytest.raises(NotAllowed, match="its certificate is not known here"):
        channel("10.0.0.1:7460")
    credentials.check_may_send("10.0.0.1:7460", PEM)
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1", "0.0.0.0:1"):
        credentials.check_may_send(address, b"")
    monkeypatch.setenv("FARM_INSECURE", "1")
    channel("10.0.0.1:7460").close()


@pytest.mark.parametrize(
    "value",
    [
        ConnectString("10.0.0.1:7460", TOKEN, PIN),
        ConnectString("[::1]:1", TOKEN),
        ConnectString("farm.example:7460", "", PIN),
    ],
)
def test_connect_string_parses_to_itself(value):
    assert ConnectString.parse(str(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "farm://h",
        f"http://{TOKEN}@h:1",
        f"farm://{TOKEN}@h:1?sha256=00",
        f"farm://{TOKEN}@h:1?md5=00",
        f"farm://{TOKEN}@h:99999",
        f"farm://{TOKEN}@h:1/path",
        "farm://secret@h:1",
        "farm://[h:1",
        "farm://" + "h" * 2000 + ":1",
    ],
)
def test_connect_string_malformed_is_refused_without_repeating_it(text):
    with pytest.raises(InvalidInput) as caught:
        ConnectString.parse(text)
    assert TOKEN not in caught.value.message
    assert "secret" not in caught.value.message


def test_fingerprint_is_the_sha256_of_the_certificate():
    assert credentials.fingerprint_of(PEM) == PIN
