"""``farm token`` and ``farm connect`` against a real farm."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from farm.rpc import credentials

FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]


@pytest.fixture
def stranger(tmp_path, embedded_farm):
    """Run a command as somebody who has only what is given: no credentials of the farm's own user."""

    def run(*arguments, token=None):
        environment = {**os.environ, "FARM_CREDENTIALS": str(tmp_path / "others")}
        environment["FARM_TRACKER"] = embedded_farm.address
        if token is not None:
            environment["FARM_TOKEN"] = token
        return subprocess.run(
            [*FARM, *arguments], env=environment, capture_output=True, text=True, timeout=180
        )

    return run


def test_token_is_made_used_listed_and_revoked(cli, stranger):
    made = cli(
        "token", "create", "--role", "user", "--account", "ci", "--expires", "1h", "-o", "json"
    )
    token, token_id = made.json["token"], made.json["info"]["token_id"]
    assert made.json["info"]["verbs"] == ["blobs", "build", "lease", "run", "see"]
    assert made.json["info"]["expires_at"] == pytest.approx(made.json["info"]["created_at"] + 3600)
    assert stranger("devices").returncode == 8
    assert stranger("devices", token=token).returncode == 0
    assert stranger("token", "list", token=token).returncode == 8
    listed = cli("token", "list", "-o", "json")
    assert token not in listed.out
    (info,) = [it for it in listed.json["tokens"] if it["token_id"] == token_id]
    assert (info["account"], info["revoked_at"]) == ("ci", None)
    assert info["used_at"] is not None
    assert cli("token", "revoke", token_id).out == f"{token_id}: revoked\n"
    assert cli("token", "revoke", token_id).code == 0
    refused = stranger("devices", "-o", "json", token=token)
    assert refused.returncode == 8
    assert json.loads(refused.stdout)["error"]["code"] == "UNAUTHENTICATED"
    assert "revoked" in json.loads(refused.stdout)["error"]["message"]


def test_token_in_text_is_shown_with_what_to_do(cli):
    ended = cli("token", "create", "--role", "operator")
    token = ended.out.splitlines()[0]
    assert f"  FARM_TOKEN={token}\n" in ended.out
    assert f"  farm connect 'farm://{token}@127.0.0.1:" in ended.out
    assert token.split("_")[1] in cli("token", "list").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--role", "user", "--verbs", "tokens"), "role user has no verb 'tokens'"),
        (("--role", "user", "--labels", "A B"), "malformed term"),
        (("--role", "user", "--agent-id", "x"), "name an agent for role agent or enrolment"),
        (("--role", "agent"), "name an agent for role agent or enrolment"),
        (("--role", "user", "--account", "a b"), "malformed account"),
        (("--role", "user", "--expires", "soon"), "is no span"),
        (("--role", "king"), "'king' is not one of"),
    ],
)
def test_token_that_cannot_be_is_refused(cli, arguments, words):
    ended = cli("token", "create", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert words in ended.err


def test_token_that_is_unknown_is_not_found(cli):
    ended = cli("token", "revoke", "0" * 16, "-o", "json")
    assert (ended.code, ended.error["code"]) == (2, "NOT_FOUND")


def test_connect_keeps_what_other_commands_find(cli, stranger, tmp_path):
    string = cli("token", "create", "--role", "user", "-o", "json").json["connect"]
    ended = stranger("connect", string)
    assert ended.returncode == 0, ended.stderr
    assert "PLAIN TEXT" in ended.stdout
    (path,) = (tmp_path / "others").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert stranger("devices").returncode == 0


def test_connect_elsewhere_in_plain_text_is_not_allowed(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("FARM_CREDENTIALS", str(tmp_path / "others"))
    token = "farm_" + "0" * 16 + "_" + "A" * 43
    ended = cli("connect", f"farm://{token}@10.0.0.1:7460")
    assert ended.code == 8
    assert credentials.load("10.0.0.1:7460") == credentials.NOTHING
