-- Modes (contract, section 7).

CREATE FUNCTION kudos_mode() RETURNS text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_mode';
COMMENT ON FUNCTION kudos_mode() IS 'the committed mode: shadow (the application owns balances) or ledger (the projector does)';

CREATE FUNCTION kudos_pin_mode() RETURNS text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_pin_mode';
COMMENT ON FUNCTION kudos_pin_mode() IS 'the mode, which nobody can change until this transaction ends';

CREATE FUNCTION kudos_set_mode(mode text) RETURNS text
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_set_mode';
COMMENT ON FUNCTION kudos_set_mode(text) IS
    'change the mode; to shadow, everything queued is folded first, in this transaction, or nothing changes';

REVOKE ALL ON FUNCTION kudos_mode() FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_pin_mode() FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_set_mode(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION kudos_mode() TO pg_monitor;
