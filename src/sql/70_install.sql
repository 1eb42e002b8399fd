CREATE FUNCTION kudos_install_ledger(
    dry_run boolean DEFAULT false,
    OUT step integer,
    OUT object text,
    OUT action text,
    OUT statement text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'kudos_install_ledger';
COMMENT ON FUNCTION kudos_install_ledger(boolean) IS
    'bring the Horde''s tables to their current form, one row a thing done; rows with action run CONCURRENTLY are left to you';

CREATE FUNCTION kudos_check_schema(
    OUT severity text,
    OUT object text,
    OUT problem text,
    OUT remedy text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'kudos_check_schema';
COMMENT ON FUNCTION kudos_check_schema() IS
    'what is wrong with the Horde''s tables, one row a problem: error (nothing is folded), warning, info; reads catalogs only';

REVOKE ALL ON FUNCTION kudos_install_ledger(boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_check_schema() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION kudos_check_schema() TO pg_monitor;
