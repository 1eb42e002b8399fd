-- Written means written: triggers and rules that veto, change or refuse what the projector writes.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\set f1 '''00000000-0000-0000-0000-0000000000f1'''
\set f2 '''00000000-0000-0000-0000-0000000000f2'''
\set a1 '''00000000-0000-0000-0000-0000000000a1'''
\set b1 '''00000000-0000-0000-0000-0000000000b1'''
\i :fixture
CREATE OR REPLACE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';

\echo -- D01 trigger that vetoes the balance of one user: his row waits, others fold
CREATE TRIGGER veto BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION veto();
SELECT t_post(1, 5), t_post(2, 5) \gset
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT user_id, amount, applied FROM kudos_ledger ORDER BY id;
CALL drain(1);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
DROP TRIGGER veto ON users;
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_pending;

\echo -- D01 trigger that changes the value
\i :fixture
CREATE OR REPLACE FUNCTION tamper() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.kudos := NEW.kudos + 1; RETURN NEW; END';
CREATE TRIGGER tamper BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION tamper();
SELECT t_post(1, 5), t_post(2, 5), t_ustat(2, 'accumulated', 3) \gset
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT user_id, amount, applied FROM kudos_ledger ORDER BY id;
SELECT * FROM t_ustats;
DROP TRIGGER tamper ON users;
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
\echo -- D01 trigger that changes something else is welcome
\i :fixture
CREATE TABLE trail (id serial, user_id int, was bigint, became bigint);
CREATE OR REPLACE FUNCTION trail() RETURNS trigger LANGUAGE plpgsql AS
 'BEGIN NEW.username := NEW.username || ''!''; INSERT INTO public.trail (user_id, was, became) VALUES (NEW.id, OLD.kudos, NEW.kudos); RETURN NEW; END';
CREATE TRIGGER trail BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION trail();
SELECT t_post(1, 5), t_post(2, 5) \gset
CALL drain();
SELECT user_id, was, became FROM trail ORDER BY id;
SELECT * FROM t_pending;
DROP TABLE trail;
\echo -- D01 a row whose value stays as it is was written, although no row was updated
\i :fixture
SELECT t_post(1, 0.20), t_post(2, 5), t_post(2, -5) \gset
CALL drain();
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_pending;

\echo -- D01 veto of a new counter, of an old one, of a record, of a worker, of a team
\i :fixture
INSERT INTO user_stats (user_id, action, value) VALUES (3, 'accumulated', 1), (4, 'accumulated', 1);
CREATE TRIGGER veto BEFORE INSERT ON user_stats FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION veto();
CREATE TRIGGER veto_old BEFORE UPDATE ON user_stats FOR EACH ROW WHEN (NEW.user_id = 3) EXECUTE FUNCTION veto();
CREATE TRIGGER veto BEFORE INSERT ON user_records FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION veto();
CREATE TRIGGER veto BEFORE INSERT OR UPDATE ON worker_stats FOR EACH ROW WHEN (NEW.action = 'bad') EXECUTE FUNCTION veto();
CREATE TRIGGER veto BEFORE UPDATE ON teams FOR EACH ROW WHEN (NEW.name = 'team-b') EXECUTE FUNCTION veto();
SELECT t_ustat(1, 'accumulated', 5), t_ustat(2, 'accumulated', 5), t_ustat(3, 'accumulated', 5), t_ustat(4, 'accumulated', 5),
  t_rec(1, 'USAGE', 'image', 1), t_rec(2, 'USAGE', 'image', 1),
  t_wstat(:f1, 'good', 5, :a1), t_wstat(:f1, 'bad', 5, :a1), t_wstat(:f2, 'good', 5, :b1), t_contrib(:f2, 'fulfilments', 1), t_post(2, 5) \gset
