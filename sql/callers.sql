-- kudos_fold_now() and kudos_catch_up() obey the transaction that calls them.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture

\echo -- N01 inside a transaction that rolls back
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
BEGIN;
SELECT lock_acquired, cycles, currency_rows, stat_rows, quarantined_rows, floor_adjustments, promoted_users, drained_users, settled, elapsed_ms >= 0 AS timed FROM kudos_fold_now();
SELECT * FROM t_state;
ROLLBACK;
SELECT * FROM t_state;
SELECT count(*) AS advisory_locks FROM pg_locks WHERE locktype = 'advisory'
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
CALL fold();
SELECT * FROM t_state;
\echo -- N01 inside a savepoint that rolls back, and one that does not
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
BEGIN;
SAVEPOINT s;
SELECT currency_rows, stat_rows FROM kudos_fold_now();
ROLLBACK TO s;
SELECT * FROM t_state;
SELECT currency_rows, stat_rows FROM kudos_fold_now();
SELECT currency_rows, stat_rows FROM kudos_fold_now();
COMMIT;
SELECT * FROM t_state;
\echo -- N01 inside a block that catches an error
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DO $$
BEGIN
  PERFORM kudos_fold_now();
  RAISE EXCEPTION 'undone';
EXCEPTION WHEN raise_exception THEN
  NULL;
END $$;
SELECT * FROM t_state;
\echo -- N01 rows of the same transaction are rows like any other
BEGIN;
SELECT t_post(1, 5) \gset
SELECT currency_rows, stat_rows FROM kudos_fold_now();
COMMIT;
SELECT * FROM t_state;
\echo -- N01 variant b: prepared, then committed by somebody else
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
BEGIN;
SELECT currency_rows, stat_rows FROM kudos_fold_now();
PREPARE TRANSACTION 'f';
SELECT * FROM t_state;
SELECT lock_acquired, cycles, currency_rows, settled FROM kudos_fold_now();
CALL kudos_catch_up();
COMMIT PREPARED 'f';
SELECT * FROM t_state;
CALL fold();
SELECT * FROM t_state;
\echo -- N01 variant b: prepared, then rolled back
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
BEGIN;
SELECT currency_rows, stat_rows FROM kudos_fold_now();
PREPARE TRANSACTION 'f';
ROLLBACK PREPARED 'f';
SELECT * FROM t_state;
CALL fold();
SELECT * FROM t_state;

\echo -- Q10 the keys that a settled fold holds: the applier lock, and the mode pinned
BEGIN;
SELECT lock_acquired, cycles, currency_rows, settled FROM kudos_fold_now();
SELECT classid, objid, objsubid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() ORDER BY objid;
COMMIT;

\echo -- N03 read-only callers are told so
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
BEGIN READ ONLY;
SELECT kudos_fold_now();
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT kudos_fold_now();
ROLLBACK;
SET default_transaction_read_only = on;
SELECT kudos_fold_now();
CALL kudos_catch_up();
SELECT quarantined_rows, ledger_pending_rows FROM kudos_health();
RESET default_transaction_read_only;
\set VERBOSITY default
SELECT * FROM t_state;
EXPLAIN (COSTS OFF) SELECT kudos_fold_now();
SELECT * FROM t_state;
SELECT (f).lock_acquired, (f).currency_rows, (f).stat_rows, (f).settled FROM (SELECT kudos_fold_now() AS f FROM generate_series(1, 3) OFFSET 0) s;
SELECT * FROM t_state;
SELECT proname, provolatile, proparallel FROM pg_proc WHERE proname IN ('kudos_fold_now', 'kudos_health', 'kudos_projector_stats_rows') ORDER BY 1;

\echo -- Bad arguments
SELECT kudos_fold_now(0);
SELECT kudos_fold_now(-1);
SELECT kudos_fold_now(100001);
SELECT kudos_fold_now(10, 0);
SELECT kudos_fold_now(max_cycles => -5);
CALL kudos_catch_up(0);
\echo -- Good ones
SELECT lock_acquired, cycles, settled FROM kudos_fold_now(NULL, NULL);
SELECT lock_acquired, cycles, settled FROM kudos_fold_now(batch_size => 100000, max_cycles => 2147483647);

\echo -- The result row: cycles, what is counted, when a call is settled
\i :fixture
SELECT count(t_post(1, 1)) FROM generate_series(1, 5) \gset
SELECT count(t_ustat(2, 'accumulated', 1)) FROM generate_series(1, 2) \gset
SELECT t_ustat(777, 'accumulated', 1), t_post(4, -100) \gset
SELECT lock_acquired, cycles, currency_rows, stat_rows, quarantined_rows, floor_adjustments, promoted_users, drained_users, settled FROM kudos_fold_now(2, 2);
SELECT lock_acquired, cycles, currency_rows, stat_rows, quarantined_rows, floor_adjustments, promoted_users, drained_users, settled FROM kudos_fold_now(2, 10);
SELECT lock_acquired, cycles, currency_rows, stat_rows, quarantined_rows, floor_adjustments, promoted_users, drained_users, settled FROM kudos_fold_now(2, 10);
\echo -- The settings are what NULL means
SELECT count(t_post(1, 1)) FROM generate_series(1, 5) \gset
SET kudos_projector.batch_size = 1;
SET kudos_projector.max_catchup_cycles = 3;
SELECT cycles, currency_rows, settled FROM kudos_fold_now();
RESET kudos_projector.batch_size;
SELECT cycles, currency_rows, settled FROM kudos_fold_now();
RESET kudos_projector.max_catchup_cycles;

