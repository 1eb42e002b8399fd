-- What CREATE EXTENSION makes, who may use it, and what DROP EXTENSION leaves.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture

\echo -- Every object of the extension, with its comment
SELECT pg_describe_object(classid, objid, objsubid) COLLATE "C" AS object, coalesce(obj_description(objid, classid::regclass::name), '(none)') AS comment
FROM pg_depend WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e'
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'kudos_projector')
  AND classid <> 'pg_type'::regclass ORDER BY 1;
\echo -- The extension itself
SELECT extversion, extrelocatable, extnamespace::regnamespace, obj_description(oid, 'pg_extension') IS NOT NULL AS commented FROM pg_extension WHERE extname = 'kudos_projector';
SELECT name, default_version, installed_version, comment FROM pg_available_extensions WHERE name = 'kudos_projector';
\echo -- Functions: kind, volatility, parallel safety, who they run as, strictness
SELECT p.oid::regprocedure::text COLLATE "C" AS function, prokind, provolatile, proparallel, prosecdef, proisstrict, proretset
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector' ORDER BY 1;
\echo -- Privileges: nothing for PUBLIC, reading health for pg_monitor
SELECT p.oid::regprocedure::text COLLATE "C" AS function, coalesce(r.rolname, 'PUBLIC') AS grantee, a.privilege_type
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector'
CROSS JOIN aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE a.grantee <> p.proowner ORDER BY 1, 2;
SELECT c.relname, coalesce(r.rolname, 'PUBLIC') AS grantee, a.privilege_type
FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector'
CROSS JOIN aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) a LEFT JOIN pg_roles r ON r.oid = a.grantee
WHERE a.grantee <> c.relowner ORDER BY 1, 2;
\echo -- D07 every own table has a primary key, so publications of all tables take its updates
SELECT c.relname, EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS has_key, c.relreplident
FROM pg_class c JOIN pg_depend d ON d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector' WHERE c.relkind = 'r' ORDER BY 1;
\echo -- Own tables are money: pg_dump takes their rows
SELECT c.oid::regclass AS dumped, quote_literal(condition) AS condition FROM pg_extension e, unnest(e.extconfig, e.extcondition) c(oid, condition) WHERE extname = 'kudos_projector';
\echo -- Signatures
SELECT p.proname, a.ord, a.mode, a.name, a.type::regtype, CASE WHEN a.mode IN ('i', 'b') THEN pg_get_function_arg_default(p.oid, a.ord::int) END AS "default"
FROM pg_proc p JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector'
CROSS JOIN unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), coalesce(p.proargmodes, array_fill('i'::"char", ARRAY[p.pronargs])), p.proargnames)
  WITH ORDINALITY a(type, mode, name, ord) ORDER BY p.proname, a.ord;
\d kudos_projector_stats

\echo -- Settings: defaults, units, who may change them, and when
SELECT name, boot_val, unit, min_val, max_val, context, vartype FROM pg_settings WHERE name LIKE 'kudos_projector.%' ORDER BY 1;
SELECT name AS undescribed FROM pg_settings WHERE name LIKE 'kudos_projector.%' AND short_desc = '';

\echo -- DROP EXTENSION leaves every table of the Horde, with its rows
SELECT t_post(1, 0.50), t_post(4, -100), t_ustat(1, 'accumulated', 0.50) \gset
CALL fold();
DROP EXTENSION kudos_projector;
SELECT (SELECT count(*) FROM kudos_ledger) AS ledger, (SELECT count(*) FROM kudos_stat_events) AS stats,
       (SELECT count(*) FROM kudos_reservations) AS holds, (SELECT kudos FROM users WHERE id = 1) AS kudos, (SELECT mode FROM kudos_ledger_control) AS mode;
SELECT relname AS left_behind FROM pg_class WHERE relname LIKE 'kudos%' AND relkind IN ('r', 'v')
  AND relname NOT IN ('kudos_ledger', 'kudos_stat_events', 'kudos_reservations', 'kudos_ledger_control', 'kudos_ledger_applier_state', 'kudos_balance_snapshots');
SELECT proname AS left_behind FROM pg_proc WHERE proname LIKE 'kudos%';
\echo -- and can be created again, and dropped and created in one transaction
CREATE EXTENSION kudos_projector;
CREATE EXTENSION kudos_projector;
CREATE EXTENSION IF NOT EXISTS kudos_projector;
BEGIN;
DROP EXTENSION kudos_projector;
CREATE EXTENSION kudos_projector;
SELECT currency_rows, settled FROM kudos_fold_now();
COMMIT;
SELECT t_post(2, 5) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 2;
\echo -- G05 created under a hostile search_path
DROP EXTENSION kudos_projector;
CREATE SCHEMA evil;
CREATE FUNCTION evil.pg_extension_config_dump(regclass, text) RETURNS void LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
CREATE DOMAIN evil.smallint AS pg_catalog.int2 CHECK (false);
SET search_path = evil, pg_catalog, public;
CREATE EXTENSION kudos_projector SCHEMA public;
RESET search_path;
SELECT extnamespace::regnamespace FROM pg_extension WHERE extname = 'kudos_projector';
SELECT attname, atttypid::regtype FROM pg_attribute WHERE attrelid = 'kudos_remainder_users'::regclass AND attnum > 0 ORDER BY attnum;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
RESET client_min_messages;
\echo -- A name that is taken is not taken over
DROP EXTENSION kudos_projector;
CREATE TABLE kudos_remainder_users (id int);
CREATE EXTENSION kudos_projector;
SELECT count(*) AS extensions FROM pg_extension WHERE extname = 'kudos_projector';
DROP TABLE kudos_remainder_users;
CREATE EXTENSION kudos_projector;
SELECT currency_rows, settled FROM kudos_fold_now();
