-- The floor: of whom, when, and what is recorded of it.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture

\echo -- F01 floor on the net of a batch: in one batch nothing is forgiven
SELECT t_post(4, -100), t_post(4, 200) \gset
CALL drain(1000);
SELECT kudos FROM users WHERE id = 4;
SELECT * FROM t_floored;
\echo -- F01 in two batches, one floor adjustment, with an event of its own, folded by nobody
\i :fixture
SELECT t_post(4, -100), t_post(4, 200) \gset
CALL drain(1);
SELECT kudos FROM users WHERE id = 4;
SELECT * FROM t_floored;
CALL drain(1);
CALL drain(1000);
SELECT kudos FROM users WHERE id = 4;
SELECT count(*) AS rows, count(DISTINCT event_id) AS events FROM kudos_ledger;
\echo -- F01 replay: opening value and applied rows give the balance
SELECT 30 + sum(amount) AS replayed FROM kudos_ledger WHERE user_id = 4 AND applied AND NOT escrow;

\echo -- F02 who is touched by the floor: a credit on a balance that was below
\i :fixture
SELECT t_post(5, 5) \gset
CALL fold(10);
SELECT kudos, evaluating_kudos FROM users WHERE id = 5;
SELECT user_id, amount FROM t_floored;
\echo -- F02 a zero posting
\i :fixture
SELECT t_post(5, 0) \gset
CALL fold(10);
SELECT kudos, evaluating_kudos FROM users WHERE id = 5;
SELECT user_id, amount FROM t_floored;
\echo -- F02 escrow only: not touched
\i :fixture
SELECT t_post(5, 5, true) \gset
CALL fold(10);
SELECT kudos, evaluating_kudos FROM users WHERE id = 5;
SELECT user_id, amount FROM t_floored;
\echo -- F02 somebody else: not touched
\i :fixture
SELECT t_post(1, 5) \gset
CALL fold(10);
SELECT id, kudos FROM users WHERE id IN (1, 5) ORDER BY id;
SELECT user_id, amount FROM t_floored;
\echo -- F02 escrow has no floor
\i :fixture
SELECT t_post(1, -40, true) \gset
CALL fold(10);
SELECT kudos, evaluating_kudos FROM users WHERE id = 1;
SELECT user_id, amount FROM t_floored;
\echo -- F02 anon and a pseudonymous account
\i :fixture
SELECT t_post(0, -1000), t_post(3, -1000) \gset
CALL fold(10);
SELECT id, kudos FROM users WHERE id IN (0, 3) ORDER BY id;
SELECT user_id, amount FROM t_floored ORDER BY user_id;
\echo -- F02 activity and counters do not touch a balance
\i :fixture
SELECT t_ustat(5, 'accumulated', -5, gen_random_uuid(), '{"touch_last_active": true}') \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 5;
SELECT user_id, amount FROM t_floored;

\echo -- F04 compare with the floor before integer rounding
\i :fixture
SELECT t_post(4, -4.60) \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 4;
SELECT user_id, amount FROM t_floored;
\echo -- F04 the exact 25.40 is kept: one cent above the floor is not floored
SELECT t_post(4, -0.39) \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 4;
SELECT user_id, amount FROM t_floored;
\echo -- F04 and two cents further is, by one
SELECT t_post(4, -0.02) \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 4;
SELECT user_id, amount FROM t_floored;
\i :fixture
SELECT t_post(4, -5.40) \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 4;
SELECT user_id, amount FROM t_floored;
\i :fixture
SELECT t_post(4, -10.25) \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 4;
SELECT user_id, amount FROM t_floored;
\i :fixture
UPDATE users SET kudos = 25 WHERE id = 4;
SELECT t_post(4, -0.30) \gset
CALL fold(10);
SELECT kudos FROM users WHERE id = 4;
SELECT user_id, amount FROM t_floored;

\echo -- Whose floor is which: the forms of a UUID that count, and those that do not
\i :fixture
INSERT INTO users (id, username, oauth_id, kudos) VALUES
  (100, 'a', '1B4E28BA-2FA1-11D2-883F-0016D3CCA428', 1000),
  (101, 'b', '1b4e28ba2fa111d2883f0016d3cca427', 1000),
  (102, 'c', '{1b4e28ba-2fa1-11d2-883f-0016d3cca427}', 1000),
  (103, 'd', 'urn:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427', 1000),
  (104, 'e', 'uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427', 1000),
  (105, 'f', '1b4e28ba-2fa1-11d2-883f-0016d3cca42', 1000),
  (106, 'g', '1b4e28ba-2fa1-11d2-883f-0016d3cca4270', 1000),
  (107, 'h', '1b4e28ba-2fa1-11d2-883f-0016d3cca42g', 1000),
  (108, 'i', '1b4e28ba:2fa1:11d2:883f:0016d3cca427', 1000),
  (109, 'j', 'Anon', 1000), (110, 'k', 'anon ', 1000), (111, 'l', '', 1000),
  (112, 'm', '12345678901234567890123456789012', 1000);
SELECT count(t_post(id, -2000)) FROM users WHERE id >= 100 \gset
CALL fold(100);
SELECT oauth_id, kudos FROM users WHERE id >= 100 ORDER BY id;
SELECT count(*) AS floored, bool_and(amount = 1000 + u.kudos) AS exact FROM kudos_ledger l JOIN users u ON u.id = l.user_id WHERE entry_type = 'FLOOR_ADJUSTMENT';
