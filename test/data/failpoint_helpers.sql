-- What the tests of failpoints share: one posting of every kind, and the judgement after each attempt
-- to fold them: nothing of it happened, or all of it.
--
--   CALL begin_case();                        the cast, and the postings, unapplied
--   CALL learn_outcome();                     folds them undisturbed, remembers what comes out, begins anew
--   SELECT judge('name', failed);             notes what is wrong; begins anew after a fold that went through
--   SELECT * FROM misjudged;
--
-- Loaded after isolation_helpers.sql.
\set QUIET on
SET client_min_messages = warning;

CREATE TABLE t_before (state text);
CREATE TABLE t_outcome (state text);
CREATE TABLE t_judged (name text, failed boolean, problem text);

CREATE PROCEDURE begin_case() LANGUAGE plpgsql AS $$
DECLARE
  f1 CONSTANT uuid := '00000000-0000-0000-0000-0000000000f1';
  f2 CONSTANT uuid := '00000000-0000-0000-0000-0000000000f2';
  a1 CONSTANT uuid := '00000000-0000-0000-0000-0000000000a1';
  held CONSTANT uuid := '00000000-0000-0000-0000-00000000e001';
  split CONSTANT uuid := '00000000-0000-0000-0000-00000000e002';
BEGIN
  CALL reset_case();
  INSERT INTO users (id, username, oauth_id, created, last_active, kudos, evaluating_kudos)
    VALUES (10, 'to be promoted', 'acct-10', '2022-01-01', '2026-01-01', 100, 101),
           (11, 'to be drained', 'acct-11', '2022-01-01', '2026-01-01', 100, 7);
  INSERT INTO user_roles (user_id, user_role, value) VALUES (11, 'TRUSTED', true);
  UPDATE workers SET paused = true, user_id = 10 WHERE id = f2;
  INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount)
    VALUES ('upfront:in-part', 1, NULL, 60, 60), ('upfront:released', 2, held, 5, 5);
  INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 1);
  CALL remember_opening();
  PERFORM t_post(1, 10.25), t_post(2, -600), t_post(5, 200.50, true), t_post(2, 3, false, held),
          t_post(1, -20.40, false, gen_random_uuid(), '{"reservation_id": "upfront:in-part"}'),
          t_ustat(1, 'accumulated', 5.5, held, '{"touch_last_active": true}'), t_ustat(2, 'gifted', 1.2),
          t_wstat(f1, 'generated', 2.25, a1), t_rec(1, 'USAGE', 'image', 1.5), t_contrib(f1, 'fulfilments', 1, a1),
          t_ustat(777, 'accumulated', 5, split), t_ustat(1, 'accumulated', 5, split);
  UPDATE kudos_stat_events SET created = '2026-06-01';
  TRUNCATE t_before;
  INSERT INTO t_before SELECT everything();
END $$;

CREATE FUNCTION rows_of(relation regclass) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE rows text;
BEGIN
  EXECUTE format('SELECT string_agg(t::text, chr(10) ORDER BY t::text COLLATE "C") FROM %s t', relation) INTO rows;
  RETURN relation || chr(10) || coalesce(rows, '');
END $$;

-- Every row of every table that a cycle can write.
CREATE FUNCTION everything() RETURNS text LANGUAGE sql STABLE AS $$
  SELECT string_agg(rows_of(c.oid), chr(10) ORDER BY c.relname)
    FROM pg_class c WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname NOT LIKE 't\_%'
$$;

-- The same without what differs between two runs: times, numbers of new rows, new event ids.
CREATE FUNCTION outcome() RETURNS text LANGUAGE sql STABLE AS $$
  WITH lines AS (
    SELECT format('%s %s %s %s', target, key, shown, cents) AS line FROM t_standing
    UNION ALL SELECT format('ledger %s %s %s %s %s %s', entry_type, user_id, escrow, amount, applied, detail) FROM kudos_ledger
    UNION ALL SELECT format('stat %s %s %s %s %s %s', entry_type, user_id, worker_id, amount, applied, quarantine_reason)
                FROM kudos_stat_events
    UNION ALL SELECT format('hold %s %s %s', business_id, remaining_amount, released_at IS NOT NULL) FROM kudos_reservations
    UNION ALL SELECT format('user %s %s', id, last_active) FROM users
    UNION ALL SELECT format('worker %s %s', id, paused) FROM workers
    UNION ALL SELECT format('role %s %s %s', user_id, user_role, value) FROM user_roles
    UNION ALL SELECT format('heartbeat %s', applied_at IS NOT NULL) FROM kudos_ledger_applier_state)
  SELECT string_agg(line, chr(10) ORDER BY line COLLATE "C") FROM lines
$$;

CREATE PROCEDURE learn_outcome() LANGUAGE plpgsql AS $$
BEGIN
  PERFORM kudos_fold_now(1000, 1);
  INSERT INTO t_outcome SELECT outcome();
  IF (SELECT state FROM t_outcome) NOT LIKE '%role 10 TRUSTED t%' THEN RAISE 'the case promotes nobody'; END IF;
  CALL begin_case();
END $$;

-- What an attempt must not leave behind in its session: batches of the core, locks other than those of this query.
CREATE FUNCTION left_behind() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT nullif(concat_ws(', ',
    CASE WHEN current_setting('kudos_projector.open_batches') <> '0'
         THEN current_setting('kudos_projector.open_batches') || ' batches' END,
    (SELECT string_agg(DISTINCT format('%s lock', locktype), ', ') FROM pg_locks
      WHERE pid = pg_backend_pid() AND (locktype IN ('advisory', 'transactionid', 'tuple', 'object') OR mode NOT LIKE 'Access%')
        AND locktype <> 'virtualxid'),
    CASE WHEN current_setting('lock_timeout') <> '0' OR current_setting('search_path') <> '"$user", public'
         THEN 'settings' END,
    CASE WHEN current_user <> session_user THEN 'role' END), '')
$$;

CREATE FUNCTION judge(name text, failed boolean) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  left_over CONSTANT text := left_behind();
  found text;
BEGIN
  IF failed AND everything() <> (SELECT state FROM t_before) THEN
    found := 'failed and left something done';
  ELSIF NOT failed AND outcome() <> (SELECT state FROM t_outcome) THEN
    found := 'went through and left something undone';
  ELSIF EXISTS (SELECT FROM target_errors()) THEN
    found := 'left wrong targets';
  END IF;
  INSERT INTO t_judged VALUES (name, failed, concat_ws('; ', found, left_over));
  IF NOT failed OR found IS NOT NULL THEN CALL begin_case(); END IF;
  RETURN found IS NULL AND left_over IS NULL;
END $$;

CREATE VIEW misjudged AS SELECT name, failed, problem FROM t_judged WHERE problem <> '';
CALL begin_case();
RESET client_min_messages;
\set QUIET off
