"""The tables of the store.

Owns: names, columns, keys and indices. Does not own: what is written when (`store`) or a column's form (`rows`).

Invariant: nothing here is of one database only. Version 2 added jobs, run attempts, accounts, notes, operators' wishes.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
)

metadata = MetaData()

meta = Table("meta", metadata, Column("name", String, primary_key=True), Column("value", String))
agents = Table(
    "agents",
    metadata,
    Column("agent_id", String, primary_key=True),
    Column("instance_id", String, nullable=False),
    Column("former_instances", String, nullable=False),
    Column("version", String, nullable=False),
    Column("builds", String, nullable=False),
    Column("build_slots", Integer, nullable=False),
    Column("hosted_by", String, nullable=False),
    Column("host", String, nullable=False),
    Column("device_ids", String, nullable=False),
)
devices = Table(
    "devices",
    metadata,
    Column("device_id", String, primary_key=True),
    Column("agent_id", String, nullable=False),
    Column("description", String, nullable=False),
    Column("admin", String, nullable=False),
    Column("admin_reason", String, nullable=False),
    Column("admin_actor", String, nullable=False),
    Column("admin_until_wall", Float),
    Column("epoch", BigInteger, nullable=False),
)
leases = Table(
    "leases",
    metadata,
    Column("lease_id", String, primary_key=True),
    Column("selector", String, nullable=False),
    Column("holder", String, nullable=False),
    Column("account", String, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("job_id", String, nullable=False),
    Column("queued_wall", Float, nullable=False),
    Column("granted_wall", Float, nullable=False),
    Column("ttl_s", Float, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("device_id", String, nullable=False),
    Column("agent_id", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_wall", Float, nullable=False),
    Column("cause", String, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
builds = Table(
    "builds",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("request_key", String, nullable=False),
    Column("target_host", String, nullable=False),
    Column("unit_ids", String, nullable=False),
    Column("keep_going", Boolean, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("artifact", String, nullable=False),
    Column("cause", String, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("unit_id", String, nullable=False),
    Column("unit", String, nullable=False),
    Column("agent_id", String, nullable=False),
    Column("instance_id", String, nullable=False),
    Column("state", String, nullable=False, index=True),
    Column("failure", String, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
action_cache = Table(
    "action_cache",
    metadata,
    Column("kind", String, primary_key=True),
    Column("target_id", String, primary_key=True),
    Column("symbol", String, primary_key=True),
    Column("function_sha256", String, primary_key=True),
    Column("builder_version", String, primary_key=True),
    Column("toolchain", String, primary_key=True),
    Column("target", String, nullable=False),
    Column("module", String, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Column("stored_wall", Float, nullable=False),
)
jobs = Table(
    "jobs",
    metadata,
    Column("job_id", String, primary_key=True),
    Column("account", String, nullable=False),
    Column("client_key", String, nullable=False),
    Column("content", String, nullable=False),
    Column("selector", String, nullable=False),
    Column("run", LargeBinary, nullable=False),
    Column("limit_s", Float, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("queue_limit_s", Float, nullable=False),
    Column("cancel_when_unwatched", Boolean, nullable=False),
    Column("queued_wall", Float, nullable=False),
    Column("queue_until_wall", Float, nullable=False),
    Column("infra_left", Integer, nullable=False),
    Column("lost_left", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("verdict", String, nullable=False),
    Column("result", LargeBinary),
    Column("failure", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("attempt_ids", String, nullable=False),
    Column("lost_devices", String, nullable=False),
    Column("shunned", String, nullable=False),
    Column("log", String, nullable=False),
    Column("log_bytes", BigInteger, nullable=False),
    Column("ended_wall", Float),
    Column("forget_wall", Float, nullable=False),
    Column("changed_wall", Float, nullable=False),
)
run_attempts = Table(
    "run_attempts",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("job_id", String, nullable=False),
    Column("lease_id", String, nullable=False),
    Column("device_id", String, nullable=False),
    Column("agent_id", String, nullable=False),
    Column("instance_id", String, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("state", String, nullable=False),
    Column("result", LargeBinary),
    Column("failure", String, nullable=False),
    Column("log_chunks", Integer, nullable=False),
    Column("started_wall", Float, nullable=False),
    Column("ended_wall", Float),
)
accounts = Table(
    "accounts",
    metadata,
    Column("account", String, primary_key=True),
    Column("usage_s", Float, nullable=False),
    Column("usage_wall", Float, nullable=False),
)
notes = Table(
    "events",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_wall", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("text", String, nullable=False),
    Column("actor", String, nullable=False),
)
