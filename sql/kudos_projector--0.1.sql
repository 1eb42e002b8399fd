\echo Use "CREATE EXTENSION kudos_projector" to load this file. \quit

-- Remainders: what is between the exact value of a target and the integer that its column shows,
-- in cents (exact value = column * 100 + remainder). Written by the projector in the transaction
-- that writes the column, and only where a fraction ever existed. One table beside each target.

CREATE TABLE kudos_remainder_users (
    id bigint PRIMARY KEY,
    kudos smallint NOT NULL,
    evaluating_kudos smallint NOT NULL
);
CREATE TABLE kudos_remainder_user_stats (
    user_id bigint,
    action text,
    value smallint NOT NULL,
    PRIMARY KEY (user_id, action)
);
CREATE TABLE kudos_remainder_worker_stats (
    worker_id uuid,
    action text,
    value smallint NOT NULL,
    PRIMARY KEY (worker_id, action)
);
CREATE TABLE kudos_remainder_user_records (
    user_id bigint,
    record_type text,
    record text,
    value smallint NOT NULL,
    PRIMARY KEY (user_id, record_type, record)
);
CREATE TABLE kudos_remainder_workers (
    id uuid PRIMARY KEY,
    kudos smallint NOT NULL,
    contributions smallint NOT NULL,
    fulfilments smallint NOT NULL
);
CREATE TABLE kudos_remainder_teams (
    id uuid PRIMARY KEY,
    kudos smallint NOT NULL,
    contributions smallint NOT NULL,
    fulfilments smallint NOT NULL
);

COMMENT ON TABLE kudos_remainder_users IS 'cents between the exact values of users and the integers shown';
COMMENT ON TABLE kudos_remainder_user_stats IS 'cents between the exact values of user_stats and the integers shown';
COMMENT ON TABLE kudos_remainder_worker_stats IS 'cents between the exact values of worker_stats and the integers shown';
COMMENT ON TABLE kudos_remainder_user_records IS 'cents between the exact values of user_records and integers shown; empty while the column is fractional';
COMMENT ON TABLE kudos_remainder_workers IS 'cents between the exact values of workers and the integers shown';
COMMENT ON TABLE kudos_remainder_teams IS 'cents between the exact values of teams and the integers shown';

-- They are money: a dump carries their rows.
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_users', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_user_stats', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_worker_stats', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_user_records', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_workers', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_teams', '');

-- Folding -----------------------------------------------------------------------------------------

CREATE FUNCTION kudos_fold_now(
    batch_size integer DEFAULT NULL,
    max_cycles integer DEFAULT NULL,
    OUT lock_acquired boolean,
    OUT cycles integer,
    OUT currency_rows bigint,
    OUT stat_rows bigint,
    OUT quarantined_rows bigint,
    OUT floor_adjustments bigint,
    OUT promoted_users bigint,
    OUT drained_users bigint,
    OUT settled boolean,
    OUT elapsed_ms double precision)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_fold_now';
COMMENT ON FUNCTION kudos_fold_now(integer, integer) IS
    'fold queued postings in this transaction: cycles of batch_size rows while claims come back full, at most max_cycles';

CREATE PROCEDURE kudos_catch_up(max_cycles integer DEFAULT NULL)
LANGUAGE C
AS 'MODULE_PATHNAME', 'kudos_catch_up';
COMMENT ON PROCEDURE kudos_catch_up(integer) IS
    'fold until the queue is settled, one transaction a cycle, with progress as notices';

-- Health ------------------------------------------------------------------------------------------

CREATE FUNCTION kudos_health(
    OUT mode text,
    OUT pending_rows bigint,
    OUT ledger_pending_rows bigint,
    OUT stat_pending_rows bigint,
    OUT oldest_pending_seconds double precision,
    OUT oldest_ledger_pending_seconds double precision,
    OUT oldest_stat_pending_seconds double precision,
    OUT quarantined_rows bigint,
    OUT oldest_quarantined_seconds double precision,
    OUT newest_quarantined_seconds double precision,
    OUT heartbeat_seconds double precision,
    OUT active_reservations bigint,
    OUT oldest_reservation_seconds double precision,
    OUT problem text,
    OUT worker_state text,
    OUT worker_pid integer,
    OUT last_tick_seconds double precision,
    OUT last_fold_seconds double precision,
    OUT consecutive_errors integer,
    OUT last_error text,
    OUT last_error_code text,
    OUT last_error_seconds double precision,
    OUT stuck_target_count integer,
    OUT stuck_targets text[])
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_health';
COMMENT ON FUNCTION kudos_health() IS
    'one row: mode, queue, quarantine, heartbeat and holds, and what the worker knows of itself; problem is NULL when all is well';

CREATE FUNCTION kudos_projector_stats_rows(
    OUT database text,
    OUT pid integer,
    OUT state text,
    OUT reason text,
    OUT started_at timestamptz,
    OUT ticks bigint,
    OUT cycles bigint,
    OUT currency_rows bigint,
    OUT stat_rows bigint,
    OUT quarantined_rows bigint,
    OUT floor_adjustments bigint,
    OUT lock_waits bigint,
    OUT errors bigint,
    OUT last_tick_at timestamptz,
    OUT last_fold_at timestamptz,
    OUT last_error_at timestamptz,
    OUT last_error text,
    OUT claim_ms double precision,
    OUT validate_ms double precision,
    OUT mark_ms double precision,
    OUT users_ms double precision,
    OUT stats_ms double precision,
    OUT holds_ms double precision,
    OUT workers_ms double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_stats';
COMMENT ON FUNCTION kudos_projector_stats_rows() IS 'rows of the view kudos_projector_stats';

CREATE VIEW kudos_projector_stats AS SELECT * FROM kudos_projector_stats_rows();
COMMENT ON VIEW kudos_projector_stats IS
    'one row a database with a worker: its state and its counters since the server started, read from shared memory';

-- Access ------------------------------------------------------------------------------------------

REVOKE ALL ON FUNCTION kudos_fold_now(integer, integer) FROM PUBLIC;
REVOKE ALL ON PROCEDURE kudos_catch_up(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_health() FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_projector_stats_rows() FROM PUBLIC;
REVOKE ALL ON kudos_projector_stats FROM PUBLIC;
GRANT EXECUTE ON FUNCTION kudos_health() TO pg_monitor;
GRANT EXECUTE ON FUNCTION kudos_projector_stats_rows() TO pg_monitor;
GRANT SELECT ON kudos_projector_stats TO pg_monitor;
