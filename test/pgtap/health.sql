-- Every column of kudos_health(), in situations that are known.
\set QUIET on
BEGIN;
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgtap;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
\ir ../data/cases_fixture.sql
\set QUIET on
CREATE EXTENSION kudos_projector SCHEMA public;
CREATE FUNCTION ago(hours numeric) RETURNS timestamp LANGUAGE sql AS $$ SELECT (clock_timestamp() AT TIME ZONE 'utc') - $1 * interval '1 hour' $$;
CREATE FUNCTION hours(seconds double precision) RETURNS int LANGUAGE sql AS $$ SELECT floor($1 / 3600)::int $$;
-- What problem says when only the worker is missing.
CREATE FUNCTION no_worker() RETURNS text LANGUAGE sql AS $$
  SELECT CASE WHEN 'kudos_projector' = ANY (string_to_array(replace(current_setting('shared_preload_libraries'), ' ', ''), ','))
    THEN 'kudos_projector.databases does not name this database'
    ELSE 'kudos_projector is not in shared_preload_libraries, so no worker folds' END $$;

SELECT no_plan();

-- Nothing queued, nothing folded yet
SELECT results_eq('SELECT mode, pending_rows, ledger_pending_rows, stat_pending_rows, quarantined_rows, active_reservations FROM kudos_health()',
  $$ VALUES ('ledger', 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint) $$, 'an empty queue');
SELECT results_eq('SELECT oldest_pending_seconds, oldest_ledger_pending_seconds, oldest_stat_pending_seconds, oldest_quarantined_seconds,
  newest_quarantined_seconds, heartbeat_seconds, oldest_reservation_seconds FROM kudos_health()',
  'SELECT NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8', 'has no ages');
SELECT is((SELECT problem FROM kudos_health()), no_worker(), 'problem: no worker');
SELECT results_eq('SELECT worker_state, worker_pid, last_tick_seconds, last_fold_seconds, consecutive_errors, last_error, last_error_code,
  last_error_seconds, stuck_target_count, stuck_targets, blocking_pids FROM kudos_health()',
  'SELECT NULL::text, NULL::int, NULL::float8, NULL::float8, NULL::int, NULL::text, NULL::text, NULL::float8, NULL::int, NULL::text[], NULL::int[]',
  'a worker that is not there says nothing');
SELECT is_empty('SELECT * FROM kudos_projector_stats WHERE database = current_database()', 'nor has it counters');
SELECT is((SELECT count(*) FROM kudos_health()), 1::bigint, 'one row');

-- Mode
UPDATE kudos_ledger_control SET mode = 'shadow';
SELECT is((SELECT mode FROM kudos_health()), 'shadow', 'mode shadow');
UPDATE kudos_ledger_control SET mode = 'ledger';
SELECT is((SELECT mode FROM kudos_health()), 'ledger', 'mode ledger');
DELETE FROM kudos_ledger_control;
SELECT is((SELECT mode FROM kudos_health()), 'shadow', 'no row means shadow');
INSERT INTO kudos_ledger_control (id, mode) VALUES (2, 'ledger');
SELECT is((SELECT mode FROM kudos_health()), 'shadow', 'nor does another row mean anything');
INSERT INTO kudos_ledger_control (id, mode) VALUES (1, 'ledger');

-- Queue: counts and ages, in naive UTC
SELECT t_post(1, 5) AS a, t_post(1, 6, true) AS b, t_ustat(1, 'accumulated', 5) AS c \gset
UPDATE kudos_ledger SET created = ago(1.5) WHERE amount = 5;
UPDATE kudos_ledger SET created = ago(0.5) WHERE amount = 6;
UPDATE kudos_stat_events SET created = ago(3.5);
INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, amount, applied) VALUES (ago(100), gen_random_uuid(), 'GENERATION', 1, 1, true);
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
  VALUES (ago(100), gen_random_uuid(), 'GENERATION', 1, 1, 'kudos', 'accumulated', 'user_kudos', true);
SELECT results_eq('SELECT pending_rows, ledger_pending_rows, stat_pending_rows, quarantined_rows FROM kudos_health()',
  $$ VALUES (3::bigint, 2::bigint, 1::bigint, 0::bigint) $$, 'pending rows; applied ones are not');
SELECT results_eq('SELECT hours(oldest_pending_seconds), hours(oldest_ledger_pending_seconds), hours(oldest_stat_pending_seconds) FROM kudos_health()',
  $$ VALUES (3, 1, 3) $$, 'their ages');
SET LOCAL timezone = 'Asia/Tokyo';
SELECT results_eq('SELECT hours(oldest_pending_seconds), hours(oldest_ledger_pending_seconds), hours(oldest_stat_pending_seconds) FROM kudos_health()',
  $$ VALUES (3, 1, 3) $$, 'the same in Tokyo');
SET LOCAL timezone = 'America/New_York';
SELECT results_eq('SELECT hours(oldest_pending_seconds), hours(oldest_ledger_pending_seconds), hours(oldest_stat_pending_seconds) FROM kudos_health()',
  $$ VALUES (3, 1, 3) $$, 'and in New York');
DELETE FROM kudos_stat_events WHERE NOT applied;
SELECT results_eq('SELECT pending_rows, stat_pending_rows, hours(oldest_pending_seconds), oldest_stat_pending_seconds FROM kudos_health()',
  $$ VALUES (2::bigint, 0::bigint, 1, NULL::float8) $$, 'the older of two ages, or the only one');

