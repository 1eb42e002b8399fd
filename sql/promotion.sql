-- Promotion to trusted, and the drain of a trusted account's escrow, on a settled cycle in ledger mode.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/promotion_helpers.sql'
\i :fixture

\echo -- F05 promotion boundaries
CALL candidates();
SET kudos_projector.trust_threshold = 100;
SELECT promoted_users, drained_users, currency_rows, stat_rows, settled FROM kudos_fold_now();
SELECT * FROM t_roles;
\echo -- F05 the pairs are rows like any other: a later cycle folds them
SELECT * FROM t_pending;
SELECT * FROM t_bal WHERE id >= 10 OR id = 0;
CALL settle();
SELECT * FROM t_pending;
SELECT * FROM t_bal WHERE id >= 10 OR id = 0;
SELECT * FROM t_roles;
SELECT * FROM t_drained;
SELECT * FROM t_ustats;
SELECT promoted_users, drained_users FROM kudos_fold_now();

\echo -- F05 an age is counted in UTC, east and west of it
\i :fixture
SET timezone = 'Asia/Tokyo';
CALL candidates();
CALL settle();
SELECT * FROM t_roles;
SELECT bool_and(abs(extract(epoch FROM created - now() AT TIME ZONE 'utc')) < 3600) AS utc FROM kudos_ledger;
SELECT bool_and(abs(extract(epoch FROM created - now() AT TIME ZONE 'utc')) < 3600) AS utc FROM kudos_stat_events;
\i :fixture
SET timezone = 'America/Los_Angeles';
CALL candidates();
CALL settle();
SELECT * FROM t_roles;
RESET timezone;

\echo -- F05 threshold unset: nobody is promoted, who is trusted already is drained
\i :fixture
CALL candidates();
INSERT INTO user_roles (user_id, user_role, value) VALUES (10, 'TRUSTED', true);
RESET kudos_projector.trust_threshold;
CALL settle();
SELECT * FROM t_roles;
SELECT * FROM t_bal WHERE id >= 10 OR id = 0;
SELECT * FROM t_drained;

\echo -- F05 other thresholds: a cent above and below, in other spellings, far too high
\i :fixture
CALL candidates();
SET kudos_projector.trust_threshold = 101;
SELECT promoted_users FROM kudos_fold_now();
SET kudos_projector.trust_threshold = '100.99';
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
SET kudos_projector.trust_threshold = '1e2';
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
SET kudos_projector.trust_threshold = '99.99';
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
SET kudos_projector.trust_threshold = '1000000000000000000';
SELECT promoted_users FROM kudos_fold_now();
\echo -- F05 what is no number of kudos is refused
SET kudos_projector.trust_threshold = 'many';
SET kudos_projector.trust_threshold = 'NaN';
SET kudos_projector.trust_threshold = '10 kudos';
SET kudos_projector.trust_threshold = '-';
\echo -- F05 a negative threshold is one, too: escrow 0 and -49 lie above -50, -50 does not; a zero one is strict
\i :fixture
UPDATE users SET evaluating_kudos = -50 WHERE id = 1;
UPDATE users SET evaluating_kudos = -49 WHERE id = 2;
UPDATE users SET evaluating_kudos = 1 WHERE id = 5;
SET kudos_projector.trust_threshold = 0;
SELECT promoted_users, drained_users FROM kudos_fold_now();
SELECT * FROM t_roles;
SET kudos_projector.trust_threshold = -50;
SELECT promoted_users, drained_users FROM kudos_fold_now();
SELECT * FROM t_roles;
CALL settle();
SELECT * FROM t_bal WHERE id IN (1, 2, 5);
SELECT * FROM t_drained;

\echo -- F05 the other two settings move their edges
\i :fixture
CALL candidates();
SET kudos_projector.trust_threshold = 100;
SET kudos_projector.suspicion_threshold = 4;
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
SET kudos_projector.suspicion_threshold = 6;
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
SET kudos_projector.suspicion_threshold = 0;
SELECT promoted_users FROM kudos_fold_now();
RESET kudos_projector.suspicion_threshold;
SET kudos_projector.trust_minimum_age = '166h';
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
SET kudos_projector.trust_minimum_age = '8d';
BEGIN;
SELECT promoted_users FROM kudos_fold_now();
SELECT * FROM t_roles;
ROLLBACK;
RESET kudos_projector.trust_minimum_age;

\echo -- A role that was taken away is given again; other roles stay as they are
\i :fixture
CALL candidates();
INSERT INTO user_roles (user_id, user_role, value) VALUES
  (11, 'TRUSTED', false), (11, 'FLAGGED', false), (10, 'TRUSTED', false), (12, 'MODERATOR', true), (15, 'TRUSTED', false);
