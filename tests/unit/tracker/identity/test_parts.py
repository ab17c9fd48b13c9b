"""Lease tokens, narrowing, the audit log, the caller, the folder's files."""

from __future__ import annotations

import asyncio
import json

import pytest
from farm_tracker.identity import identity as identity_module
from farm_tracker.identity.audit import FILES, REFUSALS_AT_ONCE, AuditLog
from farm_tracker.identity.caller import caller, check_account, check_speaks_for, may, set_caller
from farm_tracker.identity.guard import _allowed
from farm_tracker.identity.identity import Identity
from farm_tracker.identity.leases import LeaseTokens
from farm_tracker.identity.matrix import RULES
from farm_tracker.identity.model import DOES, VERBS_OF_ROLE, Role, Token, Verb
from farm_tracker.identity.narrow import narrow
from farm_tracker.identity.tls import certificate_in
from hypothesis import given
from hypothesis import strategies as st

from farm.api.v1 import admin_pb2, device_pb2, job_pb2, lease_pb2
from farm.core.tokens import TokenId
from farm.errors import InfrastructureError, InvalidSelector, NotAllowed, Unauthenticated
from farm.rpc.credentials import fingerprint_of, load
from farm.target import Selector

KEY = bytes(range(32))


def token(role="user", labels="", account="", agent_id=""):
    known = Role(role)
    return Token(
        token_id=TokenId("0" * 16),
        digest=b"",
        role=known,
        verbs=VERBS_OF_ROLE[known],
        labels=Selector.parse(labels),
        account=account,
        agent_id=agent_id,
    )


# Refusals


@pytest.mark.parametrize("method", RULES)
def test_refusal_says_what_is_not_allowed_as_people_know_it(method):
    rule = RULES[method]
    lacking = next((role for role in Role if rule.verb not in VERBS_OF_ROLE[role]), None)
    assert lacking is not None
    with pytest.raises(NotAllowed) as caught:
        _allowed(token(lacking), f"/farm.api.v1.{method}")
    message = caught.value.message
    assert message.startswith(
        f"{DOES[rule.verb]}: token {'0' * 16} (role {lacking}) lacks the verb"
    )
    assert "farm token create" in message
    assert method.rpartition("/")[2] not in message  # no command is called like a method
    allowed = message.partition("use a token of role ")[2].partition(" (")[0].split(" or ")
    assert set(allowed) == {role for role in Role if rule.verb in VERBS_OF_ROLE[role]}


# Lease tokens


@given(st.text(max_size=40), st.integers(0, 2**53))
def test_lease_token_opens_its_lease_and_epoch_only(lease_id, epoch):
    leases = LeaseTokens(KEY)
    shown = leases.token(lease_id, epoch)
    LeaseTokens(KEY).check(lease_id, epoch, shown)
    for other, number in ((lease_id + "x", epoch), (lease_id, epoch + 1)):
        with pytest.raises(NotAllowed, match="lease token is wrong"):
            leases.check(other, number, shown)
    with pytest.raises(NotAllowed):
        LeaseTokens(bytes(32)).check(lease_id, epoch, shown)


@pytest.mark.parametrize(
    ("shown", "words"), [("", "missing"), ("é", "wrong"), ("x" * 9999, "wrong")]
)
def test_lease_token_that_is_none_is_refused(shown, words):
    with pytest.raises(NotAllowed, match=f"lease token is {words}"):
        LeaseTokens(KEY).check("lease-1", 1, shown)


# Narrowing


def test_narrow_joins_the_selector_with_the_token_s_labels():
    request = lease_pb2.AcquireRequest(selector="arch=x86_64,kind=ea")
    narrow(request, RULES["LeaseService/Acquire"], token(labels="kind=ea,rack!=3"))
    assert request.selector == "arch=x86_64,kind=ea,rack!=3"
    listing = device_pb2.ListDevicesRequest()
    narrow(listing, RULES["DeviceService/ListDevices"], token(labels="kind=ea"))
    assert listing.selector == "kind=ea"


def test_narrow_reaches_into_a_job_and_fills_its_account():
    request = job_pb2.SubmitRequest(run=job_pb2.RunSpec(selector="a"))
    narrow(request, RULES["JobService/Submit"], token(labels="kind=ea", account="ci"))
    assert (request.run.selector, request.account) == ("a,kind=ea", "ci")
    again = job_pb2.SubmitRequest(account="ci")
    narrow(again, RULES["JobService/Submit"], token(account="ci"))
    assert (again.account, again.run.selector) == ("ci", "")


def test_narrow_refuses_another_account_and_a_malformed_selector():
    with pytest.raises(NotAllowed, match="account other: this token is of account ci"):
        narrow(
            job_pb2.SubmitRequest(account="other"), RULES["JobService/Submit"], token(account="ci")
        )
    with pytest.raises(InvalidSelector):
        narrow(
            lease_pb2.AcquireRequest(selector="=,"),
            RULES["LeaseService/Acquire"],
            token(labels="a"),
        )


def test_narrow_leaves_an_operator_s_empty_selector_to_be_refused():
    request = admin_pb2.SetAdminRequest()
    narrow(request, RULES["AdminService/SetAdmin"], token("operator", labels="kind=ea"))
    assert request.selector == ""


# The caller


