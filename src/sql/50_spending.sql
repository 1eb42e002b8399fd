-- Spending (contract, section 8) and posting.

-- Transfers by the event id that their idempotency key gives: what makes a retry a replay.
CREATE TABLE kudos_transfer_requests (
    event_id uuid PRIMARY KEY,
    source_id bigint NOT NULL,
    dest_id bigint NOT NULL,
    amount numeric(20, 2) NOT NULL,
    created timestamp NOT NULL
);
COMMENT ON TABLE kudos_transfer_requests IS 'transfers that kudos_transfer() made, by event id, so that a retry is recognised';
SELECT pg_catalog.pg_extension_config_dump('kudos_transfer_requests', '');

CREATE FUNCTION kudos_floor(user_id integer) RETURNS numeric
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_floor';
COMMENT ON FUNCTION kudos_floor(integer) IS 'minimum balance of the account: -50 for anon, 14 for pseudonymous accounts, 25 for others';

CREATE FUNCTION kudos_available(user_id integer) RETURNS numeric
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_available';
COMMENT ON FUNCTION kudos_available(integer) IS
    'what the account can spend: balance - floor - active holds - queued debits (those of an active hold once)';

CREATE FUNCTION kudos_effective(user_id integer) RETURNS numeric
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_effective';
COMMENT ON FUNCTION kudos_effective(integer) IS 'the balance as it will be when all that is queued is folded; for display only';

CREATE FUNCTION kudos_reserve(
    user_id integer, business_id text, amount numeric, event_id uuid DEFAULT NULL,
    OUT granted boolean, OUT reserved numeric, OUT available numeric)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_reserve';
COMMENT ON FUNCTION kudos_reserve(integer, text, numeric, uuid) IS
    'hold an amount of the account under a business id; granted is false when available falls short; a hold that is there is returned as it is';

CREATE FUNCTION kudos_release(business_id text) RETURNS numeric
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_release';
COMMENT ON FUNCTION kudos_release(text) IS 'release a hold and give what it still held; 0 where there is nothing to release';

CREATE FUNCTION kudos_transfer(
    source integer, dest integer, amount numeric, idempotency_key text,
    OUT transferred boolean, OUT replayed boolean, OUT event_id uuid)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_transfer';
COMMENT ON FUNCTION kudos_transfer(integer, integer, numeric, text) IS
    'reserve, debit and credit under one event; a retry with the same key does nothing and says replayed';

CREATE FUNCTION kudos_post(
    user_id integer, amount numeric, entry_type text, escrow boolean DEFAULT false,
    INOUT event_id uuid DEFAULT NULL, idempotency_key text DEFAULT NULL, detail jsonb DEFAULT NULL,
    job_id uuid DEFAULT NULL, wp_type text DEFAULT NULL, created timestamp DEFAULT NULL, OUT id bigint)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_post';
COMMENT ON FUNCTION kudos_post(integer, numeric, text, boolean, uuid, text, jsonb, uuid, text, timestamp) IS
    'append one currency row, in ledger mode; the event id is given, derived from the idempotency key, or new';

CREATE FUNCTION kudos_post_stat(
    entry_type text, amount numeric, unit text, user_id integer DEFAULT NULL, worker_id uuid DEFAULT NULL,
    worker_user_id integer DEFAULT NULL, team_id uuid DEFAULT NULL, stat_action text DEFAULT NULL,
    record text DEFAULT NULL, INOUT event_id uuid DEFAULT NULL, idempotency_key text DEFAULT NULL,
    detail jsonb DEFAULT NULL, job_id uuid DEFAULT NULL, wp_type text DEFAULT NULL,
    created timestamp DEFAULT NULL, OUT id bigint)
RETURNS record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_post_stat';
COMMENT ON FUNCTION kudos_post_stat(text, numeric, text, integer, uuid, integer, uuid, text, text, uuid, text, jsonb, uuid, text, timestamp) IS
    'append one stat row, in ledger mode; one that could never be folded is refused';

REVOKE ALL ON kudos_transfer_requests FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_floor(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_available(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_effective(integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_reserve(integer, text, numeric, uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_release(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_transfer(integer, integer, numeric, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_post(integer, numeric, text, boolean, uuid, text, jsonb, uuid, text, timestamp) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_post_stat(text, numeric, text, integer, uuid, integer, uuid, text, text, uuid, text, jsonb, uuid, text, timestamp) FROM PUBLIC;

CREATE FUNCTION kudos_wait_applied(event_id uuid, timeout interval) RETURNS boolean
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_wait_applied';
COMMENT ON FUNCTION kudos_wait_applied(uuid, interval) IS
    'wait until every posting of the event is applied; false at the timeout, and at once where it is quarantined or the mode is shadow';
REVOKE ALL ON FUNCTION kudos_wait_applied(uuid, interval) FROM PUBLIC;