\echo -- The heartbeat is stamped by an empty fold too, and its row made where it is missing
\i :fixture
DELETE FROM kudos_ledger_applier_state;
CALL fold();
SELECT id, applied_at IS NOT NULL AS stamped FROM kudos_ledger_applier_state;

\echo -- kudos_catch_up in a transaction block is refused
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
BEGIN;
CALL kudos_catch_up();
ROLLBACK;
CREATE FUNCTION catching_up() RETURNS void LANGUAGE plpgsql AS 'BEGIN CALL kudos_catch_up(); END';
\set VERBOSITY terse
SELECT catching_up();
\set VERBOSITY default
DROP FUNCTION catching_up();
SELECT * FROM t_state;
\echo -- kudos_catch_up folds, by itself and from a block that may commit
SET client_min_messages = warning;
CALL kudos_catch_up();
SELECT * FROM t_state;
SELECT count(t_post(1, 1)) FROM generate_series(1, 10) \gset
SET kudos_projector.batch_size = 3;
CALL kudos_catch_up(2);
SELECT ledger, kudos FROM t_state;
DO $$ BEGIN CALL kudos_catch_up(1); END $$;
SELECT ledger, kudos FROM t_state;
CALL kudos_catch_up();
SELECT ledger, kudos FROM t_state;
\echo -- kudos_catch_up that fails half-way keeps the cycles before
\i :fixture
SET client_min_messages = warning;
CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'audit table full' USING ERRCODE = 'disk_full'; END$$;
CREATE TRIGGER boom BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION boom();
SELECT t_post(1, 5), t_post(2, 5), t_post(1, 7) \gset
SET kudos_projector.batch_size = 1;
\set VERBOSITY terse
CALL kudos_catch_up();
\set VERBOSITY default
SELECT ledger, kudos FROM t_state;
SELECT current_user = session_user AS myself, current_setting('search_path') AS search_path;
SELECT count(*) AS advisory_locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
DROP TRIGGER boom ON users;
DROP FUNCTION boom();
CALL kudos_catch_up();
SELECT ledger, kudos FROM t_state;
SELECT kudos FROM users WHERE id = 2;
RESET kudos_projector.batch_size;
RESET client_min_messages;

\echo -- A fixed snapshot of the caller folds nothing twice
\i :fixture
SELECT t_post(1, 10) \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT currency_rows FROM kudos_fold_now();
SELECT currency_rows FROM kudos_fold_now();
COMMIT;
SELECT t_post(1, 10) \gset
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT currency_rows FROM kudos_fold_now();
COMMIT;
SELECT * FROM t_state;

\echo -- G02 the settings of the session do not matter
\i :fixture
UPDATE users SET last_active = '2026-01-01';
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES (E'a{"b,NULL\\', 1, 60, 60);
SET timezone = 'Asia/Tokyo';
SET DateStyle = 'SQL, DMY';
SET IntervalStyle = 'iso_8601';
SET extra_float_digits = -15;
SET bytea_output = 'escape';
SET standard_conforming_strings = off;
SET escape_string_warning = off;
SET quote_all_identifiers = on;
SET array_nulls = off;
SET enable_indexscan = off;
SET enable_bitmapscan = off;
SET enable_seqscan = off;
SET enable_sort = off;
SET work_mem = '64kB';
SET plan_cache_mode = force_generic_plan;
SELECT t_post(1, 5), t_post(1, -25, false, gen_random_uuid(), jsonb_build_object('reservation_id', E'a{"b,NULL\\')),
  t_ustat(1, $$a'b\c"$$, 1.50), t_rec(1, 'USAGE', $$q'"\$$, 123456789.78), t_ustat(777, 'accumulated', 1),
  t_wstat('00000000-0000-0000-0000-0000000000f1', 'NULL', 1, '00000000-0000-0000-0000-0000000000a1') \gset
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail)
  VALUES ('2026-03-02 08:00:00.123456', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": true}');
SELECT currency_rows, stat_rows, quarantined_rows FROM kudos_fold_now();
RESET ALL;
SELECT kudos FROM users WHERE id = 1;
SELECT last_active = '2026-03-02 08:00:00.123456' AS touched FROM users WHERE id = 2;
SELECT * FROM t_holds;
SELECT * FROM t_ustats;
SELECT * FROM t_records;
SELECT * FROM t_wstats;
\echo -- and what it keeps between two folds may be discarded
SELECT t_post(1, 5) \gset
DISCARD ALL;
SELECT currency_rows FROM kudos_fold_now();
SELECT t_post(1, 5) \gset
DISCARD PLANS;
SELECT currency_rows FROM kudos_fold_now();
SELECT kudos FROM users WHERE id = 1;

\echo -- The settings of the session are as before
SET search_path = pg_catalog, public;
SET lock_timeout = '7s';
SELECT currency_rows FROM public.kudos_fold_now();
SHOW search_path;
SHOW lock_timeout;
SHOW row_security;
SELECT current_user = session_user AS myself;
RESET search_path;
RESET lock_timeout;
