-- Exact arithmetic, whatever the batches were.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture

\echo -- L01 half units do not depend on how rows were batched: +0.50 three times, one batch
UPDATE users SET kudos = 100 WHERE id = 1;
SELECT count(t_post(1, 0.50)) FROM generate_series(1, 3) \gset
CALL drain(1000);
SELECT u.kudos, u.kudos + r.kudos / 100.0 = 101.50 AS exact FROM users u JOIN kudos_remainder_users r USING (id) WHERE u.id = 1;
\echo -- L01 +0.50 three times, row by row
\i :fixture
UPDATE users SET kudos = 100 WHERE id = 1;
SELECT count(t_post(1, 0.50)) FROM generate_series(1, 3) \gset
CALL fold(1);
SELECT kudos FROM users WHERE id = 1;
CALL fold(1);
SELECT kudos FROM users WHERE id = 1;
CALL fold(1);
SELECT kudos FROM users WHERE id = 1;
SELECT * FROM t_pending;
\echo -- L01 -0.50 three times, one batch
\i :fixture
UPDATE users SET kudos = 100 WHERE id = 1;
SELECT count(t_post(1, -0.50)) FROM generate_series(1, 3) \gset
CALL drain(1000);
SELECT u.kudos, u.kudos + r.kudos / 100.0 = 98.50 AS exact FROM users u JOIN kudos_remainder_users r USING (id) WHERE u.id = 1;
\echo -- L01 -0.50 three times, row by row
\i :fixture
UPDATE users SET kudos = 100 WHERE id = 1;
SELECT count(t_post(1, -0.50)) FROM generate_series(1, 3) \gset
CALL drain(1);
SELECT kudos FROM users WHERE id = 1;

\echo -- L01 every target: ten times 0.40 is 4, row by row, in threes and at once
CREATE OR REPLACE PROCEDURE ten_of_each() LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..10 LOOP
    PERFORM t_post(5, 2.50);
    PERFORM t_post(2, 0.40, true);
    PERFORM t_ustat(1, 'accumulated', 0.40);
    PERFORM t_rec(1, 'USAGE', 'image', 0.40);
    PERFORM t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.40, '00000000-0000-0000-0000-0000000000a1');
    PERFORM t_contrib('00000000-0000-0000-0000-0000000000f1', 'contributions', 0.40, '00000000-0000-0000-0000-0000000000a1');
    PERFORM t_contrib('00000000-0000-0000-0000-0000000000f1', 'fulfilments', 0.40, '00000000-0000-0000-0000-0000000000a1');
  END LOOP;
END $$;
CREATE OR REPLACE FUNCTION totals(OUT u5 bigint, OUT esc2 int, OUT stat bigint, OUT rec float8, OUT wstat bigint,
    OUT wk bigint, OUT wc bigint, OUT wf int, OUT tk bigint, OUT tc bigint, OUT tf int) LANGUAGE sql AS $$
  SELECT (SELECT kudos FROM users WHERE id = 5), (SELECT evaluating_kudos FROM users WHERE id = 2),
         (SELECT value FROM user_stats), (SELECT value FROM user_records), (SELECT value FROM worker_stats),
         w.kudos, w.contributions, w.fulfilments, t.kudos, t.contributions, t.fulfilments
  FROM workers w, teams t WHERE w.name = 'wk-1' AND t.name = 'team-a' $$;
\i :fixture
UPDATE users SET kudos = 25 WHERE id = 5;
CALL ten_of_each();
CALL drain(1);
SELECT * FROM totals();
\i :fixture
UPDATE users SET kudos = 25 WHERE id = 5;
CALL ten_of_each();
CALL drain(3);
SELECT * FROM totals();
\i :fixture
UPDATE users SET kudos = 25 WHERE id = 5;
CALL ten_of_each();
CALL drain(1000);
SELECT * FROM totals();
SELECT * FROM t_pending;

