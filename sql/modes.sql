-- The mode of the ledger: read, pinned and changed. Going to shadow folds the tail in the same transaction.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture

\echo -- The mode that is stored
SELECT kudos_mode(), kudos_pin_mode();
UPDATE kudos_ledger_control SET mode = 'shadow';
SELECT kudos_mode(), kudos_pin_mode();
\echo -- no row, or another row, means shadow
DELETE FROM kudos_ledger_control;
SELECT kudos_mode(), kudos_pin_mode();
INSERT INTO kudos_ledger_control (id, mode) VALUES (2, 'ledger');
SELECT kudos_mode(), kudos_pin_mode();
\echo -- a change creates the row, dated in UTC
SET timezone = 'Asia/Tokyo';
SELECT kudos_set_mode('ledger');
SELECT id, mode, changed_at BETWEEN (now() AT TIME ZONE 'utc') - interval '1 hour' AND (now() AT TIME ZONE 'utc') AS now
  FROM kudos_ledger_control ORDER BY id;
RESET timezone;
SELECT kudos_mode(), kudos_pin_mode();
\echo -- and dates it anew
UPDATE kudos_ledger_control SET changed_at = '2026-01-01' WHERE id = 1;
SELECT kudos_set_mode('shadow');
SELECT mode, changed_at > '2026-01-01' AS dated FROM kudos_ledger_control WHERE id = 1;
\echo -- a mode that is set already stays as it is
UPDATE kudos_ledger_control SET changed_at = '2026-01-01' WHERE id = 1;
SELECT kudos_set_mode('shadow');
SELECT mode, changed_at FROM kudos_ledger_control WHERE id = 1;

\echo -- What is no mode
\i :fixture
SELECT kudos_set_mode('Shadow');
SELECT kudos_set_mode('');
SELECT kudos_set_mode(' ledger');
SELECT kudos_set_mode('nonsense');
SELECT kudos_set_mode(NULL);
\set VERBOSITY sqlstate
SELECT kudos_set_mode('nonsense');
SELECT kudos_set_mode(NULL);
\set VERBOSITY default
SELECT kudos_mode();

\echo -- N02 a transaction that keeps a snapshot cannot see what was committed while it waited
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT kudos_set_mode('shadow');
ROLLBACK;
\set VERBOSITY sqlstate
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT kudos_set_mode('shadow');
ROLLBACK;
SET default_transaction_isolation = 'repeatable read';
SELECT kudos_set_mode('shadow');
\echo -- the remedy of the hint
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT kudos_set_mode('shadow');
ROLLBACK;
RESET default_transaction_isolation;
\echo -- N03 a read-only one reads
BEGIN READ ONLY;
SELECT kudos_mode(), kudos_pin_mode();
SELECT kudos_set_mode('shadow');
ROLLBACK;
\set VERBOSITY default
SELECT kudos_mode();

\echo -- To shadow: the tail is folded in the same transaction, and a rollback undoes both
SELECT t_post(1, 10), t_post(2, 20), t_post(4, -100), t_ustat(1, 'accumulated', 10) \gset
BEGIN;
SELECT kudos_set_mode('shadow');
SELECT kudos_mode();
SELECT * FROM t_state;
SELECT * FROM t_floored;
ROLLBACK;
SELECT kudos_mode();
SELECT * FROM t_state;
SELECT * FROM t_floored;
SELECT kudos_set_mode('shadow');
SELECT kudos_mode();
SELECT * FROM t_state;
SELECT id, kudos FROM t_bal WHERE id IN (1, 2, 4);
SELECT * FROM t_floored;
\echo -- a savepoint, too
\i :fixture
SELECT t_post(1, 10) \gset
BEGIN;
SAVEPOINT s;
SELECT kudos_set_mode('shadow');
ROLLBACK TO s;
SELECT kudos_mode();
SELECT t_post(1, 5) \gset
SELECT kudos_set_mode('shadow');
COMMIT;
SELECT kudos_mode();
SELECT * FROM t_state;
\echo -- a tail of many batches
\i :fixture
SET kudos_projector.batch_size = 2;
SET kudos_projector.max_catchup_cycles = 1;
SELECT count(t_post(1, 1)), count(t_ustat(1, 'accumulated', 1)) FROM generate_series(1, 9) \gset
SELECT kudos_set_mode('shadow');
SELECT * FROM t_state;
RESET kudos_projector.batch_size;
RESET kudos_projector.max_catchup_cycles;
\echo -- what is quarantined on the way, or was before, is no tail
\i :fixture
SELECT t_post(1, 10), t_ustat(777, 'accumulated', 1), t_ustat(1, 'accumulated', 10) \gset
SELECT kudos_set_mode('shadow');
SELECT * FROM t_state;
SELECT kudos_set_mode('ledger'), kudos_mode();
SELECT kudos_set_mode('shadow'), kudos_mode();
\echo -- nobody is promoted or drained on the way, which would leave a pair behind; a pair that is there is folded
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id IN (1, 2);
SET kudos_projector.trust_threshold = 100;
SELECT t_post(1, 5) \gset
SELECT kudos_set_mode('shadow');
SELECT * FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_pending;
SELECT user_id FROM user_roles;
SELECT kudos_set_mode('ledger');
CALL fold();
SELECT * FROM t_pending;
SELECT user_id FROM user_roles ORDER BY 1;
SELECT kudos_set_mode('shadow');
SELECT * FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_pending;
RESET kudos_projector.trust_threshold;

