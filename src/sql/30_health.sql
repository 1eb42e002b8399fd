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
    OUT stuck_targets text[],
    OUT blocking_pids integer[])
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
    OUT promoted_users bigint,
    OUT drained_users bigint,
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
    OUT promotion_ms double precision,
    OUT workers_ms double precision)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_stats';
COMMENT ON FUNCTION kudos_projector_stats_rows() IS 'rows of the view kudos_projector_stats';

CREATE VIEW kudos_projector_stats AS SELECT * FROM kudos_projector_stats_rows();
COMMENT ON VIEW kudos_projector_stats IS
    'one row a database with a worker: its state and its counters since the server started, read from shared memory';

REVOKE ALL ON FUNCTION kudos_health() FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_projector_stats_rows() FROM PUBLIC;
REVOKE ALL ON kudos_projector_stats FROM PUBLIC;
GRANT EXECUTE ON FUNCTION kudos_health() TO pg_monitor;
GRANT EXECUTE ON FUNCTION kudos_projector_stats_rows() TO pg_monitor;
GRANT SELECT ON kudos_projector_stats TO pg_monitor;
