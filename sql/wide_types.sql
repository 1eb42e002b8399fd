-- Other types of the targets, and types that change under a session.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\set f1 '''00000000-0000-0000-0000-0000000000f1'''
\set a1 '''00000000-0000-0000-0000-0000000000a1'''
\i :fixture

\echo -- A balance that holds cents itself: exact, floored exactly, without a remainder
DROP VIEW t_bal, t_state, t_ustats;
ALTER TABLE users ALTER kudos TYPE numeric(20,2), ALTER evaluating_kudos TYPE numeric(20,2);
SELECT t_post(1, 0.50), t_post(2, -0.25), t_post(4, -4.60), t_post(3, 0.01, true) \gset
CALL fold();
SELECT id, kudos, evaluating_kudos FROM users WHERE id IN (1, 2, 3, 4) ORDER BY id;
SELECT t_post(4, -0.41), t_post(5, 0.10) \gset
CALL drain(1);
SELECT id, kudos FROM users WHERE id IN (4, 5) ORDER BY id;
SELECT user_id, amount FROM t_floored;
SELECT count(*) AS remainders FROM kudos_remainder_users;

\echo -- Counters that are numeric, double precision, or small
DROP VIEW t_wstats, t_records;
ALTER TABLE user_stats ALTER value TYPE numeric;
ALTER TABLE worker_stats ALTER value TYPE double precision;
ALTER TABLE user_records ALTER COLUMN record TYPE text;
ALTER TABLE workers ALTER contributions TYPE numeric(12,4);
ALTER TABLE teams ALTER contributions TYPE numeric(10,0), ALTER fulfilments TYPE smallint;
SELECT count(t_ustat(1, 'accumulated', 0.10)), count(t_wstat(:f1, 'generated', 0.10, :a1)), count(t_contrib(:f1, 'contributions', 0.25, :a1)),
  count(t_contrib(:f1, 'fulfilments', 0.50, :a1)) FROM generate_series(1, 7) \gset
CALL drain(3);
SELECT value FROM user_stats;
SELECT value FROM worker_stats;
SELECT kudos, contributions, fulfilments FROM workers WHERE name = 'wk-1';
SELECT kudos, contributions, fulfilments FROM teams WHERE name = 'team-a';
\echo -- A small one overflows alone
UPDATE teams SET fulfilments = 32767 WHERE name = 'team-a';
SELECT t_contrib(:f1, 'fulfilments', 1, :a1), t_contrib(:f1, 'contributions', 1, :a1) \gset
CALL drain();
SELECT kudos, contributions, fulfilments FROM teams WHERE name = 'team-a';
SELECT stat_action FROM kudos_stat_events WHERE NOT applied;
\echo -- A value that is no number stops its target, not the others
UPDATE user_stats SET value = 'NaN';
SELECT t_ustat(1, 'accumulated', 1), t_ustat(2, 'accumulated', 1) \gset
CALL drain();
SELECT user_id, value FROM user_stats ORDER BY user_id;
SELECT user_id FROM kudos_stat_events WHERE user_id IS NOT NULL AND NOT applied;
\echo -- A domain over a type that will do
\i :fixture
DROP VIEW t_bal, t_state;
CREATE DOMAIN kudos_amount AS bigint CHECK (VALUE > -1000000);
ALTER TABLE users ALTER kudos TYPE kudos_amount;
SELECT t_post(1, 5) \gset
CALL drain();
SELECT kudos FROM users WHERE id = 1;

\echo -- L06 the column is widened, and what waited folds, in the same session
\i :fixture
SELECT t_post(1, 3000000000, true), t_post(2, 10) \gset
CALL fold();
SELECT id, kudos, esc FROM t_bal WHERE id IN (1, 2);
DROP VIEW t_bal;
ALTER TABLE users ALTER evaluating_kudos TYPE bigint;
CALL drain();
SELECT id, kudos, evaluating_kudos FROM users WHERE id IN (1, 2) ORDER BY id;
SELECT * FROM t_pending;