\echo -- To ledger: nothing is folded on the way
\i :fixture
UPDATE kudos_ledger_control SET mode = 'shadow';
SELECT t_post(1, 10) \gset
SELECT kudos_set_mode('ledger');
SELECT * FROM t_state;

\echo -- M01 a tail that does not drain: nothing changes, and it says so. A balance that overflows
\i :fixture
SELECT t_post(1, 10), t_post(2, 3000000000, true), t_ustat(1, 'accumulated', 10) \gset
SELECT kudos_set_mode('shadow');
SELECT kudos_mode();
SELECT * FROM t_state;
\set VERBOSITY sqlstate
SELECT kudos_set_mode('shadow');
\set VERBOSITY default
\echo -- M01 a caller who catches the error has nothing changed either
DO $$
BEGIN
  PERFORM kudos_set_mode('shadow');
EXCEPTION WHEN object_not_in_prerequisite_state THEN
  RAISE NOTICE '%', SQLERRM;
END $$;
SELECT kudos_mode();
SELECT * FROM t_state;
\echo -- M01 once it fits, it goes
SELECT t_post(2, -3000000000, true) \gset
SELECT kudos_set_mode('shadow');
SELECT kudos_mode();
SELECT * FROM t_state;
\echo -- M01 a counter that overflows
\i :fixture
INSERT INTO user_stats (user_id, action, value) VALUES (2, 'accumulated', 9223372036854775807);
SELECT t_post(1, 10), t_ustat(2, 'accumulated', 1) \gset
SELECT kudos_set_mode('shadow');
SELECT kudos_mode();
SELECT * FROM t_state;
\echo -- M01 a target that a trigger vetoes
\i :fixture
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION veto();
SELECT t_post(1, 10), t_post(2, 1) \gset
SELECT kudos_set_mode('shadow');
SELECT kudos_mode();
SELECT * FROM t_state;
DROP TRIGGER veto ON users;
\echo -- M01 a control row that a trigger vetoes: a mode that was not stored is not reported as set
CREATE TRIGGER veto BEFORE INSERT OR UPDATE ON kudos_ledger_control FOR EACH ROW EXECUTE FUNCTION veto();
\set VERBOSITY sqlstate
SELECT kudos_set_mode('shadow');
\set VERBOSITY default
SELECT kudos_mode();
SELECT * FROM t_state;
DROP TRIGGER veto ON kudos_ledger_control;
DROP FUNCTION veto();

\echo -- A pin in the same transaction hinders nobody, and sees the change
\i :fixture
SELECT t_post(1, 10) \gset
BEGIN;
SELECT kudos_pin_mode();
SELECT kudos_set_mode('shadow');
SELECT kudos_pin_mode(), kudos_mode();
SELECT kudos_set_mode('ledger');
SELECT kudos_pin_mode(), kudos_mode();
SELECT kudos_set_mode('shadow');
ROLLBACK;
SELECT kudos_mode();
SELECT * FROM t_state;

\echo -- Which locks are held until the end: the applier lock and the gate, or the shared gate alone
CREATE VIEW t_gates AS SELECT classid, objid, objsubid, mode, granted FROM pg_locks
  WHERE locktype = 'advisory' AND pid = pg_backend_pid() ORDER BY objid, mode;
BEGIN;
SELECT kudos_mode();
SELECT * FROM t_gates;
SELECT kudos_pin_mode();
SELECT * FROM t_gates;
COMMIT;
SELECT * FROM t_gates;
BEGIN;
SELECT kudos_set_mode('ledger');
SELECT * FROM t_gates;
ROLLBACK;
BEGIN;
SELECT kudos_set_mode('shadow');
SELECT * FROM t_gates;
COMMIT;
SELECT * FROM t_gates;
DROP VIEW t_gates;
\echo -- who may only call it switches all the same: the tail is folded and counted with the rights of the owner
\i :fixture
CREATE ROLE regress_kudos_switcher;
GRANT EXECUTE ON FUNCTION kudos_set_mode(text) TO regress_kudos_switcher;
SELECT t_post(1, 10) \gset
SET ROLE regress_kudos_switcher;
SELECT kudos_set_mode('shadow');
RESET ROLE;
SELECT kudos_mode();
SELECT * FROM t_state;
REVOKE ALL ON FUNCTION kudos_set_mode(text) FROM regress_kudos_switcher;
DROP ROLE regress_kudos_switcher;
