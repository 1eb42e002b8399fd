-- What the projector refuses, what it says of it, and that what it says helps.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture

\echo -- Missing table
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE teams RENAME TO teams_gone;
SELECT * FROM kudos_fold_now();
CALL kudos_catch_up();
SELECT problem FROM kudos_health();
SELECT * FROM t_state;
ALTER TABLE teams_gone RENAME TO teams;
CALL fold();
SELECT * FROM t_state;

\echo -- Missing column
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE kudos_reservations RENAME COLUMN released_at TO released;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
ALTER TABLE kudos_reservations RENAME COLUMN released TO released_at;
CALL fold();
SELECT * FROM t_state;

\echo -- Missing index on the queue of kudos_ledger
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP INDEX ix_kudos_ledger_unapplied;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
\echo -- an index that holds too little, another column first, or another method, does not help
CREATE INDEX wrong ON kudos_ledger (id) WHERE NOT applied AND amount > 0;
CREATE INDEX wrong2 ON kudos_ledger (user_id, id) WHERE NOT applied;
CREATE INDEX wrong3 ON kudos_ledger USING hash (id) WHERE NOT applied;
CREATE INDEX wrong4 ON kudos_ledger (id);
\set VERBOSITY terse
SELECT * FROM kudos_fold_now();
\set VERBOSITY default
SELECT * FROM t_state;
\echo -- the remedy of the hint
CREATE INDEX CONCURRENTLY ON public.kudos_ledger (id) WHERE applied IS FALSE;
CALL fold();
SELECT * FROM t_state;
\echo -- the other spelling serves as well
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP INDEX ix_kudos_ledger_unapplied;
DROP INDEX ix_kudos_stat_events_unapplied;
CREATE INDEX ON kudos_ledger (id, user_id) WHERE NOT applied;
CREATE INDEX ON kudos_stat_events (id) WHERE NOT quarantined AND applied IS FALSE;
CALL fold();
SELECT * FROM t_state;

\echo -- Missing index on the queue of kudos_stat_events
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP INDEX ix_kudos_stat_events_unapplied;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
CREATE INDEX CONCURRENTLY ON public.kudos_stat_events (id) WHERE applied IS FALSE AND quarantined IS FALSE;
CALL fold();
SELECT * FROM t_state;

\echo -- INVALID index on a queue
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP INDEX ix_kudos_ledger_unapplied;
CREATE UNIQUE INDEX CONCURRENTLY ix_kudos_ledger_unapplied ON kudos_ledger (id, (1 / (amount - 10))) WHERE NOT applied;
SELECT indisvalid FROM pg_index WHERE indexrelid = 'ix_kudos_ledger_unapplied'::regclass;
\set VERBOSITY terse
SELECT * FROM kudos_fold_now();
\set VERBOSITY default
SELECT * FROM t_state;
DROP INDEX ix_kudos_ledger_unapplied;
CREATE INDEX CONCURRENTLY ON public.kudos_ledger (id) WHERE applied IS FALSE;
CALL fold();
SELECT * FROM t_state;

\echo -- Missing unique index of a counter table: all three
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE user_stats DROP CONSTRAINT uq_user_stats_user_action;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
\echo -- one that is partial, wider, not unique, or on an expression, is none
CREATE UNIQUE INDEX wrong2 ON user_stats (user_id, action) WHERE value > 0;
CREATE UNIQUE INDEX wrong3 ON user_stats (user_id, action, id);
CREATE INDEX wrong4 ON user_stats (user_id, action);
CREATE UNIQUE INDEX wrong5 ON user_stats (user_id, lower(action));
\set VERBOSITY terse
SELECT * FROM kudos_fold_now();
\set VERBOSITY default
CREATE UNIQUE INDEX CONCURRENTLY ON public.user_stats (user_id, action);
CALL fold();
SELECT * FROM t_state;
ALTER TABLE worker_stats DROP CONSTRAINT uq_worker_stats_worker_action;
SELECT * FROM kudos_fold_now();
CREATE UNIQUE INDEX CONCURRENTLY ON public.worker_stats (worker_id, action);
ALTER TABLE user_records DROP CONSTRAINT user_records_user_id_record_type_record_key;
SELECT * FROM kudos_fold_now();
CREATE UNIQUE INDEX CONCURRENTLY ON public.user_records (user_id, record_type, record);
SELECT t_post(1, 10) \gset
CALL fold();
SELECT * FROM t_state;
\echo -- one that is deferrable is in the way, also of a good one beside it
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE user_stats DROP CONSTRAINT uq_user_stats_user_action;
ALTER TABLE user_stats ADD CONSTRAINT uq_user_stats_user_action UNIQUE (user_id, action) DEFERRABLE;
\set VERBOSITY terse
SELECT * FROM kudos_fold_now();
CREATE UNIQUE INDEX CONCURRENTLY ON public.user_stats (user_id, action);
SELECT * FROM kudos_fold_now();
ALTER TABLE public.user_stats DROP CONSTRAINT uq_user_stats_user_action;
CALL fold();
\set VERBOSITY default
SELECT * FROM t_state;
\echo -- and of the heartbeat
\i :fixture
ALTER TABLE kudos_ledger_applier_state DROP CONSTRAINT kudos_ledger_applier_state_pkey;
SELECT * FROM kudos_fold_now();
CREATE UNIQUE INDEX CONCURRENTLY ON public.kudos_ledger_applier_state (id);
SELECT lock_acquired FROM kudos_fold_now();

