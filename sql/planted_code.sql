-- G05: functions, operators, aggregates, types and tables that somebody planted where a search would find them first
-- (in public, in a schema ahead on the path, in pg_temp) are never run, whatever a superuser calls.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/cases_fixture.sql'
\set transfers :abs_srcdir '/test/data/transfers.sql'
\set ECHO none
SET client_min_messages = warning;
SELECT current_database() AS home \gset
DROP DATABASE IF EXISTS regress_planted;
CREATE DATABASE regress_planted;
\c regress_planted
SET client_min_messages = warning;
\i :fixture
\i :transfers
\set ECHO none
SET client_min_messages = warning;
CREATE SCHEMA evil;
-- a sequence: what it counts is not undone by an error
CREATE SEQUENCE public.planted_ran;

-- Plants NAME(ARGUMENTS) in both schemas. It takes what it must have of the types that the built-in one has not,
-- too: an exact match wins over a built-in one that needs a conversion, wherever on the path it stands.
CREATE PROCEDURE plant(name text, arguments text, result text) LANGUAGE plpgsql AS $$
DECLARE home text;
BEGIN
  FOREACH home IN ARRAY '{public,evil}'::text[] LOOP
    EXECUTE format($f$CREATE FUNCTION %I.%I(%s) RETURNS %s LANGUAGE plpgsql AS $b$
      BEGIN PERFORM pg_catalog.nextval('public.planted_ran'); RAISE EXCEPTION 'planted %s ran'; END$b$ $f$, home, name, arguments, result, name);
  END LOOP;
END $$;
CREATE PROCEDURE plant_operator(name text, l text, r text, result text) LANGUAGE plpgsql AS $$
DECLARE home text;
BEGIN
  CALL plant('op ' || name || l || r, l || ',' || r, result);
  FOREACH home IN ARRAY '{public,evil}'::text[] LOOP
    EXECUTE format('CREATE OPERATOR %I.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = %I.%I)', home, name, l, r, home, 'op ' || name || l || r);
  END LOOP;
END $$;
DO $$
DECLARE o text; l text; r text;
BEGIN
  FOREACH o IN ARRAY '{=,<>,<,>,<=,>=}'::text[] LOOP
    FOREACH l IN ARRAY '{bigint,integer,smallint,numeric,uuid,text,varchar,boolean,timestamp,name,oid,userrecordtypes,userroletypes,jsonb,bytea,"char"}'::text[] LOOP
      CALL plant_operator(o, l, l, 'boolean');
    END LOOP;
    CALL plant_operator(o, 'varchar', 'text', 'boolean'); CALL plant_operator(o, 'text', 'varchar', 'boolean'); CALL plant_operator(o, 'name', 'text', 'boolean');
    CALL plant_operator(o, 'bigint', 'integer', 'boolean'); CALL plant_operator(o, 'integer', 'bigint', 'boolean'); CALL plant_operator(o, 'userroletypes', 'text', 'boolean');
  END LOOP;
  FOREACH o IN ARRAY '{+,-,*,/}'::text[] LOOP
    FOREACH l IN ARRAY '{bigint,integer,numeric,float8}'::text[] LOOP
      FOREACH r IN ARRAY '{bigint,integer,numeric,float8}'::text[] LOOP
        CALL plant_operator(o, l, r, l);
      END LOOP;
    END LOOP;
  END LOOP;
  CALL plant_operator('||', 'text', 'text', 'text'); CALL plant_operator('||', 'varchar', 'varchar', 'text'); CALL plant_operator('||', 'text', 'bigint', 'text');
  CALL plant_operator('->', 'jsonb', 'text', 'jsonb'); CALL plant_operator('->>', 'jsonb', 'text', 'text'); CALL plant_operator('->', 'jsonb', 'varchar', 'jsonb');
  CALL plant_operator('?', 'jsonb', 'text', 'boolean'); CALL plant_operator('~', 'text', 'text', 'boolean'); CALL plant_operator('~~', 'text', 'text', 'boolean');
  CALL plant_operator('~~', 'varchar', 'text', 'boolean'); CALL plant_operator('~*', 'text', 'text', 'boolean'); CALL plant_operator('&', 'integer', 'integer', 'integer');
  CALL plant('now', '', 'timestamptz'); CALL plant('clock_timestamp', '', 'timestamptz'); CALL plant('gen_random_uuid', '', 'uuid');
  CALL plant('round', 'numeric', 'numeric'); CALL plant('round', 'numeric, integer', 'numeric'); CALL plant('round', 'float8, integer', 'numeric');
  CALL plant('abs', 'numeric', 'numeric'); CALL plant('unnest', 'bigint[]', 'SETOF bigint'); CALL plant('unnest', 'text[]', 'SETOF text'); CALL plant('unnest', 'uuid[]', 'SETOF uuid');
  CALL plant('jsonb_typeof', 'jsonb', 'text'); CALL plant('jsonb_build_object', 'text, text', 'jsonb'); CALL plant('timezone', 'text, timestamptz', 'timestamp');
  CALL plant('lower', 'text', 'text'); CALL plant('nextval', 'regclass', 'bigint');
  CALL plant('nextval', 'text', 'bigint'); CALL plant('cardinality', 'bigint[]', 'integer'); CALL plant('current_setting', 'text', 'text'); CALL plant('pg_get_expr', 'text, oid', 'text');
  CALL plant('kudos_fold_now', 'bigint, bigint', 'text'); CALL plant('kudos_floor', 'bigint', 'text'); CALL plant('kudos_available', 'bigint', 'text');
  CALL plant('step', 'bigint, bigint', 'bigint'); CALL plant('step', 'numeric, numeric', 'numeric'); CALL plant('step', 'bigint, uuid', 'bigint');