-- Heartbeat
SELECT lives_ok('SELECT kudos_fold_now()', 'a fold');
SELECT results_eq('SELECT pending_rows, oldest_pending_seconds, hours(heartbeat_seconds) FROM kudos_health()', $$ VALUES (0::bigint, NULL::float8, 0) $$, 'leaves nothing and a heartbeat');
UPDATE kudos_ledger_applier_state SET applied_at = ago(5.5);
SELECT is((SELECT hours(heartbeat_seconds) FROM kudos_health()), 5, 'the age of the heartbeat');
SET LOCAL timezone = 'Asia/Tokyo';
SELECT is((SELECT hours(heartbeat_seconds) FROM kudos_health()), 5, 'in Tokyo too');
RESET timezone;
DELETE FROM kudos_ledger_applier_state;
SELECT is((SELECT heartbeat_seconds FROM kudos_health()), NULL, 'no row, no heartbeat');
INSERT INTO kudos_ledger_applier_state VALUES (1, NULL);

-- Quarantine: counted apart from the queue
SELECT t_ustat(777, 'accumulated', 1) AS a, t_ustat(778, 'accumulated', 1) AS b \gset
SELECT lives_ok('SELECT kudos_fold_now()', 'two events for the quarantine');
UPDATE kudos_stat_events SET quarantined_at = ago(7.5) WHERE user_id = 777;
UPDATE kudos_stat_events SET quarantined_at = ago(2.5) WHERE user_id = 778;
SELECT results_eq('SELECT pending_rows, quarantined_rows, hours(oldest_quarantined_seconds), hours(newest_quarantined_seconds) FROM kudos_health()',
  $$ VALUES (0::bigint, 2::bigint, 7, 2) $$, 'quarantined rows and their ages');

-- Reservations: active ones
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount, created, released_at) VALUES
  ('a', 1, 10, 10, ago(4.5), NULL), ('b', 1, 10, 0.01, ago(2.5), NULL), ('c', 1, 10, 0, ago(9.5), ago(1)), ('d', 1, 10, 10, ago(9.5), ago(1));
SELECT results_eq('SELECT active_reservations, hours(oldest_reservation_seconds) FROM kudos_health()', $$ VALUES (2::bigint, 4) $$, 'active holds and their age');
UPDATE kudos_reservations SET released_at = ago(0);
SELECT results_eq('SELECT active_reservations, oldest_reservation_seconds FROM kudos_health()', 'SELECT 0::bigint, NULL::float8', 'no active hold, no age');

-- Problems: health answers exactly when something is wrong
SELECT t_post(1, 5) AS a \gset
ALTER TABLE kudos_ledger DROP CONSTRAINT kudos_ledger_user_id_fkey;
SELECT matches((SELECT problem FROM kudos_health()), 'kudos_ledger has no foreign key to users.*restore', 'problem: a restore is under way');
SELECT is((SELECT ledger_pending_rows FROM kudos_health()), 1::bigint, 'with the queue all the same');
ALTER TABLE kudos_ledger ADD CONSTRAINT kudos_ledger_user_id_fkey FOREIGN KEY (user_id) REFERENCES users;
SELECT is((SELECT problem FROM kudos_health()), no_worker(), 'and none when it is complete');
ALTER TABLE teams RENAME TO teams_gone;
SELECT matches((SELECT problem FROM kudos_health()), 'table "teams" does not exist in schema "public"', 'problem: a table is missing');
SELECT is((SELECT count(*) FROM kudos_health()), 1::bigint, 'in one row');
ALTER TABLE teams_gone RENAME TO teams;
DROP INDEX ix_kudos_stat_events_unapplied;
SELECT matches((SELECT problem FROM kudos_health()), 'CREATE INDEX CONCURRENTLY ON public.kudos_stat_events', 'problem: an index is missing, and how to make it');
CREATE INDEX ON kudos_stat_events (id) WHERE applied IS FALSE;
ALTER TABLE user_stats DROP CONSTRAINT uq_user_stats_user_action;
SELECT matches((SELECT problem FROM kudos_health()), 'user_stats" has no valid unique index on \(user_id, action\)', 'problem: a unique index is missing');
ALTER TABLE user_stats ADD CONSTRAINT uq_user_stats_user_action UNIQUE (user_id, action);
SELECT is((SELECT problem FROM kudos_health()), no_worker(), 'all is well again');
SET LOCAL kudos_projector.schema = 'nowhere';
SELECT matches((SELECT problem FROM kudos_health()), 'schema "nowhere" does not exist', 'problem: wrong schema');
SELECT results_eq('SELECT mode, pending_rows, heartbeat_seconds, active_reservations FROM kudos_health()', 'SELECT NULL::text, NULL::bigint, NULL::float8, NULL::bigint', 'nothing is known then');
RESET kudos_projector.schema;
SELECT is((SELECT ledger_pending_rows FROM kudos_health()), 1::bigint, 'and known again');

-- A row whose date has no number of seconds must not hide the others
UPDATE kudos_ledger SET created = 'infinity' WHERE NOT applied;
SELECT is((SELECT ledger_pending_rows FROM kudos_health()), 1::bigint, 'a row dated infinity is counted');
SELECT is((SELECT problem FROM kudos_health()), no_worker(), 'and is no problem');
UPDATE kudos_ledger SET created = ago(1) WHERE NOT applied;

-- It writes nothing
SET LOCAL transaction_read_only = on;
SELECT is((SELECT ledger_pending_rows FROM kudos_health()), 1::bigint, 'health in a read-only transaction');
SELECT throws_ok('SELECT kudos_fold_now()', '25006', NULL, 'where folding is refused');

SELECT * FROM finish();
ROLLBACK;
