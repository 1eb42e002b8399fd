-- kudos_install_ledger(): every older form becomes the current one, rows stay as they are, and doing it
-- again does nothing.
\getenv abs_srcdir PG_ABS_SRCDIR
\set app :abs_srcdir '/test/data/app_tables.sql'
\set fresh :abs_srcdir '/test/data/ledger_fresh.sql'
\set migrated :abs_srcdir '/test/data/ledger_migrated.sql'
\set additions :abs_srcdir '/test/data/ledger_5_1_11.sql'
\set ECHO none
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
CREATE EXTENSION kudos_projector;
DROP SCHEMA IF EXISTS pre51, fresh, fresh_current, migrated, migrated_current, "Half Way", owned, evil CASCADE;
DROP ROLE IF EXISTS regress_horde, regress_stranger;
-- Structure of the accounting tables of a schema, without its name and without names of constraints.
CREATE OR REPLACE VIEW t_structure AS
  SELECT c.relnamespace::regnamespace::text AS schema, c.relname || ' column ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
         || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END || CASE WHEN a.attidentity <> '' THEN ' IDENTITY' ELSE '' END
         || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '') AS part
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum WHERE c.relname LIKE 'kudos\_%' AND c.relkind = 'r'
  UNION ALL SELECT c.relnamespace::regnamespace::text, c.relname || ' constraint ' || replace(pg_get_constraintdef(k.oid), c.relnamespace::regnamespace || '.', '')
    FROM pg_class c JOIN pg_constraint k ON k.conrelid = c.oid WHERE c.relkind = 'r'
  UNION ALL SELECT c.relnamespace::regnamespace::text, replace(pg_get_indexdef(x.indexrelid), c.relnamespace::regnamespace || '.', '')
    FROM pg_class c JOIN pg_index x ON x.indrelid = c.oid WHERE c.relkind = 'r' AND x.indisvalid
  UNION ALL SELECT c.relnamespace::regnamespace::text, c.relname || ' with ' || o FROM pg_class c, unnest(c.reloptions) o WHERE c.relkind = 'r';
-- The zones in which sessions begin are not the matter here.
CREATE OR REPLACE VIEW t_problems AS SELECT * FROM kudos_check_schema() WHERE severity <> 'info' AND problem NOT LIKE 'holds UTC%';
CREATE SCHEMA migrated_current;
SET search_path = migrated_current;
\i :app
\i :migrated
\i :additions
CREATE SCHEMA pre51;
SET search_path = pre51;
\i :app
RESET search_path;
RESET client_min_messages;
\set ECHO all

