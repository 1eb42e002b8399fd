-- Snapshots, reconciliation and repair: what drifted is found and brought back, nothing else is.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\set f1 '00000000-0000-0000-0000-0000000000f1'
\set f2 '00000000-0000-0000-0000-0000000000f2'
\set a1 '00000000-0000-0000-0000-0000000000a1'
\i :fixture
-- What a call is refused with.
CREATE FUNCTION refusal(call text) RETURNS TABLE (state text, message text, detail text, hint text) LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE call;
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
  message := regexp_replace(message, '[0-9a-f-]{36}', '(id)');
  RETURN NEXT;
END $$;

\echo -- C05 replay across floors, and users without rows
SELECT kudos_snapshot() AS s \gset
SELECT user_id, balance, escrow, applied_balance_total, applied_escrow_total FROM kudos_balance_snapshots WHERE snapshot_id = :'s' ORDER BY user_id;
SELECT t_post(4, -100) \gset
CALL drain();
SELECT t_post(4, 20) \gset
CALL drain();
SELECT t_post(2, 40, true) \gset
CALL drain();
UPDATE users SET evaluating_kudos = 999 WHERE id = 2;
SELECT kudos FROM users WHERE id = 4;
SELECT target, key, expected, actual, drift, events, cardinality(last_events) AS last_events FROM kudos_reconcile(:'s');
SELECT last_events = ARRAY[(SELECT event_id FROM kudos_ledger WHERE escrow)] AS names_the_event FROM kudos_reconcile(:'s');
SELECT target, key, expected, actual, drift, amount, outcome FROM kudos_repair(:'s');
CALL drain();
SELECT * FROM kudos_reconcile(:'s');
SELECT * FROM kudos_reconcile(:'s', true);
SELECT kudos, evaluating_kudos FROM users WHERE id = 2;

\echo -- C01 a repair that runs twice, before its rows are folded and after
\i :fixture
UPDATE users SET kudos = 100 WHERE id = 1;
SELECT kudos_snapshot() AS s \gset
SELECT t_post(1, 10) \gset
CALL drain();
UPDATE users SET kudos = 999 WHERE id = 1;
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
CALL drain();
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
CALL drain();
SELECT user_id, escrow, amount, applied, detail = jsonb_build_object('snapshot', :'s') AS names_snapshot FROM kudos_ledger WHERE entry_type = 'RECONCILIATION';
SELECT kudos FROM users WHERE id = 1;
SELECT * FROM kudos_reconcile(:'s');
\echo -- who drifts again under the same snapshot is reported, and needs another snapshot to be repaired
UPDATE users SET kudos = 120 WHERE id = 1;
SELECT target, key, drift FROM kudos_reconcile(:'s');
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
CALL drain();
SELECT kudos FROM users WHERE id = 1;

\echo -- Both balances of a user are one event, its id derived as the Horde derives it
\i :fixture
SELECT kudos_snapshot() AS s \gset
UPDATE kudos_balance_snapshots SET snapshot_id = '11111111-2222-4333-8444-555555555555';
ALTER TABLE kudos_snapshot_marks DISABLE TRIGGER ALL;
ALTER TABLE kudos_snapshot_values DISABLE TRIGGER ALL;
ALTER TABLE kudos_snapshots DISABLE TRIGGER ALL;
UPDATE kudos_snapshots SET snapshot_id = '11111111-2222-4333-8444-555555555555';
UPDATE kudos_snapshot_marks SET snapshot_id = '11111111-2222-4333-8444-555555555555';
UPDATE kudos_snapshot_values SET snapshot_id = '11111111-2222-4333-8444-555555555555';
UPDATE users SET kudos = 1001, evaluating_kudos = 7 WHERE id = 1;
UPDATE users SET kudos = 499 WHERE id = 2;
INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 3);
SELECT target, key, amount, event_id, outcome FROM kudos_repair('11111111-2222-4333-8444-555555555555');
SELECT event_id, user_id, escrow, amount FROM kudos_ledger ORDER BY user_id, escrow;
SELECT event_id, amount FROM kudos_stat_events;