CALL drain();
SELECT * FROM t_ustats;
SELECT * FROM t_records;
SELECT * FROM t_wstats;
SELECT name, kudos, fulfilments FROM workers ORDER BY name;
SELECT name, kudos FROM teams ORDER BY name;
SELECT id, coalesce(user_id::text, worker_id::text) AS whose, stat_action FROM kudos_stat_events WHERE NOT applied ORDER BY id;
SELECT ledger, quarantined FROM t_state;
\echo -- D01 and once the triggers are gone
DROP TRIGGER veto ON user_stats;
DROP TRIGGER veto_old ON user_stats;
DROP TRIGGER veto ON user_records;
DROP TRIGGER veto ON worker_stats;
DROP TRIGGER veto ON teams;
CALL drain();
SELECT * FROM t_ustats;
SELECT * FROM t_records;
SELECT * FROM t_wstats;
SELECT name, kudos, fulfilments FROM workers ORDER BY name;
SELECT name, kudos FROM teams ORDER BY name;
SELECT ledger, stats, quarantined FROM t_state;

\echo -- D01 a new counter that comes out with another value
\i :fixture
CREATE OR REPLACE FUNCTION tamper() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.value := 0; RETURN NEW; END';
CREATE TRIGGER tamper BEFORE INSERT ON user_stats FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION tamper();
SELECT t_ustat(1, 'accumulated', 5), t_ustat(2, 'accumulated', 5), t_ustat(3, 'accumulated', 5) \gset
CALL drain();
SELECT * FROM t_ustats;
DROP TRIGGER tamper ON user_stats;
CALL drain();
SELECT * FROM t_ustats;
\echo -- D01 a new counter that comes out under another key
\i :fixture
CREATE OR REPLACE FUNCTION tamper() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.user_id := 4; RETURN NEW; END';
CREATE TRIGGER tamper BEFORE INSERT ON user_stats FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION tamper();
SELECT t_ustat(1, 'accumulated', 5), t_ustat(2, 'accumulated', 5), t_ustat(3, 'accumulated', 5) \gset
CALL drain();
SELECT * FROM t_ustats;
DROP TRIGGER tamper ON user_stats;
CALL drain();
SELECT * FROM t_ustats;
\echo -- D01 last_active that is not taken over
\i :fixture
UPDATE users SET last_active = '2026-01-01' WHERE id IN (1, 2);
CREATE OR REPLACE FUNCTION tamper() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.last_active := OLD.last_active; RETURN NEW; END';
CREATE TRIGGER tamper BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION tamper();
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail)
  SELECT '2026-02-01', gen_random_uuid(), 'STAT_ACTIVITY', u, 0, 'count', 'last_active', '{"touch_last_active": true}' FROM generate_series(1, 2) u;
SELECT t_post(2, 5) \gset
CALL drain();
SELECT id, last_active, kudos FROM users WHERE id IN (1, 2) ORDER BY id;
SELECT user_id, applied FROM kudos_stat_events ORDER BY id;
DROP TRIGGER tamper ON users;
CALL drain();
SELECT id, last_active, kudos FROM users WHERE id IN (1, 2) ORDER BY id;