\echo -- A database from before 5.1: the dry run says what would be done, and does nothing
SET kudos_projector.schema = 'pre51';
CREATE TEMP TABLE announced AS SELECT * FROM kudos_install_ledger(true);
SELECT step, object, action FROM announced ORDER BY step;
SELECT count(*) AS tables_made FROM pg_class WHERE relnamespace = 'pre51'::regnamespace AND relname LIKE 'kudos_ledger%';
\echo -- NULL is no permission either
SELECT count(*) FROM kudos_install_ledger(NULL);
SELECT count(*) AS tables_made FROM pg_class WHERE relnamespace = 'pre51'::regnamespace AND relname LIKE 'kudos_ledger%';
\echo -- the real run does exactly what was announced
CREATE TEMP TABLE done AS SELECT * FROM kudos_install_ledger();
SELECT count(*) AS otherwise FROM (TABLE announced EXCEPT TABLE done UNION ALL (TABLE done EXCEPT TABLE announced)) d;
SELECT statement FROM done WHERE object IN ('table pre51.kudos_reservations', 'index pre51.kudos_reservations_pkey', 'index pre51.ix_kudos_ledger_unapplied', 'row 1 of pre51.kudos_ledger_control') ORDER BY step;
\echo -- again: nothing
SELECT * FROM kudos_install_ledger();
SELECT mode, changed_at BETWEEN (now() AT TIME ZONE 'utc') - interval '1 minute' AND now() AT TIME ZONE 'utc' AS dated_in_utc FROM pre51.kudos_ledger_control;
SELECT * FROM pre51.kudos_ledger_applier_state;
\echo -- compared with a migrated 5.1.11: defaults in UTC, the other spelling of the queue, events of the queue
SELECT 'only installed' AS side, part COLLATE "C" FROM t_structure i WHERE schema = 'pre51' AND NOT EXISTS (SELECT FROM t_structure m WHERE m.schema = 'migrated_current' AND m.part = i.part)
UNION ALL SELECT 'only migrated', part COLLATE "C" FROM t_structure m WHERE schema = 'migrated_current' AND NOT EXISTS (SELECT FROM t_structure i WHERE i.schema = 'pre51' AND i.part = m.part)
ORDER BY 2;
\echo -- nothing is wrong with it, and it folds, whatever the zone of the session is
TABLE t_problems;
INSERT INTO pre51.users (id, username, oauth_id, api_key, client_id, created, last_active, kudos, monthly_kudos, evaluating_kudos, usage_multiplier, worker_invited, public_workers, concurrency)
VALUES (1, 'ada', 'acct-0001', 'k1', 'c1', '2022-01-01', '2022-01-01', 1000, 0, 0, 1, 0, true, 30);
INSERT INTO pre51.kudos_ledger (event_id, entry_type, user_id, amount) VALUES (gen_random_uuid(), 'AWARD', 1, 12.25);
SELECT currency_rows, settled FROM kudos_fold_now();
SELECT kudos FROM pre51.users;
SET timezone = 'Pacific/Auckland';
INSERT INTO pre51.kudos_ledger (event_id, entry_type, user_id, amount) VALUES (gen_random_uuid(), 'AWARD', 1, 1) RETURNING created = now() AT TIME ZONE 'utc' AS utc;
RESET timezone;
\echo -- what the tables of the Horde refuse is refused
\set VERBOSITY terse
INSERT INTO pre51.kudos_ledger (event_id, entry_type, user_id, amount) VALUES (gen_random_uuid(), 'AWARD', 1, 'NaN');
INSERT INTO pre51.kudos_stat_events (event_id, entry_type, amount, unit) VALUES (gen_random_uuid(), 'STAT_RECORD', 1, 'count');
UPDATE pre51.kudos_ledger_control SET mode = 'lager';
\set VERBOSITY default

\echo -- The other forms, empty: fresh and migrated, without and with the additions of 5.1.9 to 5.1.11
\set ECHO none
SET client_min_messages = warning;
CREATE SCHEMA fresh;
SET search_path = fresh;
\i :app
\i :fresh
CREATE SCHEMA fresh_current;
SET search_path = fresh_current;
\i :app
\i :fresh
\i :additions
CREATE SCHEMA migrated;
SET search_path = migrated;
\i :app
\i :migrated
RESET search_path;
RESET client_min_messages;
\set ECHO all
SET kudos_projector.schema = 'fresh';
SELECT step, object, action FROM kudos_install_ledger();
SELECT * FROM kudos_install_ledger();
TABLE t_problems;
SET kudos_projector.schema = 'fresh_current';
SELECT step, object, action FROM kudos_install_ledger();
SELECT * FROM kudos_install_ledger();
TABLE t_problems;
SET kudos_projector.schema = 'migrated_current';
SELECT step, object, action FROM kudos_install_ledger();
SELECT * FROM kudos_install_ledger();
TABLE t_problems;

\echo -- A migrated one that holds rows: what must not stop its writers is left to be run
SET kudos_projector.schema = 'migrated';
INSERT INTO migrated.users SELECT * FROM pre51.users;
INSERT INTO migrated.kudos_ledger (event_id, entry_type, user_id, amount, applied) SELECT md5(i::text)::uuid, 'AWARD', 1, i, i < 9 FROM generate_series(1, 10) i;
INSERT INTO migrated.kudos_stat_events (event_id, entry_type, user_id, amount, unit, stat_action, record) VALUES (md5('1')::uuid, 'AWARD', 1, 1, 'kudos', 'accumulated', 'user_kudos');
CREATE VIEW t_rows AS SELECT md5(string_agg(l::text, ',' ORDER BY id)) AS ledger, (SELECT md5(string_agg(u::text, ',' ORDER BY id)) FROM migrated.users u) AS users,
  (SELECT string_agg((to_jsonb(e) - '{quarantined,quarantine_reason,quarantined_at}'::text[])::text, ',') FROM migrated.kudos_stat_events e) AS events,
  (SELECT c::text FROM migrated.kudos_ledger_control c) AS control FROM migrated.kudos_ledger l;