def test_caller_is_unknown_until_it_is_set():
    async def body():
        with pytest.raises(Unauthenticated):
            caller()
        assert not may(Verb.SEE)
        set_caller(token("agent", account="ci", agent_id="shelf-1"))
        assert await asyncio.create_task(seen()) == Role.AGENT
        assert (may(Verb.AGENT), may(Verb.OPERATE)) == (True, False)
        check_speaks_for("shelf-1")
        check_account("ci")
        with pytest.raises(NotAllowed, match="of agent shelf-1"):
            check_speaks_for("shelf-2")
        with pytest.raises(NotAllowed, match="of account ci"):
            check_account("other")
        set_caller(token())
        check_speaks_for("shelf-2")
        check_account("other")

    async def seen():
        return caller().role

    asyncio.run(body())


# The audit log


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_audit_line_says_who_did_what(tmp_path, clock):
    audit = AuditLog(tmp_path / "audit.jsonl", clock)
    audit.allowed("user 12", "ci", "lease", "LeaseService/Acquire", "lease-1")
    audit.refused("stranger", "", "see", "/x", 'none\n"shown"')
    audit.close()
    assert lines(tmp_path / "audit.jsonl") == [
        {
            "at": clock.at,
            "who": "user 12",
            "account": "ci",
            "verb": "lease",
            "method": "LeaseService/Acquire",
            "subject": "lease-1",
            "outcome": "allowed",
        },
        {
            "at": clock.at,
            "who": "stranger",
            "account": "",
            "verb": "see",
            "method": "/x",
            "subject": "",
            "outcome": 'refused: none\n"shown"',
        },
    ]
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_audit_log_goes_round_a_few_files_of_bounded_size(tmp_path, clock):
    audit = AuditLog(tmp_path / "audit.jsonl", clock, file_bytes=1000)
    for number in range(200):
        audit.allowed(f"user {number}", "", "see", "x" * 500)
    audit.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == FILES
    assert all(file.stat().st_size <= 1000 for file in files)
    assert lines(tmp_path / "audit.jsonl")[-1]["who"] == "user 199"


def test_audit_log_counts_a_flood_of_refusals(tmp_path, clock):
    audit = AuditLog(tmp_path / "audit.jsonl", clock)
    for _ in range(10 * REFUSALS_AT_ONCE):
        audit.refused("stranger", "", "see", "/x", "none")
    assert len(lines(tmp_path / "audit.jsonl")) == REFUSALS_AT_ONCE
    clock.at += 1
    audit.refused("stranger", "", "see", "/x", "none")
    assert lines(tmp_path / "audit.jsonl")[-1]["suppressed"] == 9 * REFUSALS_AT_ONCE
    audit.close()


def test_audit_log_that_cannot_be_written_stops_nobody(tmp_path, clock, caplog):
    audit = AuditLog(tmp_path / "absent" / "audit.jsonl", clock)
    audit.allowed("user", "", "see", "/x")
    assert "audit log: " in caplog.text


# The folder


def open_identity(folder, clock, body=None):
    async def opened():
        identity = await Identity.open(folder, clock)
        try:
            return await body(identity) if body else None
        finally:
            await identity.close()

    return asyncio.run(opened())


def test_first_start_leaves_an_admin_s_token_and_later_ones_keep_it(tmp_path, clock):
    async def admin(identity):
        text = (tmp_path / "admin.token").read_text().strip()
        return identity.tokens.authenticate(text).role

    assert open_identity(tmp_path, clock, admin) is Role.ADMIN
    before = (tmp_path / "admin.token").read_bytes()
    assert open_identity(tmp_path, clock, admin) is Role.ADMIN
    assert (tmp_path / "admin.token").read_bytes() == before
    for name in ("admin.token", "identity.key", "identity.db"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_folder_whose_key_has_gone_is_refused(tmp_path, clock):
    open_identity(tmp_path, clock)
    key = (tmp_path / "identity.key").read_bytes()
    (tmp_path / "identity.key").write_bytes(key[:5])
    with pytest.raises(InfrastructureError, match="is damaged"):
        open_identity(tmp_path, clock)
    (tmp_path / "identity.key").unlink()
    with pytest.raises(InfrastructureError, match="has gone"):
        open_identity(tmp_path, clock)


def test_credentials_are_published_while_the_tracker_runs(tmp_path, clock, monkeypatch):
    monkeypatch.setenv("FARM_CREDENTIALS", str(tmp_path / "user"))

    async def body(identity):
        identity.publish("127.0.0.1:1")
        assert load("127.0.0.1:1") == identity.local
        assert identity.tokens.authenticate(identity.local.token).role is Role.ADMIN
        identity.withdraw("127.0.0.1:1")
        assert load("127.0.0.1:1").token == ""

    open_identity(tmp_path, clock, body)


def test_credentials_that_cannot_be_published_are_told(tmp_path, clock, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FARM_CREDENTIALS", str(tmp_path / "file" / "folder"))

    async def body(identity):
        identity.publish("127.0.0.1:1")
        identity.withdraw("127.0.0.1:1")

    open_identity(tmp_path, clock, body)
    assert "set FARM_TOKEN" in caplog.text
    assert identity_module.log.name in caplog.text


def test_certificate_is_made_once_with_its_key_for_the_user_alone(tmp_path, clock):
    made = certificate_in(tmp_path, clock.wall())
    assert certificate_in(tmp_path, clock.wall()) == made
    assert (tmp_path / "tls.key").stat().st_mode & 0o777 == 0o600
    assert len(fingerprint_of(made.certificate)) == 64
    assert made.key.decode() not in repr(made)
