-- What tables may look like and what they may not: shapes in which the same postings come to the same result, and
-- shapes that are refused by name before anything is folded.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/cases_fixture.sql'
\set isolation :abs_srcdir '/test/data/isolation_helpers.sql'
\set transfers :abs_srcdir '/test/data/transfers.sql'
\set scene :abs_srcdir '/test/data/hostile_scene.sql'
\set ECHO none
SET client_min_messages = warning;
DROP DATABASE IF EXISTS regress_shapes;
DROP ROLE IF EXISTS regress_shapes_owner;
SELECT current_database() AS home \gset
CREATE DATABASE regress_shapes;
\c regress_shapes
SET client_min_messages = warning;
\i :fixture
CREATE EXTENSION kudos_projector;
\i :isolation
\i :transfers
\set ECHO none
\i :scene
SET client_min_messages = warning;
CREATE ROLE regress_shapes_owner;
GRANT CREATE ON SCHEMA public TO regress_shapes_owner;

-- The result of the scene on tables changed by ddl, all of which is undone. Views stand in the way of new types.
CREATE FUNCTION result_on(ddl text, home text DEFAULT 'public') RETURNS text LANGUAGE plpgsql
SET client_min_messages = error AS $$
DECLARE
  standing text := pg_get_viewdef('t_standing');
  archived text := pg_get_viewdef('t_archived');
  f regprocedure;
BEGIN
  DROP VIEW t_standing, t_archived, t_pending, t_bal, t_look, t_hold CASCADE;
  EXECUTE ddl;
  FOREACH f IN ARRAY '{t_scene(),t_result(),target_errors()}'::regprocedure[] LOOP
    EXECUTE format('ALTER FUNCTION %s SET search_path = %I, public', f, home);
  END LOOP;
  PERFORM set_config('search_path', quote_ident(home) || ', public', true), set_config('kudos_projector.schema', home, true);
  EXECUTE 'CREATE VIEW t_standing AS ' || standing;
  EXECUTE 'CREATE VIEW t_archived AS ' || archived;
  PERFORM public.t_scene();
  PERFORM public.kudos_fold_now();
  PERFORM public.kudos_fold_now();
  RAISE EXCEPTION USING ERRCODE = 'RIGHT', MESSAGE = public.t_result();
EXCEPTION
  WHEN SQLSTATE 'RIGHT' THEN RETURN SQLERRM;
  WHEN OTHERS THEN RETURN concat_ws(' ', SQLSTATE, SQLERRM);
END $$;
CALL reset_case();
SET kudos_projector.trust_threshold = 50;
SELECT result_on('SELECT 1') AS baseline \gset
CREATE TABLE baseline AS SELECT :'baseline'::text AS result;

-- "same", or the lines that differ.
CREATE FUNCTION compared(result text) RETURNS text LANGUAGE sql AS $$
  SELECT CASE WHEN result !~ E'\n' THEN result ELSE coalesce(string_agg(sign || line, E'\n' ORDER BY line COLLATE "C", sign), 'same') END FROM (
    (SELECT '+' AS sign, line FROM string_to_table(result, E'\n') line EXCEPT ALL SELECT '+', line FROM baseline b, string_to_table(b.result, E'\n') line)
    UNION ALL
    (SELECT '-', line FROM baseline b, string_to_table(b.result, E'\n') line EXCEPT ALL SELECT '-', line FROM string_to_table($1, E'\n') line)) d
$$;
CREATE FUNCTION moved_to(home text) RETURNS text LANGUAGE sql AS $$
  SELECT format('CREATE SCHEMA %I; ', home)
         || string_agg(format('ALTER TABLE %s SET SCHEMA %I', c.oid::regclass, home), '; ')
    FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
     AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e')
$$;
RESET client_min_messages;
\pset format unaligned
\pset tuples_only
\set ECHO all

SELECT count(*) > 80 AS lines, count(*) FILTER (WHERE line LIKE 'error%') AS errors FROM baseline, string_to_table(result, E'\n') line;

