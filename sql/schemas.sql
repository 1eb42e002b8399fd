-- The extension in one schema, the Horde in another, and hostile objects on the path.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
DROP SCHEMA IF EXISTS ext, "Horde App", evil CASCADE;
RESET client_min_messages;
\i :fixture

\echo -- W16 the extension in a schema of its own
DROP EXTENSION kudos_projector;
CREATE SCHEMA ext;
CREATE EXTENSION kudos_projector SCHEMA ext;
SELECT t_post(1, 5.50), t_ustat(1, 'accumulated', 5.50), t_rec(1, 'USAGE', 'image', 0.25), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 1.25, '00000000-0000-0000-0000-0000000000a1') \gset
SELECT currency_rows, stat_rows, settled FROM ext.kudos_fold_now();
SELECT * FROM t_state;
SELECT id, kudos FROM ext.kudos_remainder_users;
SELECT ledger_pending_rows, mode FROM ext.kudos_health();
SELECT count(*) AS workers FROM ext.kudos_projector_stats WHERE database = current_database();
SET client_min_messages = warning;
CALL ext.kudos_catch_up();
RESET client_min_messages;
\echo -- W16 moved to another schema: remainders go with it, plans follow
ALTER EXTENSION kudos_projector SET SCHEMA public;
SELECT t_post(1, -0.10) \gset
SELECT currency_rows, stat_rows, settled FROM kudos_fold_now();
SELECT kudos FROM users WHERE id = 1;
ALTER SCHEMA ext RENAME TO "Ext; DROP";
ALTER EXTENSION kudos_projector SET SCHEMA "Ext; DROP";
SELECT t_post(1, 0.10) \gset
SELECT currency_rows, stat_rows, settled FROM "Ext; DROP".kudos_fold_now();
SELECT kudos FROM users WHERE id = 1;
SELECT id, kudos FROM "Ext; DROP".kudos_remainder_users;
ALTER SCHEMA "Ext; DROP" RENAME TO ext;