\echo -- Fractions are no drift, neither one nor many
\i :fixture
SELECT t_post(1, 0.30), t_post(2, 0.40), t_ustat(1, 'accumulated', 0.25), t_wstat(:'f1', 'generated', 0.30, :'a1') \gset
CALL drain();
SELECT kudos_snapshot() AS s \gset
SELECT user_id, balance, applied_balance_total FROM kudos_balance_snapshots WHERE snapshot_id = :'s' AND user_id < 3 ORDER BY user_id;
SELECT count(t_post(1, 0.40)), count(t_post(2, -0.15)), count(t_ustat(1, 'accumulated', 0.30)), count(t_wstat(:'f1', 'generated', 0.35, :'a1')) FROM generate_series(1, 9) \gset
CALL drain(1);
SELECT * FROM kudos_reconcile(:'s');
UPDATE users SET kudos = kudos + 1 WHERE id = 1;
SELECT target, key, expected, actual, drift FROM kudos_reconcile(:'s');
SELECT outcome FROM kudos_repair(:'s');
CALL drain();
SELECT * FROM kudos_reconcile(:'s');

\echo -- Counters: each drifts, each is reported; those that a row can feed alone are repaired
\i :fixture
SELECT t_ustat(1, 'accumulated', 10), t_rec(1, 'USAGE', 'image', 2.5), t_wstat(:'f1', 'generated', 7, :'a1'),
       t_contrib(:'f1', 'contributions', 3, :'a1'), t_contrib(:'f1', 'fulfilments', 1, :'a1') \gset
CALL drain();
SELECT kudos_snapshot() AS s \gset
SELECT t_ustat(1, 'accumulated', 1), t_rec(1, 'USAGE', 'image', 1.25), t_rec(1, 'REQUEST', 'image', 0) \gset
UPDATE kudos_stat_events SET unit = 'count' WHERE stat_action = 'REQUEST';
SELECT t_wstat(:'f1', 'generated', 1, :'a1'), t_wstat(:'f2', 'generated', 5), t_contrib(:'f2', 'fulfilments', 2, :'a1') \gset
CALL drain();
SELECT * FROM kudos_reconcile(:'s');
UPDATE user_stats SET value = value + 100;
UPDATE user_records SET value = value + 0.5;
UPDATE worker_stats SET value = value - 1;
UPDATE workers SET kudos = kudos + 1, contributions = contributions + 2, fulfilments = fulfilments - 3;
UPDATE teams SET kudos = kudos + 1, contributions = contributions + 2, fulfilments = fulfilments - 3;
SELECT target, key, expected, actual, drift, events FROM kudos_reconcile(:'s');
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
SELECT entry_type, user_id, worker_id, team_id, amount, unit, stat_action, record, applied, detail->'kudos_reconciliation'->>'target' AS target
FROM kudos_stat_events WHERE detail ? 'kudos_reconciliation' ORDER BY id;
CALL drain();
SELECT count(*) AS quarantined FROM t_quarantine;
SELECT target, key, drift FROM kudos_reconcile(:'s');
SELECT outcome, count(*) FROM kudos_repair(:'s') GROUP BY 1;
SELECT count(*) AS unapplied FROM kudos_stat_events WHERE NOT applied;
\echo -- a counter that was deleted comes back, one that appeared from nowhere goes to zero
SELECT kudos_snapshot() AS s \gset
DELETE FROM user_stats;
INSERT INTO user_stats (user_id, action, value) VALUES (2, 'invented', 5);
SELECT target, key, expected, actual FROM kudos_reconcile(:'s');
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
CALL drain();
SELECT * FROM kudos_reconcile(:'s');
SELECT * FROM t_ustats;

