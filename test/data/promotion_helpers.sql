\ir helpers.sql
\set ECHO none
-- What the test of promotion needs besides. Loading it again resets everything.
SET client_min_messages = warning;
-- Cycles of at most n rows, a transaction each, until one has nothing to do.
CREATE OR REPLACE PROCEDURE settle(n int DEFAULT 1000) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
  LOOP
    SELECT * INTO r FROM kudos_fold_now(n, 1);
    COMMIT;
    EXIT WHEN r.currency_rows + r.stat_rows + r.quarantined_rows + r.promoted_users + r.drained_users = 0;
  END LOOP;
END $$;
-- The accounts at the edges: all had 100 kudos; 10 to 15 and anon have the escrow of the case.
CREATE OR REPLACE PROCEDURE candidates() LANGUAGE sql AS $$
  INSERT INTO users (id, username, oauth_id, kudos, evaluating_kudos, created)
    SELECT id, 'u' || id, 'acct-' || id, 100, escrow, created FROM (VALUES
      (10, 100, timestamp '2022-01-01'), (11, 101, '2022-01-01'),
      (12, 101, (now() AT TIME ZONE 'utc') - interval '7 days'),
      (13, 101, (now() AT TIME ZONE 'utc') - interval '6 days 23 hours'),
      (14, 101, '2022-01-01'), (15, 101, '2022-01-01')) c (id, escrow, created);
  UPDATE users SET evaluating_kudos = 500 WHERE id = 0;
  INSERT INTO user_suspicions (user_id, suspicion_id)
    SELECT u, n FROM (VALUES (14, 4), (15, 5)) s (u, suspicions), generate_series(1, suspicions) n;
$$;
CREATE OR REPLACE VIEW t_roles AS
  SELECT user_id, array_agg(user_role || ' ' || value ORDER BY user_role::text) AS roles FROM user_roles GROUP BY user_id ORDER BY user_id;
-- What the drain emitted, an event a line.
CREATE OR REPLACE VIEW t_drained AS
  SELECT l.user_id, count(*) FILTER (WHERE l.escrow) AS debits, sum(l.amount) FILTER (WHERE l.escrow) AS debit,
         count(*) FILTER (WHERE NOT l.escrow) AS credits, sum(l.amount) FILTER (WHERE NOT l.escrow) AS credit,
         (SELECT array_agg(format('%s %s %s %s %s', e.user_id, e.stat_action, e.record, e.amount, e.unit)) FROM kudos_stat_events e
           WHERE e.event_id = l.event_id AND e.entry_type = 'EVALUATION_PROMOTION') AS stats
  FROM kudos_ledger l WHERE l.entry_type = 'EVALUATION_PROMOTION' GROUP BY l.user_id, l.event_id ORDER BY l.user_id, min(l.id);
RESET client_min_messages;
\set ECHO all