\echo -- D05 ALTER TABLE between folds of one session
\i :fixture
DROP VIEW t_bal, t_state, t_ustats;
SELECT t_post(1, 1), t_ustat(1, 'accumulated', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
ALTER TABLE users ADD note text;
SELECT t_post(1, 1), t_ustat(1, 'accumulated', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
ALTER TABLE users ALTER kudos TYPE numeric(20,2);
SELECT t_post(1, 0.50), t_ustat(1, 'accumulated', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
ALTER TABLE user_stats ALTER action TYPE varchar(40);
SELECT t_post(1, 0.50), t_ustat(1, 'accumulated', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
REINDEX TABLE CONCURRENTLY kudos_ledger;
SELECT t_post(1, 0.50), t_ustat(1, 'accumulated', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
VACUUM FULL users;
SELECT t_post(1, 0.50), t_ustat(1, 'accumulated', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
SELECT value FROM user_stats;
\echo -- D05 columns dropped, put back in another order, renamed indexes, an enum label, a new type of the ids
ALTER TABLE users DROP COLUMN note;
ALTER TABLE users ADD COLUMN k2 bigint NOT NULL DEFAULT 0;
UPDATE users SET k2 = kudos;
ALTER TABLE users DROP COLUMN kudos;
ALTER TABLE users RENAME COLUMN k2 TO kudos;
ALTER INDEX ix_kudos_ledger_unapplied RENAME TO something_else;
ALTER TYPE userrecordtypes ADD VALUE 'DOWNLOAD';
ALTER TABLE user_stats ALTER id TYPE bigint;
SELECT t_post(1, 1), t_ustat(1, 'accumulated', 1), t_rec(1, 'DOWNLOAD', 'image', 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
SELECT value FROM user_stats;
SELECT * FROM t_records;
\echo -- D05 a table replaced by another of the same name
ALTER TABLE user_records RENAME TO old_records;
CREATE TABLE user_records (LIKE old_records INCLUDING ALL);
ALTER SEQUENCE user_records_id_seq OWNED BY user_records.id;
SELECT t_rec(1, 'DOWNLOAD', 'image', 1) \gset
CALL fold();
SELECT user_id, record_type, record, value FROM user_records;
SELECT user_id, record_type, record, value FROM old_records;
DROP VIEW t_records;
DROP TABLE old_records;
\echo -- D05 ALTER TABLE in the transaction of the fold
BEGIN;
ALTER TABLE users ALTER kudos TYPE numeric(20,2);
SELECT t_post(1, 0.25) \gset
SELECT currency_rows FROM kudos_fold_now();
SELECT kudos FROM users WHERE id = 1;
ROLLBACK;
SELECT t_post(1, 1) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;

\echo -- A remainder survives the change to a type that holds cents itself
\i :fixture
DROP VIEW t_bal, t_state;
SELECT t_post(1, 0.50), t_post(2, 0.40) \gset
CALL fold();
SELECT id, kudos FROM users WHERE id IN (1, 2) ORDER BY id;
ALTER TABLE users ALTER kudos TYPE numeric(20,2);
SELECT t_post(1, 1), t_post(2, 1) \gset
CALL fold();
SELECT id, kudos FROM users WHERE id IN (1, 2) ORDER BY id;
SELECT t_post(1, 0.25), t_post(2, 0.25) \gset
CALL fold();
SELECT id, kudos FROM users WHERE id IN (1, 2) ORDER BY id;
\echo -- and back: the column is what counts then
ALTER TABLE users ALTER kudos TYPE bigint;
SELECT t_post(1, 0.10), t_post(2, 0.10) \gset
CALL fold();
SELECT id, kudos FROM users WHERE id IN (1, 2) ORDER BY id;

\echo -- Smaller integer keys and wider codes, identity columns, more columns than we know
\i :fixture
DROP VIEW t_bal, t_state, t_ustats, t_records, t_holds, t_floored, t_quarantine;
ALTER TABLE kudos_ledger ALTER user_id TYPE bigint, ALTER entry_type TYPE text;
ALTER TABLE kudos_stat_events ALTER stat_action TYPE text, ALTER record TYPE varchar(64), ADD COLUMN extra int NOT NULL DEFAULT 1;
ALTER TABLE kudos_reservations ALTER business_id TYPE text;
ALTER TABLE user_stats ALTER action TYPE text;
SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5), t_rec(1, 'USAGE', 'a record that is much too long for its column', 5) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
SELECT user_id, action, value FROM user_stats;
SELECT quarantine_reason FROM kudos_stat_events WHERE quarantined;
SET client_min_messages = warning;
DROP DOMAIN kudos_amount CASCADE;