\echo -- Who came after the snapshot has no baseline, who went has no value; what they did is no drift
\i :fixture
SELECT kudos_snapshot() AS s \gset
INSERT INTO users (id, username, oauth_id, kudos) VALUES (6, 'fay', 'acct-0006', 77);
INSERT INTO workers (id, user_id, name, kudos) VALUES ('00000000-0000-0000-0000-0000000000f3', 6, 'wk-3', 5);
SELECT t_post(6, 1), t_ustat(6, 'accumulated', 1), t_wstat('00000000-0000-0000-0000-0000000000f3', 'generated', 1), t_wstat(:'f1', 'generated', 4) \gset
CALL drain();
DELETE FROM workers WHERE id = :'f1';
DELETE FROM users WHERE id = 5;
SELECT * FROM kudos_reconcile(:'s');
UPDATE user_stats SET value = 2 WHERE user_id = 6;
SELECT target, key, drift FROM kudos_reconcile(:'s');

\echo -- In shadow mode the application writes balances itself, with rows that are born applied
\i :fixture
UPDATE kudos_ledger_control SET mode = 'shadow';
SELECT kudos_snapshot() AS s \gset
BEGIN;
INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount, applied) VALUES (gen_random_uuid(), 'AWARD', 1, 12, true);
INSERT INTO kudos_stat_events (event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
  VALUES (gen_random_uuid(), 'AWARD', 1, 12, 'kudos', 'awarded', 'user_kudos', true);
UPDATE users SET kudos = kudos + 12 WHERE id = 1;
INSERT INTO user_stats (user_id, action, value) VALUES (1, 'awarded', 12);
COMMIT;
SELECT * FROM kudos_reconcile(:'s');
UPDATE users SET kudos = kudos - 2 WHERE id = 1;
SELECT target, key, amount, outcome FROM kudos_repair(:'s');
CALL fold();
SELECT kudos FROM users WHERE id = 1;

\echo -- Rows that were queued or quarantined at the snapshot count when they are folded
\i :fixture
SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10), t_rec(2, 'NEWTYPE', 'image', 3, '00000000-0000-0000-0000-00000000e001') \gset
CALL fold(1);
SELECT t_post(2, 10), t_ustat(2, 'accumulated', 10) \gset
CALL fold(2);
SELECT t_post(2, 5), t_ustat(2, 'accumulated', 5) \gset
SELECT kudos_snapshot() AS s \gset
SELECT archive, mark, open_ids, band_rows, last_id FROM kudos_snapshot_marks ORDER BY 1;
CALL drain();
ALTER TYPE userrecordtypes ADD VALUE 'NEWTYPE';
SELECT kudos_requeue('00000000-0000-0000-0000-00000000e001');
SELECT * FROM kudos_reconcile(:'s');
CALL drain();
SELECT * FROM t_records;
SELECT * FROM kudos_reconcile(:'s');
SELECT * FROM kudos_reconcile(:'s', true);

\echo -- The totals of every snapshot are those of the whole archive, whatever it started from
\i :fixture
SELECT count(t_post(1 + i % 4, i - 3)), count(t_post(1 + i % 4, 1, true)) FROM generate_series(1, 20) i \gset
CALL drain(7);
SELECT kudos_snapshot() AS s1 \gset
SELECT count(t_post(1 + i % 4, 2 - i)), count(t_post(1 + i % 4, 0.5, true)) FROM generate_series(1, 20) i \gset
CALL fold(7);
SELECT kudos_snapshot() AS s2 \gset
CALL drain(7);
SELECT kudos_snapshot() AS s3, kudos_snapshot(true) AS s4 \gset
SELECT count(*) AS differ FROM kudos_balance_snapshots b CROSS JOIN LATERAL (
    SELECT coalesce(sum(amount) FILTER (WHERE NOT escrow), 0) AS spendable, coalesce(sum(amount) FILTER (WHERE escrow), 0) AS escrow
    FROM kudos_ledger l WHERE l.user_id = b.user_id AND applied) a
