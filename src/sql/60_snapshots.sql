-- Snapshots: what every target held at one moment, and how much of the archive was in it. The
-- balances stand in the Horde's kudos_balance_snapshots as well, as its own tools expect them.

CREATE TABLE kudos_snapshots (
    snapshot_id uuid PRIMARY KEY,
    created timestamp NOT NULL
);
CREATE TABLE kudos_snapshot_marks (
    snapshot_id uuid REFERENCES kudos_snapshots ON DELETE CASCADE,
    archive text,
    mark bigint NOT NULL,
    open_ids bigint[] NOT NULL,
    band_start bigint NOT NULL,
    band_rows bigint NOT NULL,
    band_ids numeric NOT NULL,
    band_amount numeric NOT NULL,
    last_id bigint,
    numbering text,
    PRIMARY KEY (snapshot_id, archive)
);
CREATE TABLE kudos_snapshot_values (
    snapshot_id uuid REFERENCES kudos_snapshots ON DELETE CASCADE,
    target text,
    key text,
    opening numeric NOT NULL,
    counted numeric NOT NULL,
    archived numeric,
    PRIMARY KEY (snapshot_id, target, key)
);

COMMENT ON TABLE kudos_snapshots IS 'snapshots of all targets; deleting a row forgets the snapshot';
COMMENT ON TABLE kudos_snapshot_marks IS 'for each snapshot and archive: the id up to which every row was settled';
COMMENT ON COLUMN kudos_snapshot_marks.mark IS
    'rows with ids up to here were applied when the snapshot was taken, those of open_ids apart, and no further one can appear';
COMMENT ON COLUMN kudos_snapshot_marks.open_ids IS 'rows up to the mark that were queued or quarantined then';
COMMENT ON COLUMN kudos_snapshot_marks.band_start IS
    'applied rows from here to the mark are counted again by every reconciliation: they must not have changed';
COMMENT ON COLUMN kudos_snapshot_marks.last_id IS 'last id that had been given out; NULL where that cannot be told';
COMMENT ON COLUMN kudos_snapshot_marks.numbering IS 'the sequence that gave the ids, and the file it stood in';
COMMENT ON TABLE kudos_snapshot_values IS 'exact value of every target when the snapshot was taken';
COMMENT ON COLUMN kudos_snapshot_values.counted IS 'of the opening value, what rows beyond the mark had added';
COMMENT ON COLUMN kudos_snapshot_values.archived IS 'of balances: the sum of all applied rows';

-- They are the baseline of money: a dump carries their rows.
SELECT pg_catalog.pg_extension_config_dump('kudos_snapshots', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_snapshot_marks', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_snapshot_values', '');

CREATE FUNCTION kudos_snapshot("full" boolean DEFAULT false)
RETURNS uuid
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_snapshot';
COMMENT ON FUNCTION kudos_snapshot(boolean) IS
    'record what every target holds now, and give the id to reconcile with later; full: sum the whole archive anew';

CREATE FUNCTION kudos_reconcile(
    snapshot uuid,
    "full" boolean DEFAULT false,
    OUT target text,
    OUT key text,
    OUT expected numeric,
    OUT actual numeric,
    OUT drift numeric,
    OUT events bigint,
    OUT last_events uuid[])
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_reconcile';
COMMENT ON FUNCTION kudos_reconcile(uuid, boolean) IS
    'targets that are not what the snapshot and the rows applied since make them; full: balances, by the whole archive';

CREATE FUNCTION kudos_repair(
    snapshot uuid,
    "full" boolean DEFAULT false,
    OUT target text,
    OUT key text,
    OUT expected numeric,
    OUT actual numeric,
    OUT drift numeric,
    OUT amount numeric,
    OUT event_id uuid,
    OUT outcome text)
RETURNS SETOF record
LANGUAGE C VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'kudos_repair';
COMMENT ON FUNCTION kudos_repair(uuid, boolean) IS
    'post what brings drifted targets back, once a snapshot and target; one row a drifted target says what was done';

REVOKE ALL ON FUNCTION kudos_snapshot(boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_reconcile(uuid, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION kudos_repair(uuid, boolean) FROM PUBLIC;
