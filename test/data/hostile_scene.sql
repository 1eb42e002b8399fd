-- A fixed set of postings that touches every target, floors, holds, promotes, quarantines; and all that came
-- of it as one text. Load after isolation_helpers.sql and transfers.sql; drops nothing.
--
--   CALL reset_case(); SELECT t_scene();      the postings, always the same, in this transaction
--   SELECT t_result();                        every target, remainder, flag and hold, whatever the session's settings
--   SELECT t_own(role);                       the tables pass to that role
--
-- What is meant for hostile sessions carries its own settings.
\set QUIET on
SET client_min_messages = warning;

-- reset_case() does not know the table
ALTER TABLE kudos_transfers DROP CONSTRAINT kudos_transfers_source_id_fkey, DROP CONSTRAINT kudos_transfers_dest_id_fkey;

CREATE FUNCTION t_scene() RETURNS void LANGUAGE plpgsql
SET search_path = public SET standard_conforming_strings = on SET DateStyle = 'ISO, YMD' SET array_nulls = on
SET session_replication_role = origin AS $scene$
DECLARE
  f1 uuid := '00000000-0000-0000-0000-0000000000f1';
  f2 uuid := '00000000-0000-0000-0000-0000000000f2';
  a1 uuid := '00000000-0000-0000-0000-0000000000a1';
  e1 uuid := '00000000-0000-0000-0000-00000000e001';
  odd text := $$a{"b,NULL\'$$;
BEGIN
  UPDATE workers SET user_id = 5, paused = true WHERE id = f2;
  INSERT INTO kudos_reservations (id, business_id, user_id, event_id, original_amount, remaining_amount) VALUES
    (md5('h1')::uuid, odd, 1, NULL, 60, 60), (md5('h2')::uuid, 'NULL', 2, NULL, 10, 10),
    (md5('h3')::uuid, 'of an event', 1, e1, 7.50, 7.50), (md5('h4')::uuid, 'left', 3, NULL, 5, 5);
  INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 9007199254740993);
  INSERT INTO user_records (user_id, record_type, record, value) VALUES (1, 'USAGE', 'image', 123456789.78);
  INSERT INTO t_opening VALUES ('user_stats', '1/accumulated', 9007199254740993), ('user_records', '1/USAGE/image', 123456789.78)
    ON CONFLICT DO NOTHING;
  PERFORM t_post(1, 10.25), t_post(1, -0.75), t_post(4, -100.25), t_post(0, -1000), t_post(3, -500.10),
    t_post(5, 60.50, true), t_post(3, -3.33, true),
    t_post(1, -25.50, false, gen_random_uuid(), jsonb_build_object('reservation_id', odd)),
    t_post(2, -10, false, gen_random_uuid(), '{"reservation_id": "NULL"}'), t_post(1, -7.50, false, e1);
  PERFORM count(t_post(2, 0.40)) FROM generate_series(1, 10);
  PERFORM t_ustat(1, 'accumulated', 0.50), t_ustat(1, $$a'b\c"$$, 1.50), t_ustat(2, 'NULL', -1.25), t_ustat(2, '', 2),
    t_ustat(2, E'\u00e9\U0001F600', 3), t_rec(1, 'USAGE', 'image', 0.01), t_rec(1, 'STYLE', $$q'"\$$, 0.30);
  UPDATE kudos_stat_events SET unit = 'count' WHERE stat_action = 'STYLE';
  PERFORM t_wstat(f1, 'generated', 1.40, a1), t_wstat(f1, $${"a",NULL}$$, 2.20, a1), t_wstat(f2, 'generated', 100.30),
    t_contrib(f1, 'contributions', 5.50, a1), t_contrib(f1, 'fulfilments', 1, a1), t_contrib(f2, 'fulfilments', 2),
    t_ustat(777, 'accumulated', 1), t_ustat(1, repeat('x', 21), 1);
  INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail) VALUES
    ('2026-03-02 08:00:00.123456', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": true}'),
    ('2026-07-01 23:30:00', gen_random_uuid(), 'STAT_ACTIVITY', 3, 0, 'count', 'last_active', '{"touch_last_active": "x"}');
END $scene$;

CREATE FUNCTION t_result() RETURNS text LANGUAGE sql STABLE
SET search_path = public SET DateStyle = 'ISO, YMD' SET extra_float_digits = 1 SET enable_seqscan = on SET jit = off
SET bytea_output = hex SET max_parallel_workers_per_gather = 0 SET plan_cache_mode = auto SET statement_timeout = 0 AS $$
  -- in ASCII, whatever the client's encoding
  SELECT encode(convert_to(string_agg(line, E'\n' ORDER BY line COLLATE "C"), 'UTF8'), 'escape') FROM (
    SELECT concat_ws('|', 'standing', target, key, shown, cents) FROM t_standing
    UNION ALL SELECT concat_ws('|', 'active', id, last_active) FROM users
    UNION ALL SELECT concat_ws('|', 'paused', name, paused) FROM workers
    UNION ALL SELECT concat_ws('|', 'role', user_id, user_role, value) FROM user_roles
    UNION ALL SELECT concat_ws('|', 'ledger', user_id, entry_type, escrow, amount, applied, detail - 'snapshot', count(*))
                FROM kudos_ledger GROUP BY user_id, entry_type, escrow, amount, applied, detail - 'snapshot'
    UNION ALL SELECT concat_ws('|', 'stat', row_number() OVER (ORDER BY id), entry_type, amount, applied, quarantined, quarantine_reason, quarantined_at IS NOT NULL)
                FROM kudos_stat_events
    UNION ALL SELECT concat_ws('|', 'hold', business_id, remaining_amount, released_at IS NOT NULL) FROM kudos_reservations
    UNION ALL SELECT concat_ws('|', 'mode', mode) FROM kudos_ledger_control
    -- every time that was stored is UTC: the nearest zone is far off this
    UNION ALL SELECT concat_ws('|', 'utc', what, count(*), bool_and(abs(extract(epoch FROM at - (clock_timestamp() AT TIME ZONE 'utc'))) < 900))
                FROM (SELECT 'heartbeat', applied_at FROM kudos_ledger_applier_state
                      UNION ALL SELECT 'release', released_at FROM kudos_reservations
                      UNION ALL SELECT 'quarantine', quarantined_at FROM kudos_stat_events
                      UNION ALL SELECT 'row', created FROM kudos_ledger WHERE entry_type IN ('FLOOR_ADJUSTMENT', 'EVALUATION_PROMOTION')) t (what, at)
               GROUP BY what
    UNION ALL SELECT concat_ws('|', 'error', target, key, problem) FROM target_errors()) l (line)
$$;

-- Whether nothing is left that could be folded.
CREATE FUNCTION t_settled() RETURNS boolean LANGUAGE sql STABLE SET search_path = public AS $$
  SELECT NOT EXISTS (SELECT FROM kudos_ledger WHERE NOT applied)
     AND NOT EXISTS (SELECT FROM kudos_stat_events WHERE NOT applied AND NOT quarantined)
     AND EXISTS (SELECT FROM kudos_ledger WHERE entry_type = 'EVALUATION_PROMOTION')
$$;

CREATE PROCEDURE t_own(owner name) LANGUAGE plpgsql AS $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT c.oid FROM pg_class c WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
    AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'e') LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO %I', t, owner);
  END LOOP;
END $$;
ALTER PROCEDURE reset_case() SET search_path = public;
ALTER PROCEDURE remember_opening() SET search_path = public;
ALTER PROCEDURE outside(text, text, numeric) SET search_path = public;
ALTER FUNCTION target_errors() SET search_path = public;
RESET client_min_messages;
\set QUIET off