END $$;
DO $$
DECLARE home text;
BEGIN
  FOREACH home IN ARRAY '{public,evil}'::text[] LOOP
    EXECUTE format('CREATE AGGREGATE %I.sum(numeric) (SFUNC = %I.step, STYPE = numeric, INITCOND = 0)', home, home);
    EXECUTE format('CREATE AGGREGATE %I.sum(bigint) (SFUNC = %I.step, STYPE = bigint, INITCOND = 0)', home, home);
    EXECUTE format('CREATE AGGREGATE %I.max(bigint) (SFUNC = %I.step, STYPE = bigint, INITCOND = 0)', home, home);
    EXECUTE format('CREATE AGGREGATE %I.count(bigint) (SFUNC = %I.step, STYPE = bigint, INITCOND = 0)', home, home);
    EXECUTE format('CREATE FUNCTION %I.refuse(text) RETURNS boolean LANGUAGE plpgsql AS $b$BEGIN PERFORM pg_catalog.nextval(''public.planted_ran''); RETURN false; END$b$', home);
  END LOOP;
END $$;
CALL plant('format', 'text, text', 'text');
CALL plant('format', 'text, name, name', 'text');
-- types named as built-in ones; in public they are in the way of nobody but those who search it first
CREATE DOMAIN evil.int8 AS pg_catalog.int8 CHECK (evil.refuse(VALUE::pg_catalog.text));
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (evil.refuse(VALUE));
CREATE DOMAIN evil.uuid AS pg_catalog.uuid CHECK (evil.refuse(VALUE::pg_catalog.text));
CREATE DOMAIN evil.numeric AS pg_catalog.numeric CHECK (evil.refuse(VALUE::pg_catalog.text));
CREATE DOMAIN evil.jsonb AS pg_catalog.jsonb CHECK (evil.refuse(VALUE::pg_catalog.text));
CREATE TABLE evil.users (LIKE public.users);
CREATE TABLE evil.kudos_ledger (LIKE public.kudos_ledger);
CREATE TABLE evil.pg_class (oid oid, relname name);

-- even the script of the extension runs beside it
CREATE EXTENSION kudos_projector;
SET search_path = pg_catalog, public;
INSERT INTO public.kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('h', 1, 60, 60);
INSERT INTO public.kudos_ledger (event_id, entry_type, user_id, escrow, amount, detail) VALUES
  ('00000000-0000-0000-0000-00000000e001', 'GENERATION', 1, false, -10.25, '{"reservation_id": "h"}'),
  ('00000000-0000-0000-0000-00000000e002', 'GENERATION', 4, false, -100, NULL), ('00000000-0000-0000-0000-00000000e003', 'GENERATION', 5, true, 60.50, NULL);
