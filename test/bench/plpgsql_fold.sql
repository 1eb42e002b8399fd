-- What somebody would write first: one set-based PL/pgSQL procedure that does the same writes, one
-- transaction a batch. The yardstick of the benchmark, and kept simple on purpose: it rounds at every
-- batch, keeps no remainders, validates little and withholds nothing.
CREATE PROCEDURE plpgsql_catch_up(batch integer) LANGUAGE plpgsql AS $$
DECLARE
    ids bigint[];
    stat_ids bigint[];
    utc timestamp;
BEGIN
    LOOP
        PERFORM pg_advisory_xact_lock(1263879247);
        utc := clock_timestamp() AT TIME ZONE 'utc';
        ids := ARRAY(SELECT id FROM kudos_ledger WHERE NOT applied AND applied IS FALSE
                      ORDER BY id LIMIT batch FOR UPDATE SKIP LOCKED);
        stat_ids := ARRAY(SELECT id FROM kudos_stat_events
                           WHERE NOT applied AND applied IS FALSE AND NOT quarantined AND quarantined IS FALSE
                           ORDER BY id LIMIT batch FOR UPDATE SKIP LOCKED);
        EXIT WHEN cardinality(ids) = 0 AND cardinality(stat_ids) = 0;

        PERFORM 1 FROM users WHERE id IN (SELECT user_id FROM kudos_stat_events WHERE id = ANY (stat_ids))
          ORDER BY id FOR KEY SHARE;
        UPDATE kudos_ledger SET applied = true WHERE id = ANY (ids);
        UPDATE kudos_stat_events SET applied = true WHERE id = ANY (stat_ids);

        -- users, floors
        CREATE TEMP TABLE IF NOT EXISTS d (user_id bigint, k numeric, e numeric, touch timestamp, floor int) ON COMMIT DELETE ROWS;
        INSERT INTO d
        SELECT s.user_id, sum(k), sum(e), max(touch),
               CASE WHEN u.oauth_id = 'anon' THEN -50
                    WHEN replace(u.oauth_id, '-', '') ~ '^[0-9a-fA-F]{32}$' THEN 14 ELSE 25 END
          FROM (SELECT user_id, sum(amount) FILTER (WHERE NOT escrow) AS k, sum(amount) FILTER (WHERE escrow) AS e,
                       NULL::timestamp AS touch
                  FROM kudos_ledger WHERE id = ANY (ids) GROUP BY user_id
                UNION ALL
                SELECT user_id, NULL, NULL, max(created) FROM kudos_stat_events
                 WHERE id = ANY (stat_ids) AND user_id IS NOT NULL
                   AND detail -> 'touch_last_active' NOT IN ('null', 'false', '0', '""', '[]', '{}') GROUP BY user_id) s
          JOIN users u ON u.id = s.user_id
         GROUP BY s.user_id, u.oauth_id;
        PERFORM 1 FROM users WHERE id IN (SELECT user_id FROM d) ORDER BY id FOR NO KEY UPDATE;
        INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied, detail)
        SELECT utc, gen_random_uuid(), 'FLOOR_ADJUSTMENT', d.user_id, false, d.floor - (u.kudos + d.k), true,
               '{"reason": "minimum_balance_floor"}'
          FROM d JOIN users u ON u.id = d.user_id WHERE u.kudos + d.k < d.floor;
        UPDATE users u
           SET kudos = CASE WHEN d.k IS NULL THEN u.kudos ELSE greatest(d.floor, u.kudos + d.k) END,
               evaluating_kudos = u.evaluating_kudos + coalesce(d.e, 0),
               last_active = greatest(u.last_active, d.touch)
          FROM d WHERE u.id = d.user_id;

        -- counters
        INSERT INTO user_stats AS t (user_id, action, value)
        SELECT user_id, stat_action, sum(amount) FROM kudos_stat_events
         WHERE id = ANY (stat_ids) AND record = 'user_kudos' GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (user_id, action) DO UPDATE SET value = t.value + excluded.value;
        INSERT INTO worker_stats AS t (worker_id, action, value)
        SELECT e.worker_id, e.stat_action, sum(e.amount) FROM kudos_stat_events e JOIN workers w ON w.id = e.worker_id
         WHERE e.id = ANY (stat_ids) AND e.record = 'worker_kudos' GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (worker_id, action) DO UPDATE SET value = t.value + excluded.value;
        INSERT INTO user_records AS t (user_id, record_type, record, value)
        SELECT user_id, stat_action::userrecordtypes, record, sum(amount) FROM kudos_stat_events
         WHERE id = ANY (stat_ids) AND entry_type = 'STAT_RECORD' AND record NOT IN ('user_kudos', 'worker_kudos')
         GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
        ON CONFLICT (user_id, record_type, record) DO UPDATE SET value = round((t.value + excluded.value)::numeric, 2);

        -- holds
        PERFORM 1 FROM kudos_reservations h WHERE h.released_at IS NULL
            AND (h.business_id IN (SELECT detail ->> 'reservation_id' FROM kudos_ledger WHERE id = ANY (ids))
                 OR h.event_id IN (SELECT event_id FROM kudos_ledger WHERE id = ANY (ids)))
          ORDER BY h.id FOR NO KEY UPDATE;
        UPDATE kudos_reservations h
           SET remaining_amount = greatest(0, h.remaining_amount - c.amount),
               released_at = CASE WHEN h.remaining_amount <= c.amount THEN utc ELSE h.released_at END
          FROM (SELECT detail ->> 'reservation_id' AS business_id, -sum(amount) AS amount FROM kudos_ledger
                 WHERE id = ANY (ids) AND NOT escrow AND amount < 0 AND detail ? 'reservation_id' GROUP BY 1) c
         WHERE h.business_id = c.business_id AND h.released_at IS NULL;
        UPDATE kudos_reservations h SET remaining_amount = 0, released_at = utc
         WHERE h.released_at IS NULL AND h.event_id IN (SELECT event_id FROM kudos_ledger WHERE id = ANY (ids))
           AND NOT EXISTS (SELECT FROM kudos_ledger l WHERE l.event_id = h.event_id AND NOT l.applied AND l.applied IS FALSE);

        -- workers and teams
        PERFORM 1 FROM workers WHERE id IN (SELECT worker_id FROM kudos_stat_events WHERE id = ANY (stat_ids))
          ORDER BY id FOR NO KEY UPDATE;
        UPDATE workers w SET kudos = w.kudos + s.k, contributions = w.contributions + s.c, fulfilments = w.fulfilments + s.f
          FROM (SELECT worker_id, coalesce(sum(amount) FILTER (WHERE record = 'worker_kudos'), 0) AS k,
                       coalesce(sum(amount) FILTER (WHERE stat_action = 'contributions'), 0) AS c,
                       coalesce(sum(amount) FILTER (WHERE stat_action = 'fulfilments'), 0) AS f
                  FROM kudos_stat_events WHERE id = ANY (stat_ids) AND worker_id IS NOT NULL GROUP BY 1) s
         WHERE w.id = s.worker_id;
        PERFORM 1 FROM teams WHERE id IN (SELECT team_id FROM kudos_stat_events WHERE id = ANY (stat_ids))
          ORDER BY id FOR NO KEY UPDATE;
        UPDATE teams t SET kudos = t.kudos + s.k, contributions = t.contributions + s.c, fulfilments = t.fulfilments + s.f
          FROM (SELECT team_id, coalesce(sum(amount) FILTER (WHERE record = 'worker_kudos'), 0) AS k,
                       coalesce(sum(amount) FILTER (WHERE stat_action = 'contributions'), 0) AS c,
                       coalesce(sum(amount) FILTER (WHERE stat_action = 'fulfilments'), 0) AS f
                  FROM kudos_stat_events WHERE id = ANY (stat_ids) AND team_id IS NOT NULL GROUP BY 1) s
         WHERE t.id = s.team_id;
        INSERT INTO kudos_ledger_applier_state (id, applied_at) VALUES (1, utc)
        ON CONFLICT (id) DO UPDATE SET applied_at = excluded.applied_at;
        COMMIT;
    END LOOP;
END
$$;