WHERE snapshot_id IN (:'s3', :'s4') AND (a.spendable, a.escrow) IS DISTINCT FROM (applied_balance_total, applied_escrow_total);
SELECT s_ord, (SELECT count(*) FROM kudos_reconcile(id::uuid)) AS windowed, (SELECT count(*) FROM kudos_reconcile(id::uuid, true)) AS "full"
FROM unnest(ARRAY[:'s1', :'s2', :'s3', :'s4']) WITH ORDINALITY u(id, s_ord) ORDER BY s_ord;

\echo -- A repair from one snapshot is not undone from another
\i :fixture
SELECT kudos_snapshot() AS s1 \gset
UPDATE users SET kudos = 1500 WHERE id = 1;
SELECT kudos_snapshot() AS s2 \gset
SELECT target, key, amount, outcome FROM kudos_repair(:'s1');
CALL drain();
SELECT target, key, drift FROM kudos_reconcile(:'s1');
SELECT target, key, drift FROM kudos_reconcile(:'s2');
SELECT target, key, amount, outcome FROM kudos_repair(:'s2');
SELECT kudos FROM users WHERE id = 1;

\echo -- Refused: while a repair is queued
UPDATE users SET kudos = 1 WHERE id = 2;
SELECT kudos_snapshot() AS s \gset
UPDATE users SET kudos = 2 WHERE id = 2;
SELECT outcome FROM kudos_repair(:'s');
SELECT * FROM refusal('SELECT kudos_snapshot()');
CALL drain();
SELECT count(kudos_snapshot());
\echo -- Refused: unknown, NULL, read-only
SELECT * FROM refusal($$SELECT kudos_reconcile('00000000-0000-0000-0000-000000000000')$$);
SELECT * FROM refusal($$SELECT kudos_reconcile('00000000-0000-0000-0000-000000000000', true)$$);
SELECT * FROM refusal($$SELECT kudos_repair(NULL)$$);
SELECT * FROM refusal($$SELECT kudos_snapshot(NULL)$$);
BEGIN READ ONLY;
SELECT count(*) FROM kudos_reconcile(:'s');
SELECT * FROM refusal(format('SELECT kudos_repair(%L)', :'s'));
SELECT * FROM refusal('SELECT kudos_snapshot()');
COMMIT;
\echo -- Refused: a snapshot of the Horde holds no mark; the whole archive serves
INSERT INTO kudos_balance_snapshots (snapshot_id, user_id, balance, escrow, applied_balance_total, applied_escrow_total)
SELECT '00000000-0000-0000-0000-0000000000aa', user_id, balance, escrow, applied_balance_total, applied_escrow_total FROM kudos_balance_snapshots WHERE snapshot_id = :'s' AND user_id = 1;
UPDATE users SET kudos = kudos + 1 WHERE id = 1;
SELECT * FROM refusal($$SELECT kudos_reconcile('00000000-0000-0000-0000-0000000000aa')$$);
SELECT target, key, drift FROM kudos_reconcile('00000000-0000-0000-0000-0000000000aa', true);
SELECT target, key, amount, outcome FROM kudos_repair('00000000-0000-0000-0000-0000000000aa', true);
CALL drain();
SELECT * FROM kudos_reconcile('00000000-0000-0000-0000-0000000000aa', true);

