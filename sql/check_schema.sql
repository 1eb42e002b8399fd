-- kudos_check_schema(): each kind of problem provoked, found, mended as the remedy says, and gone.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture
\set ECHO none
SET client_min_messages = warning;
DROP ROLE IF EXISTS regress_horde, regress_watcher, regress_zone;
ALTER DATABASE :DBNAME SET timezone = 'UTC';
CREATE VIEW t_problems AS SELECT * FROM kudos_check_schema() WHERE object NOT LIKE 'database %';
RESET client_min_messages;
\set ECHO all

\echo -- The fixture is not the current form; installed, it is healthy
SELECT severity, object, problem FROM t_problems;
SELECT count(*) > 0 AS installed FROM kudos_install_ledger();
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
TABLE t_problems;
\echo -- the one thing left to say: nobody folds here
SELECT severity, object, problem, remedy FROM kudos_check_schema();

\echo -- Errors: all of them, not the first
BEGIN;
DROP VIEW t_floored, t_bal, t_state;
ALTER TABLE teams RENAME TO teams_gone;
ALTER TABLE kudos_reservations RENAME COLUMN released_at TO released;
ALTER TABLE kudos_ledger DROP CONSTRAINT kudos_ledger_user_id_fkey;
ALTER TABLE kudos_ledger ALTER COLUMN detail TYPE json;
DROP INDEX ix_kudos_ledger_unapplied, ix_kudos_stat_events_unapplied, ix_kudos_stat_events_drainable;
ALTER TABLE user_stats DROP CONSTRAINT uq_user_stats_user_action, ADD COLUMN note text NOT NULL;
ALTER TABLE workers DROP COLUMN contributions, ADD COLUMN contributions bigint GENERATED ALWAYS AS (fulfilments * 2) STORED;
ALTER TABLE users ALTER COLUMN kudos TYPE real;
SELECT severity, object, problem FROM t_problems WHERE severity = 'error';
\echo -- conditions on columns of unfit types are not compared; all else is still checked
SELECT severity, object, problem FROM t_problems WHERE severity <> 'error';
ROLLBACK;
\echo -- every table missing at once, and no schema at all
CREATE SCHEMA barren;
SET kudos_projector.schema = 'barren';
SELECT severity, object, problem FROM t_problems;
SET kudos_projector.schema = 'nowhere';
TABLE t_problems;
RESET kudos_projector.schema;
DROP SCHEMA barren;
\echo -- a view, a partitioned table; quarantine columns of an older schema
BEGIN;
ALTER TABLE kudos_ledger_control RENAME TO control_table;
CREATE VIEW kudos_ledger_control AS TABLE control_table;
ALTER TABLE kudos_ledger_applier_state RENAME TO state_table;
CREATE TABLE kudos_ledger_applier_state (id smallint PRIMARY KEY, applied_at timestamp) PARTITION BY RANGE (id);
ALTER TABLE kudos_stat_events DROP COLUMN quarantined CASCADE;
SELECT * FROM t_problems WHERE severity = 'error';
ROLLBACK;

\echo -- Missing queue indexes: the remedies mend it, and nothing folds before
DROP INDEX ix_kudos_ledger_unapplied, ix_kudos_stat_events_unapplied, ix_kudos_stat_events_drainable;
TABLE t_problems;
SELECT count(*) FROM kudos_fold_now();
SELECT remedy FROM kudos_check_schema() WHERE severity IN ('error', 'warning') \gexec
TABLE t_problems;
SELECT settled FROM kudos_fold_now();
\echo -- one that is INVALID is missing, and in the way
DROP INDEX kudos_ledger_id_idx;
INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount) SELECT md5('twice')::uuid, 'AWARD', 1, 1 FROM generate_series(1, 2);
\set VERBOSITY terse
CREATE UNIQUE INDEX CONCURRENTLY ix_kudos_ledger_unapplied ON kudos_ledger (id, (1 / (amount - 1))) WHERE NOT applied;
\set VERBOSITY default
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity IN ('error', 'warning') ORDER BY severity DESC \gexec
TABLE t_problems;
\echo -- what a failed REINDEX CONCURRENTLY leaves
\set VERBOSITY terse
CREATE UNIQUE INDEX CONCURRENTLY leftover ON kudos_ledger (event_id);
REINDEX INDEX CONCURRENTLY leftover;
\set VERBOSITY default
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;