\echo -- Wrong type of a balance
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP VIEW t_bal, t_state;
ALTER TABLE users ALTER COLUMN kudos TYPE numeric(20, 1);
SELECT * FROM kudos_fold_now();
ALTER TABLE public.users ALTER COLUMN kudos TYPE real;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_pending;
ALTER TABLE public.users ALTER COLUMN kudos TYPE bigint;
CALL fold();
SELECT id, kudos FROM users WHERE id = 1;
\echo -- Wrong type of an amount, a time, a detail, a label
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP VIEW t_floored, t_holds, t_records;
ALTER TABLE kudos_ledger ALTER COLUMN amount TYPE double precision;
SELECT * FROM kudos_fold_now();
ALTER TABLE public.kudos_ledger ALTER COLUMN amount TYPE numeric(20,2);
ALTER TABLE kudos_stat_events ALTER COLUMN detail TYPE json;
SELECT * FROM kudos_fold_now();
ALTER TABLE public.kudos_stat_events ALTER COLUMN detail TYPE jsonb;
ALTER TABLE kudos_reservations ALTER COLUMN released_at TYPE timestamptz;
SELECT * FROM kudos_fold_now();
ALTER TABLE public.kudos_reservations ALTER COLUMN released_at TYPE timestamp;
ALTER TABLE user_records ALTER COLUMN record_type TYPE text;
SELECT * FROM kudos_fold_now();
ALTER TABLE public.user_records ALTER COLUMN record_type TYPE userrecordtypes USING record_type::userrecordtypes;
SELECT * FROM t_state;
CALL fold();
SELECT * FROM t_state;

\echo -- Generated column
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE teams DROP COLUMN kudos;
ALTER TABLE teams ADD COLUMN kudos bigint GENERATED ALWAYS AS (contributions * 2) STORED;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
ALTER TABLE public.teams ALTER COLUMN kudos DROP EXPRESSION;
CALL fold();
SELECT * FROM t_state;

\echo -- Quarantine columns missing: a schema older than 5.1.9
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
DROP VIEW t_state, t_quarantine;
ALTER TABLE kudos_stat_events DROP COLUMN quarantined, DROP COLUMN quarantine_reason, DROP COLUMN quarantined_at;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_pending;
ALTER TABLE public.kudos_stat_events ADD COLUMN IF NOT EXISTS quarantined boolean NOT NULL DEFAULT false, ADD COLUMN IF NOT EXISTS quarantine_reason varchar(64), ADD COLUMN IF NOT EXISTS quarantined_at timestamp;
CALL fold();
SELECT * FROM t_pending;
SELECT * FROM t_ustats;

\echo -- Q12 partitioned ledger
\i :fixture
SELECT t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE kudos_ledger RENAME TO ordinary;
CREATE TABLE kudos_ledger (LIKE ordinary INCLUDING DEFAULTS INCLUDING IDENTITY, PRIMARY KEY (id, applied), FOREIGN KEY (user_id) REFERENCES users ON DELETE RESTRICT) PARTITION BY LIST (applied);
CREATE TABLE kudos_ledger_pending PARTITION OF kudos_ledger FOR VALUES IN (false);
CREATE TABLE kudos_ledger_applied PARTITION OF kudos_ledger FOR VALUES IN (true);
CREATE INDEX ON kudos_ledger (id) WHERE NOT applied;
INSERT INTO kudos_ledger (event_id, entry_type, user_id, escrow, amount, applied) VALUES (gen_random_uuid(), 'GENERATION', 1, false, 10, false);
SELECT * FROM kudos_fold_now();
SELECT tableoid::regclass, count(*) FROM kudos_ledger GROUP BY 1;
SELECT kudos FROM users WHERE id = 1;
SELECT count(*) AS stats FROM kudos_stat_events WHERE NOT applied;
DROP TABLE kudos_ledger;
ALTER TABLE ordinary RENAME TO kudos_ledger;
SELECT t_post(1, 10) \gset
CALL fold();
SELECT * FROM t_state;

\echo -- View instead of a table
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE teams RENAME TO teams_table;
CREATE VIEW teams AS SELECT * FROM teams_table;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
DROP VIEW teams;
ALTER TABLE teams_table RENAME TO teams;
CALL fold();
SELECT * FROM t_state;

\echo -- G07 row security that would hide rows from the owner of the ledger
\i :fixture
DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'regress_kudos_owner') THEN
    DROP OWNED BY regress_kudos_owner CASCADE;
    DROP ROLE regress_kudos_owner;
  END IF;
END $$;
CREATE ROLE regress_kudos_owner;
GRANT CREATE ON SCHEMA public TO regress_kudos_owner;
DO $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO regress_kudos_owner', t);
  END LOOP;
