\set ECHO none
-- The table of the application that kudos_transfer() writes, as in app_tables.sql. Load after the fixture.
SET client_min_messages = warning;
DROP TABLE IF EXISTS kudos_transfers;
CREATE TABLE kudos_transfers (
    id        serial PRIMARY KEY,
    source_id integer NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    dest_id   integer NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    kudos     bigint  NOT NULL,
    created   timestamp NOT NULL
);
RESET client_min_messages;
\set ECHO all
