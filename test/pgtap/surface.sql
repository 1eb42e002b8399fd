-- The public surface: what exists, and with which signature. Who may use it: rights.sql.
BEGIN;
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgtap;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
CREATE EXTENSION kudos_projector SCHEMA public;
SET search_path = public;
CREATE ROLE regress_kudos_nobody;

-- What a role gets when it runs a command: ok, or the SQLSTATE.
CREATE FUNCTION outcome(role name, command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('role', role, true);
  EXECUTE command;
  PERFORM set_config('role', 'none', true);
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;

SELECT no_plan();

-- Functions
SELECT has_extension('kudos_projector');
SELECT has_function('public', 'kudos_fold_now', ARRAY['integer', 'integer']);
SELECT function_returns('public', 'kudos_fold_now', ARRAY['integer', 'integer'], 'record');
SELECT volatility_is('public', 'kudos_fold_now', ARRAY['integer', 'integer'], 'volatile');
SELECT function_lang_is('public', 'kudos_fold_now', ARRAY['integer', 'integer'], 'c');
SELECT isnt_strict('public', 'kudos_fold_now', ARRAY['integer', 'integer']);
SELECT isnt_definer('public', 'kudos_fold_now', ARRAY['integer', 'integer']);
SELECT is_procedure('public', 'kudos_catch_up', ARRAY['integer']);
SELECT isnt_definer('public', 'kudos_catch_up', ARRAY['integer']);
SELECT has_function('public', 'kudos_health', '{}'::name[]);
SELECT function_returns('public', 'kudos_health', '{}'::name[], 'record');
SELECT volatility_is('public', 'kudos_health', '{}'::name[], 'volatile');
SELECT isnt_definer('public', 'kudos_health', '{}'::name[]);
SELECT has_function('public', 'kudos_projector_stats_rows', '{}'::name[]);
SELECT function_returns('public', 'kudos_projector_stats_rows', '{}'::name[], 'setof record');
SELECT has_function('public', 'kudos_mode', '{}'::name[]);
SELECT function_returns('public', 'kudos_mode', '{}'::name[], 'text');
SELECT has_function('public', 'kudos_pin_mode', '{}'::name[]);
SELECT function_returns('public', 'kudos_pin_mode', '{}'::name[], 'text');
SELECT has_function('public', 'kudos_set_mode', ARRAY['text']);
SELECT function_returns('public', 'kudos_set_mode', ARRAY['text'], 'text');
SELECT has_function('public', f, ARRAY['integer']) FROM unnest(ARRAY['kudos_floor', 'kudos_available', 'kudos_effective']::name[]) f;
SELECT function_returns('public', f, ARRAY['integer'], 'numeric') FROM unnest(ARRAY['kudos_floor', 'kudos_available', 'kudos_effective']::name[]) f;
SELECT has_function('public', 'kudos_reserve', ARRAY['integer', 'text', 'numeric', 'uuid']);
SELECT has_function('public', 'kudos_release', ARRAY['text']);
SELECT function_returns('public', 'kudos_release', ARRAY['text'], 'numeric');
CREATE TEMP VIEW own_functions AS SELECT p.* FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass
  AND d.deptype = 'e' JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector';
SELECT is_empty('SELECT proname FROM own_functions WHERE proparallel <> ''u''', 'all run in the leader only');
SELECT is_empty('SELECT proname FROM own_functions WHERE provolatile <> ''v''', 'all are volatile');
SELECT is_empty('SELECT proname FROM own_functions WHERE prosecdef', 'none is a security definer');

CREATE FUNCTION outputs(of regprocedure) RETURNS text[] LANGUAGE sql AS $$
  SELECT array_agg(n || ' ' || format_type(t, NULL) ORDER BY o) FROM pg_proc p,
    unnest(p.proargnames, p.proargmodes, p.proallargtypes) WITH ORDINALITY a(n, m, t, o) WHERE p.oid = $1 AND m = 'o' $$;
SELECT is(outputs('kudos_fold_now(int, int)'), ARRAY['lock_acquired boolean', 'cycles integer', 'currency_rows bigint',
  'stat_rows bigint', 'quarantined_rows bigint', 'floor_adjustments bigint', 'promoted_users bigint', 'drained_users bigint',
  'settled boolean', 'elapsed_ms double precision'], 'result of kudos_fold_now()');
SELECT is((outputs('kudos_health()'))[1:13], ARRAY['mode text', 'pending_rows bigint', 'ledger_pending_rows bigint',
  'stat_pending_rows bigint', 'oldest_pending_seconds double precision', 'oldest_ledger_pending_seconds double precision',
  'oldest_stat_pending_seconds double precision', 'quarantined_rows bigint', 'oldest_quarantined_seconds double precision',
  'newest_quarantined_seconds double precision', 'heartbeat_seconds double precision', 'active_reservations bigint',
  'oldest_reservation_seconds double precision'], 'queue columns of kudos_health()');
SELECT is((outputs('kudos_health()'))[14:], ARRAY['problem text', 'worker_state text', 'worker_pid integer',
  'last_tick_seconds double precision', 'last_fold_seconds double precision', 'consecutive_errors integer', 'last_error text',
  'last_error_code text', 'last_error_seconds double precision', 'stuck_target_count integer', 'stuck_targets text[]',
  'blocking_pids integer[]'],
  'worker columns of kudos_health()');
SELECT is((SELECT proargnames[1:2] || (pronargdefaults::text) FROM pg_proc WHERE oid = 'kudos_fold_now(int, int)'::regprocedure),
  ARRAY['batch_size', 'max_cycles', '2'], 'both arguments of kudos_fold_now() have names and defaults');

-- The view
SELECT has_view('public', 'kudos_projector_stats', 'view of the workers');
SELECT columns_are('public', 'kudos_projector_stats', ARRAY['database', 'pid', 'state', 'reason', 'started_at', 'ticks', 'cycles',
  'currency_rows', 'stat_rows', 'quarantined_rows', 'floor_adjustments', 'promoted_users', 'drained_users', 'lock_waits', 'errors',
  'last_tick_at', 'last_fold_at', 'last_error_at', 'last_error', 'claim_ms', 'validate_ms', 'mark_ms', 'users_ms', 'stats_ms',
  'holds_ms', 'promotion_ms', 'workers_ms']);

-- Own tables
SELECT has_table('public', t, t || ' exists') FROM unnest(ARRAY['kudos_remainder_users', 'kudos_remainder_user_stats',
  'kudos_remainder_worker_stats', 'kudos_remainder_user_records', 'kudos_remainder_workers', 'kudos_remainder_teams']::name[]) t;
SELECT col_is_pk('public', 'kudos_remainder_users', ARRAY['id'], 'key of kudos_remainder_users');
SELECT col_is_pk('public', 'kudos_remainder_user_stats', ARRAY['user_id', 'action'], 'key of kudos_remainder_user_stats');
SELECT col_is_pk('public', 'kudos_remainder_worker_stats', ARRAY['worker_id', 'action'], 'key of kudos_remainder_worker_stats');
SELECT col_is_pk('public', 'kudos_remainder_user_records', ARRAY['user_id', 'record_type', 'record'], 'key of kudos_remainder_user_records');
SELECT col_is_pk('public', 'kudos_remainder_workers', ARRAY['id'], 'key of kudos_remainder_workers');
SELECT col_is_pk('public', 'kudos_remainder_teams', ARRAY['id'], 'key of kudos_remainder_teams');

SELECT has_table('public', 'kudos_transfer_requests', 'kudos_transfer_requests exists');
SELECT col_is_pk('public', 'kudos_transfer_requests', ARRAY['event_id'], 'key of kudos_transfer_requests');

-- Comments on everything
SELECT is_empty($$ SELECT pg_describe_object(classid, objid, 0) FROM pg_depend d WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'kudos_projector') AND classid <> 'pg_type'::regclass
  AND obj_description(objid, classid::regclass::name) IS NULL $$, 'everything has a comment');

