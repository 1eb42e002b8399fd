-- What tests with several sessions share: the cast put back, a fold that answers with what it did,
-- and the right values of all targets, computed a second time from the archive alone.
--
--   CALL reset_case();                 all tables as the fixture left them, ids from 1
--   CALL remember_opening();           after changing targets by hand; reset_case() calls it, too
--   CALL outside('users.kudos', '1', 7);       somebody who is no projector added 7 there
--   SELECT fold(1000);                 one cycle, as one line of text
--   SELECT * FROM target_errors();     nothing, at every commit; otherwise what is wrong
--   SELECT kudos_repair(nth_snapshot(1));      snapshots are counted from the first since the reset
--
-- Needs the tables of the fixture or of the application, and the extension, all in "public".
\set QUIET on
SET client_min_messages = warning;

CREATE TABLE t_opening (target text, key text, value numeric, PRIMARY KEY (target, key));
CREATE TABLE t_outside (target text, key text, amount numeric);
CREATE TABLE t_touched (user_id bigint PRIMARY KEY, last_active timestamp);

-- The numbers that stand in the targets, one a line, with the remainder of those that have one.
CREATE VIEW t_standing AS
  SELECT 'users.kudos' AS target, u.id::text AS key, u.kudos::numeric AS shown, coalesce(r.kudos, 0) AS cents
    FROM users u LEFT JOIN kudos_remainder_users r ON r.id = u.id
  UNION ALL
  SELECT 'users.evaluating_kudos', u.id::text, u.evaluating_kudos, coalesce(r.evaluating_kudos, 0)
    FROM users u LEFT JOIN kudos_remainder_users r ON r.id = u.id
  UNION ALL
  SELECT 'user_stats', s.user_id || '/' || s.action, s.value, coalesce(r.value, 0)
    FROM user_stats s LEFT JOIN kudos_remainder_user_stats r ON r.user_id = s.user_id AND r.action = s.action
  UNION ALL
  SELECT 'user_records', s.user_id || '/' || s.record_type || '/' || s.record, s.value::numeric, coalesce(r.value, 0)
    FROM user_records s LEFT JOIN kudos_remainder_user_records r
      ON r.user_id = s.user_id AND r.record_type = s.record_type::text AND r.record = s.record
  UNION ALL
  SELECT 'worker_stats', s.worker_id || '/' || s.action, s.value, coalesce(r.value, 0)
    FROM worker_stats s LEFT JOIN kudos_remainder_worker_stats r ON r.worker_id = s.worker_id AND r.action = s.action
  UNION ALL
  SELECT 'workers.' || c.name, w.id::text, c.shown, coalesce(c.cents, 0)
    FROM workers w LEFT JOIN kudos_remainder_workers r ON r.id = w.id
    CROSS JOIN LATERAL (VALUES ('kudos', w.kudos::numeric, r.kudos), ('contributions', w.contributions, r.contributions),
                               ('fulfilments', w.fulfilments, r.fulfilments)) c (name, shown, cents)
  UNION ALL
  SELECT 'teams.' || c.name, t.id::text, c.shown, coalesce(c.cents, 0)
    FROM teams t LEFT JOIN kudos_remainder_teams r ON r.id = t.id
    CROSS JOIN LATERAL (VALUES ('kudos', t.kudos::numeric, r.kudos), ('contributions', t.contributions, r.contributions),
                               ('fulfilments', t.fulfilments, r.fulfilments)) c (name, shown, cents);

-- What the archive says was added to each number: the rows that are marked applied.
CREATE VIEW t_archived AS
  SELECT CASE WHEN escrow THEN 'users.evaluating_kudos' ELSE 'users.kudos' END AS target, user_id::text AS key,
         sum(amount) AS amount
    FROM kudos_ledger WHERE applied GROUP BY 1, 2
  UNION ALL
  SELECT CASE WHEN record = 'user_kudos' THEN 'user_stats' ELSE 'user_records' END,
         user_id || '/' || stat_action || CASE WHEN record = 'user_kudos' THEN '' ELSE '/' || record END, sum(amount)
    FROM kudos_stat_events
   WHERE applied AND user_id IS NOT NULL AND (record = 'user_kudos' OR entry_type = 'STAT_RECORD') GROUP BY 1, 2
  UNION ALL
  SELECT 'worker_stats', worker_id || '/' || stat_action, sum(amount)
    FROM kudos_stat_events WHERE applied AND record = 'worker_kudos' GROUP BY 2
  UNION ALL
  SELECT t.target || CASE WHEN e.record = 'worker_kudos' THEN 'kudos' ELSE e.stat_action END, t.id::text, sum(e.amount)
    FROM kudos_stat_events e
    CROSS JOIN LATERAL (VALUES ('workers.', e.worker_id), ('teams.', e.team_id)) t (target, id)
   WHERE e.applied AND e.worker_id IS NOT NULL AND t.id IS NOT NULL
     AND (e.record = 'worker_kudos' OR e.entry_type = 'STAT_CONTRIBUTION') GROUP BY 1, 2;

