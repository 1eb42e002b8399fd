-- What an account can spend, holds on it, and transfers.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\set transfers :abs_srcdir '/test/data/transfers.sql'
\set event '''00000000-0000-0000-0000-00000000e001'''
\i :fixture

-- What a call gives: ok, or the SQLSTATE and what is said.
CREATE FUNCTION outcome(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE command;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  RETURN concat_ws(' | ', SQLSTATE, SQLERRM);
END $$;
CREATE FUNCTION spendable(u int, OUT available numeric, OUT effective numeric) LANGUAGE sql AS
 'SELECT kudos_available(u), kudos_effective(u)';

\echo -- The floor of an account
SELECT id, kudos_floor(id) FROM users ORDER BY id;
SELECT kudos_floor(777);
SELECT kudos_available(777);
SELECT kudos_effective(777);
\set VERBOSITY sqlstate
SELECT kudos_floor(777);
\set VERBOSITY default
SELECT kudos_floor(NULL) IS NULL AS floor, kudos_available(NULL) IS NULL AS available, kudos_effective(NULL) IS NULL AS effective;
\echo -- with nothing queued or held; an account below its floor can spend less than nothing, and shows the floor
SELECT id, s.* FROM users, spendable(id) s ORDER BY id;

\echo -- Balance 100, queued -30 and +40, a hold of 10
UPDATE users SET kudos = 100 WHERE id = 1;
SELECT t_post(1, -30), t_post(1, 40) \gset
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 10, 10);
\echo -- available 100 - 25 - 10 - 30, the credit does not count; effective 100 - 30 + 40, the hold does not count
SELECT * FROM spendable(1);
\echo -- the debit of the hold is queued, too: what it spends counts once
SELECT t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
SELECT * FROM spendable(1);
\echo -- and folding moves it all: 100 - 30 + 40 - 10
CALL fold();
SELECT * FROM spendable(1);
SELECT * FROM t_holds;

\echo -- What counts of the queue: spendable debits, but not those of a hold of the account that is active
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount, released_at) VALUES
  ('own', 1, 100, 60, NULL), ('other', 2, 50, 50, NULL), ('gone', 1, 70, 0, '2026-01-02 03:04:05'), ('7', 1, 5, 5, NULL);
