-- Holds: consumed by the debits that name them, released with their event.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\set event '''00000000-0000-0000-0000-00000000e001'''
\i :fixture

\echo -- R01 event split by the batch limit: the hold stays until the event is whole
INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount) VALUES ('transfer:1:e', 1, :event, 60, 60);
SELECT t_post(1, -60, false, :event, NULL, 'TRANSFER'), t_post(2, 60, false, :event, NULL, 'TRANSFER') \gset
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;

\echo -- R01 variant b: the debit names the hold, and consumes it in its own cycle
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount) VALUES ('transfer:1:e', 1, :event, 60, 60);
SELECT t_post(1, -60, false, :event, '{"reservation_id": "transfer:1:e"}', 'TRANSFER'), t_post(2, 60, false, :event, NULL, 'TRANSFER') \gset
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;
SELECT released_at AS first_release FROM kudos_reservations \gset
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT business_id, remaining_amount, released_at = :'first_release' AS unchanged FROM kudos_reservations;

\echo -- R01 variant c: the credit first
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount) VALUES ('transfer:1:e', 1, :event, 60, 60);
SELECT t_post(2, 60, false, :event, NULL, 'TRANSFER') \gset
SELECT t_post(1, -60, false, :event, NULL, 'TRANSFER') \gset
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;
CALL fold(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;

\echo -- R01 an escrow leg counts as a leg; other holds are left alone
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount)
  VALUES ('transfer:1:e', 1, :event, 60, 60), ('other', 1, gen_random_uuid(), 5, 5), ('no event', 1, NULL, 6, 6);
SELECT t_post(1, -60, false, :event) \gset
SELECT t_post(2, 60, true, :event) \gset
CALL fold(1);
SELECT * FROM t_holds;
CALL fold(1);
SELECT * FROM t_holds;
\echo -- R01 quarantined stat rows of the event hold nothing back
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount) VALUES ('transfer:1:e', 1, :event, 60, 60);
SELECT t_post(1, -60, false, :event), t_ustat(777, 'accumulated', 1, :event) \gset
CALL fold(10);
SELECT * FROM t_holds;
SELECT reason FROM t_quarantine;

\echo -- R04 a leg that cannot be written is unapplied too; a debit that cannot be written consumes nothing
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount) VALUES ('transfer:1:e', 1, :event, 60, 60), ('upfront:j1', 4, NULL, 60, 60);
CREATE OR REPLACE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 4) EXECUTE FUNCTION veto();
SELECT t_post(1, -60, false, :event), t_post(2, 3000000000, true, :event), t_post(4, -100, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
CALL drain();
SELECT * FROM t_bal WHERE id IN (1, 2, 4);
SELECT * FROM t_holds;
SELECT user_id, amount FROM t_floored;
DROP TRIGGER veto ON users;
DROP FUNCTION veto();
DROP VIEW t_bal;
ALTER TABLE users ALTER evaluating_kudos TYPE bigint;
CALL drain();
SELECT id, kudos, evaluating_kudos FROM users WHERE id IN (1, 2, 4) ORDER BY id;
SELECT * FROM t_holds;
SELECT user_id, amount FROM t_floored;

\echo -- R02 partial consumption
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
SELECT t_post(1, -25, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(1, -30, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 1;
SELECT * FROM t_holds;
\echo -- R02 row by row
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
SELECT t_post(1, -25, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(1, -30, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
CALL fold(1);
SELECT * FROM t_holds;
CALL fold(1);
SELECT * FROM t_holds;
\echo -- R02 over-consumption: the debit folds in full, the hold gives up what it has
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 40);
SELECT t_post(1, -60, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 1;
SELECT * FROM t_holds;

\echo -- R02 what does not consume: credits, escrow, other shapes of detail, unknown and released holds
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount, released_at) VALUES
  ('a', 1, 60, 60, NULL), ('7', 1, 60, 60, NULL), ('gone', 1, 60, 0, '2026-01-02 03:04:05');
SELECT t_post(1, 10, false, gen_random_uuid(), '{"reservation_id": "a"}'),
       t_post(1, -10, true, gen_random_uuid(), '{"reservation_id": "a"}'),
       t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": 7}'),
       t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": ["a"]}'),
       t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": {"a": 1}}'),
       t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": null}'),
       t_post(1, -10, false, gen_random_uuid(), '["reservation_id", "a"]'),
       t_post(1, -10, false, gen_random_uuid(), '"a"'),
       t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": "unknown"}'),
       t_post(1, -10, false, gen_random_uuid(), '{"reservation_id": "gone"}') \gset
CALL fold(100);
SELECT kudos, evaluating_kudos FROM users WHERE id = 1;
SELECT business_id, remaining_amount, released_at FROM kudos_reservations ORDER BY 1;
\echo -- R02 whose hold it is does not matter
SELECT t_post(2, -15.25, false, gen_random_uuid(), '{"reservation_id": "a"}') \gset
CALL fold(100);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_holds;

\echo -- A hold is released in UTC, whatever the session thinks the time is
\i :fixture
SET timezone = 'Asia/Tokyo';
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
SELECT t_post(1, -60, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(4, -100), t_ustat(777, 'accumulated', 1) \gset
CALL fold(10);
SELECT abs(extract(epoch FROM h.released_at - n.utc)) < 3600 AS released,
       abs(extract(epoch FROM l.created - n.utc)) < 3600 AS floored,
       abs(extract(epoch FROM s.applied_at - n.utc)) < 3600 AS heartbeat,
       abs(extract(epoch FROM e.quarantined_at - n.utc)) < 3600 AS quarantined
FROM kudos_reservations h, kudos_ledger l, kudos_ledger_applier_state s, kudos_stat_events e, (SELECT now() AT TIME ZONE 'utc' AS utc) n
WHERE l.entry_type = 'FLOOR_ADJUSTMENT';
RESET timezone;

\echo -- a hold whose amount is no number: nobody spends against it, the rows that feed it wait, others fold
\i :fixture
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:nan', 1, 60, 'NaN');
SELECT t_post(1, -5, d => '{"reservation_id": "upfront:nan"}'), t_post(2, 5) \gset
\set VERBOSITY terse
SELECT kudos_available(1);
\set VERBOSITY default
SELECT currency_rows FROM kudos_fold_now();
SELECT user_id, amount, applied FROM kudos_ledger ORDER BY id;
SELECT * FROM t_holds;
UPDATE kudos_reservations SET remaining_amount = 60;
CALL fold();
SELECT user_id, amount, applied FROM kudos_ledger ORDER BY id;
SELECT * FROM t_holds;