INSERT INTO public.kudos_stat_events (event_id, entry_type, user_id, worker_id, team_id, amount, unit, stat_action, record, detail) VALUES
  ('00000000-0000-0000-0000-00000000e004', 'AWARD', 1, NULL, NULL, 1.5, 'kudos', 'accumulated', 'user_kudos', '{"touch_last_active": true}'),
  ('00000000-0000-0000-0000-00000000e004', 'AWARD', 777, NULL, NULL, 1.5, 'kudos', 'accumulated', 'user_kudos', NULL),
  ('00000000-0000-0000-0000-00000000e005', 'STAT_RECORD', 1, NULL, NULL, 1.5, 'things', 'USAGE', 'image', NULL),
  ('00000000-0000-0000-0000-00000000e006', 'GENERATION', NULL, '00000000-0000-0000-0000-0000000000f1', '00000000-0000-0000-0000-0000000000a1', 1.5, 'kudos', 'generated', 'worker_kudos', NULL);
SET kudos_projector.trust_threshold = 50;
-- what stands in pg_temp, too
CREATE TEMP TABLE users (LIKE public.users);
CREATE TEMP TABLE kudos_ledger (LIKE public.kudos_ledger);
CREATE DOMAIN pg_temp.int8 AS pg_catalog.int8 CHECK (evil.refuse(VALUE::pg_catalog.text));
CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (evil.refuse(VALUE));
\pset format unaligned
\pset tuples_only
ALTER SEQUENCE public.planted_ran RESTART; -- what ran so far, this test ran
\set ECHO queries

SET search_path = evil, pg_temp, public, pg_catalog;
SELECT f.currency_rows, f.stat_rows, f.quarantined_rows, f.floor_adjustments, f.promoted_users, f.drained_users, f.settled FROM public.kudos_fold_now() f;
CALL public.kudos_catch_up();
SELECT public.kudos_floor(1), public.kudos_available(1), public.kudos_effective(1);
SELECT r.* FROM public.kudos_reserve(1, 'planted', 5) r;
SELECT public.kudos_release('planted');
SELECT t.transferred FROM public.kudos_transfer(1, 2, 3.5, 'key') t;
SELECT p.event_id FROM public.kudos_post(1, 2, 'AWARD', event_id => '00000000-0000-0000-0000-00000000e007') p;
SELECT p.event_id FROM public.kudos_post_stat('AWARD', 2, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos', event_id => '00000000-0000-0000-0000-00000000e008') p;
SELECT public.kudos_mode(), public.kudos_pin_mode();
SELECT public.kudos_set_mode('shadow');
SELECT public.kudos_set_mode('ledger');
SELECT public.kudos_wait_applied('00000000-0000-0000-0000-00000000e007', '0 s');
\echo -- a snapshot, drift, repair
\set ECHO none
SELECT public.kudos_snapshot() AS snapshot \gset
UPDATE public.users SET kudos = 7;
SELECT r.target, r.key, r.expected, r.actual FROM public.kudos_reconcile(:'snapshot') r;
SELECT r.target, r.key, r.outcome FROM public.kudos_repair(:'snapshot') r;
CALL public.kudos_catch_up();
SELECT r.target, r.key FROM public.kudos_reconcile(:'snapshot', true) r;
\set ECHO queries
SELECT q.reason, q.would_change FROM public.kudos_quarantine q;
SELECT public.kudos_accept_quarantined('00000000-0000-0000-0000-00000000e004', 'planted');
SELECT public.kudos_requeue('00000000-0000-0000-0000-00000000e004');
SELECT h.mode, h.pending_rows, h.quarantined_rows, h.active_reservations FROM public.kudos_health() h;
SELECT s.database FROM public.kudos_projector_stats s;
SELECT c.severity, c.object FROM public.kudos_check_schema() c WHERE c.severity OPERATOR(pg_catalog.=) 'error';
SELECT pg_catalog.bool_or(i.action IS NULL) FROM public.kudos_install_ledger() i;
SET search_path = pg_catalog;
SELECT u.id, u.kudos, u.evaluating_kudos FROM public.users u ORDER BY u.id;
SELECT count(*) FROM evil.users;
\echo -- and nothing of what was planted was run
SELECT is_called FROM public.planted_ran;
DROP TABLE pg_temp.users;
\c :home
DROP DATABASE regress_planted;