CREATE PROCEDURE remember_opening() LANGUAGE sql AS $$
  TRUNCATE t_opening, t_outside, t_touched;
  INSERT INTO t_opening
    SELECT target, key, s.shown + s.cents / 100.0 - coalesce(a.amount, 0)
      FROM t_standing s LEFT JOIN t_archived a USING (target, key);
  INSERT INTO t_touched SELECT id, last_active FROM users;
$$;

CREATE PROCEDURE outside(target text, key text, amount numeric) LANGUAGE sql AS $$
  INSERT INTO t_outside VALUES ($1, $2, $3)
$$;

CREATE FUNCTION target_errors() RETURNS TABLE (target text, key text, problem text) LANGUAGE sql STABLE AS $$
  WITH changes AS (
    SELECT target, key, value AS amount FROM t_opening
    UNION ALL SELECT target, key, amount FROM t_outside
    UNION ALL SELECT target, key, amount FROM t_archived
    -- users, workers and teams that the application adds begin with nothing
    UNION ALL SELECT target, key, 0 FROM t_standing WHERE target ~ '[.]'),
  exact AS (SELECT target, key, sum(amount) AS exact FROM changes GROUP BY target, key)
  SELECT target, key,
         CASE WHEN s.key IS NULL THEN format('is missing, should be %s', trim_scale(e.exact))
              WHEN e.key IS NULL THEN format('is there with %s, nothing was posted', s.shown)
              WHEN s.shown + s.cents / 100.0 <> e.exact
                THEN format('is exactly %s, should be %s', trim_scale(s.shown + s.cents / 100.0), trim_scale(e.exact))
              ELSE format('shows %s for %s', s.shown, trim_scale(e.exact)) END
    FROM t_standing s FULL JOIN exact e USING (target, key)
   WHERE (s.shown IS DISTINCT FROM CASE WHEN target = 'user_records' THEN e.exact ELSE round(e.exact) END
          OR s.shown + s.cents / 100.0 IS DISTINCT FROM e.exact)
     -- workers and teams may be deleted, and their numbers with them
     AND NOT (s.key IS NULL AND target ~ '^(worker|team)'
              AND NOT EXISTS (SELECT FROM workers w WHERE w.id::text = left(key, 36))
              AND NOT EXISTS (SELECT FROM teams t WHERE t.id::text = key))
     -- so may users who have statistics only
     AND NOT (s.key IS NULL AND target ~ '^user'
              AND NOT EXISTS (SELECT FROM users u WHERE u.id::text = split_part(key, '/', 1)))
  UNION ALL
  SELECT 'users.last_active', u.id::text, format('is %s, should be %s', u.last_active, greatest(o.last_active, latest))
    FROM users u JOIN t_touched o ON o.user_id = u.id
    CROSS JOIN LATERAL (SELECT max(e.created) AS latest FROM kudos_stat_events e
                         WHERE e.user_id = u.id AND e.applied
                           AND e.detail->'touch_last_active' NOT IN ('null', 'false', '0', '""', '[]', '{}')) l
   WHERE u.last_active <> greatest(o.last_active, latest)
  UNION ALL
  SELECT 'kudos_stat_events', e.id::text, 'is applied and quarantined' FROM kudos_stat_events e
   WHERE e.applied AND e.quarantined
  UNION ALL
  SELECT 'kudos_ledger', l.id::text, 'FLOOR_ADJUSTMENT that is not applied, or not positive' FROM kudos_ledger l
   WHERE l.entry_type = 'FLOOR_ADJUSTMENT' AND NOT (l.applied AND l.amount > 0 AND NOT l.escrow)
  UNION ALL
  SELECT 'kudos_reservations', h.business_id, 'its event is settled and it is open' FROM kudos_reservations h
   WHERE h.released_at IS NULL AND EXISTS (SELECT FROM kudos_ledger l WHERE l.event_id = h.event_id AND l.applied)
     AND NOT EXISTS (SELECT FROM kudos_ledger l WHERE l.event_id = h.event_id AND NOT l.applied)
  UNION ALL
  SELECT 'kudos_reservations', h.business_id, 'is released, its event is not settled' FROM kudos_reservations h
   WHERE h.released_at IS NOT NULL
     AND EXISTS (SELECT FROM kudos_ledger l WHERE l.event_id = h.event_id AND NOT l.applied)
     AND h.original_amount > (SELECT coalesce(-sum(l.amount), 0) FROM kudos_ledger l WHERE l.applied AND l.amount < 0
                                 AND NOT l.escrow AND l.detail->>'reservation_id' = h.business_id)
  UNION ALL
  SELECT 'kudos_reservations', h.business_id, 'is released with ' || h.remaining_amount FROM kudos_reservations h
   WHERE h.released_at IS NOT NULL AND h.remaining_amount <> 0
  ORDER BY 1, 2, 3
