-- A trigger on each table that the projector writes, for each command, that swallows the row, or changes a column of it.
-- While it is there, what is marked applied is in the targets, nothing else; when it is gone, everything is
-- folded, to the result that comes out without it.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/cases_fixture.sql'
\set isolation :abs_srcdir '/test/data/isolation_helpers.sql'
\set transfers :abs_srcdir '/test/data/transfers.sql'
\set scene :abs_srcdir '/test/data/hostile_scene.sql'
\set ECHO none
SET client_min_messages = warning;
SELECT current_database() AS home \gset
DROP DATABASE IF EXISTS regress_triggers;
CREATE DATABASE regress_triggers;
\c regress_triggers
SET client_min_messages = warning;
\i :fixture
CREATE EXTENSION kudos_projector;
\i :isolation
\i :transfers
\set ECHO none
\i :scene
SET client_min_messages = warning;
CALL reset_case();
SET kudos_projector.trust_threshold = 50;

CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW := jsonb_populate_record(NEW, TG_ARGV[0]::jsonb);
  RETURN NEW;
END $$;
CREATE FUNCTION folded() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM kudos_fold_now();
  RETURN 'goes on';
EXCEPTION WHEN OTHERS THEN
  RETURN SQLSTATE;
END $$;

-- How the fold fared with the trigger, what was wrong then, and the result without it, undone. An empty ddl is the
-- baseline.
CREATE FUNCTION under_trigger(ddl text, OUT fold text, OUT wrong bigint, OUT afterwards text) LANGUAGE plpgsql
SET client_min_messages = error AS $$
DECLARE
  t record;
BEGIN
  PERFORM t_scene();
  EXECUTE ddl;
  fold := folded();
  PERFORM folded();
  wrong := count(*) FROM target_errors();
  wrong := wrong + (SELECT abs(coalesce(sum(amount), 0)) FROM kudos_ledger WHERE entry_type = 'EVALUATION_PROMOTION');
  FOR t IN SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgname = 'hostile' LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', t.tgname, t.tgrelid);
  END LOOP;
  PERFORM folded(), folded(), folded();
  RAISE EXCEPTION USING ERRCODE = 'RIGHT', MESSAGE = t_result();
EXCEPTION
  WHEN SQLSTATE 'RIGHT' THEN afterwards := SQLERRM;
END $$;
CREATE TABLE baseline AS SELECT afterwards AS result FROM under_trigger('');
CREATE FUNCTION compared(result text) RETURNS text LANGUAGE sql AS $$
  SELECT coalesce(string_agg(sign || line, E'\n' ORDER BY line COLLATE "C", sign), 'same') FROM (
    (SELECT '+' AS sign, line FROM string_to_table(result, E'\n') line EXCEPT ALL SELECT '+', line FROM baseline b, string_to_table(b.result, E'\n') line)
    UNION ALL
    (SELECT '-', line FROM baseline b, string_to_table(b.result, E'\n') line EXCEPT ALL SELECT '-', line FROM string_to_table($1, E'\n') line)) d
$$;
-- A promotion updates workers, too, and does not look at their numbers.
CREATE FUNCTION of_columns(t text, event text) RETURNS text LANGUAGE sql AS $$
  SELECT CASE WHEN t = 'workers' AND event = 'UPDATE' THEN ' OF kudos, contributions, fulfilments' ELSE '' END
$$;
CREATE VIEW written AS
  SELECT c.relname::text AS t, e AS event FROM pg_class c, unnest('{INSERT,UPDATE}'::text[]) e
   WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
     AND (relname LIKE 'kudos\_remainder\_%' OR relname IN ('kudos_ledger', 'kudos_stat_events', 'kudos_reservations', 'kudos_ledger_applier_state',
          'users', 'user_stats', 'user_records', 'workers', 'worker_stats', 'teams', 'user_roles'));
RESET client_min_messages;
\pset format unaligned
\pset tuples_only
\set ECHO all

SELECT count(*) > 80 AS lines, count(*) FILTER (WHERE line LIKE 'error%') AS errors FROM baseline, string_to_table(result, E'\n') line;

\echo -- Swallowed
SELECT t, event, fold, wrong, compared(afterwards)
  FROM written, under_trigger(format('CREATE TRIGGER hostile BEFORE %s%s ON %I FOR EACH ROW EXECUTE FUNCTION swallow()', event, of_columns(t, event), t))
 ORDER BY t COLLATE "C", event;

\echo -- Changed
SELECT t, event, changes, fold, wrong, compared(afterwards)
  FROM (VALUES
    (1, 'users', 'UPDATE', '{"kudos": 3}'), (2, 'users', 'UPDATE', '{"evaluating_kudos": 3}'), 
    (4, 'user_stats', 'UPDATE', '{"value": 3}'), (5, 'user_stats', 'INSERT', '{"value": 3}'), (6, 'user_stats', 'INSERT', '{"action": "other"}'), (7, 'user_stats', 'INSERT', '{"user_id": 4}'),
    (8, 'user_records', 'UPDATE', '{"value": 3}'), (9, 'user_records', 'INSERT', '{"value": 0.31}'), (10, 'user_records', 'INSERT', '{"record_type": "REQUEST"}'),
    (11, 'worker_stats', 'INSERT', '{"value": 0}'), (12, 'worker_stats', 'INSERT', '{"worker_id": "00000000-0000-0000-0000-0000000000f2"}'),
    (13, 'workers', 'UPDATE', '{"kudos": 3}'), (14, 'workers', 'UPDATE', '{"contributions": 3}'), (15, 'workers', 'UPDATE', '{"fulfilments": 3}'),
    (16, 'teams', 'UPDATE', '{"kudos": 3}'), (17, 'teams', 'UPDATE', '{"contributions": 3}'), (18, 'teams', 'UPDATE', '{"fulfilments": 3}'),
    (19, 'kudos_ledger', 'UPDATE', '{"applied": false}'), 
    (22, 'kudos_ledger', 'INSERT', '{"amount": 3}'), (23, 'kudos_ledger', 'INSERT', '{"user_id": 2}'), (24, 'kudos_ledger', 'INSERT', '{"escrow": true}'),
    (25, 'kudos_ledger', 'INSERT', '{"applied": true}'), (26, 'kudos_ledger', 'INSERT', '{"applied": false}'),
    (27, 'kudos_stat_events', 'UPDATE', '{"applied": false}'), (29, 'kudos_stat_events', 'UPDATE', '{"quarantined": false}'),
    (30, 'kudos_stat_events', 'UPDATE', '{"quarantined": true}'), (31, 'kudos_stat_events', 'INSERT', '{"amount": 3}'), (32, 'kudos_stat_events', 'INSERT', '{"applied": true}'),
    (33, 'kudos_reservations', 'UPDATE', '{"remaining_amount": 3}'), (34, 'kudos_reservations', 'UPDATE', '{"released_at": null}'), (35, 'kudos_reservations', 'UPDATE', '{"released_at": "2026-01-01"}'),
    (36, 'user_roles', 'INSERT', '{"value": false}'), (37, 'user_roles', 'INSERT', '{"user_id": 2}'), (38, 'user_roles', 'INSERT', '{"user_role": "VPN"}'),
    (45, 'kudos_ledger_applier_state', 'UPDATE', '{"applied_at": null}')) v (n, t, event, changes),
  under_trigger(format('CREATE TRIGGER hostile BEFORE %s%s ON %I FOR EACH ROW EXECUTE FUNCTION change(%L)', event, of_columns(t, event), t, changes))
 ORDER BY n;

\c :home
DROP DATABASE regress_triggers;