\echo -- L01 a counter that was removed starts anew, without the fraction of the old one
\i :fixture
SELECT t_ustat(1, 'accumulated', 0.40), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.40) \gset
CALL fold();
DELETE FROM user_stats;
DELETE FROM worker_stats;
SELECT t_ustat(1, 'accumulated', 5), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 5) \gset
CALL fold();
SELECT t_ustat(1, 'accumulated', 0.10), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.09) \gset
CALL fold();
SELECT * FROM t_ustats;
SELECT * FROM t_wstats;
\echo -- L01 while the worker, who was not, keeps his: 0.40 + 5 + 0.09 make 5
SELECT kudos FROM workers WHERE name = 'wk-1';
SELECT t_contrib('00000000-0000-0000-0000-0000000000f1', 'contributions', 0.40), t_wstat('00000000-0000-0000-0000-0000000000f1', 'other', 0.01) \gset
CALL fold();
SELECT kudos, contributions FROM workers WHERE name = 'wk-1';

\echo -- L02 ties go away from zero, on the total
\i :fixture
UPDATE users SET kudos = 100 WHERE id = 1;
UPDATE users SET kudos = 101 WHERE id = 2;
UPDATE users SET kudos = -10 WHERE id = 0;
SELECT t_post(1, 0.50), t_post(2, 0.50), t_post(0, -0.50) \gset
CALL fold(10);
SELECT id, kudos FROM users WHERE id IN (0, 1, 2) ORDER BY id;
\echo -- L02 the same for a counter that goes below zero
SELECT t_ustat(1, 'accumulated', -0.50), t_ustat(2, 'accumulated', -1.50), t_ustat(3, 'accumulated', 2.50), t_ustat(4, 'accumulated', -0.49) \gset
CALL fold(10);
SELECT * FROM t_ustats;

\echo -- L04 decimal counters stay decimal
\i :fixture
SELECT t_rec(1, 'USAGE', 'image', 0.10), t_rec(1, 'USAGE', 'image', 0.20) \gset
CALL drain(1);
SELECT value, value = 0.3::float8 AS same FROM user_records WHERE user_id = 1;
SELECT count(t_rec(2, 'USAGE', 'image', 0.01)) FROM generate_series(1, 1000) \gset
CALL drain(7);
SELECT value, value = 10::float8 AS same FROM user_records WHERE user_id = 2;
INSERT INTO user_records (user_id, record_type, record, value) VALUES (3, 'USAGE', 'image', 99999999999.25);
SELECT t_rec(3, 'USAGE', 'image', 0.50) \gset
CALL drain(1);
SELECT value FROM user_records WHERE user_id = 3;
\echo -- L04 at once instead of row by row
\i :fixture
SELECT t_rec(1, 'USAGE', 'image', 0.10), t_rec(1, 'USAGE', 'image', 0.20) \gset
SELECT count(t_rec(2, 'USAGE', 'image', 0.01)) FROM generate_series(1, 1000) \gset
CALL drain(2000);
SELECT * FROM t_records;

\echo -- L06 currency row its target column cannot hold: it alone waits
\i :fixture
SELECT t_post(1, 3000000000, true), t_post(2, 10), t_post(1, 7) \gset
CALL fold(1000);
CALL fold(1000);
CALL fold(1000);
SELECT id, kudos, esc FROM t_bal WHERE id IN (1, 2);
SELECT user_id, amount, escrow, applied FROM kudos_ledger ORDER BY id;
SELECT count(*) AS quarantined FROM kudos_stat_events WHERE quarantined;
\echo -- L06 nothing is in the way of what comes later, also row by row
SELECT t_post(1, -3000000000, true), t_post(2, 1), t_post(3, 1) \gset
CALL drain(1);
SELECT id, kudos, esc FROM t_bal WHERE id IN (1, 2, 3);
\echo -- L06 what fits together folds together
CALL drain(1000);
SELECT id, kudos, esc FROM t_bal WHERE id = 1;
SELECT * FROM t_pending;
\echo -- L06 the same for counters: the limit itself fits, one more does not, others go on
INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 9223372036854775800), (2, 'accumulated', 9223372036854775800);
UPDATE teams SET fulfilments = 2147483640 WHERE name = 'team-a';
SELECT t_ustat(1, 'accumulated', 7), t_ustat(2, 'accumulated', 8), t_ustat(3, 'accumulated', 9) \gset
SELECT t_contrib('00000000-0000-0000-0000-0000000000f1', 'fulfilments', 8, '00000000-0000-0000-0000-0000000000a1'),
       t_contrib('00000000-0000-0000-0000-0000000000f2', 'fulfilments', 2, '00000000-0000-0000-0000-0000000000b1') \gset
