"""What a user's token lets the library do on a whole farm, and what it does not."""

from __future__ import annotations

import numpy as np
import pytest

import farm
from farm import te
from farm.errors import NobodyCanServe, NotAllowed, Unauthenticated


@pytest.fixture
def as_user(embedded_farm, monkeypatch, tmp_path):
    """Connect with a token of its own, and without the credentials of the farm's user."""
    with farm.connect(embedded_farm.address) as admin:
        made = []

        def connect(**options):
            token = admin.create_token("user", **options)
            made.append(token.info.token_id)
            with monkeypatch.context() as patch:
                patch.setenv("FARM_CREDENTIALS", str(tmp_path / "others"))
                patch.setenv("FARM_TOKEN", token.token)
                return farm.connect(embedded_farm.address)

        yield connect
        for token_id in made:
            admin.revoke_token(token_id)


def double():
    x = te.placeholder((8,), "int32", name="x")
    return te.function("double", [x, te.compute((8,), lambda i: x[i] * 2, name="y")])


VALUES = np.arange(8, dtype=np.int32)


def test_stranger_is_not_connected(embedded_farm, monkeypatch, tmp_path):
    monkeypatch.setenv("FARM_CREDENTIALS", str(tmp_path / "others"))
    with pytest.raises(Unauthenticated, match="none was shown; set FARM_TOKEN"):
        farm.connect(embedded_farm.address)


def test_user_with_labels_builds_runs_and_submits_on_matching_devices_only(as_user):
    with as_user(labels="kind=ea", account="ci") as client:
        assert [device.labels["kind"] for device in client.devices()] == ["ea"]
        artifact = client.build({"ea": [double()], "llvm": [double()]}, variants=True)
        with client.acquire(wait_s=60) as session:
            assert session.device.labels["kind"] == "ea"
            assert (session.load(artifact)["double"](VALUES) == VALUES * 2).all()
        outcome = client.run(artifact, "double", [VALUES])
        assert outcome.device.labels["kind"] == "ea"
        job = client.submit(artifact, "double", [VALUES])
        ended = job.wait(60)
        assert (ended.account, ended.verdict) == ("ci", "pass")
        for refused in (
            lambda: client.acquire("kind=cpu"),
            lambda: client.run(artifact, "double", [VALUES], selector="kind=cpu"),
            lambda: client.submit(artifact, "double", [VALUES], selector="kind=cpu"),
        ):
            with pytest.raises(NobodyCanServe):
                refused()
        with pytest.raises(NotAllowed, match="this token is of account ci"):
            client.submit(artifact, "double", [VALUES], account="other")


def test_user_of_one_account_has_nothing_to_do_with_jobs_of_another(as_user):
    with as_user(account="one") as one, as_user(account="two") as two:
        artifact = one.build({"ea": [double()]})
        job = one.submit(artifact, "double", [VALUES])
        job.wait(60)
        foreign = two.job(job.job_id)
        for refused in (lambda: foreign.wait(10), foreign.cancel, foreign.why):
            with pytest.raises(NotAllowed, match="of account two"):
                refused()
        assert job.job_id not in [it.job_id for it in two.jobs(include_ended=True)]
        assert job.job_id in [it.job_id for it in one.jobs(include_ended=True)]


def test_user_is_no_operator_and_no_admin(as_user):
    with as_user() as client:
        for refused in (
            lambda: client.drain("kind=ea", "for fun"),
            client.tokens,
            lambda: client.create_token("admin"),
        ):
            with pytest.raises(NotAllowed, match="lacks the verb"):
                refused()


def test_user_with_some_verbs_has_no_others(as_user):
    with as_user(verbs=["see"]) as client:
        assert client.devices()
        with pytest.raises(NotAllowed, match="lacks the verb lease; it has see"):
            client.acquire()


def test_user_who_may_not_look_connects_all_the_same(as_user):
    with as_user(verbs=["blobs", "build"]) as client:
        assert client.build({"ea": [double()]}).symbols
        with pytest.raises(NotAllowed, match="lacks the verb see"):
            client.devices()