SELECT * FROM spendable(1);
SELECT t_post(1, -1000, true), t_post(1, 500, true) \gset
SELECT * FROM spendable(1);
SELECT t_post(1, -1, false, gen_random_uuid(), '{"reservation_id": "own"}') \gset
SELECT * FROM spendable(1);
SELECT t_post(1, -2, false, gen_random_uuid(), '{"reservation_id": "other"}') \gset
SELECT * FROM spendable(1);
SELECT t_post(1, -4, false, gen_random_uuid(), '{"reservation_id": "gone"}') \gset
SELECT * FROM spendable(1);
SELECT t_post(1, -8, false, gen_random_uuid(), '{"reservation_id": 7}') \gset
SELECT * FROM spendable(1);
SELECT t_post(1, -16, false, gen_random_uuid(), '{"reservation_id": "unknown"}'), t_post(2, -32) \gset
SELECT * FROM spendable(1);
SELECT t_post(1, 64, false, gen_random_uuid(), '{"reservation_id": "own"}') \gset
SELECT * FROM spendable(1);
\echo -- The balance is the exact one; folding a debit of a hold changes nothing that can be spent
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
SELECT t_post(1, -25.10, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(1, -30.15, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
SELECT * FROM spendable(1);
CALL fold(1);
SELECT * FROM spendable(1);
CALL fold(1);
SELECT * FROM spendable(1);
SELECT kudos, (SELECT remaining FROM t_holds) FROM users WHERE id = 1;
\echo -- The effective balance is never below the floor
\i :fixture
SELECT t_post(4, -100), t_post(0, -1000), t_post(3, -86) \gset
SELECT id, s.* FROM users, spendable(id) s WHERE id IN (0, 3, 4) ORDER BY id;
SELECT t_post(3, 0.01) \gset
SELECT * FROM spendable(3);

\echo -- Reserve: a new hold, the same again, whatever amount is asked for
\i :fixture
SELECT * FROM kudos_reserve(1, 'upfront:j1', 100);
SELECT * FROM kudos_reserve(1, 'upfront:j1', 100);
SELECT * FROM kudos_reserve(1, 'upfront:j1', 70);
SELECT * FROM kudos_reserve(1, 'upfront:j1', 5000);
SELECT business_id, user_id, event_id, original_amount, remaining_amount, released_at FROM kudos_reservations;
SELECT kudos_available(1);
\echo -- one that was consumed in part is returned with what remains
SELECT t_post(1, -25, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
CALL fold();
SELECT * FROM kudos_reserve(1, 'upfront:j1', 100);
\echo -- Release: gives what was held, once
SELECT kudos_release('upfront:j1');
SELECT released_at AS first_release FROM kudos_reservations \gset
SELECT kudos_release('upfront:j1');
SELECT kudos_release('unknown');
SELECT kudos_release(NULL);
SELECT business_id, original_amount, remaining_amount, released_at = :'first_release' AS unchanged FROM kudos_reservations;
SELECT kudos_available(1);
\echo -- one that was released is activated again, with another amount and event
SELECT * FROM kudos_reserve(1, 'upfront:j1', 40, :event);
SELECT business_id, user_id, event_id, original_amount, remaining_amount, released_at FROM kudos_reservations;
SELECT kudos_available(1);
\echo -- and released with its event
SELECT t_post(1, -40, false, :event) \gset
CALL fold();
SELECT * FROM t_holds;
SELECT kudos_available(1);
\echo -- another payer may not have it, active or released
SELECT * FROM kudos_reserve(2, 'upfront:j1', 1);
SELECT * FROM kudos_reserve(1, 'upfront:j1', 3) \gset
SELECT * FROM kudos_reserve(2, 'upfront:j1', 1);
\set VERBOSITY sqlstate
SELECT * FROM kudos_reserve(2, 'upfront:j1', 1);
\set VERBOSITY default
SELECT user_id, remaining_amount, released_at FROM kudos_reservations;
\echo -- Short of available is a refusal, and stores nothing; all of it can be held, to the cent
\i :fixture
SELECT t_post(1, -0.40) \gset
SELECT * FROM kudos_reserve(1, 'j1', 974.61);
SELECT count(*) FROM kudos_reservations;
SELECT * FROM kudos_reserve(1, 'j1', 974.60);
SELECT * FROM kudos_reserve(1, 'j2', 0.01);
SELECT kudos_release('j1');
SELECT * FROM kudos_reserve(1, 'j2', 900);
SELECT * FROM kudos_reserve(1, 'j1', 100);
SELECT * FROM t_holds;
\echo -- queued credits cannot be held, folded ones can
SELECT t_post(1, 100) \gset
SELECT * FROM kudos_reserve(1, 'j1', 100);
CALL fold();
SELECT * FROM kudos_reserve(1, 'j1', 100);
\echo -- an account below its floor, and anon, who may owe
SELECT * FROM kudos_reserve(5, 'j5', 0.01);
SELECT * FROM kudos_reserve(0, 'j0', 150);
SELECT * FROM kudos_reserve(0, 'j0 too', 0.01);
\echo -- What cannot be held
\i :fixture
SELECT call, outcome('SELECT kudos_reserve(' || call || ')') FROM (VALUES
  ('1, ''j'', 0'), ('1, ''j'', -1'), ('1, ''j'', 0.001'), ('1, ''j'', 10.005'), ('1, ''j'', ''NaN'''), ('1, ''j'', ''Infinity'''),
  ('1, ''j'', -0.001'), ('1, ''j'', 1e30'), ('1, ''j'', NULL'), ('NULL, ''j'', 1'), ('1, NULL, 1'), ('777, ''j'', 1'), ('1, repeat(''x'', 129), 1')) t (call);
SELECT count(*) FROM kudos_reservations;
SELECT * FROM kudos_reserve(1, repeat('ä', 128), 10.5000) \gset
SELECT char_length(business_id), remaining_amount FROM kudos_reservations;
\set VERBOSITY sqlstate
BEGIN READ ONLY;
SELECT kudos_available(1), kudos_effective(1), kudos_floor(1);
SELECT kudos_reserve(1, 'j', 1);
ROLLBACK;
BEGIN READ ONLY;
SELECT kudos_release('j');
ROLLBACK;
\echo -- a hold that a trigger keeps from the table is not granted
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE INSERT ON kudos_reservations FOR EACH ROW EXECUTE FUNCTION veto();
SELECT kudos_reserve(1, 'j', 1);
DROP TRIGGER veto ON kudos_reservations;
DROP FUNCTION veto();
\set VERBOSITY default
\echo -- A hold is dated and released in UTC; its payer stays locked until the transaction ends
\i :fixture
SET timezone = 'Asia/Tokyo';
BEGIN;
SELECT * FROM kudos_reserve(1, 'j1', 10);
SELECT classid, objid, objsubid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT kudos_release('j1');
SELECT created BETWEEN (now() AT TIME ZONE 'utc') AND (clock_timestamp() AT TIME ZONE 'utc') AS created,
       released_at BETWEEN (now() AT TIME ZONE 'utc') AND (clock_timestamp() AT TIME ZONE 'utc') AS released FROM kudos_reservations;
ROLLBACK;
RESET timezone;
SELECT count(*) FROM kudos_reservations;
SELECT kudos_available(1);

\echo -- Transfer: a hold, a debit that names it, a credit, two counters and the row of the application, under one event
\i :fixture
\i :transfers
SELECT * FROM kudos_transfer(1, 2, 60, 'abc');
SELECT event_id = '68c78609-77cc-574d-88ad-2591d1afd340' AS event, entry_type, user_id, escrow, amount, applied, detail
  FROM kudos_ledger ORDER BY id;
SELECT event_id = '68c78609-77cc-574d-88ad-2591d1afd340' AS event, entry_type, user_id, amount, unit, stat_action, record, applied
  FROM kudos_stat_events ORDER BY id;
SELECT business_id, user_id, event_id, remaining_amount, released_at FROM kudos_reservations;
SELECT source_id, dest_id, kudos FROM kudos_transfers;
SELECT * FROM spendable(1);
SELECT * FROM spendable(2);
\echo -- folding consumes the hold by the debit, and changes nothing that the source can spend
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;
SELECT * FROM spendable(1);
CALL drain(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_ustats;
SELECT * FROM t_pending;
SELECT * FROM spendable(1);
SELECT * FROM spendable(2);
\echo -- the same key again is a replay, before the fold and after it
SELECT * FROM kudos_transfer(1, 2, 60, 'abc');
SELECT * FROM kudos_transfer(1, 2, 15, 'def');
SELECT * FROM kudos_transfer(1, 2, 15, 'def');
SELECT * FROM kudos_transfer(1, 2, 15.00, 'def');
SELECT * FROM t_pending;
CALL drain();
SELECT * FROM kudos_transfer(1, 2, 15, 'def');
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT source_id, dest_id, kudos FROM kudos_transfers ORDER BY id;
\echo -- even when the money is gone
SELECT * FROM kudos_transfer(1, 3, 900, 'rest');
SELECT * FROM kudos_transfer(1, 2, 15, 'def');
\echo -- with other parameters it is an error, and nothing happens
SELECT kudos_transfer(1, 2, 16, 'def');
\set VERBOSITY sqlstate
SELECT kudos_transfer(1, 2, 15.01, 'def');
SELECT kudos_transfer(1, 3, 15, 'def');
SELECT kudos_transfer(3, 2, 15, 'def');
SELECT kudos_transfer(2, 1, 15, 'def');
\set VERBOSITY default
SELECT count(*) FROM kudos_transfers;
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2, 3);
SELECT * FROM t_floored;

\echo -- Short of available: nothing moves, and the same key may be used when there is enough
\i :fixture
\i :transfers
SELECT transferred, replayed FROM kudos_transfer(1, 2, 975.01, 'abc');
SELECT * FROM t_pending;
SELECT count(*) AS holds, (SELECT count(*) FROM kudos_transfers) AS transfers FROM kudos_reservations;
SELECT transferred, replayed FROM kudos_transfer(1, 2, 975, 'abc');
SELECT transferred, replayed FROM kudos_transfer(1, 2, 0.01, 'def');
\echo -- what was received can be spent once it is folded
SELECT transferred, replayed FROM kudos_transfer(2, 3, 1450, 'ghi');
CALL drain();
SELECT transferred, replayed FROM kudos_transfer(2, 3, 1450, 'ghi');
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2, 3);
SELECT * FROM t_floored;
\echo -- to the cent, and beside holds and queued debits
\i :fixture
\i :transfers
SELECT kudos_reserve(1, 'j', 300) \gset
SELECT t_post(1, -100.25), t_post(1, 40) \gset
SELECT transferred FROM kudos_transfer(1, 2, 574.76, 'abc');
SELECT transferred FROM kudos_transfer(1, 2, 574.75, 'abc');
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM spendable(1);
SELECT source_id, dest_id FROM kudos_transfers;
SELECT * FROM t_floored;
\echo -- a rolled back transfer never was
\i :fixture
\i :transfers
BEGIN;
SELECT transferred, replayed FROM kudos_transfer(1, 2, 60, 'abc');
SELECT transferred, replayed FROM kudos_transfer(1, 2, 60, 'abc');
ROLLBACK;
SELECT * FROM t_pending;
SELECT transferred, replayed FROM kudos_transfer(1, 2, 60, 'abc');

\echo -- Two transfers of one transaction see each other
\i :fixture
\i :transfers
BEGIN;
SELECT transferred FROM kudos_transfer(1, 2, 600, 'a');
SELECT transferred FROM kudos_transfer(1, 3, 600, 'b');
SELECT transferred FROM kudos_transfer(1, 3, 375, 'c');
COMMIT;
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2, 3);

\echo -- What is no transfer
\i :fixture
\i :transfers
SELECT call, outcome('SELECT kudos_transfer(' || call || ')') FROM (VALUES
  ('1, 1, 10, ''k'''), ('777, 1, 10, ''k'''), ('1, 777, 10, ''k'''), ('1, 2, 0, ''k'''), ('1, 2, -1, ''k'''), ('1, 2, 0.001, ''k'''),
  ('1, 2, ''NaN'', ''k'''), ('1, 2, NULL, ''k'''), ('NULL, 2, 1, ''k'''), ('1, NULL, 1, ''k'''), ('1, 2, 1, NULL')) t (call);
SELECT * FROM t_pending;
\echo -- M03 nor in shadow, or read-only
UPDATE kudos_ledger_control SET mode = 'shadow';
SELECT kudos_transfer(1, 2, 10, 'k');
\set VERBOSITY sqlstate
SELECT kudos_transfer(1, 2, 10, 'k');
DELETE FROM kudos_ledger_control;
SELECT kudos_transfer(1, 2, 10, 'k');
\i :fixture
\i :transfers
BEGIN READ ONLY;
SELECT kudos_transfer(1, 2, 10, 'k');
ROLLBACK;
\echo -- nor without the table of the application: it is all or nothing
DROP TABLE kudos_transfers;
SELECT kudos_transfer(1, 2, 10, 'k');
\set VERBOSITY default
SELECT * FROM t_pending;
SELECT count(*) FROM kudos_reservations;
\i :transfers
SELECT transferred, replayed FROM kudos_transfer(1, 2, 10, 'k');
\echo -- nor where a trigger keeps its row from that table
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE INSERT ON kudos_transfers FOR EACH ROW EXECUTE FUNCTION veto();
\set VERBOSITY sqlstate
SELECT kudos_transfer(1, 2, 20, 'l');
\set VERBOSITY default
DROP TRIGGER veto ON kudos_transfers;
CREATE TRIGGER veto BEFORE INSERT ON kudos_stat_events FOR EACH ROW EXECUTE FUNCTION veto();
\set VERBOSITY sqlstate
SELECT kudos_transfer(1, 2, 20, 'm');
\set VERBOSITY default
DROP TRIGGER veto ON kudos_stat_events;
DROP FUNCTION veto();
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_ustats;
SELECT * FROM t_holds;
DROP TABLE kudos_transfers;
DROP FUNCTION outcome, spendable;