$$;

CREATE FUNCTION fold(n int) RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT format('acquired=%s cycles=%s currency=%s stat=%s quarantined=%s floored=%s settled=%s', lock_acquired, cycles,
                currency_rows, stat_rows, quarantined_rows, floor_adjustments, settled)
    FROM kudos_fold_now(n, 1)
$$;

-- What a spec looks at most: the balances of 1 and 2, what is applied, what waits.
CREATE VIEW t_look AS
  SELECT (SELECT kudos FROM users WHERE id = 1) AS one, (SELECT kudos FROM users WHERE id = 2) AS two,
         (SELECT string_agg(id::text, ',' ORDER BY id) FROM kudos_ledger WHERE applied) AS applied,
         (SELECT count(*) FROM kudos_ledger WHERE NOT applied) AS ledger,
         (SELECT count(*) FROM kudos_stat_events WHERE NOT applied) AS stats,
         (SELECT count(*) FROM kudos_stat_events WHERE quarantined) AS quarantined;
-- Every number that is no longer the opening one.
CREATE VIEW t_moved AS
  SELECT target, key, trim_scale(o.value) AS opening, trim_scale(s.shown) AS shown
    FROM t_standing s LEFT JOIN t_opening o USING (target, key) WHERE s.shown IS DISTINCT FROM round(o.value, 2)
   ORDER BY target COLLATE "C", key COLLATE "C";
CREATE VIEW t_hold AS
  SELECT business_id, remaining_amount AS remaining, released_at IS NOT NULL AS released
    FROM kudos_reservations ORDER BY business_id;

-- Snapshots by number, from 1, since their ids differ from run to run.
CREATE FUNCTION nth_snapshot(n int) RETURNS uuid LANGUAGE sql VOLATILE AS $$
  SELECT snapshot_id FROM kudos_snapshots ORDER BY created OFFSET n - 1 LIMIT 1
$$;
CREATE VIEW t_marks AS
  SELECT s.number, m.archive, nullif(m.mark, -9223372036854775808) AS mark, m.open_ids, m.last_id
    FROM (SELECT snapshot_id, row_number() OVER (ORDER BY created) AS number FROM kudos_snapshots) s
    JOIN kudos_snapshot_marks m USING (snapshot_id) ORDER BY s.number, m.archive;

CREATE TABLE t_cast_users AS TABLE users;
CREATE TABLE t_cast_teams AS TABLE teams;
CREATE TABLE t_cast_workers AS TABLE workers;
UPDATE t_cast_users SET last_active = '2026-01-01';

CREATE PROCEDURE reset_case() LANGUAGE plpgsql AS $$
BEGIN
  -- A worker in the middle of a cycle would hold some of these tables and wait for others.
  PERFORM pg_advisory_xact_lock(1263879247);
  TRUNCATE users, teams, workers, user_stats, user_records, worker_stats, user_roles, user_suspicions, kudos_ledger,
    kudos_stat_events, kudos_reservations, kudos_balance_snapshots, kudos_ledger_control, kudos_ledger_applier_state,
    kudos_remainder_users, kudos_remainder_user_stats, kudos_remainder_worker_stats, kudos_remainder_user_records,
    kudos_remainder_workers, kudos_remainder_teams, kudos_snapshots, kudos_snapshot_marks, kudos_snapshot_values
    RESTART IDENTITY;
  INSERT INTO users SELECT * FROM t_cast_users;
  INSERT INTO teams SELECT * FROM t_cast_teams;
  INSERT INTO workers SELECT * FROM t_cast_workers;
  INSERT INTO kudos_ledger_control (id, mode, changed_at) VALUES (1, 'ledger', '2026-01-01');
  INSERT INTO kudos_ledger_applier_state (id, applied_at) VALUES (1, NULL);
  CALL remember_opening();
END $$;
RESET client_min_messages;
\set QUIET off