\echo -- W16 the Horde in a schema with a name that needs quotes
CREATE SCHEMA "Horde App";
SET search_path = "Horde App";
\i :fixture
DROP EXTENSION kudos_projector;
CREATE EXTENSION kudos_projector SCHEMA ext;
SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5), t_rec(1, 'USAGE', 'image', 2), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 1.25, '00000000-0000-0000-0000-0000000000a1'), t_post(4, -100) \gset
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
SELECT t_post(1, -25, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
RESET search_path;
\echo -- without the setting it folds the Horde of public, which has nothing queued
SELECT currency_rows, stat_rows, settled FROM ext.kudos_fold_now();
SELECT * FROM "Horde App".t_state;
SET kudos_projector.schema = 'Horde App';
SELECT currency_rows, stat_rows, floor_adjustments, settled FROM ext.kudos_fold_now();
SELECT * FROM "Horde App".t_state;
SELECT * FROM "Horde App".t_records;
SELECT * FROM "Horde App".t_wstats;
SELECT * FROM "Horde App".t_holds;
SELECT user_id, amount FROM "Horde App".t_floored;
SELECT kudos FROM public.users WHERE id = 1;
\echo -- the setting may change within a session, within a transaction
SELECT public.t_post(2, 7) \gset
BEGIN;
SET LOCAL kudos_projector.schema = 'public';
SELECT currency_rows FROM ext.kudos_fold_now();
COMMIT;
SELECT kudos FROM public.users WHERE id = 2;
SELECT kudos FROM "Horde App".users WHERE id = 2;
\echo -- messages quote what has to be quoted
DROP INDEX "Horde App".ix_kudos_ledger_unapplied;
SELECT ext.kudos_fold_now();
CREATE INDEX CONCURRENTLY ON "Horde App".kudos_ledger (id) WHERE applied IS FALSE;
SELECT currency_rows, settled FROM ext.kudos_fold_now();
\echo -- no search_path at all
SET search_path = '';
SELECT currency_rows, settled FROM ext.kudos_fold_now();
SELECT ledger_pending_rows FROM ext.kudos_health();
RESET search_path;
RESET kudos_projector.schema;
\echo -- DROP SCHEMA of the extension takes the extension, not the Horde
SET client_min_messages = warning;
DROP SCHEMA ext CASCADE;
SELECT count(*) AS extensions FROM pg_extension WHERE extname = 'kudos_projector';
SELECT count(*) AS rows FROM "Horde App".kudos_ledger;
DROP SCHEMA "Horde App" CASCADE;
RESET client_min_messages;

\echo -- G05 hostile objects in a schema on the path, and in pg_temp
\i :fixture
CREATE SCHEMA evil;
CREATE FUNCTION evil.round(numeric, int) RETURNS numeric LANGUAGE sql AS 'SELECT 0::numeric';
CREATE FUNCTION evil.boom(numeric, numeric) RETURNS numeric LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE FUNCTION evil.boom(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE FUNCTION evil.boom(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE AGGREGATE evil.sum(numeric) (SFUNC = evil.boom, STYPE = numeric);
CREATE OPERATOR evil.+ (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = evil.boom);
CREATE OPERATOR evil.+ (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.boom);
CREATE OPERATOR evil.= (LEFTARG = uuid, RIGHTARG = uuid, FUNCTION = evil.boom);
CREATE FUNCTION evil.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE FUNCTION evil.gen_random_uuid() RETURNS uuid LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE FUNCTION evil.kudos_fold_now() RETURNS text LANGUAGE sql AS $$SELECT 'not this one'$$;
CREATE DOMAIN evil.int8 AS pg_catalog.int8 CHECK (VALUE IS NULL);
CREATE DOMAIN evil.text AS pg_catalog.text CHECK (VALUE IS NULL);
CREATE TABLE evil.users (LIKE public.users);
CREATE TABLE evil.kudos_ledger (LIKE public.kudos_ledger);
CREATE TABLE evil.kudos_remainder_users (LIKE public.kudos_remainder_users);
SELECT t_post(1, 10.25), t_post(4, -100), t_ustat(1, 'accumulated', 10.25), t_rec(1, 'USAGE', 'image', 1),
  t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 1, '00000000-0000-0000-0000-0000000000a1') \gset
SET search_path = evil, pg_catalog, public;
SELECT f.currency_rows, f.stat_rows, f.settled FROM public.kudos_fold_now() f;
SELECT h.ledger_pending_rows, h.quarantined_rows FROM public.kudos_health() h;
RESET search_path;
SELECT * FROM t_state;
SELECT user_id, amount FROM t_floored;
SELECT (SELECT count(*) FROM evil.users) AS users, (SELECT count(*) FROM evil.kudos_ledger) AS ledger, (SELECT count(*) FROM evil.kudos_remainder_users) AS remainders;
\echo -- G05 temporary tables and types of the same names are ignored
SELECT t_post(1, 10) \gset
CREATE TEMP TABLE kudos_ledger (LIKE public.kudos_ledger);
CREATE TEMP TABLE users (LIKE public.users);
CREATE TEMP TABLE kudos_remainder_users (LIKE public.kudos_remainder_users);
CREATE DOMAIN pg_temp.int8 AS pg_catalog.int8 CHECK (VALUE IS NULL);
SELECT currency_rows, settled FROM kudos_fold_now();
SET search_path = pg_temp, evil, public, pg_catalog;
SELECT f.currency_rows, f.settled FROM public.kudos_fold_now() f;
RESET search_path;
SELECT kudos FROM public.users WHERE id = 1;
SELECT count(*) AS pending FROM public.kudos_ledger WHERE NOT applied;
SELECT (SELECT count(*) FROM pg_temp.users) AS users, (SELECT count(*) FROM pg_temp.kudos_ledger) AS ledger;
DISCARD TEMP;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
RESET client_min_messages;