CREATE TEMP TABLE rows_before AS TABLE t_rows;
SELECT step, object, action, CASE WHEN action = 'run CONCURRENTLY' THEN statement END AS to_be_run FROM kudos_install_ledger();
\echo -- until they ran, they are reported again
SELECT step, object, action FROM kudos_install_ledger();
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
SELECT * FROM kudos_install_ledger();
TABLE t_problems;
\echo -- not a row was touched
SELECT t_rows = rows_before AS untouched FROM t_rows, rows_before;
SELECT currency_rows, stat_rows, settled FROM kudos_fold_now();
DROP VIEW t_rows;

\echo -- Leftovers of CREATE INDEX CONCURRENTLY under a name of ours, and a name that is taken
DROP INDEX migrated.ix_kudos_ledger_unapplied_event_id, migrated.ix_kudos_ledger_created, migrated.ix_kudos_stat_events_quarantined;
INSERT INTO migrated.kudos_ledger (event_id, entry_type, user_id, amount) SELECT md5('twice')::uuid, 'AWARD', 1, 1 FROM generate_series(1, 2);
\set VERBOSITY terse
CREATE UNIQUE INDEX CONCURRENTLY ix_kudos_ledger_unapplied_event_id ON migrated.kudos_ledger (event_id) WHERE applied IS FALSE;
\set VERBOSITY default
CREATE INDEX ix_kudos_ledger_created ON migrated.kudos_ledger (amount);
SELECT step, object, action, statement FROM kudos_install_ledger();
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
SELECT * FROM kudos_install_ledger();
\echo -- the same on a table without rows is mended at once
DELETE FROM migrated.kudos_stat_events;
INSERT INTO migrated.kudos_stat_events (event_id, entry_type, user_id, amount, unit) SELECT md5('twice')::uuid, 'AWARD', 1, 1, 'kudos' FROM generate_series(1, 2);
DROP INDEX migrated.ix_kudos_stat_events_event_id;
\set VERBOSITY terse
CREATE UNIQUE INDEX CONCURRENTLY ix_kudos_stat_events_event_id ON migrated.kudos_stat_events (event_id);
\set VERBOSITY default
DELETE FROM migrated.kudos_stat_events;
SELECT step, object, action, statement FROM kudos_install_ledger();
SELECT * FROM kudos_install_ledger();

\echo -- Duplicate counters are added up into the lowest id, exactly those, and only in earnest
ALTER TABLE migrated.user_stats DROP CONSTRAINT uq_user_stats_user_action;
ALTER TABLE migrated.worker_stats DROP CONSTRAINT uq_worker_stats_worker_action;
ALTER TABLE migrated.user_records DROP CONSTRAINT user_records_user_id_record_type_record_key;
INSERT INTO migrated.user_stats (id, user_id, action, value) VALUES (101, 1, 'gifted', 5), (102, 1, 'accumulated', 7), (103, 1, 'accumulated', -3), (104, 1, 'accumulated', 9007199254740993);
INSERT INTO migrated.user_records (id, user_id, record_type, record, value) VALUES (1, 1, 'USAGE', 'image', 0.25), (2, 1, 'USAGE', 'image', 0.5), (3, 1, 'USAGE', 'text', 1), (4, 1, 'REQUEST', 'image', 2);
INSERT INTO migrated.workers SELECT (jsonb_populate_record(NULL::migrated.workers, (SELECT jsonb_object_agg(attname, CASE WHEN atttypid = 'bool'::regtype THEN 'false' WHEN atttypid = 'uuid'::regtype THEN '"00000000-0000-0000-0000-0000000000f1"' ELSE '1' END::jsonb)
  FROM pg_attribute WHERE attrelid = 'migrated.workers'::regclass AND attnum > 0 AND attnotnull))).*;