CALL fold(1000);
CALL fold(1000);
SELECT * FROM t_ustats;
SELECT name, fulfilments FROM workers ORDER BY name;
SELECT name, fulfilments FROM teams ORDER BY name;
SELECT coalesce(user_id::text, worker_id::text) AS whose, amount FROM kudos_stat_events WHERE NOT applied AND NOT quarantined ORDER BY id;

\echo -- L06 many stuck targets at the head of the queue, more than a batch holds: others still fold
\i :fixture
INSERT INTO users (id, username, oauth_id, evaluating_kudos) SELECT 100 + g, 'stuck', 'stuck-' || g, 2147483647 FROM generate_series(1, 300) g;
SELECT count(t_post(100 + g, 1, true)) FROM generate_series(1, 20) g \gset
SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5) \gset
\set VERBOSITY terse
DO $$ BEGIN FOR i IN 1..30 LOOP CALL fold(2); END LOOP; END $$;
SELECT * FROM t_state;
\echo -- L06 and hundreds of them in one batch
SELECT count(t_post(100 + g, 1, true)) FROM generate_series(21, 300) g \gset
SELECT t_post(1, 5) \gset
DO $$ BEGIN FOR i IN 1..30 LOOP CALL fold(1000); END LOOP; END $$;
\set VERBOSITY default
SELECT * FROM t_state;

\echo -- L07 identifiers above 2^53
\i :fixture
ALTER TABLE kudos_ledger ALTER id RESTART WITH 9007199254740992;
ALTER TABLE kudos_stat_events ALTER id RESTART WITH 9007199254740992;
SELECT t_post(1, 1), t_post(1, 2), t_post(1, 4) \gset
SELECT t_ustat(1, 'accumulated', 1), t_ustat(1, 'accumulated', 2), t_ustat(1, 'accumulated', 4) \gset
CALL fold(1);
SELECT id, applied FROM kudos_ledger ORDER BY id;
SELECT id, applied FROM kudos_stat_events ORDER BY id;
SELECT kudos, accumulated FROM t_state;
CALL fold(10);
SELECT kudos, accumulated, ledger, stats FROM t_state;
\echo -- L07 identifiers around 2^31
\i :fixture
ALTER TABLE kudos_ledger ALTER id RESTART WITH 2147483646;
ALTER TABLE kudos_stat_events ALTER id RESTART WITH 2147483646;
SELECT t_post(1, 1), t_post(1, 2), t_post(1, 4) \gset
SELECT t_ustat(1, 'accumulated', 1), t_ustat(1, 'accumulated', 2), t_ustat(1, 'accumulated', 4) \gset
CALL fold(2);
SELECT id, applied FROM kudos_ledger ORDER BY id;
SELECT id, applied FROM kudos_stat_events ORDER BY id;
CALL fold(10);
SELECT kudos, accumulated, ledger, stats FROM t_state;

\echo -- L08 zero has no sign: at once
\i :fixture
SELECT t_rec(1, 'USAGE', 'image', 0.10), t_rec(1, 'USAGE', 'image', -0.10) \gset
CALL fold(10);
SELECT t_rec(1, 'USAGE', 'text', -0.00), t_ustat(1, 'accumulated', 0) \gset
CALL fold(10);
SELECT * FROM t_records;
SELECT * FROM t_ustats;
\echo -- L08 row by row
\i :fixture
SELECT t_rec(1, 'USAGE', 'image', 0.10), t_rec(1, 'USAGE', 'image', -0.10), t_rec(1, 'USAGE', 'text', -0.00), t_ustat(1, 'accumulated', 0) \gset
CALL drain(1);
SELECT * FROM t_records;
SELECT * FROM t_ustats;

DROP PROCEDURE ten_of_each();
DROP FUNCTION totals();