\echo -- The plan of the claim, as this session would make it
SET enable_indexscan = off;
TABLE t_problems;
SET random_page_cost = 1e15;
TABLE t_problems;
SELECT DISTINCT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;

\echo -- Missing indexes without which it folds, but slowly
DO $$BEGIN EXECUTE (SELECT 'DROP INDEX ' || string_agg(x.indexrelid::regclass::text, ', ') FROM pg_index x JOIN pg_attribute a ON a.attrelid = x.indrelid AND a.attnum = x.indkey[0]
  WHERE x.indrelid IN ('kudos_ledger'::regclass, 'kudos_stat_events'::regclass, 'kudos_reservations'::regclass, 'users'::regclass) AND NOT x.indisunique AND (a.attname = 'event_id' OR x.indpred IS NOT NULL AND pg_get_expr(x.indpred, x.indrelid) !~ 'applied')); END$$;
ALTER TABLE kudos_reservations DROP CONSTRAINT kudos_reservations_business_id_key;
TABLE t_problems;
SELECT settled FROM kudos_fold_now();
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;
\echo -- an index on the events of the whole archive serves as well; another spelling too
DROP INDEX kudos_ledger_event_id_idx;
CREATE INDEX ON kudos_ledger (event_id, id);
DROP INDEX kudos_stat_events_created_quarantined_at_idx;
CREATE INDEX ON kudos_stat_events (created, quarantined_at) WHERE quarantined;
TABLE t_problems;
\echo -- one of applied events does not
DROP INDEX kudos_ledger_event_id_id_idx;
CREATE INDEX wrong ON kudos_ledger (event_id) WHERE applied;
SELECT remedy FROM t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
DROP INDEX wrong;

\echo -- Triggers that fire on what the projector writes, and those that do not
CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER on_update BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION pass();
CREATE TRIGGER on_kudos BEFORE UPDATE OF kudos ON users FOR EACH ROW EXECUTE FUNCTION pass();
CREATE TRIGGER on_archive AFTER INSERT ON kudos_ledger FOR EACH ROW EXECUTE FUNCTION pass();
CREATE CONSTRAINT TRIGGER later AFTER INSERT OR UPDATE ON user_stats DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pass();
CREATE TRIGGER on_name BEFORE UPDATE OF username ON users FOR EACH ROW EXECUTE FUNCTION pass();
CREATE TRIGGER on_delete BEFORE DELETE ON users FOR EACH ROW EXECUTE FUNCTION pass();
CREATE TRIGGER off BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION pass();
ALTER TABLE users DISABLE TRIGGER off;
CREATE TRIGGER on_replica BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION pass();
ALTER TABLE users ENABLE REPLICA TRIGGER on_replica;
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;
\echo -- Rules
CREATE RULE swallow AS ON UPDATE TO workers DO INSTEAD NOTHING;
CREATE RULE harmless AS ON DELETE TO workers DO INSTEAD NOTHING;
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;
\echo -- Foreign keys that are checked at the commit; and one that is missing: a restore
ALTER TABLE kudos_ledger ALTER CONSTRAINT kudos_ledger_user_id_fkey DEFERRABLE INITIALLY DEFERRED;
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;
ALTER TABLE kudos_ledger DROP CONSTRAINT kudos_ledger_user_id_fkey;
TABLE t_problems;
ALTER TABLE public.kudos_ledger ADD FOREIGN KEY (user_id) REFERENCES public.users ON DELETE RESTRICT;
TABLE t_problems;