\echo -- D01 veto on marking rows of kudos_ledger: they wait, everything else folds
\i :fixture
CREATE TRIGGER veto BEFORE UPDATE ON kudos_ledger FOR EACH ROW WHEN (OLD.user_id = 2) EXECUTE FUNCTION veto();
SELECT t_post(1, 5), t_post(2, 5), t_ustat(1, 'accumulated', 5) \gset
SELECT currency_rows, stat_rows FROM kudos_fold_now();
SELECT * FROM t_state;
DROP TRIGGER veto ON kudos_ledger;
CALL fold();
SELECT * FROM t_state;
\echo -- D01 a flag that is put back
\i :fixture
CREATE OR REPLACE FUNCTION tamper() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.applied := false; RETURN NEW; END';
CREATE TRIGGER tamper BEFORE UPDATE ON kudos_stat_events FOR EACH ROW EXECUTE FUNCTION tamper();
SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5) \gset
SELECT currency_rows, stat_rows FROM kudos_fold_now();
SELECT * FROM t_state;
DROP TRIGGER tamper ON kudos_stat_events;
CALL fold();
SELECT * FROM t_state;
\echo -- D01 veto on a quarantine: the event stays as it is, valid rows and all
\i :fixture
CREATE TRIGGER veto BEFORE UPDATE ON kudos_stat_events FOR EACH ROW WHEN (NEW.quarantined) EXECUTE FUNCTION veto();
\set event 00000000-0000-0000-0000-00000000e001
SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5), t_ustat(777, 'accumulated', 5, :'event'), t_ustat(1, 'accumulated', 7, :'event') \gset
SELECT quarantined_rows FROM kudos_fold_now();
SELECT * FROM t_state;
DROP TRIGGER veto ON kudos_stat_events;
CALL fold();
SELECT * FROM t_state;
\echo -- D01 veto on a hold
\i :fixture
CREATE TRIGGER veto BEFORE UPDATE ON kudos_reservations FOR EACH ROW EXECUTE FUNCTION veto();
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
SELECT t_post(1, -25, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(2, 5) \gset
SELECT currency_rows FROM kudos_fold_now();
SELECT * FROM t_state;
SELECT * FROM t_holds;
DROP TRIGGER veto ON kudos_reservations;
CALL fold();
SELECT * FROM t_state;
SELECT * FROM t_holds;
\echo -- D01 veto on a floor adjustment
\i :fixture
CREATE TRIGGER veto BEFORE INSERT ON kudos_ledger FOR EACH ROW WHEN (NEW.entry_type = 'FLOOR_ADJUSTMENT') EXECUTE FUNCTION veto();
SELECT t_post(4, -100), t_post(1, 5) \gset
SELECT currency_rows, floor_adjustments FROM kudos_fold_now();
SELECT * FROM t_state;
DROP TRIGGER veto ON kudos_ledger;
CALL fold();
SELECT * FROM t_state;
SELECT user_id, amount FROM t_floored;
\echo -- D01 veto on the heartbeat: folding goes on
\i :fixture
CREATE TRIGGER veto BEFORE UPDATE ON kudos_ledger_applier_state FOR EACH ROW EXECUTE FUNCTION veto();
SELECT t_post(1, 5) \gset
SELECT currency_rows FROM kudos_fold_now();
SELECT * FROM t_state;
DROP TRIGGER veto ON kudos_ledger_applier_state;
CALL fold();
SELECT * FROM t_state;

\echo -- D01 a rule that swallows the update
\i :fixture
CREATE RULE swallow AS ON UPDATE TO teams DO INSTEAD NOTHING;
SELECT t_contrib(:f1, 'contributions', 1, :a1), t_post(1, 5) \gset
\set VERBOSITY terse
SELECT kudos_fold_now();
\set VERBOSITY default
SELECT * FROM t_state;
DROP RULE swallow ON teams;
CALL fold();
SELECT * FROM t_state;
SELECT name, contributions FROM teams ORDER BY name;

\echo -- D03 a trigger that raises for one account: his rows wait, others fold, nothing is quarantined, the session is sound
\i :fixture
CREATE OR REPLACE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'audit table full'; END$$;
CREATE TRIGGER boom BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION boom();
SELECT t_post(1, 5), t_post(2, 5), t_post(3, 5), t_ustat(1, 'accumulated', 5), t_ustat(2, 'accumulated', 5, d => '{"touch_last_active": true}') \gset
SELECT currency_rows, stat_rows, settled FROM kudos_fold_now();
SELECT currency_rows, stat_rows, settled FROM kudos_fold_now();
DO $$
BEGIN
  FOR i IN 1..500 LOOP
    PERFORM kudos_fold_now();
  END LOOP;
END $$;
SELECT * FROM t_state;
SELECT user_id, applied FROM kudos_ledger ORDER BY id;
SELECT user_id, applied FROM kudos_stat_events ORDER BY id;
DROP TRIGGER boom ON users;
CALL drain();
SELECT * FROM t_state;
SELECT id, kudos FROM users WHERE id IN (1, 2, 3) ORDER BY id;

\echo -- D03 one that raises for one row of every other table that a cycle writes
\i :fixture
INSERT INTO user_stats (user_id, action, value) VALUES (2, 'accumulated', 1), (3, 'accumulated', 1);
INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60), ('upfront:j2', 2, 60, 60);
CREATE TRIGGER boom BEFORE UPDATE ON user_stats FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION boom();
CREATE TRIGGER boom_new BEFORE INSERT ON user_stats FOR EACH ROW WHEN (NEW.user_id = 5) EXECUTE FUNCTION boom();
CREATE TRIGGER boom BEFORE INSERT ON user_records FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION boom();
CREATE TRIGGER boom BEFORE INSERT ON worker_stats FOR EACH ROW WHEN (NEW.action = 'bad') EXECUTE FUNCTION boom();
CREATE TRIGGER boom BEFORE UPDATE ON workers FOR EACH ROW WHEN (NEW.contributions > 8) EXECUTE FUNCTION boom();
CREATE TRIGGER boom AFTER UPDATE ON teams FOR EACH ROW WHEN (NEW.name = 'team-b') EXECUTE FUNCTION boom();
CREATE TRIGGER boom BEFORE UPDATE ON kudos_reservations FOR EACH ROW WHEN (NEW.business_id = 'upfront:j2') EXECUTE FUNCTION boom();
CREATE TRIGGER boom_floor BEFORE INSERT ON kudos_ledger FOR EACH ROW WHEN (NEW.user_id = 4 AND NEW.applied) EXECUTE FUNCTION boom();
CREATE TRIGGER boom_mark BEFORE UPDATE ON kudos_ledger FOR EACH ROW WHEN (NEW.amount = 13) EXECUTE FUNCTION boom();
CREATE TRIGGER boom BEFORE UPDATE ON kudos_stat_events FOR EACH ROW WHEN (NEW.quarantine_reason = 'missing_user' OR NEW.amount = 13) EXECUTE FUNCTION boom();
SELECT t_post(1, 13), t_post(1, 1), t_post(4, -100), t_post(3, -100), t_post(1, -5, d => '{"reservation_id": "upfront:j1"}'),
  t_post(2, -5, d => '{"reservation_id": "upfront:j2"}'), t_ustat(2, 'accumulated', 5), t_ustat(3, 'accumulated', 5), t_ustat(5, 'accumulated', 5),
  t_ustat(1, 'accumulated', 13), t_ustat(1, 'accumulated', 5), t_ustat(777, 'accumulated', 5, :'event'), t_rec(1, 'USAGE', 'image', 1), t_rec(2, 'USAGE', 'image', 1),
  t_wstat(:f1, 'good', 5, :a1), t_wstat(:f1, 'bad', 5, :a1), t_contrib(:f2, 'contributions', 9), t_contrib(:f1, 'contributions', 8, :a1),
  t_contrib(:f1, 'fulfilments', 1, :b1) \gset