\echo -- Names of the schema of the tables
SELECT home, compared(result_on(moved_to(home), home)) FROM unnest(ARRAY[
  'Horde', 'the horde', 'a.b', 'quo"te', $$quo'te$$, $$back\slash$$, 'select', 'pg', '%s %I $1', E'h\u00f6rde \U0001F600', E'two\nlines',
  repeat('x', 63), repeat(E'\u00e9', 31), ' ', 'public ', '"public"']) home;

\echo -- Columns that nobody knows, generated ones among them, gaps, identities, storage
SELECT what, compared(result_on(ddl)) FROM (VALUES
  ('extra columns in front and behind, with names that our statements use',
   $$DO $d$ DECLARE t text; BEGIN FOREACH t IN ARRAY '{users,teams,workers,user_stats,user_records,worker_stats,user_roles,kudos_ledger,kudos_stat_events,kudos_reservations,kudos_ledger_control,kudos_ledger_applier_state,kudos_balance_snapshots}'::text[] LOOP
     EXECUTE format('ALTER TABLE %I ADD k int, ADD ord int NOT NULL DEFAULT 7, ADD k1 text, ADD v1 text, ADD r int, ADD t int, ADD "select" text, ADD "Kudos" int, ADD remaining text, ADD released int, ADD excluded int, ADD marked int, ADD reason int, ADD chosen int', t); END LOOP; END $d$ $$),
  ('generated columns on targets',
   $$ALTER TABLE users ADD doubled numeric GENERATED ALWAYS AS (kudos * 2.0) STORED, ADD poor bool GENERATED ALWAYS AS (kudos < 30) STORED;
     ALTER TABLE user_stats ADD whole text GENERATED ALWAYS AS (action || '!') STORED; ALTER TABLE user_records ADD half float8 GENERATED ALWAYS AS (value / 2) STORED;
     ALTER TABLE worker_stats ADD d bigint GENERATED ALWAYS AS (value) STORED; ALTER TABLE workers ADD d bigint GENERATED ALWAYS AS (kudos + fulfilments) STORED;
     ALTER TABLE teams ADD d bigint GENERATED ALWAYS AS (kudos + fulfilments) STORED$$),
  ('generated columns on the archives and holds',
   $$ALTER TABLE kudos_ledger ADD cents numeric GENERATED ALWAYS AS (amount * 100) STORED, ADD queued bool GENERATED ALWAYS AS (NOT applied) STORED;
     ALTER TABLE kudos_stat_events ADD cents numeric GENERATED ALWAYS AS (amount * 100) STORED, ADD queued bool GENERATED ALWAYS AS (NOT applied AND NOT quarantined) STORED;
     ALTER TABLE kudos_reservations ADD spent numeric GENERATED ALWAYS AS (original_amount - remaining_amount) STORED, ADD open bool GENERATED ALWAYS AS (released_at IS NULL) STORED$$),
  ('dropped columns in front of those that are needed',
   $$ALTER TABLE kudos_ledger DROP COLUMN job_id, DROP COLUMN wp_type; ALTER TABLE kudos_stat_events DROP COLUMN worker_user_id, DROP COLUMN job_id;
     ALTER TABLE users ADD gone int; ALTER TABLE users DROP COLUMN gone, ADD k2 bigint NOT NULL DEFAULT 0; UPDATE users SET k2 = kudos; ALTER TABLE users DROP COLUMN kudos; ALTER TABLE users RENAME k2 TO kudos;
     ALTER TABLE workers ADD p2 bool NOT NULL DEFAULT false; UPDATE workers SET p2 = paused; ALTER TABLE workers DROP COLUMN paused; ALTER TABLE workers RENAME p2 TO paused$$),
  ('identities BY DEFAULT and ALWAYS',
   $$ALTER TABLE kudos_ledger ALTER id SET GENERATED BY DEFAULT; ALTER TABLE user_stats ALTER id DROP DEFAULT; ALTER TABLE user_stats ALTER id ADD GENERATED ALWAYS AS IDENTITY (START 1000);
     ALTER TABLE user_records ALTER id DROP DEFAULT; ALTER TABLE user_records ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START 1000);
     ALTER TABLE worker_stats ALTER id DROP DEFAULT; ALTER TABLE worker_stats ALTER id ADD GENERATED ALWAYS AS IDENTITY (START 1000)$$),
  ('fillfactor, another access method, clustered',
   $$ALTER TABLE users SET (fillfactor = 20); CREATE ACCESS METHOD heap2 TYPE TABLE HANDLER heap_tableam_handler; ALTER TABLE users SET ACCESS METHOD heap2; ALTER TABLE kudos_ledger SET ACCESS METHOD heap2; CLUSTER users USING users_pkey$$),
  ('inherits from another table',
   $$CREATE TABLE elders (kudos bigint); ALTER TABLE users INHERIT elders$$),
  ('rules that do something as well, and those of other commands',
   $$CREATE TABLE seen (t text); CREATE RULE seen AS ON UPDATE TO users DO ALSO INSERT INTO seen VALUES ('u'); CREATE RULE off AS ON UPDATE TO teams DO INSTEAD NOTHING;
     ALTER TABLE teams DISABLE RULE off; CREATE RULE keep AS ON DELETE TO kudos_ledger DO INSTEAD NOTHING$$),
  ('row security that lets the owner pass',
   $$CREATE POLICY none ON users USING (false); CALL t_own('regress_shapes_owner'); ALTER TABLE users ENABLE ROW LEVEL SECURITY; ALTER TABLE kudos_ledger ENABLE ROW LEVEL SECURITY;
     ALTER TABLE kudos_stat_events ENABLE ROW LEVEL SECURITY; ALTER TABLE kudos_reservations ENABLE ROW LEVEL SECURITY; ALTER TABLE user_roles ENABLE ROW LEVEL SECURITY; ALTER TABLE kudos_ledger_control ENABLE ROW LEVEL SECURITY$$)) v (what, ddl);

