"""Tokens: made, checked, ended, exchanged; what is on disk."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace

import pytest
from farm_tracker.identity import tokens as module
from farm_tracker.identity.model import VERBS_OF_ROLE, Role, Verb
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

from farm.core.tokens import new_token, parse_token
from farm.errors import InfrastructureError, InvalidInput, NotAllowed, NotFound, Unauthenticated
from farm.target import Selector


def test_token_made_is_the_token_authenticated_also_after_a_restart(with_tokens, clock):
    kept = {}

    async def make(tokens):
        kept["text"], kept["token"] = await tokens.create(
            "user", verbs=["see", "run"], labels="kind=ea", account="ci", expires_s=60
        )
        token = kept["token"]
        assert (token.role, token.verbs) == (Role.USER, {Verb.SEE, Verb.RUN})
        assert (token.labels, token.account) == (Selector.parse("kind=ea"), "ci")
        assert (token.created_at, token.expires_at) == (clock.at, clock.at + 60)
        assert tokens.authenticate(kept["text"]) == token

    async def check(tokens):
        found = tokens.authenticate(kept["text"])
        assert replace(found, used_at=0) == kept["token"]

    with_tokens(make)
    with_tokens(check)


def test_token_is_on_disk_as_a_digest_in_a_file_of_the_user_alone(with_tokens, tmp_path):
    texts = []

    async def make(tokens):
        texts.append((await tokens.create("admin"))[0])

    with_tokens(make)
    path = tmp_path / "identity.db"
    assert path.stat().st_mode & 0o777 == 0o600
    secret = texts[0].split("_", 2)[2].encode()
    for file in tmp_path.iterdir():
        assert secret not in file.read_bytes()


def test_token_is_worth_nothing_under_another_key(with_tokens):
    texts = []

    async def make(tokens):
        texts.append((await tokens.create("admin"))[0])

    async def check(tokens):
        with pytest.raises(Unauthenticated, match="not one of this farm"):
            tokens.authenticate(texts[0])

    with_tokens(make)
    with_tokens(check, key=bytes(32))


def test_token_expires_at_its_end(with_tokens, clock):
    async def body(tokens):
        text, token = await tokens.create("user", expires_s=10)
        clock.at += 9.99
        tokens.authenticate(text)
        clock.at += 0.01
        with pytest.raises(Unauthenticated, match=f"token {token.token_id}: expired"):
            tokens.authenticate(text)

    with_tokens(body)


def test_token_revoked_is_refused_for_good(with_tokens):
    kept = []

    async def body(tokens):
        text, token = await tokens.create("user")
        first = await tokens.revoke(token.token_id)
        assert await tokens.revoke(token.token_id) == first
        kept.append(text)
        with pytest.raises(Unauthenticated, match="revoked"):
            tokens.authenticate(text)

    async def after(tokens):
        with pytest.raises(Unauthenticated, match="revoked"):
            tokens.authenticate(kept[0])

    with_tokens(body)
    with_tokens(after)


def test_token_that_is_unknown_cannot_be_revoked(with_tokens):
    async def body(tokens):
        local = parse_token(tokens.create_for_this_run())
        for token_id in ("", "0" * 16, local.token_id):
            with pytest.raises(NotFound):
                await tokens.revoke(token_id)

    with_tokens(body)


def test_token_revoked_ends_what_runs_under_it(with_tokens):
    async def body(tokens):
        ended = []
        _, token = await tokens.create("user")
        _, other = await tokens.create("user")
        with (
            tokens.until_ended(token, lambda: ended.append("first")),
            tokens.until_ended(token, lambda: ended.append("second")),
            tokens.until_ended(other, lambda: ended.append("other")),
        ):
            with tokens.until_ended(token, lambda: ended.append("gone")):
                pass
            await tokens.revoke(token.token_id)
            assert sorted(ended) == ["first", "second"]

    with_tokens(body)


def test_token_that_expires_ends_what_runs_under_it(with_tokens, clock):
    async def body(tokens):
        ended = asyncio.Event()
        _, token = await tokens.create("user", expires_s=0.05)
        with tokens.until_ended(token, ended.set):
            async with asyncio.timeout(60):
                await ended.wait()

    with_tokens(body)


@given(st.integers(0, 41), st.sampled_from("ABab01-_"))
def test_token_with_one_character_changed_is_refused(place, char):
    async def body():
        tokens = module.Tokens(NoStore(), bytes(32), Still())
        text = tokens.create_for_this_run()
        start = len(text) - 43
        changed = text[: start + place] + char + text[start + place + 1 :]
        if changed != text:
            with pytest.raises(Unauthenticated):
                tokens.authenticate(changed)

    asyncio.run(body())


class NoStore:
    def load(self):
        return []


class Still:
    def now(self):
        return 0.0

    def wall(self):
        return 1e6


@pytest.mark.parametrize("text", ["", "x", new_token().text, "farm_" + "0" * 16 + "_" + "é" * 43])
def test_token_of_nobody_is_refused(with_tokens, text):
    async def body(tokens):
        await tokens.create("user")
        with pytest.raises(Unauthenticated):
            tokens.authenticate(text)

    with_tokens(body)


def test_token_of_this_run_is_an_admin_that_is_never_stored(with_tokens):
    kept = []

    async def body(tokens):
        kept.append(tokens.create_for_this_run())
        token = tokens.authenticate(kept[0])
        assert (token.role, token.verbs, token.stored) == (
            Role.ADMIN,
            VERBS_OF_ROLE[Role.ADMIN],
            False,
        )
        assert tokens.tokens() == []

    async def after(tokens):
        with pytest.raises(Unauthenticated):
            tokens.authenticate(kept[0])

    with_tokens(body)
    with_tokens(after)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"role": "king"}, "unknown role"),
        ({"role": "user", "verbs": ["operate"]}, "has no verb 'operate'"),
        ({"role": "user", "labels": "=x"}, "malformed term"),
        ({"role": "user", "account": "a/b"}, "malformed account"),
        ({"role": "user", "account": "a" * 65}, "malformed account"),
        ({"role": "user", "expires_s": -1.0}, "impossible end"),
        ({"role": "user", "expires_s": float("nan")}, "impossible end"),
        ({"role": "user", "agent_id": "a"}, "only there"),
        ({"role": "agent"}, "name an agent"),
        ({"role": "agent", "agent_id": "A"}, "agent id: malformed"),
    ],
)
def test_token_that_cannot_be_is_refused(with_tokens, options, words):
    async def body(tokens):
        with pytest.raises(InvalidInput, match=words):
            await tokens.create(**options)
        assert tokens.tokens() == []

    with_tokens(body)


def test_tokens_are_limited_in_number(with_tokens, monkeypatch):
    monkeypatch.setattr(module, "MAX_TOKENS", 1)

    async def body(tokens):
        await tokens.create("user")
        with pytest.raises(InvalidInput, match="there are 1 already"):
            await tokens.create("user")

    with_tokens(body)


def test_tokens_that_ended_make_room_for_others_the_farm_never_fills_up(with_tokens, monkeypatch):
    monkeypatch.setattr(module, "MAX_TOKENS", 3)

    async def body(tokens):
        admin, _ = await tokens.create("admin")
        by = tokens.authenticate(admin)
        for number in range(10):  # each build server that comes and goes
            _, credential = await tokens.enrol(f"agent-{number}", by)
            await tokens.revoke(credential.token_id)
        assert len(tokens.tokens()) <= 3
        await tokens.enrol("a", by)
        await tokens.enrol("b", by)
        with pytest.raises(InvalidInput, match="there are 3 already"):
            await tokens.enrol("c", by)
        assert {it.token_id for it in tokens._store.load()} == {
            it.token_id for it in tokens.tokens()
        }

    with_tokens(body)


def test_write_goes_on_when_its_caller_leaves_and_the_next_waits_for_it(with_tokens):
    async def body(tokens):
        write = tokens._store.write
        writing = threading.Lock()
        begun, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def slow(changed, removed=()):
            assert writing.acquire(blocking=False), "two threads use one connection"
            loop.call_soon_threadsafe(begun.set)
            go_on.wait(60)
            write(changed, removed)
            writing.release()

        _, token = await tokens.create("user")
        tokens._store.write = slow
        revoking = asyncio.create_task(tokens.revoke(token.token_id))
        await begun.wait()
        revoking.cancel()
        await asyncio.wait({revoking})
        making = asyncio.create_task(tokens.create("user"))
        await asyncio.sleep(0)
        go_on.set()
        await making
        assert {it.token_id for it in tokens._store.load() if it.revoked_at} == {token.token_id}

    with_tokens(body)


def test_enrolment_token_is_exchanged_once(with_tokens, clock):
    async def body(tokens):
        text, token = await tokens.create("enrolment")
        assert token.expires_at == clock.at + 3600
        by = tokens.authenticate(text)
        own, credential = await tokens.enrol("shelf-1", by)
        assert (credential.role, credential.agent_id) == (Role.AGENT, "shelf-1")
        assert credential.verbs == {Verb.AGENT, Verb.BLOBS}
        assert tokens.authenticate(own).token_id == credential.token_id
        with pytest.raises(Unauthenticated, match="used up"):
            tokens.authenticate(text)
        with pytest.raises(
            Unauthenticated, match="used up"
        ):  # a second call that was let in before
            await tokens.enrol("shelf-2", by)

    with_tokens(body)


def test_enrolment_token_used_twice_at_the_same_time_gives_one_credential(with_tokens):
    async def body(tokens):
        text, _ = await tokens.create("enrolment")
        by = tokens.authenticate(text)
        outcomes = await asyncio.gather(
            *(tokens.enrol(f"agent-{number}", by) for number in range(5)), return_exceptions=True
        )
        assert [type(it) for it in outcomes] == [tuple] + [Unauthenticated] * 4
        assert sum(it.role is Role.AGENT for it in tokens.tokens()) == 1

    with_tokens(body)


def test_enrolment_for_one_agent_enrols_no_other(with_tokens):
    async def body(tokens):
        text, _ = await tokens.create("enrolment", agent_id="shelf-1")
        by = tokens.authenticate(text)
        with pytest.raises(NotAllowed, match="enrols shelf-1 only"):
            await tokens.enrol("shelf-2", by)
        await tokens.enrol("shelf-1", by)

    with_tokens(body)


def test_enrolment_takes_over_no_agent_that_is_enrolled_but_an_admin_may(with_tokens):
    async def body(tokens):
        admin = tokens.authenticate((await tokens.create("admin"))[0])
        first, credential = await tokens.enrol("shelf-1", admin)
        by = tokens.authenticate((await tokens.create("enrolment"))[0])
        with pytest.raises(NotAllowed, match=f"already \\({credential.token_id}\\)"):
            await tokens.enrol("shelf-1", by)
        ended = []
        with tokens.until_ended(credential, lambda: ended.append(True)):
            second, _ = await tokens.enrol("shelf-1", admin)
        assert ended == [True]
        tokens.authenticate(second)
        with pytest.raises(Unauthenticated, match="revoked"):
            tokens.authenticate(first)
        tokens.authenticate((await tokens.create("admin"))[0])

    with_tokens(body)


def test_enrolment_of_a_malformed_id_is_refused_and_uses_nothing_up(with_tokens):
    async def body(tokens):
        text, _ = await tokens.create("enrolment")
        with pytest.raises(InvalidInput, match="agent id: malformed"):
            await tokens.enrol("../x", tokens.authenticate(text))
        await tokens.enrol("x", tokens.authenticate(text))

    with_tokens(body)


def test_tokens_that_cannot_be_stored_are_not_given_out(with_tokens, tmp_path):
    async def body(tokens):
        text, _ = await tokens.create("enrolment")
        by = tokens.authenticate(text)
        await asyncio.sleep(0.05)
        await tokens.close()

        def full(changed, removed=()):
            raise OperationalError("insert", {}, sqlite3.OperationalError("disk is full"))

        tokens._store.write = full
        for attempt in (tokens.create("user"), tokens.enrol("x", by)):
            with pytest.raises(InfrastructureError, match="disk is full"):
                await attempt
        assert [it.role for it in tokens.tokens()] == [Role.ENROLMENT]
        tokens.authenticate(text)  # not used up
        del tokens._store.write

    with_tokens(body)


def test_token_that_ended_long_ago_is_dropped(with_tokens, clock):
    async def make(tokens):
        await tokens.create("user", expires_s=1)
        await tokens.create("user")
        clock.at += 1 + module.KEEP_ENDED_S
        assert len(tokens.tokens()) == 2
        clock.at += 1

    async def after(tokens):
        assert [it.expires_at for it in tokens.tokens()] == [0.0]

    with_tokens(make)
    with_tokens(after)


def test_token_use_is_stored_to_the_minute(with_tokens, clock):
    async def body(tokens):
        text, _ = await tokens.create("user")
        clock.at += 100
        tokens.authenticate(text)
        clock.at += 30
        assert tokens.authenticate(text).used_at == clock.at - 30
        await tokens.close()
        assert [it.used_at for it in tokens._store.load()] == [clock.at - 30]

    with_tokens(body)