\echo -- Autovacuum unfit for a queue
ALTER TABLE kudos_stat_events SET (autovacuum_enabled = off);
ALTER TABLE users SET (autovacuum_enabled = false);
ALTER TABLE kudos_ledger SET (autovacuum_vacuum_threshold = 2000000);
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;
\echo -- the defaults of the server are fit for a small table, not for a large one
ALTER TABLE kudos_ledger RESET (autovacuum_vacuum_threshold, autovacuum_vacuum_scale_factor);
TABLE t_problems;
UPDATE pg_class SET reltuples = 100000000 WHERE oid = 'kudos_ledger'::regclass;
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'warning' \gexec
TABLE t_problems;

\echo -- Defaults in the zone of the session
ALTER TABLE kudos_ledger ALTER created SET DEFAULT now();
ALTER TABLE kudos_reservations ALTER created SET DEFAULT LOCALTIMESTAMP;
ALTER TABLE kudos_ledger_control ALTER changed_at SET DEFAULT timezone('UTC', clock_timestamp());
TABLE t_problems;
ALTER DATABASE :DBNAME SET timezone = 'Europe/Berlin';
TABLE t_problems;
ALTER DATABASE :DBNAME SET timezone = 'Etc/UTC';
\echo -- or of some role
CREATE ROLE regress_zone;
ALTER ROLE regress_zone SET timezone = 'Asia/Tokyo';
SELECT severity, problem FROM t_problems;
SELECT remedy FROM kudos_check_schema() WHERE object LIKE 'column %' \gexec
TABLE t_problems;
DROP ROLE regress_zone;

\echo -- Privileges and row security, seen from the owner of kudos_ledger
CREATE ROLE regress_horde;
ALTER TABLE kudos_ledger OWNER TO regress_horde;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
TABLE t_problems;
SELECT remedy FROM kudos_check_schema() WHERE severity = 'error' \gexec
TABLE t_problems;
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
TABLE t_problems;
ALTER ROLE regress_horde BYPASSRLS;
TABLE t_problems;
ALTER TABLE users DISABLE ROW LEVEL SECURITY;
SELECT settled FROM kudos_fold_now();

\echo -- Who may ask: pg_monitor, who may read none of these tables
CREATE ROLE regress_watcher IN ROLE pg_monitor;
GRANT USAGE ON SCHEMA public TO regress_watcher;
DROP INDEX users_id_idx;
SET ROLE regress_watcher;
SELECT severity, object, problem FROM public.kudos_check_schema() WHERE severity <> 'info';
RESET ROLE;
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
REVOKE pg_monitor FROM regress_watcher;
SET ROLE regress_watcher;
SELECT severity, object, problem FROM public.kudos_check_schema();
RESET ROLE;
\echo -- what an index calls does not run with the rights of a superuser who asks
GRANT CREATE ON SCHEMA public TO regress_horde;
SET ROLE regress_horde;
CREATE FUNCTION public.trap() RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
  IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN RAISE EXCEPTION 'ran with the rights of a superuser'; END IF;
  RETURN true;
END$$;
CREATE INDEX trapped ON public.kudos_ledger (event_id) WHERE public.trap();
RESET ROLE;
EXPLAIN SELECT FROM kudos_ledger WHERE event_id IS NULL;
TABLE t_problems;
DROP INDEX trapped;
\echo -- hostile objects on the path
CREATE SCHEMA evil;
CREATE FUNCTION evil.format(text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_format';
CREATE FUNCTION evil.boom(name, name) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE OPERATOR evil.= (LEFTARG = name, RIGHTARG = name, FUNCTION = evil.boom);
SET search_path = evil, pg_catalog, public;
SELECT count(*) FROM public.kudos_check_schema() c WHERE c.severity OPERATOR(pg_catalog.<>) 'info';
RESET search_path;
\echo -- a standby, or a session that may only read, may ask
BEGIN READ ONLY;
TABLE t_problems;
COMMIT;

SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
DROP VIEW t_problems;
GRANT USAGE ON SCHEMA public TO PUBLIC;
REASSIGN OWNED BY regress_horde TO CURRENT_USER;
DROP OWNED BY regress_horde, regress_watcher;
DROP ROLE regress_horde, regress_watcher;
DROP FUNCTION pass() CASCADE;
DROP FUNCTION trap();
ALTER DATABASE :DBNAME RESET timezone;