\echo -- Domains, and other types that hold the same
SELECT what, compared(result_on(ddl)) FROM (VALUES
  ('domains over every type that is written or read',
   $$CREATE DOMAIN d_int AS int CHECK (VALUE IS NOT NULL); CREATE DOMAIN d_id AS bigint CHECK (VALUE > -1); CREATE DOMAIN d_big AS bigint CHECK (VALUE < 9100000000000000000); CREATE DOMAIN d_bigger AS d_big NOT NULL;
     CREATE DOMAIN d_amount AS numeric(20,2) CHECK (VALUE <> 0); CREATE DOMAIN d_uuid AS uuid; CREATE DOMAIN d_word AS varchar(20) CHECK (VALUE <> 'never'); CREATE DOMAIN d_name AS varchar(50); CREATE DOMAIN d_time AS timestamp; CREATE DOMAIN d_json AS jsonb;
     ALTER TABLE users ALTER kudos TYPE d_bigger, ALTER evaluating_kudos TYPE d_int, ALTER oauth_id TYPE d_name, ALTER last_active TYPE d_time;
     ALTER TABLE user_stats ALTER value TYPE d_big, ALTER action TYPE d_word; ALTER TABLE worker_stats ALTER value TYPE d_big, ALTER action TYPE d_word;
     ALTER TABLE workers ALTER kudos TYPE d_big, ALTER fulfilments TYPE d_int; ALTER TABLE teams ALTER kudos TYPE d_big;
     ALTER TABLE kudos_ledger ALTER detail TYPE d_json, ALTER event_id TYPE d_uuid, ALTER created TYPE d_time, ALTER amount TYPE d_amount;
     ALTER TABLE kudos_stat_events ALTER detail TYPE d_json, ALTER event_id TYPE d_uuid, ALTER team_id TYPE d_uuid, ALTER worker_id TYPE d_uuid;
     ALTER TABLE kudos_reservations ALTER event_id TYPE d_uuid, ALTER released_at TYPE d_time$$),
  ('wider integers, texts without a limit',
   $$ALTER TABLE users ALTER evaluating_kudos TYPE bigint; ALTER TABLE workers ALTER fulfilments TYPE bigint; ALTER TABLE teams ALTER fulfilments TYPE bigint; ALTER TABLE user_stats ALTER id TYPE bigint, ALTER user_id TYPE bigint;
     ALTER TABLE kudos_ledger ALTER user_id TYPE bigint, ALTER entry_type TYPE text; ALTER TABLE kudos_reservations ALTER business_id TYPE text; ALTER TABLE user_records ALTER record TYPE text$$),
  ('whole numerics', $$ALTER TABLE users ALTER kudos TYPE numeric(18,0), ALTER evaluating_kudos TYPE numeric(9,0); ALTER TABLE user_stats ALTER value TYPE numeric(30,0); ALTER TABLE worker_stats ALTER value TYPE numeric(30,0)$$)) v (what, ddl);