CALL settle();
SELECT * FROM t_roles;
SELECT * FROM t_bal WHERE id >= 10;
\echo -- and who lost it since is not drained, nor promoted again while his escrow is low
UPDATE user_roles SET value = false WHERE user_id = 11 AND user_role = 'TRUSTED';
UPDATE users SET evaluating_kudos = 40 WHERE id = 11;
CALL settle();
SELECT * FROM t_bal WHERE id = 11;
SELECT * FROM t_roles WHERE user_id = 11;

\echo -- Workers of who is promoted start again, whatever their type; others are left alone
\i :fixture
CALL candidates();
ALTER TABLE workers ADD worker_type varchar(30) NOT NULL DEFAULT 'stable_worker';
INSERT INTO workers (id, user_id, name, worker_type, paused)
  SELECT ('00000000-0000-0000-0000-0000000001' || lpad(to_hex(n), 2, '0'))::uuid, u, 'w' || n, t, p FROM (VALUES
    (1, 11, 'stable_worker', true), (2, 11, 'text_worker', true), (3, 11, 'interrogation_worker', true), (4, 11, 'wavering_worker', true),
    (5, 11, 'stable_worker', false), (6, 12, 'text_worker', true), (7, 10, 'stable_worker', true), (8, 15, 'text_worker', true),
    (9, NULL, 'text_worker', true)) w (n, u, t, p);
CREATE TEMP TABLE t_before AS SELECT id, paused, ctid AS place FROM workers;
CALL settle();
SELECT w.name, w.user_id, w.worker_type, b.paused AS was, w.paused, w.ctid <> place AS written
  FROM workers w JOIN t_before b USING (id) ORDER BY w.name COLLATE "C";
\echo -- who was trusted before is left alone: pausing his worker is up to others
UPDATE workers SET paused = true WHERE user_id = 11 AND worker_type = 'text_worker';
UPDATE users SET evaluating_kudos = 300 WHERE id = 11;
CALL settle();
SELECT paused FROM workers WHERE user_id = 11 AND worker_type = 'text_worker';
SELECT * FROM t_bal WHERE id = 11;
\echo -- a cycle that adds to a worker unpauses it as well
\i :fixture
UPDATE users SET evaluating_kudos = 101 WHERE id = 1;
UPDATE workers SET paused = true;
SELECT t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 7), t_wstat('00000000-0000-0000-0000-0000000000f2', 'generated', 8) \gset
SELECT promoted_users, stat_rows FROM kudos_fold_now();
SELECT name, kudos, paused FROM workers ORDER BY name;

\echo -- The drain takes the exact escrow, not what the column shows of it
RESET kudos_projector.trust_threshold;
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) SELECT id, 'TRUSTED', true FROM users WHERE id BETWEEN 1 AND 5;
SELECT t_post(1, 100.40, true), t_post(2, 0.40, true), t_post(3, 0.60, true), t_post(4, -0.40, true), t_post(5, 99.60, true) \gset
SELECT currency_rows, drained_users FROM kudos_fold_now();
SELECT * FROM t_bal WHERE id > 0;
SELECT * FROM t_drained;
CALL settle();
SELECT * FROM t_bal WHERE id > 0;
SELECT * FROM t_ustats;
\echo -- and the exact kudos go on from there: 100.40 and 0.10 make 100.50
SELECT t_post(1, 0.10) \gset
CALL settle();
SELECT kudos FROM users WHERE id = 1;
\echo -- a debt is not drained, a debt that was paid back is
SELECT t_post(4, 0.39, true) \gset
CALL settle();
SELECT count(*) FROM t_drained WHERE user_id = 4;
SELECT t_post(4, 0.02, true) \gset
CALL settle();
SELECT * FROM t_drained WHERE user_id = 4;
SELECT * FROM kudos_remainder_users WHERE id = 4 AND evaluating_kudos <> 0;

