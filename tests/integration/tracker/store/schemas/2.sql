-- The tables of schema 2, as its programs made them (PostgreSQL calls a BLOB BYTEA).
CREATE TABLE accounts (
    account VARCHAR NOT NULL,
    usage_s FLOAT NOT NULL,
    usage_wall FLOAT NOT NULL,
    PRIMARY KEY (account)
);
CREATE TABLE action_cache (
    kind VARCHAR NOT NULL,
    target_id VARCHAR NOT NULL,
    symbol VARCHAR NOT NULL,
    function_sha256 VARCHAR NOT NULL,
    builder_version VARCHAR NOT NULL,
    toolchain VARCHAR NOT NULL,
    target VARCHAR NOT NULL,
    module VARCHAR NOT NULL,
    signature BLOB NOT NULL,
    stored_wall FLOAT NOT NULL,
    PRIMARY KEY (kind, target_id, symbol, function_sha256, builder_version, toolchain)
);
CREATE TABLE agents (
    agent_id VARCHAR NOT NULL,
    instance_id VARCHAR NOT NULL,
    former_instances VARCHAR NOT NULL,
    version VARCHAR NOT NULL,
    builds VARCHAR NOT NULL,
    build_slots INTEGER NOT NULL,
    hosted_by VARCHAR NOT NULL,
    host VARCHAR NOT NULL,
    device_ids VARCHAR NOT NULL,
    PRIMARY KEY (agent_id)
);
CREATE TABLE attempts (
    attempt_id VARCHAR NOT NULL,
    unit_id VARCHAR NOT NULL,
    unit VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    instance_id VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    failure VARCHAR NOT NULL,
    seconds FLOAT NOT NULL,
    changed_wall FLOAT NOT NULL,
    PRIMARY KEY (attempt_id)
);
CREATE INDEX ix_attempts_state ON attempts (state);
CREATE TABLE builds (
    job_id VARCHAR NOT NULL,
    request_key VARCHAR NOT NULL,
    target_host VARCHAR NOT NULL,
    unit_ids VARCHAR NOT NULL,
    keep_going BOOLEAN NOT NULL,
    state VARCHAR NOT NULL,
    artifact VARCHAR NOT NULL,
    cause VARCHAR NOT NULL,
    changed_wall FLOAT NOT NULL,
    PRIMARY KEY (job_id)
);
CREATE INDEX ix_builds_state ON builds (state);
CREATE TABLE devices (
    device_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    description VARCHAR NOT NULL,
    admin VARCHAR NOT NULL,
    admin_reason VARCHAR NOT NULL,
    admin_actor VARCHAR NOT NULL,
    admin_until_wall FLOAT,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (device_id)
);
CREATE TABLE events (
    number BIGINT NOT NULL,
    at_wall FLOAT NOT NULL,
    kind VARCHAR NOT NULL,
    subject VARCHAR NOT NULL,
    text VARCHAR NOT NULL,
    actor VARCHAR NOT NULL,
    PRIMARY KEY (number)
);
CREATE TABLE jobs (
    job_id VARCHAR NOT NULL,
    account VARCHAR NOT NULL,
    client_key VARCHAR NOT NULL,
    content VARCHAR NOT NULL,
    selector VARCHAR NOT NULL,
    run BLOB NOT NULL,
    limit_s FLOAT NOT NULL,
    priority INTEGER NOT NULL,
    queue_limit_s FLOAT NOT NULL,
    cancel_when_unwatched BOOLEAN NOT NULL,
    queued_wall FLOAT NOT NULL,
    queue_until_wall FLOAT NOT NULL,
    infra_left INTEGER NOT NULL,
    lost_left INTEGER NOT NULL,
    state VARCHAR NOT NULL,
    outcome VARCHAR NOT NULL,
    verdict VARCHAR NOT NULL,
    result BLOB,
    failure VARCHAR NOT NULL,
    attempt_id VARCHAR NOT NULL,
    attempt_ids VARCHAR NOT NULL,
    lost_devices VARCHAR NOT NULL,
    shunned VARCHAR NOT NULL,
    log VARCHAR NOT NULL,
    log_bytes BIGINT NOT NULL,
    ended_wall FLOAT,
    forget_wall FLOAT NOT NULL,
    changed_wall FLOAT NOT NULL,
    PRIMARY KEY (job_id)
);
CREATE TABLE leases (
    lease_id VARCHAR NOT NULL,
    selector VARCHAR NOT NULL,
    holder VARCHAR NOT NULL,
    account VARCHAR NOT NULL,
    priority INTEGER NOT NULL,
    job_id VARCHAR NOT NULL,
    queued_wall FLOAT NOT NULL,
    granted_wall FLOAT NOT NULL,
    ttl_s FLOAT NOT NULL,
    state VARCHAR NOT NULL,
    device_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    epoch BIGINT NOT NULL,
    expires_wall FLOAT NOT NULL,
    cause VARCHAR NOT NULL,
    changed_wall FLOAT NOT NULL,
    PRIMARY KEY (lease_id)
);
CREATE INDEX ix_leases_state ON leases (state);
CREATE TABLE meta (
    name VARCHAR NOT NULL,
    value VARCHAR,
    PRIMARY KEY (name)
);
CREATE TABLE run_attempts (
    attempt_id VARCHAR NOT NULL,
    job_id VARCHAR NOT NULL,
    lease_id VARCHAR NOT NULL,
    device_id VARCHAR NOT NULL,
    agent_id VARCHAR NOT NULL,
    instance_id VARCHAR NOT NULL,
    epoch BIGINT NOT NULL,
    state VARCHAR NOT NULL,
    result BLOB,
    failure VARCHAR NOT NULL,
    log_chunks INTEGER NOT NULL,
    started_wall FLOAT NOT NULL,
    ended_wall FLOAT,
    PRIMARY KEY (attempt_id)
);
INSERT INTO meta VALUES ('schema', '2');
INSERT INTO agents VALUES ('a', 'p1', '[]', '1', '[]', 0, 'ray', 'here', '["d"]');
INSERT INTO devices VALUES ('d', 'a', '{"labels":{},"provides":[],"targets":["t"],"timing_class":"NATIVE"}', 'DRAINED', 'fan', 'olga', NULL, 7);
INSERT INTO builds VALUES ('b', 'key', 'host', '[]', TRUE, 'DONE', '', '', 990.0);
INSERT INTO attempts VALUES ('u.1', 'u', '[]', 'a', 'p1', 'DONE', '', 0.5, 990.0);
INSERT INTO action_cache VALUES ('device', 't', 'f', 's', '1', 'cc', 't', '{}', '{}', 980.0);
INSERT INTO jobs VALUES ('j', 'alice', 'k', 'c', '', 'run', 5.0, 3, 60.0, FALSE, 990.0, 1050.0, 2, 2, 'QUEUED', '', '', NULL, '', '', '', '', '', '', 0, NULL, 1000.0, 1000.0);
INSERT INTO accounts VALUES ('alice', 12.5, 995.0);
INSERT INTO events VALUES (1, 990.0, 'job.submitted', 'j', 'for any device', 'alice');