\echo -- What is refused, for each table: no row is folded
CREATE FUNCTION refused(t text, ddl text) RETURNS text LANGUAGE sql AS $$
  SELECT CASE WHEN left(r, 5) = 'activ' THEN 'folded' ELSE r END FROM (SELECT result_on(replace(ddl, '@', t))) s (r)
$$;
CREATE VIEW tables AS SELECT t FROM unnest('{kudos_ledger,kudos_stat_events,kudos_reservations,kudos_ledger_applier_state,kudos_ledger_control,users,user_stats,user_records,workers,worker_stats,teams,user_roles,user_suspicions}'::text[]) t;
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
SELECT t, refused(t, 'ALTER TABLE @ RENAME TO real; CREATE VIEW @ AS SELECT * FROM real') FROM tables;
SELECT refused(t, 'ALTER TABLE @ RENAME TO real; CREATE MATERIALIZED VIEW @ AS SELECT * FROM real') FROM tables WHERE t = 'user_suspicions';
SELECT refused(t, 'ALTER TABLE @ RENAME TO real; CREATE FOREIGN TABLE @ (id int) SERVER nowhere') FROM tables WHERE t = 'user_suspicions';
SELECT refused(t, 'ALTER TABLE @ RENAME TO real; CREATE SEQUENCE @') FROM tables WHERE t = 'user_suspicions';
SELECT refused(t, 'ALTER TABLE @ RENAME TO real; CREATE TYPE @ AS (id int)') FROM tables WHERE t = 'user_suspicions';
SELECT t, refused(t, 'ALTER TABLE @ RENAME TO real; CREATE TABLE @ (LIKE real) PARTITION BY LIST (id)') FROM tables WHERE t = 'user_suspicions';
SELECT t, refused(t, 'ALTER TABLE @ RENAME TO real; CREATE TEMP TABLE @ (LIKE real)') FROM tables WHERE t = 'user_suspicions';
SELECT t, refused(t, 'CREATE TABLE child () INHERITS (@)') FROM tables;
SELECT t, refused(t, 'CREATE RULE r AS ON UPDATE TO @ DO INSTEAD NOTHING') FROM tables;
SELECT t, refused(t, 'CREATE RULE r AS ON INSERT TO @ DO INSTEAD NOTHING; ALTER TABLE @ ENABLE ALWAYS RULE r') FROM tables WHERE t IN ('user_stats', 'kudos_ledger');
SELECT t, refused(t, 'ALTER TABLE @ SET UNLOGGED') FROM tables;
SELECT t, refused(t, $$CALL t_own('regress_shapes_owner'); ALTER TABLE @ ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY$$) FROM tables;
SELECT t, refused(t, $$CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false); ALTER TABLE @ ALTER action TYPE varchar(20) COLLATE loose$$) FROM unnest('{user_stats,worker_stats}'::text[]) t;

\c :home
DROP DATABASE regress_shapes;
DROP ROLE regress_shapes_owner;