\echo -- F07 the pair is emitted once, also when it is folded half by half
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id = 1;
SELECT drained_users, currency_rows, stat_rows, settled FROM kudos_fold_now(1, 1);
SELECT * FROM t_bal WHERE id = 1;
SELECT drained_users, currency_rows, stat_rows, settled FROM kudos_fold_now(1, 1);
SELECT * FROM t_bal WHERE id = 1;
SELECT drained_users, currency_rows, stat_rows, settled FROM kudos_fold_now(1, 1);
SELECT * FROM t_bal WHERE id = 1;
SELECT drained_users, currency_rows, stat_rows, settled FROM kudos_fold_now(1, 1);
SELECT * FROM t_drained;
SELECT * FROM t_ustats;
\echo -- F07 in whole batches
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id = 1;
CALL settle();
SELECT * FROM t_bal WHERE id = 1;
SELECT * FROM t_drained;
SELECT * FROM t_ustats;
\echo -- F07 variant c: more escrow between the halves makes a pair of its own
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id = 1;
CALL fold(1);
CALL fold(1);
SELECT entry_type, escrow, amount, applied FROM kudos_ledger ORDER BY id;
SELECT t_post(1, 50, true) \gset
CALL settle(1);
SELECT * FROM t_bal WHERE id = 1;
SELECT * FROM t_drained;
SELECT count(*) FROM kudos_ledger WHERE entry_type = 'EVALUATION_PROMOTION';
SELECT * FROM t_ustats;
\echo -- F07 a pair that cannot be folded yet is the guard as well: one user waits, another is drained
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true), (2, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id = 1;
CALL fold();
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 1) EXECUTE FUNCTION veto();
SELECT t_post(2, 30, true) \gset
CALL fold();
CALL fold();
CALL fold();
SELECT * FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_drained;
DROP TRIGGER veto ON users;
DROP FUNCTION veto();
CALL settle();
SELECT * FROM t_bal WHERE id IN (1, 2);
SELECT count(*) FROM t_drained;

\echo -- Only a settled cycle promotes and drains: both claims came back short
\i :fixture
SET kudos_projector.trust_threshold = 100;
UPDATE users SET evaluating_kudos = 101 WHERE id = 1;
SELECT t_post(2, 1), t_post(2, 1) \gset
SELECT currency_rows, stat_rows, settled, promoted_users, drained_users FROM kudos_fold_now(1, 1);
SELECT currency_rows, stat_rows, settled, promoted_users, drained_users FROM kudos_fold_now(1, 1);
SELECT currency_rows, stat_rows, settled, promoted_users, drained_users FROM kudos_fold_now(1, 1);
\i :fixture
UPDATE users SET evaluating_kudos = 101 WHERE id = 1;
SELECT t_ustat(2, 'accumulated', 1), t_ustat(2, 'accumulated', 1) \gset
SELECT currency_rows, stat_rows, settled, promoted_users, drained_users FROM kudos_fold_now(2, 1);
SELECT * FROM t_roles;
SELECT currency_rows, stat_rows, settled, promoted_users, drained_users FROM kudos_fold_now(2, 1);
\echo -- several cycles of one call promote once it settles, by the escrow that they folded
\i :fixture
UPDATE users SET evaluating_kudos = 60 WHERE id = 1;
SELECT t_post(1, 20, true), t_post(1, 20, true), t_post(1, 20, true) \gset
SELECT cycles, currency_rows, settled, promoted_users, drained_users FROM kudos_fold_now(2, 10);
SELECT * FROM t_drained;
\echo -- what a caller rolls back is undone whole
\i :fixture
UPDATE users SET evaluating_kudos = 101 WHERE id = 1;
UPDATE workers SET paused = true;
BEGIN;
SELECT promoted_users, drained_users FROM kudos_fold_now();
ROLLBACK;
SELECT * FROM t_roles;
SELECT * FROM t_pending;
SELECT count(*) FILTER (WHERE paused) AS paused FROM workers;

\echo -- M03 what a fold may do in shadow
\i :fixture
UPDATE kudos_ledger_control SET mode = 'shadow';
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id IN (1, 4);
UPDATE workers SET paused = true;
SELECT t_post(2, 12, false, gen_random_uuid(), NULL, 'RECONCILIATION') \gset
SELECT currency_rows, settled, promoted_users, drained_users FROM kudos_fold_now();
SELECT * FROM t_bal WHERE id IN (1, 2, 4);
DELETE FROM kudos_ledger_control;
SELECT t_post(2, 1, false, gen_random_uuid(), NULL, 'RECONCILIATION') \gset
SELECT currency_rows, settled, promoted_users, drained_users FROM kudos_fold_now();
SELECT * FROM t_bal WHERE id IN (1, 2, 4);
SELECT * FROM t_roles;
SELECT * FROM t_drained;
SELECT count(*) FILTER (WHERE paused) AS paused FROM workers;
SELECT heartbeat FROM t_state;
\echo -- M03 an in-flight pair is folded in shadow all the same
\i :fixture
INSERT INTO user_roles (user_id, user_role, value) VALUES (1, 'TRUSTED', true);
UPDATE users SET evaluating_kudos = 250 WHERE id = 1;
CALL fold();
UPDATE kudos_ledger_control SET mode = 'shadow';
CALL settle();
SELECT * FROM t_bal WHERE id = 1;
SELECT * FROM t_drained;

RESET kudos_projector.trust_threshold;
