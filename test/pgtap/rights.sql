-- Who may do what: every object of the extension, as superuser, as the owner of kudos_ledger, as
-- pg_monitor and as nobody; really called, not only looked up. A new object without a line here fails.
\set QUIET on
BEGIN;
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS pgtap;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
\ir ../data/cases_fixture.sql
\ir ../data/transfers.sql
\set ECHO none
\set QUIET on
CREATE EXTENSION kudos_projector SCHEMA public;
CREATE ROLE regress_kudos_owner;
CREATE ROLE regress_kudos_watcher IN ROLE pg_monitor;
CREATE ROLE regress_kudos_nobody;
CREATE ROLE regress_kudos_app;
GRANT CREATE ON SCHEMA public TO regress_kudos_owner;
CREATE VIEW members AS
  SELECT d.classid, d.objid, c.relkind, coalesce(p.oid::regprocedure::text, c.oid::regclass::text) AS name
    FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector'
    LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
    LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
   WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND d.classid <> 'pg_type'::regclass;
DO $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    AND c.oid NOT IN (SELECT objid FROM members) LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO regress_kudos_owner', t);
  END LOOP;
END $$;

-- What a role gets when it runs a command: ok, or the SQLSTATE. What was done is undone.
CREATE FUNCTION outcome(role name, command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('role', CASE role WHEN 'superuser' THEN 'none' ELSE role END, true);
  EXECUTE command;
  RAISE SQLSTATE 'ZZ000';
EXCEPTION WHEN OTHERS THEN
  PERFORM set_config('role', 'none', true);
  RETURN CASE SQLSTATE WHEN 'ZZ000' THEN 'ok' ELSE SQLSTATE END;
END $$;

SELECT kudos_snapshot() AS snapshot, gen_random_uuid() AS quarantined \gset
INSERT INTO kudos_stat_events (event_id, entry_type, user_id, amount, unit, quarantined, quarantine_reason, quarantined_at)
  VALUES (:'quarantined', 'GENERATION', 1, 1, 'kudos', true, 'unknown_projection', now());
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('held', 1, 1, 1);

-- The calls: what comes to him who may. kudos_catch_up() tells a function that it commits.
CREATE TEMP TABLE calls (name text PRIMARY KEY, monitor boolean, call text, outcome text DEFAULT 'ok');
INSERT INTO calls (name, monitor, call) VALUES
  ('kudos_fold_now(integer,integer)', false, 'SELECT kudos_fold_now()'),
  ('kudos_catch_up(integer)', false, 'CALL kudos_catch_up()'),
  ('kudos_health()', true, 'SELECT * FROM kudos_health()'),
  ('kudos_projector_stats_rows()', true, 'SELECT * FROM kudos_projector_stats_rows()'),
  ('kudos_mode()', true, 'SELECT kudos_mode()'),
  ('kudos_pin_mode()', false, 'SELECT kudos_pin_mode()'),
  ('kudos_set_mode(text)', false, $$SELECT kudos_set_mode('shadow')$$),
  ('kudos_floor(integer)', false, 'SELECT kudos_floor(1)'),
  ('kudos_available(integer)', false, 'SELECT kudos_available(1)'),
  ('kudos_effective(integer)', false, 'SELECT kudos_effective(1)'),
  ('kudos_reserve(integer,text,numeric,uuid)', false, $$SELECT kudos_reserve(1, 'mine', 1)$$),
  ('kudos_release(text)', false, $$SELECT kudos_release('held')$$),
  ('kudos_transfer(integer,integer,numeric,text)', false, $$SELECT kudos_transfer(1, 2, 1, 'key')$$),
  ('kudos_post(integer,numeric,text,boolean,uuid,text,jsonb,uuid,text,timestamp without time zone)', false, $$SELECT kudos_post(1, 1, 'AWARD')$$),
  ('kudos_post_stat(text,numeric,text,integer,uuid,integer,uuid,text,text,uuid,text,jsonb,uuid,text,timestamp without time zone)', false,
    $$SELECT kudos_post_stat('GENERATION', 1, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos')$$),
  ('kudos_wait_applied(uuid,interval)', false, $$SELECT kudos_wait_applied(gen_random_uuid(), '0')$$),
  ('kudos_quarantine_rows()', true, 'SELECT * FROM kudos_quarantine_rows()'),
  ('kudos_requeue(uuid)', false, format('SELECT kudos_requeue(%L)', :'quarantined')),
  ('kudos_accept_quarantined(uuid,text)', false, format('SELECT kudos_accept_quarantined(%L, %L)', :'quarantined', 'so be it')),
  ('kudos_snapshot(boolean)', false, 'SELECT kudos_snapshot()'),
  ('kudos_reconcile(uuid,boolean)', false, format('SELECT kudos_reconcile(%L)', :'snapshot')),
  ('kudos_repair(uuid,boolean)', false, format('SELECT kudos_repair(%L)', :'snapshot')),
  ('kudos_install_ledger(boolean)', false, 'SELECT kudos_install_ledger(true)'),
  ('kudos_check_schema()', true, 'SELECT kudos_check_schema()'),
  ('kudos_projector_stats', true, 'TABLE kudos_projector_stats'),
  ('kudos_quarantine', true, 'TABLE kudos_quarantine');
UPDATE calls SET outcome = '2D000' WHERE name LIKE 'kudos_catch_up%';
UPDATE calls SET outcome = '55000' WHERE name LIKE 'kudos_requeue%'; -- it is invalid still

-- The tables: nobody but the superuser and, of what he needs to fold, the owner of kudos_ledger.
CREATE TEMP TABLE tables (name text PRIMARY KEY, owner_may text[]);
INSERT INTO tables SELECT t, '{SELECT,INSERT,UPDATE}' FROM unnest('{kudos_remainder_users,kudos_remainder_user_stats,
  kudos_remainder_worker_stats,kudos_remainder_user_records,kudos_remainder_workers,kudos_remainder_teams,
  kudos_transfer_requests,kudos_quarantine_decisions,kudos_snapshots,kudos_snapshot_marks,kudos_snapshot_values}'::text[]) t;
INSERT INTO tables VALUES ('kudos_quarantine_decisions_id_seq', '{}');

SELECT no_plan();

SELECT set_eq('SELECT name FROM members WHERE relkind IS DISTINCT FROM ''i''', 'SELECT name FROM calls UNION ALL SELECT name FROM tables',
  'every object of the extension has its line here');

SELECT is(outcome('superuser', call), outcome, 'the superuser: ' || call) FROM calls;
SELECT is(outcome('regress_kudos_owner', call), '42501', 'the owner of kudos_ledger, ungranted: ' || call) FROM calls;
SELECT is(outcome('regress_kudos_watcher', call), CASE WHEN monitor THEN outcome ELSE '42501' END, 'pg_monitor: ' || call) FROM calls;
SELECT is(outcome('regress_kudos_nobody', call), '42501', 'nobody: ' || call) FROM calls;
SELECT is(outcome('regress_kudos_nobody', format('SELECT (kudos_%s)', split_part(replace(name, 'kudos_', ''), '(', 1)
  || '(' || array_to_string(array_fill('NULL'::text, ARRAY[pronargs::int]), ', ') || ')')), '42501', 'nobody, with NULL: ' || name)
  FROM calls JOIN members USING (name) JOIN pg_proc p ON p.oid = objid WHERE prokind = 'f' AND NOT proisstrict;

CREATE TEMP TABLE commands (privilege text, command text);
INSERT INTO commands VALUES ('SELECT', 'SELECT FROM %s'), ('INSERT', 'INSERT INTO %1$s OVERRIDING SYSTEM VALUE SELECT * FROM %1$s WHERE false'),
  ('UPDATE', 'SELECT FROM %s FOR UPDATE'), ('DELETE', 'DELETE FROM %s'), ('TRUNCATE', 'TRUNCATE %s CASCADE'),
  ('owner', 'ALTER TABLE %s ADD extra int'), ('owner', 'CREATE TRIGGER t AFTER INSERT ON %s EXECUTE FUNCTION suppress_redundant_updates_trigger()');
SELECT is(outcome('regress_kudos_owner', format(command, name)),
  CASE WHEN privilege = ANY (owner_may) THEN 'ok' ELSE '42501' END,
  format('the owner of kudos_ledger: ' || command, name))
  FROM tables, commands WHERE name NOT LIKE '%seq';
SELECT is(outcome(r, format(command, name)), '42501', r || ': ' || format(command, name))
  FROM tables, commands, unnest('{regress_kudos_watcher,regress_kudos_nobody}'::name[]) r WHERE name NOT LIKE '%seq';
SELECT is(outcome(r, 'SELECT ' || f || '(''kudos_quarantine_decisions_id_seq''' || CASE f WHEN 'setval' THEN ', 1' ELSE '' END || ')'), '42501', r || ': ' || f)
  FROM unnest('{regress_kudos_owner,regress_kudos_watcher,regress_kudos_nobody}'::name[]) r, unnest('{nextval,setval,currval}'::text[]) f;
SELECT is(outcome(r, command), '42501', r || ': ' || command)
  FROM unnest('{regress_kudos_owner,regress_kudos_watcher,regress_kudos_nobody}'::name[]) r,
  unnest(ARRAY['DROP EXTENSION kudos_projector', 'ALTER EXTENSION kudos_projector SET SCHEMA pg_catalog', 'DROP FUNCTION kudos_mode()',
    'ALTER FUNCTION kudos_mode() SECURITY DEFINER', 'CREATE OR REPLACE VIEW kudos_projector_stats AS SELECT 1']) command;

-- An application's role that was granted one function, or all, and nothing else
CREATE FUNCTION rights() RETURNS SETOF text LANGUAGE sql AS $$
  SELECT format('%s on %s', p, c.oid::regclass) FROM pg_class c, unnest('{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}'::text[]) p
   WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v') AND has_table_privilege('regress_kudos_app', c.oid, p)
     AND NOT has_table_privilege('regress_kudos_nobody', c.oid, p)
  UNION ALL
  SELECT format('EXECUTE on %s', name) FROM members WHERE classid = 'pg_proc'::regclass AND has_function_privilege('regress_kudos_app', objid, 'EXECUTE')
  UNION ALL SELECT 'member of ' || roleid::regrole FROM pg_auth_members WHERE member = 'regress_kudos_app'::regrole
  UNION ALL SELECT 'superuser' FROM pg_roles WHERE rolname = 'regress_kudos_app' AND (rolsuper OR rolcreaterole OR rolbypassrls) $$;
CREATE FUNCTION with_one_grant(name text, command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE result text;
BEGIN
  EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO regress_kudos_app', name);
  result := outcome('regress_kudos_app', command);
  IF (SELECT array_agg(r) FROM rights() r) <> ARRAY['EXECUTE on ' || name] OR current_user <> session_user THEN
    result := result || ' and gained ' || (SELECT string_agg(r, ', ') FROM rights() r);
  END IF;
  EXECUTE format('REVOKE EXECUTE ON ROUTINE %s FROM regress_kudos_app', name);
  RETURN result;
END $$;
SELECT is(with_one_grant(name, call), outcome, 'granted this alone: ' || call) FROM calls WHERE name LIKE '%(%';

-- In sequence and kept: what the calls leave to the role is the calls
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO regress_kudos_app;
SET ROLE regress_kudos_app;
SELECT id AS posted FROM kudos_post(1, 5, 'AWARD') \gset
SELECT granted FROM kudos_reserve(1, 'hold', 2) \gset
SELECT transferred FROM kudos_transfer(1, 2, 3, 'key') \gset
SELECT currency_rows FROM kudos_fold_now() \gset
SELECT kudos_release('hold') AS released \gset
RESET ROLE;
SELECT is(ROW(:'granted'::bool, :'transferred'::bool, :currency_rows, :released), ROW(true, true, 3, 2.00), 'an application works with grants of functions alone');
SELECT is((SELECT kudos FROM users WHERE id = 1), 1002::bigint, 'and is folded');
SELECT is_empty($$ SELECT r FROM rights() r WHERE r NOT LIKE 'EXECUTE on kudos\_%' $$, 'it may do nothing else');
SELECT is(outcome('regress_kudos_app', command), '42501', 'the application: ' || command)
  FROM unnest(ARRAY['SELECT FROM users', 'SELECT FROM kudos_ledger', 'INSERT INTO kudos_ledger (event_id) VALUES (NULL)', 'DELETE FROM kudos_stat_events',
    'UPDATE kudos_ledger_control SET mode = ''shadow''', 'TABLE kudos_quarantine', 'TABLE kudos_projector_stats',
    'SET kudos_projector.schema = x', 'ALTER TABLE users ADD x int', 'LOCK TABLE kudos_ledger']) command;

SELECT * FROM finish();
ROLLBACK;