SELECT currency_rows, stat_rows, quarantined_rows, floor_adjustments FROM kudos_fold_now();
SELECT user_id, amount, applied FROM kudos_ledger ORDER BY id;
SELECT coalesce(user_id::text, worker_id::text) AS whose, stat_action, amount, applied, quarantined FROM kudos_stat_events ORDER BY id;
SELECT * FROM t_ustats;
SELECT * FROM t_records;
SELECT * FROM t_wstats;
SELECT * FROM t_holds;
\echo -- D03 and once they are gone
DROP TRIGGER boom ON user_stats;
DROP TRIGGER boom_new ON user_stats;
DROP TRIGGER boom ON user_records;
DROP TRIGGER boom ON worker_stats;
DROP TRIGGER boom ON workers;
DROP TRIGGER boom ON teams;
DROP TRIGGER boom ON kudos_reservations;
DROP TRIGGER boom_floor ON kudos_ledger;
DROP TRIGGER boom_mark ON kudos_ledger;
DROP TRIGGER boom ON kudos_stat_events;
CALL drain();
SELECT ledger, stats, quarantined FROM t_state;
SELECT * FROM t_ustats;
SELECT * FROM t_records;
SELECT * FROM t_wstats;
SELECT * FROM t_holds;
SELECT name, kudos, contributions, fulfilments FROM workers ORDER BY name;
SELECT name, kudos, contributions, fulfilments FROM teams ORDER BY name;
\echo -- D03 one that raises for every account fails the cycle, and nothing is folded
\i :fixture
INSERT INTO users (id, username, oauth_id) SELECT 1000 + g, 'many', 'many-' || g FROM generate_series(1, 300) g;
CREATE TRIGGER boom BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION boom();
SELECT count(t_post(1000 + g, 50)) FROM generate_series(1, 300) g;
\set VERBOSITY terse
SELECT kudos_fold_now();
\set VERBOSITY default
SELECT * FROM t_state;
DROP TRIGGER boom ON users;
CALL drain();
SELECT ledger, (SELECT sum(kudos) FROM users WHERE id > 1000) FROM t_state;
\echo -- D03 what others are to blame for is no row of ours: a trigger that finds the disk full, or a deadlock, fails the cycle
\i :fixture
CREATE OR REPLACE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = TG_ARGV[0]; END$$;
SELECT t_post(1, 5), t_post(2, 5) \gset
\set VERBOSITY terse
CREATE TRIGGER disk_full BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION disk_full('53100');
SELECT kudos_fold_now();
DROP TRIGGER disk_full ON users;
CREATE TRIGGER disk_full BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION disk_full('40P01');
SELECT kudos_fold_now();
\set VERBOSITY default
SELECT * FROM t_state;
DROP TRIGGER disk_full ON users;
\echo -- D03 a constraint that one account would break
\i :fixture
ALTER TABLE users ADD CHECK (kudos < 600 OR id <> 2);
SELECT t_post(1, 5), t_post(2, 100), t_post(3, 5) \gset
CALL drain();
SELECT user_id, applied FROM kudos_ledger ORDER BY id;
\echo -- D03 one that is deferred to the commit: kudos_catch_up() finds whose it is, too
\i :fixture
CREATE CONSTRAINT TRIGGER boom AFTER UPDATE ON users DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION boom();
ALTER TABLE users OWNER TO CURRENT_USER;
SELECT t_post(1, 5), t_post(2, 100), t_post(3, 5) \gset
SET client_min_messages = warning;
CALL kudos_catch_up();
RESET client_min_messages;
SELECT user_id, applied FROM kudos_ledger ORDER BY id;
DROP TRIGGER boom ON users;
SET client_min_messages = warning;
CALL kudos_catch_up();
RESET client_min_messages;
SELECT user_id, applied FROM kudos_ledger ORDER BY id;
\echo -- D03 promotion and heartbeat that raise: folding goes on
\i :fixture
SET kudos_projector.trust_threshold = 100;
UPDATE users SET evaluating_kudos = 200, created = '2022-01-01' WHERE id = 1;
CREATE TRIGGER boom BEFORE INSERT ON user_roles FOR EACH ROW EXECUTE FUNCTION boom();
CREATE TRIGGER boom BEFORE UPDATE ON kudos_ledger_applier_state FOR EACH ROW EXECUTE FUNCTION boom();
SELECT t_post(1, 5) \gset
SELECT currency_rows, promoted_users FROM kudos_fold_now();
SELECT * FROM t_state;
DROP TRIGGER boom ON user_roles;
DROP TRIGGER boom ON kudos_ledger_applier_state;
SELECT currency_rows, promoted_users FROM kudos_fold_now();
SELECT * FROM t_state;
RESET kudos_projector.trust_threshold;

\echo -- Triggers that are disabled, or only for replicas, do not fire
\i :fixture
CREATE TRIGGER veto BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION veto();
ALTER TABLE users DISABLE TRIGGER veto;
SELECT t_post(1, 5) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
SET session_replication_role = replica;
ALTER TABLE users ENABLE REPLICA TRIGGER veto;
SELECT t_post(1, 5) \gset
CALL fold();
SELECT kudos FROM users WHERE id = 1;
RESET session_replication_role;
DROP TRIGGER veto ON users;
DROP FUNCTION veto();
DROP FUNCTION tamper();
DROP FUNCTION boom();
DROP FUNCTION disk_full();
DROP FUNCTION trail();
