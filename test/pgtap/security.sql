-- Who the projector is while it folds: the owner of kudos_ledger, whoever calls.
\set QUIET on
BEGIN;
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pgtap;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
\ir ../data/cases_fixture.sql
\set QUIET on
CREATE EXTENSION kudos_projector SCHEMA public;
CREATE ROLE regress_kudos_owner;
CREATE ROLE regress_kudos_caller;
CREATE ROLE regress_kudos_watcher IN ROLE pg_monitor;
GRANT EXECUTE ON FUNCTION kudos_fold_now(int, int) TO regress_kudos_caller;
GRANT CREATE ON SCHEMA public TO regress_kudos_owner;
DO $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO regress_kudos_owner', t);
  END LOOP;
END $$;

CREATE FUNCTION outcome(role name, command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('role', role, true);
  EXECUTE command;
  PERFORM set_config('role', 'none', true);
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;
CREATE FUNCTION may(role name) RETURNS SETOF text LANGUAGE sql AS $$
  SELECT t.relname || ' ' || p FROM pg_class t, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER', 'REFERENCES']) p
  WHERE t.relname LIKE 'kudos\_remainder\_%' AND t.relkind = 'r' AND has_table_privilege($1, t.oid, p) $$;

SELECT no_plan();

-- The remainder tables are opened to the owner of the ledger, at the first fold, and to nobody else
SELECT is_empty($$ SELECT may('regress_kudos_owner') $$, 'before the first fold the owner may do nothing to remainders');
SELECT t_post(1, 0.50) AS posted \gset
SELECT is(outcome('regress_kudos_caller', 'SELECT kudos_fold_now()'), 'ok', 'who was granted kudos_fold_now() folds');
SELECT is((SELECT kudos FROM users WHERE id = 1), 1001::bigint, 'and it was folded');
SELECT set_eq($$ SELECT may('regress_kudos_owner') $$, $$ SELECT 'kudos_remainder_' || t || ' ' || p
  FROM unnest(ARRAY['users', 'user_stats', 'worker_stats', 'user_records', 'workers', 'teams']) t, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE']) p $$,
  'the owner may read and write remainders, no more');
SELECT is_empty($$ SELECT may('regress_kudos_caller') $$, 'the caller may do nothing to them');
SELECT is_empty($$ SELECT may('regress_kudos_watcher') $$, 'nor may pg_monitor');
SELECT is_empty($$ SELECT c.relname FROM pg_class c, aclexplode(c.relacl) a WHERE c.relname LIKE 'kudos\_remainder\_%' AND a.grantee = 0 $$, 'nor PUBLIC');
SELECT is(outcome('regress_kudos_caller', 'SELECT kudos FROM users'), '42501', 'the caller gets no table of the Horde by it');

-- Triggers run as the owner
CREATE TABLE witnessed (table_name text, who name, session name);
ALTER TABLE witnessed OWNER TO regress_kudos_owner;
CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS
  $$BEGIN INSERT INTO public.witnessed VALUES (TG_TABLE_NAME, current_user, session_user); RETURN NEW; END$$;
CREATE TRIGGER witness BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION witness();
CREATE TRIGGER witness AFTER UPDATE ON kudos_ledger FOR EACH ROW EXECUTE FUNCTION witness();
CREATE TRIGGER witness AFTER INSERT ON user_stats FOR EACH ROW EXECUTE FUNCTION witness();
SELECT t_post(1, 5) AS posted, t_ustat(1, 'accumulated', 5) AS counted \gset
SELECT is(outcome('regress_kudos_caller', 'SELECT kudos_fold_now()'), 'ok', 'fold by a caller without any right on the tables');
SELECT set_eq($$ SELECT DISTINCT table_name, who::text FROM witnessed $$, $$ VALUES ('users', 'regress_kudos_owner'),
  ('kudos_ledger', 'regress_kudos_owner'), ('user_stats', 'regress_kudos_owner') $$, 'triggers saw the owner of kudos_ledger');
DELETE FROM witnessed;
SELECT t_post(1, 5) AS posted \gset
SELECT lives_ok('SELECT kudos_fold_now()', 'a superuser folds');
SELECT set_eq($$ SELECT DISTINCT who::text FROM witnessed $$, $$ VALUES ('regress_kudos_owner') $$, 'and is the owner meanwhile, too');
SELECT is(current_user, session_user, 'afterwards he is himself');
SELECT is(outcome('regress_kudos_caller', $q$DO $d$ BEGIN PERFORM kudos_fold_now(); ASSERT current_user = 'regress_kudos_caller'; END $d$ $q$), 'ok', 'and so is a caller');

-- A trigger of the owner cannot take the caller's rights
CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('role', 'none', false); RETURN NEW; END$$;
CREATE TRIGGER climb BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION climb();
SELECT t_post(1, 5) AS posted \gset
SELECT lives_ok('SELECT kudos_fold_now()', 'a trigger that changes the role while a superuser folds is an error of its own');
SELECT is(current_user, session_user, 'after it the caller is himself');
SELECT is(current_setting('search_path') <> 'pg_catalog, pg_temp', true, 'with his own search_path');
SELECT is((SELECT count(*) FROM kudos_ledger WHERE NOT applied), 1::bigint, 'and the row waits');
DROP TRIGGER climb ON users;
CREATE OR REPLACE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN SET SESSION AUTHORIZATION DEFAULT; RETURN NEW; END$$;
CREATE TRIGGER climb BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION climb();
SELECT lives_ok('SELECT kudos_fold_now()', 'nor can it change the session authorization');
SELECT is((SELECT count(*) FROM kudos_ledger WHERE NOT applied), 1::bigint, 'the row waits still');
DROP TRIGGER climb ON users;
SELECT lives_ok('SELECT kudos_fold_now()', 'without it the row folds');
SELECT is((SELECT count(*) FROM kudos_ledger WHERE NOT applied), 0::bigint, 'as it says');

-- Deferred triggers would run as the caller, at his commit: refused
CREATE CONSTRAINT TRIGGER later AFTER UPDATE ON users DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION witness();
SELECT t_post(1, 5) AS posted \gset
SELECT lives_ok('SELECT kudos_fold_now()', 'a deferred trigger does not fire as a superuser');
SELECT is(outcome('regress_kudos_caller', 'SELECT kudos_fold_now()'), 'ok', 'nor as a caller');
SELECT is((SELECT count(*) FROM kudos_ledger WHERE NOT applied), 1::bigint, 'nothing was folded');
SET CONSTRAINTS ALL IMMEDIATE;
DROP TRIGGER later ON users;
CREATE CONSTRAINT TRIGGER later AFTER UPDATE ON users DEFERRABLE INITIALLY IMMEDIATE FOR EACH ROW EXECUTE FUNCTION witness();
SELECT is(outcome('regress_kudos_caller', 'SELECT kudos_fold_now()'), 'ok', 'one that fires at once is not');
DROP TRIGGER later ON users;

-- Health needs no right on any table
SELECT t_post(1, 5) AS posted \gset
SELECT is(outcome('regress_kudos_watcher', 'SELECT kudos FROM users'), '42501', 'pg_monitor may not read the Horde');
SELECT is(outcome('regress_kudos_watcher', $q$DO $d$ BEGIN ASSERT (SELECT ledger_pending_rows = 1 AND mode = 'ledger' FROM kudos_health()); END $d$ $q$), 'ok', 'but sees what is queued');

-- Rights that the owner lacks are named
ALTER TABLE teams OWNER TO CURRENT_USER;
REVOKE ALL ON teams FROM regress_kudos_owner;
SELECT throws_ok('SELECT kudos_fold_now()', '42501', 'role "regress_kudos_owner" has no SELECT privilege on table "public.teams"', 'a table of somebody else is refused by name');
SELECT matches((SELECT problem FROM kudos_health()), 'GRANT SELECT ON public.teams TO regress_kudos_owner', 'and health says what to do');
GRANT SELECT, UPDATE ON teams TO regress_kudos_owner;
SELECT lives_ok('SELECT kudos_fold_now()', 'which helps');
CREATE SCHEMA private;
ALTER TABLE users SET SCHEMA private;
SET search_path = public, private;
SELECT throws_ok('SELECT kudos_fold_now()', '42P01', NULL, 'a table elsewhere is missing');
ALTER TABLE private.users SET SCHEMA public;
RESET search_path;
SELECT lives_ok('SELECT kudos_fold_now()', 'until it is back');

-- An owner who may not use the schema of the Horde
CREATE SCHEMA locked;
DO $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'witnessed'
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') LOOP
    EXECUTE format('ALTER TABLE %s SET SCHEMA locked', t);
  END LOOP;
END $$;
SET kudos_projector.schema = 'locked';
SELECT throws_ok('SELECT kudos_fold_now()', '42501', 'role "regress_kudos_owner" has no USAGE privilege on schema "locked"', 'USAGE on the schema is asked for');
GRANT USAGE ON SCHEMA locked TO regress_kudos_owner;
SELECT lives_ok('SELECT kudos_fold_now()', 'and suffices');
-- The ledger passes to another role, which gets its access to the remainders with the next fold
DROP TRIGGER witness ON locked.users;
DROP TRIGGER witness ON locked.kudos_ledger;
DROP TRIGGER witness ON locked.user_stats;
CREATE ROLE regress_kudos_owner2;
ALTER TABLE locked.kudos_ledger OWNER TO regress_kudos_owner2;
GRANT USAGE ON SCHEMA locked TO regress_kudos_owner2;
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA locked TO regress_kudos_owner2;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA locked TO regress_kudos_owner2;
SET search_path = locked, public;
SELECT t_post(1, 0.25) AS posted \gset
SELECT lives_ok('SELECT kudos_fold_now()', 'a new owner of the ledger folds');
SELECT is((SELECT count(*) FROM locked.kudos_ledger WHERE NOT applied), 0::bigint, 'all of it');
-- So does USAGE on the schema of the extension, where it is lacking
CREATE SCHEMA hidden;
ALTER EXTENSION kudos_projector SET SCHEMA hidden;
SELECT t_post(1, 0.25) AS posted \gset
SELECT lives_ok('SELECT hidden.kudos_fold_now()', 'folds after the extension moved to a schema of its own');
SELECT is((SELECT count(*) FROM locked.kudos_ledger WHERE NOT applied), 0::bigint, 'all of it');

SELECT * FROM finish();
ROLLBACK;