INSERT INTO migrated.worker_stats (id, worker_id, action, value) SELECT i, '00000000-0000-0000-0000-0000000000f1', 'generated', 10 FROM generate_series(7, 9) i;
SELECT object, action FROM kudos_install_ledger(true);
SELECT count(*) AS still_there FROM migrated.user_stats;
SELECT step, object, action, statement FROM kudos_install_ledger();
SELECT id, user_id, action, value FROM migrated.user_stats ORDER BY id;
SELECT id, user_id, record_type, record, value FROM migrated.user_records ORDER BY id;
SELECT id, action, value FROM migrated.worker_stats ORDER BY id;
SELECT object, action FROM kudos_install_ledger();
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
SELECT * FROM kudos_install_ledger();

\echo -- A migration that stopped halfway: tables, columns, constraints and keys missing, in a schema with an odd name
\set ECHO none
SET client_min_messages = warning;
CREATE SCHEMA "Half Way";
SET search_path = "Half Way";
\i :app
\i :migrated
DROP TABLE kudos_reservations, kudos_balance_snapshots, kudos_ledger_control;
ALTER TABLE kudos_ledger DROP CONSTRAINT kudos_ledger_amount_check, DROP CONSTRAINT kudos_ledger_user_id_fkey, DROP CONSTRAINT kudos_ledger_pkey, DROP COLUMN detail, DROP COLUMN wp_type;
ALTER TABLE kudos_stat_events DROP CONSTRAINT kudos_stat_event_exactly_one_target, DROP COLUMN team_id, ADD COLUMN quarantined boolean NOT NULL DEFAULT false;
ALTER TABLE kudos_ledger_applier_state DROP CONSTRAINT kudos_ledger_applier_state_pkey;
DELETE FROM kudos_ledger_applier_state;
INSERT INTO users SELECT * FROM pre51.users;
INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount) VALUES (md5('1')::uuid, 'AWARD', 1, 5);
RESET search_path;
RESET client_min_messages;
\set ECHO all
SET kudos_projector.schema = 'Half Way';
SELECT step, object, action, CASE WHEN action <> 'create' THEN statement END AS statement FROM kudos_install_ledger();
SELECT convalidated, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '"Half Way".kudos_ledger'::regclass ORDER BY conname;
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
SELECT convalidated, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '"Half Way".kudos_ledger'::regclass ORDER BY conname;
SELECT * FROM kudos_install_ledger();
TABLE t_problems;
SELECT currency_rows, settled FROM kudos_fold_now();
\echo -- a column that old rows would need a value for is not made up
ALTER TABLE "Half Way".kudos_ledger DROP COLUMN applied CASCADE;
SELECT * FROM kudos_install_ledger();
SELECT count(*) AS rows FROM "Half Way".kudos_ledger;
\echo -- a name that another constraint has
DELETE FROM "Half Way".kudos_ledger;
ALTER TABLE "Half Way".kudos_stat_events DROP CONSTRAINT kudos_stat_event_exactly_one_target, ADD CONSTRAINT kudos_stat_event_exactly_one_target CHECK (amount < 1000000);
SELECT object, action, statement FROM kudos_install_ledger() WHERE object LIKE 'constraint%';
SELECT * FROM kudos_install_ledger();

\echo -- What it refuses
SET kudos_projector.schema = 'nowhere';
SELECT * FROM kudos_install_ledger();
CREATE SCHEMA evil;
SET kudos_projector.schema = 'evil';
SELECT * FROM kudos_install_ledger();
SET kudos_projector.schema = 'fresh';
DROP TABLE fresh.kudos_reservations;
CREATE VIEW fresh.kudos_reservations AS SELECT 1 AS id;
SELECT * FROM kudos_install_ledger();
DROP VIEW fresh.kudos_reservations;
ALTER TABLE fresh.kudos_ledger ALTER detail TYPE json;
SELECT * FROM kudos_install_ledger();
ALTER TABLE fresh.kudos_ledger ALTER detail TYPE jsonb;
BEGIN READ ONLY;
SELECT count(*) FROM kudos_install_ledger(true);
SELECT count(*) FROM kudos_install_ledger();
ROLLBACK;