\echo -- Refused: a row that appears below the mark, queued, then folded
\i :fixture
SELECT count(t_post(1, 1)) FROM generate_series(1, 5) \gset
DELETE FROM kudos_ledger WHERE id = 3;
CALL drain();
SELECT kudos_snapshot() AS s \gset
INSERT INTO kudos_ledger (id, event_id, entry_type, user_id, amount) OVERRIDING SYSTEM VALUE VALUES (3, gen_random_uuid(), 'GENERATION', 1, 7);
SELECT * FROM refusal(format('SELECT kudos_reconcile(%L)', :'s'));
CALL drain();
SELECT * FROM refusal(format('SELECT kudos_reconcile(%L)', :'s'));
SELECT * FROM refusal(format('SELECT kudos_repair(%L)', :'s'));
SELECT count(*) FROM kudos_reconcile(:'s', true);
\echo -- Refused: archive rows that changed, and queued ones that went
\i :fixture
SELECT count(t_post(1, 1)), count(t_ustat(1, 'accumulated', 1)) FROM generate_series(1, 5) \gset
CALL drain();
SELECT t_ustat(1, 'accumulated', 2) \gset
SELECT kudos_snapshot() AS s \gset
BEGIN;
UPDATE kudos_ledger SET amount = 2 WHERE id = 2;
SELECT state, detail FROM refusal(format('SELECT kudos_reconcile(%L)', :'s'));
ROLLBACK;
BEGIN;
UPDATE kudos_stat_events SET applied = false WHERE id = 2;
SELECT state, detail FROM refusal(format('SELECT kudos_reconcile(%L)', :'s'));
ROLLBACK;
BEGIN;
DELETE FROM kudos_stat_events WHERE NOT applied;
SELECT state, detail FROM refusal(format('SELECT kudos_reconcile(%L)', :'s'));
ROLLBACK;
SELECT * FROM kudos_reconcile(:'s');
\echo -- Refused: ids that begin anew; the next snapshot reads the archive from its beginning
CALL drain();
TRUNCATE kudos_ledger RESTART IDENTITY;
SELECT t_post(1, 3) \gset
SELECT state, detail FROM refusal(format('SELECT kudos_reconcile(%L)', :'s'));
CALL drain();
SELECT kudos_snapshot() AS s \gset
SELECT user_id, applied_balance_total FROM kudos_balance_snapshots WHERE snapshot_id = :'s' AND user_id = 1;
SELECT * FROM kudos_reconcile(:'s');

\echo -- Ids that are not simply counted up: everything is since the mark
\i :fixture
CREATE SEQUENCE by_twenty CACHE 20;
ALTER TABLE kudos_ledger ALTER id DROP IDENTITY;
ALTER TABLE kudos_ledger ALTER id SET DEFAULT nextval('by_twenty');
SELECT t_post(1, 1) \gset
CALL drain();
SELECT kudos_snapshot() AS s \gset
SELECT archive, mark = -9223372036854775808 AS from_the_beginning, last_id, numbering IS NULL AS unnumbered FROM kudos_snapshot_marks ORDER BY 1;
ALTER SEQUENCE by_twenty CACHE 1;
SELECT t_post(1, 1) \gset
CALL drain();
SELECT * FROM kudos_reconcile(:'s');
SELECT kudos_snapshot() AS s \gset
SELECT archive, mark, last_id FROM kudos_snapshot_marks WHERE snapshot_id = :'s' ORDER BY 1;
\echo -- Ids drawn by the transaction itself: what an earlier snapshot found settled still is
BEGIN;
SELECT t_post(1, 1) \gset
SELECT kudos_snapshot() AS s2 \gset
SELECT archive, mark, last_id FROM kudos_snapshot_marks WHERE snapshot_id = :'s2' ORDER BY 1;
COMMIT;
CALL drain();
SELECT * FROM kudos_reconcile(:'s2');

\echo -- A fixed snapshot of the caller does not make them blind
\i :fixture
DROP SEQUENCE by_twenty;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT kudos FROM users WHERE id = 1;
SELECT kudos_snapshot() AS s \gset
COMMIT;
UPDATE users SET kudos = 5000 WHERE id = 1;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT target, key, drift FROM kudos_reconcile(:'s');
SELECT target, key, outcome FROM kudos_repair(:'s');
COMMIT;
CALL drain();
SELECT kudos FROM users WHERE id = 1;

\echo -- Written means written: a trigger that skips or changes rows
CREATE FUNCTION skip_row() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN NULL; END$$;
CREATE FUNCTION halve_amount() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.amount := NEW.amount / 2; RETURN NEW; END$$;
CREATE TRIGGER t BEFORE INSERT ON kudos_balance_snapshots FOR EACH ROW WHEN (NEW.user_id = 3) EXECUTE FUNCTION skip_row();
SELECT * FROM refusal('SELECT kudos_snapshot()');
DROP TRIGGER t ON kudos_balance_snapshots;
CREATE TRIGGER t BEFORE INSERT ON kudos_ledger FOR EACH ROW EXECUTE FUNCTION halve_amount();
UPDATE users SET kudos = 5000 WHERE id = 2;
SELECT * FROM refusal(format('SELECT kudos_repair(%L)', :'s'));
SELECT count(*) AS unapplied FROM kudos_ledger WHERE NOT applied;

