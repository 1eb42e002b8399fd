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

REVOKE ALL ON FUNCTION kudos_fold_now(integer, integer) FROM PUBLIC;
REVOKE ALL ON PROCEDURE kudos_catch_up(integer) FROM PUBLIC;