END $$;
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE users ENABLE ROW LEVEL SECURITY;
ALTER TABLE users FORCE ROW LEVEL SECURITY;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
ALTER TABLE public.users NO FORCE ROW LEVEL SECURITY;
CALL fold();
SELECT * FROM t_state;
\echo -- G07 the same on a table of somebody else, and the other remedy
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE user_stats OWNER TO CURRENT_USER;
SELECT * FROM kudos_fold_now();
GRANT SELECT ON public.user_stats TO regress_kudos_owner;
SELECT * FROM kudos_fold_now();
GRANT INSERT ON public.user_stats TO regress_kudos_owner;
SELECT * FROM kudos_fold_now();
GRANT UPDATE ON public.user_stats TO regress_kudos_owner;
ALTER TABLE user_stats ENABLE ROW LEVEL SECURITY;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
ALTER ROLE regress_kudos_owner BYPASSRLS;
GRANT USAGE ON SEQUENCE user_stats_id_seq TO regress_kudos_owner;
CALL fold();
SELECT * FROM t_state;
\echo -- G07 a table that grants the owner new rows but not the numbers for them
SELECT t_ustat(2, 'accumulated', 10), t_post(1, 10) \gset
REVOKE ALL ON SEQUENCE user_stats_id_seq FROM regress_kudos_owner;
SELECT currency_rows, stat_rows FROM kudos_fold_now();
SELECT * FROM t_state;
GRANT USAGE ON SEQUENCE user_stats_id_seq TO regress_kudos_owner;
CALL fold();
SELECT * FROM t_state;
SET client_min_messages = warning;
DROP TABLE users, user_stats CASCADE;
DROP OWNED BY regress_kudos_owner CASCADE;
DROP ROLE regress_kudos_owner;
RESET client_min_messages;

\echo -- W13 no foreign key to users: a restore is under way
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10), t_ustat(777, 'accumulated', 10) \gset
ALTER TABLE kudos_ledger DROP CONSTRAINT kudos_ledger_user_id_fkey;
SELECT * FROM kudos_fold_now();
SELECT problem FROM kudos_health();
SELECT * FROM t_state;
ALTER TABLE public.kudos_ledger ADD FOREIGN KEY (user_id) REFERENCES public.users ON DELETE RESTRICT;
CALL fold();
SELECT * FROM t_state;

\echo -- NOT NULL column without default, where rows are inserted
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE user_stats ADD COLUMN note text NOT NULL;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
ALTER TABLE public.user_stats ALTER COLUMN note SET DEFAULT '';
CALL fold();
SELECT * FROM t_state;
SELECT t_post(1, 10) \gset
ALTER TABLE kudos_ledger ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE kudos_ledger ALTER COLUMN note DROP DEFAULT;
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
ALTER TABLE public.kudos_ledger ALTER COLUMN note DROP NOT NULL;
CALL fold();
SELECT * FROM t_state;
\echo -- where none are, it does not matter
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
ALTER TABLE users ADD COLUMN note text NOT NULL DEFAULT '';
ALTER TABLE users ALTER COLUMN note DROP DEFAULT;
CALL fold();
SELECT * FROM t_state;

\echo -- Wrong schema
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10) \gset
SET kudos_projector.schema = 'nowhere';
SELECT * FROM kudos_fold_now();
SELECT problem FROM kudos_health();
SET kudos_projector.schema = 'pg_catalog';
SELECT * FROM kudos_fold_now();
SET kudos_projector.schema = '';
SELECT * FROM kudos_fold_now();
SELECT * FROM t_state;
SET kudos_projector.schema = 'public';
CALL fold();
SELECT * FROM t_state;
RESET kudos_projector.schema;

\echo -- Settings out of range, and misspelled
SET kudos_projector.batch_size = 0;
SET kudos_projector.batch_size = 100001;
SET kudos_projector.batch_size = 'many';
SET kudos_projector.max_catchup_cycles = 0;
\set VERBOSITY sqlstate
SET kudos_projector.lock_timeout = 0; -- 17 says the range with its unit
\set VERBOSITY default
SET kudos_projector.lock_timeout = '10 parsecs';
SET kudos_projector.trust_threshold = 'much';
\set VERBOSITY sqlstate
SET kudos_projector.trust_minimum_age = '-1d';
\set VERBOSITY default
SET kudos_projector.suspicion_threshold = -1;
SET kudos_projector.bach_size = 10;
SET kudos_projector.databases = 'horde';
SET kudos_projector.interval = '1s';
SET kudos_projector.enabled = off;
\set VERBOSITY sqlstate
ALTER SYSTEM SET kudos_projector.interval = '1ms';
\set VERBOSITY default
ALTER SYSTEM SET kudos_projector.enabled = 'perhaps';
ALTER SYSTEM SET kudos_projector.databases = 'a b';
ALTER SYSTEM SET kudos_projector.databases = 'horde,,other';
SHOW kudos_projector.batch_size;
SHOW kudos_projector.lock_timeout;