-- Settings
SELECT set_eq($$ SELECT name, context FROM pg_settings WHERE name LIKE 'kudos_projector.%' $$, $$ VALUES
  ('kudos_projector.databases', 'sighup'), ('kudos_projector.schema', 'superuser'), ('kudos_projector.enabled', 'sighup'),
  ('kudos_projector.batch_size', 'superuser'), ('kudos_projector.interval', 'sighup'),
  ('kudos_projector.max_catchup_cycles', 'superuser'), ('kudos_projector.lock_timeout', 'superuser'),
  ('kudos_projector.trust_threshold', 'superuser'), ('kudos_projector.trust_minimum_age', 'superuser'),
  ('kudos_projector.suspicion_threshold', 'superuser'), ('kudos_projector.wake_on_commit', 'sighup') $$, 'settings, all of them reloadable');
SELECT is(outcome('regress_kudos_nobody', 'SET kudos_projector.schema = ''evil'''), '42501', 'nobody may name another schema');
SELECT is(outcome('regress_kudos_nobody', 'SET kudos_projector.batch_size = 1'), '42501', 'nor another batch size');
SELECT is(outcome('regress_kudos_nobody', 'SELECT set_config(''kudos_projector.lock_timeout'', ''1'', false)'), '42501', 'nor another lock timeout');

SELECT * FROM finish();
ROLLBACK;