\echo -- Who does it: the owner of the tables, also when a superuser calls; triggers find nobody else
\set ECHO none
SET client_min_messages = warning;
CREATE ROLE regress_horde;
CREATE ROLE regress_stranger;
CREATE SCHEMA owned AUTHORIZATION regress_horde;
GRANT USAGE ON SCHEMA public, owned TO regress_horde, regress_stranger;
GRANT EXECUTE ON FUNCTION kudos_install_ledger(boolean) TO regress_horde, regress_stranger;
SET ROLE regress_horde;
SET search_path = owned;
\i :app
INSERT INTO users SELECT 1, 'ada', 'acct-0001', 'k1', 'c1', '2022-01-01', '2022-01-01', NULL, NULL, NULL, 1000, 0, NULL, 0, 1, 0, true, 30;
ALTER TABLE user_stats DROP CONSTRAINT uq_user_stats_user_action;
INSERT INTO user_stats (user_id, action, value) SELECT 1, 'gifted', 5 FROM generate_series(1, 2);
CREATE TABLE trail (who text, how text);
CREATE FUNCTION trail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO owned.trail VALUES (current_user, TG_OP || ' under ' || current_setting('search_path')); RETURN coalesce(NEW, OLD); END$$;
CREATE TRIGGER trail BEFORE UPDATE OR DELETE ON user_stats FOR EACH ROW EXECUTE FUNCTION trail();
RESET search_path;
RESET ROLE;
RESET client_min_messages;
\set ECHO all
SET kudos_projector.schema = 'owned';
\echo -- a stranger gains nothing
SET ROLE regress_stranger;
SELECT count(*) FROM kudos_install_ledger();
RESET ROLE;
\echo -- an owner who may not create, as in a schema public of 15, is named
ALTER SCHEMA owned OWNER TO CURRENT_USER;
GRANT USAGE ON SCHEMA owned TO regress_horde;
SELECT count(*) FROM kudos_install_ledger();
GRANT CREATE ON SCHEMA owned TO regress_horde;
SELECT count(*) > 30 AS installed FROM kudos_install_ledger();
SELECT DISTINCT relowner::regrole FROM pg_class WHERE relnamespace = 'owned'::regnamespace;
SELECT * FROM owned.trail ORDER BY how;
SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY' \gexec
SET ROLE regress_horde;
SELECT * FROM kudos_install_ledger();
RESET ROLE;
\echo -- a table of somebody else is not touched with rights that its owner did not give
ALTER TABLE owned.user_stats OWNER TO regress_stranger;
DROP INDEX owned.uq_user_stats_user_action;
SET ROLE regress_horde;
SELECT * FROM kudos_install_ledger();
RESET ROLE;
\echo -- a superuser may act as any owner, and does no more than that
INSERT INTO owned.user_stats (user_id, action, value) VALUES (1, 'gifted', 1);
GRANT SELECT, INSERT, UPDATE, DELETE ON owned.user_stats TO regress_horde;
GRANT INSERT ON owned.trail TO regress_stranger;
SELECT object, action FROM kudos_install_ledger();
SELECT * FROM owned.trail ORDER BY who, how;
ALTER TABLE owned.user_stats OWNER TO regress_horde;
SELECT object, action FROM kudos_install_ledger();
\echo -- nobody else may call it
REVOKE EXECUTE ON FUNCTION kudos_install_ledger(boolean) FROM regress_stranger;
SET ROLE regress_stranger;
SELECT * FROM kudos_install_ledger();
RESET ROLE;
\echo -- hostile objects on the path and in the schema of the temporary tables
CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE TABLE evil.users (id int);
CREATE TEMP TABLE kudos_ledger (id int);
DROP TABLE owned.kudos_reservations;
SET search_path = evil, pg_temp, pg_catalog, public;
SELECT object, action FROM public.kudos_install_ledger();
RESET search_path;
DROP TABLE pg_temp.kudos_ledger;

RESET kudos_projector.schema;
SET client_min_messages = warning;
DROP VIEW t_structure;
DROP SCHEMA pre51, fresh, fresh_current, migrated, migrated_current, "Half Way", owned, evil CASCADE;
REVOKE ALL ON SCHEMA public FROM regress_horde, regress_stranger;
REVOKE ALL ON FUNCTION kudos_install_ledger(boolean) FROM regress_horde;
DROP OWNED BY regress_horde, regress_stranger;
DROP ROLE regress_horde, regress_stranger;
