"""The commands of operators, against a server of one device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

FARM = [sys.executable, "-c", "from farm.cli.main import main; main()"]
DEVICE_KEYS = {
    *("device_id", "agent_id", "targets", "labels", "timing_class", "admin", "observed", "health"),
    *("health_cause", "use", "epoch"),
}


@pytest.mark.parametrize(
    ("options", "admin"),
    [((), "draining"), (("--maintenance",), "maintenance"), (("--retire",), "retired")],
)
def test_drain_takes_a_device_out_and_resume_puts_it_back(cli, tracker, options, admin):
    ended = cli(
        *("drain", "device_id=cpu-1", "--reason", "new fan", "--for", "60", *options, "-o", "json")
    )
    assert ended.code == 0, ended.err
    (device,) = ended.json["devices"]
    assert set(device) == DEVICE_KEYS
    assert (device["device_id"], device["admin"]) == ("cpu-1", admin)
    request = tracker.admin.requests[-1]
    assert (request.selector, request.reason, request.until_s) == ("device_id=cpu-1", "new fan", 60)
    row = cli("resume", "device_id=cpu-1").out.splitlines()[1]
    assert row.split()[:3] == ["cpu-1", "enabled", "online"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("drain", "device_id=cpu-1"),
        ("drain", "device_id=cpu-1", "--reason", " "),
        ("drain", "device_id=cpu-1", "--reason", "x" * 257),
        ("drain", "device_id=cpu-1", "--reason", "x", "--for", "nan"),
        ("drain", "", "--reason", "x"),
        ("resume", ","),
        ("drain",),
    ],
)
def test_drain_without_selector_or_reason_asks_nobody(cli, tracker, arguments):
    assert cli(*arguments).code == 2
    assert tracker.admin.requests == []


def test_acquire_holds_a_device_until_it_is_released(cli, tracker):
    value = cli("acquire", "kind=cpu", "--ttl", "300", "--holder", "me", "-o", "json").json
    assert set(value) == {"lease_id", "epoch", "lease_token", "remaining_s", "device"}
    assert (value["lease_id"], value["epoch"], value["remaining_s"]) == ("lease-1", 1, 300)
    assert value["device"]["device_id"] == "cpu-1"
    (lease,) = cli("who", "-o", "json").json["leases"]
    assert lease == {
        "lease_id": "lease-1",
        "device_id": "cpu-1",
        "epoch": 1,
        "holder": "me",
        "account": "own",
        "job_id": "",
        "remaining_s": 300,
    }
    extended = cli("extend", "lease-1", "--ttl", "600", "-o", "json").json
    assert extended == {"lease_id": "lease-1", "remaining_s": 600}
    assert cli("who").out.splitlines() == [
        "DEVICE  HOLDER  ACCOUNT  JOB  LEASE    EPOCH  LEFT",
        "cpu-1   me      own      -    lease-1  1      10 min 0 s",
    ]
    assert cli("release", "lease-1").out == "lease-1: released\n"
    assert cli("who").out == "nobody holds a device\n"
    assert cli("release", "lease-1", "--epoch", "1").code == 0


def test_secret_of_a_lease_is_kept_for_its_owner_alone(cli, tracker, tmp_path, monkeypatch):
    tracker.leases.strict = True
    assert "secret" not in cli("acquire").out
    kept = tmp_path / "state" / "kernel-farm" / "leases" / "lease-1"
    assert kept.stat().st_mode & 0o077 == 0
    assert cli("extend", "lease-1").code == 0
    content = kept.read_bytes()
    kept.write_bytes(b"{")
    assert cli("extend", "lease-1").code == 8
    kept.unlink()
    assert cli("release", "lease-1").code == 8
    monkeypatch.setenv("FARM_LEASE_TOKEN", "secret-1")
    assert cli("extend", "lease-1").code == 0
    monkeypatch.delenv("FARM_LEASE_TOKEN")
    kept.write_bytes(content)
    assert cli("release", "lease-1").code == 0
    assert not kept.exists()


def test_run_under_a_lease_uses_its_device_and_leaves_it(cli, tracker, saved):
    tracker.leases.strict = True
    cli("acquire")
    for _ in range(2):
        value = cli(
            "run", saved, "double", "--random", "1", "--lease", "lease-1", "-o", "json"
        ).json
        assert value["device"]["device_id"] == "cpu-1"
    assert tracker.sessions.attached == [("lease-1", 1, "secret-1")] * 2
    assert tracker.leases.released == []
    ended = cli(
        "run", saved, "double", "--random", "1", "--lease", "lease-1", "--device", "kind=cpu"
    )
    assert (ended.code, "drop --device" in ended.err) == (2, True)
    assert cli("run", saved, "double", "--random", "1", "--lease", "lease-9").code == 2


def test_secrets_of_leases_that_ended_long_ago_are_dropped(cli, tmp_path):
    cli("acquire")
    folder = tmp_path / "state" / "kernel-farm" / "leases"
    os.utime(folder / "lease-1", (1e9, 1e9))
    cli("acquire")
    assert [path.name for path in folder.iterdir()] == ["lease-2"]


def test_lease_whose_id_is_a_path_is_refused(cli):
    for command in ("extend", "release"):
        assert cli(command, "../../x").code == 2


def test_acquire_in_text_says_how_to_extend_and_release(cli):
    ended = cli("acquire")
    assert ended.out.splitlines() == [
        "lease-1, epoch 1: cpu-1 for 1 min 0 s",
        "  use it:       farm run FILE.farm FUNCTION --random 1 --lease lease-1",
        "  longer:       farm extend lease-1 --ttl 60",
        "  give it back: farm release lease-1",
    ]
    (lease,) = cli("who", "-o", "json").json["leases"]
    assert "@" in lease["holder"]


def test_lease_that_ended_cannot_be_extended(cli):
    assert cli("extend", "lease-9", "-o", "json").json["error"]["code"] == "NOT_FOUND"
    ended = cli("extend", "lease-9", "--epoch", "9", "-o", "json")
    assert (ended.code, ended.json["error"]["code"]) == (6, "FENCED")


@pytest.mark.parametrize("ttl", ["0.5", "601", "nan"])
def test_lease_of_an_impossible_time_is_refused(cli, ttl):
    assert cli("acquire", "--ttl", ttl).code == 2
    assert cli("extend", "lease-1", "--ttl", ttl).code == 2


def test_events_show_the_last_in_order(cli, tracker):
    assert cli("events").out == "no events\n"
    for number in range(1, 6):
        tracker.admin.happen("device.drained", f"d{number}", "drained: \x1b[2J", "me")
    value = cli("events", "--after", "1", "--last", "3", "-o", "json").json
    assert [event["number"] for event in value["events"]] == [3, 4, 5]
    assert value["events"][0] == {
        "number": 3,
        "at": 1e9,
        "kind": "device.drained",
        "subject": "d3",
        "text": "drained: \x1b[2J",
        "actor": "me",
    }
    (line,) = cli("events", "--last", "1").out.splitlines()
    assert line.split()[0] == "5"
    assert line.endswith("drained: \\x1b[2J (by me)")


def test_events_followed_are_no_json_document(cli):
    assert cli("events", "--follow", "-o", "json").code == 2


def test_events_followed_show_what_happens_until_an_interrupt(tracker):
    tracker.admin.happen("early", "x", "y")
    process = subprocess.Popen(
        [*FARM, "events", "--follow"],
        env={**os.environ, "FARM_TRACKER": tracker.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "early" in process.stdout.readline()
        tracker.admin.happen("late", "x", "y")
        assert "late" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130
    finally:
        process.kill()
        process.communicate(timeout=120)
