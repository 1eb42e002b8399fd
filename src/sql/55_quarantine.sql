-- The quarantine desk (contract, section 4).

CREATE TABLE kudos_quarantine_decisions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL,
    action text NOT NULL CHECK (action IN ('requeue', 'accept')),
    rows bigint NOT NULL,
    note text,
    decided_by text NOT NULL,
    decided_at timestamptz NOT NULL
);
COMMENT ON TABLE kudos_quarantine_decisions IS 'who put which quarantined event back or accepted its loss, and when';
COMMENT ON SEQUENCE kudos_quarantine_decisions_id_seq IS 'numbers the decisions';
SELECT pg_catalog.pg_extension_config_dump('kudos_quarantine_decisions', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_quarantine_decisions_id_seq', '');

CREATE FUNCTION kudos_quarantine_rows(
    OUT event_id uuid, OUT reason text, OUT quarantined_at timestamp, OUT rows bigint, OUT first_id bigint,
    OUT created timestamp, OUT would_change text[], OUT accepted text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_quarantine';
COMMENT ON FUNCTION kudos_quarantine_rows() IS 'rows of the view kudos_quarantine';

CREATE VIEW kudos_quarantine AS SELECT * FROM kudos_quarantine_rows();
COMMENT ON VIEW kudos_quarantine IS
    'one row a quarantined event: its reason, what it would have changed, and the note by which its loss was accepted';

CREATE FUNCTION kudos_requeue(event_id uuid) RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_requeue';
COMMENT ON FUNCTION kudos_requeue(uuid) IS
    'put the quarantined rows of an event back into the queue; refused while they would be quarantined again';

CREATE FUNCTION kudos_accept_quarantined(event_id uuid, note text) RETURNS bigint
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_accept_quarantined';
COMMENT ON FUNCTION kudos_accept_quarantined(uuid, text) IS
    'record that the loss of a quarantined event is accepted; its rows stay as they are';

REVOKE ALL ON kudos_quarantine_decisions FROM PUBLIC;
REVOKE ALL ON kudos_quarantine FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_quarantine_rows() FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_requeue(uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_accept_quarantined(uuid, text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION kudos_quarantine_rows() TO pg_monitor;
GRANT SELECT ON kudos_quarantine TO pg_monitor;