\echo -- In schemas of any name, other tables of the same name being in the way
\i :fixture
SET client_min_messages = warning;
DROP EXTENSION kudos_projector CASCADE;
CREATE SCHEMA "the ""Horde""";
CREATE SCHEMA "an extension's";
DO $$
DECLARE t text;
BEGIN
  FOREACH t IN ARRAY ARRAY['users', 'teams', 'workers', 'user_stats', 'user_records', 'worker_stats', 'user_roles', 'user_suspicions',
    'kudos_ledger', 'kudos_stat_events', 'kudos_reservations', 'kudos_ledger_control', 'kudos_ledger_applier_state', 'kudos_balance_snapshots'] LOOP
    EXECUTE format('ALTER TABLE public.%I SET SCHEMA "the ""Horde"""', t);
    EXECUTE format('CREATE TABLE public.%I (id text)', t);
  END LOOP;
END $$;
CREATE EXTENSION kudos_projector SCHEMA "an extension's";
RESET client_min_messages;
SET kudos_projector.schema = 'the "Horde"';
SELECT "an extension's".kudos_snapshot() AS s \gset
UPDATE "the ""Horde""".users SET kudos = 1 WHERE id = 2;
SELECT target, key, drift FROM "an extension's".kudos_reconcile(:'s');
SELECT target, key, amount, outcome FROM "an extension's".kudos_repair(:'s');
SELECT currency_rows FROM "an extension's".kudos_fold_now();
SELECT target, key, drift FROM "an extension's".kudos_reconcile(:'s', true);
RESET kudos_projector.schema;
SET client_min_messages = warning;
DROP SCHEMA "the ""Horde""", "an extension's" CASCADE;
RESET client_min_messages;

\echo -- As the owner of the ledger, whoever calls
\i :fixture
CREATE ROLE snapshots_owner;
CREATE ROLE snapshots_caller;
GRANT ALL ON users, user_stats, user_records, worker_stats, workers, teams, user_roles, user_suspicions, kudos_reservations, kudos_balance_snapshots,
  kudos_ledger_control, kudos_ledger_applier_state TO snapshots_owner;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO snapshots_owner;
GRANT CREATE ON SCHEMA public TO snapshots_owner;
ALTER TABLE kudos_ledger OWNER TO snapshots_owner;
ALTER TABLE kudos_stat_events OWNER TO snapshots_owner;
CREATE FUNCTION show_writer() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE NOTICE '% writes %', current_user, TG_TABLE_NAME; RETURN NULL; END$$;
CREATE TRIGGER w AFTER INSERT ON kudos_balance_snapshots EXECUTE FUNCTION show_writer();
CREATE TRIGGER w AFTER INSERT ON kudos_ledger EXECUTE FUNCTION show_writer();
SET ROLE snapshots_caller;
SELECT state, message FROM refusal('SELECT kudos_snapshot()');
RESET ROLE;
GRANT EXECUTE ON FUNCTION kudos_snapshot(boolean), kudos_reconcile(uuid, boolean), kudos_repair(uuid, boolean) TO snapshots_caller;
SET ROLE snapshots_caller;
SET search_path = pg_temp;
SELECT public.kudos_snapshot() AS s \gset
RESET search_path;
RESET ROLE;
UPDATE users SET kudos = 5000 WHERE id = 2;
SET ROLE snapshots_caller;
SELECT target, key, drift FROM kudos_reconcile(:'s');
SELECT target, key, outcome FROM kudos_repair(:'s');
RESET ROLE;
\i :fixture
DROP OWNED BY snapshots_owner, snapshots_caller;
DROP ROLE snapshots_owner, snapshots_caller;
