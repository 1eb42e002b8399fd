-- What a fold must leave behind, computed a second time: plain SQL over a copy of the tables as
-- they were, written from the rules and not from the projector. It assumes a quiet queue: nobody
-- else writes or holds rows, so that batch k of a claim is simply the k-th slice of the ids.
--
--   CALL model.remember_opening();     before folding: copies every table into the schema "opening"
--   (each cycle: INSERT INTO model.cycle_log ...)
--   CALL model.expect(batch_size);     fills model.expected
--   CALL model.expect(batch_size, true);   the same, believing the flags of the rows about what was folded
--   SELECT * FROM model.differences('users');      rows that only one of the two sides has
--   SELECT * FROM model.violations();  what must hold whatever the numbers are
--
-- Needs app_tables.sql, a ledger file, ledger_5_1_11.sql and the extension, all in "public".
SET client_min_messages = warning;
-- the bodies name the copies, which come and go
SET check_function_bodies = off;
CREATE SCHEMA model;

-- One line a cycle, written by whoever folds, in a transaction after that of the cycle: the
-- highest currency id then tells which cycle wrote a floor adjustment.
CREATE TABLE model.cycle_log (
    cycle             serial PRIMARY KEY,
    currency_rows     bigint NOT NULL,
    stat_rows         bigint NOT NULL,
    quarantined_rows  bigint NOT NULL,
    floor_adjustments bigint NOT NULL,
    settled           boolean NOT NULL,
    last_currency_id  bigint NOT NULL
);
CREATE TABLE model.span (started timestamp NOT NULL);
CREATE TABLE model.expected (target text, key text, content jsonb, PRIMARY KEY (target, key));
-- what becomes of every stat row that was pending at the opening: 'applied' or the reason of its quarantine
CREATE TABLE model.fate (id bigint PRIMARY KEY, event_id uuid, own_reason text, fate text);
CREATE INDEX ON model.fate (event_id);
CREATE TABLE model.floor_adjustment (user_id bigint, cycle bigint, amount numeric);

CREATE PROCEDURE model.remember_opening() LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    DROP SCHEMA IF EXISTS opening CASCADE;
    CREATE SCHEMA opening;
    FOREACH name IN ARRAY ARRAY[
        'users', 'user_roles', 'user_suspicions', 'user_stats', 'user_records', 'teams', 'workers', 'worker_stats',
        'kudos_transfers', 'kudos_ledger', 'kudos_stat_events', 'kudos_reservations', 'kudos_ledger_control',
        'kudos_remainder_users', 'kudos_remainder_user_stats', 'kudos_remainder_worker_stats',
        'kudos_remainder_user_records', 'kudos_remainder_workers', 'kudos_remainder_teams']
    LOOP
        EXECUTE format('CREATE TABLE opening.%I AS TABLE public.%I', name, name);
    END LOOP;
    TRUNCATE model.cycle_log, model.span, model.expected, model.fate, model.floor_adjustment RESTART IDENTITY;
    INSERT INTO model.span VALUES (clock_timestamp() AT TIME ZONE 'utc');
    ANALYZE;
END $$;

-- Python's uuid.UUID(text): prefixes anywhere, braces at the ends, hyphens anywhere; what is left
-- has 32 characters and is read by int(text, 16), which takes white space around, one sign, one
-- 0x, single underscores between digits, and the decimal digits of any script (three of them here).
CREATE FUNCTION model.is_pseudonymous(oauth_id text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT char_length(bare) = 32
       AND translate(bare, U&'\FF10\FF11\FF12\FF13\FF14\FF15\FF16\FF17\FF18\FF19' ||
                           U&'\0660\0661\0662\0663\0664\0665\0666\0667\0668\0669', '01234567890123456789')
           ~ (U&'^[ \0009\000A\000B\000C\000D\00A0\2003\3000]*' || '[+]?(0[xX]_?)?[0-9a-fA-F]+(_[0-9a-fA-F]+)*'
              || U&'[ \0009\000A\000B\000C\000D\00A0\2003\3000]*$')
      FROM (SELECT replace(btrim(replace(replace(oauth_id, 'urn:', ''), 'uuid:', ''), '{}'), '-', '')) s (bare)
$$;

CREATE FUNCTION model.balance_floor(oauth_id text) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN oauth_id = 'anon' THEN -50 WHEN model.is_pseudonymous(oauth_id) THEN 14 ELSE 25 END
$$;

-- NULL for a key that is absent, too, and for a detail that is no object
CREATE FUNCTION model.touches(detail jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_typeof(detail) = 'object'
                    AND detail->'touch_last_active' NOT IN ('null', 'false', '0', '""', '[]', '{}'), false)
$$;

-- the first rule that a stat row breaks; NULL for a valid one
CREATE FUNCTION model.invalid_reason(entry_type text, user_id bigint, user_exists boolean, worker_id uuid, unit text,
                                     stat_action text, record text, detail jsonb, labels text[])
RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN user_id IS NOT NULL AND NOT user_exists THEN 'missing_user'
        WHEN char_length(stat_action) > 20 THEN 'stat_action_too_long'
        WHEN char_length(record) > 30 THEN 'record_too_long'
        WHEN record = 'user_kudos' THEN
            CASE WHEN user_id IS NULL OR stat_action IS NULL OR unit <> 'kudos' THEN 'invalid_user_kudos' END
        WHEN record = 'worker_kudos' THEN
            CASE WHEN worker_id IS NULL OR stat_action IS NULL OR unit <> 'kudos' THEN 'invalid_worker_kudos' END
        WHEN entry_type = 'STAT_RECORD' THEN
            CASE WHEN user_id IS NULL OR record IS NULL OR stat_action IS NULL OR stat_action <> ALL (labels)
                     THEN 'invalid_stat_record'
                 WHEN unit <> 'things' AND stat_action IN ('CONTRIBUTION', 'USAGE')
                   OR unit <> 'count' AND stat_action IN ('FULFILLMENT', 'REQUEST', 'STYLE')
                   OR unit NOT IN ('things', 'count') THEN 'invalid_stat_record_unit' END
        WHEN entry_type = 'STAT_CONTRIBUTION' THEN
            CASE WHEN worker_id IS NULL
                   OR (stat_action, unit) IS DISTINCT FROM ('contributions', 'things')
                  AND (stat_action, unit) IS DISTINCT FROM ('fulfilments', 'count') THEN 'invalid_stat_contribution' END
        WHEN entry_type = 'STAT_ACTIVITY' THEN
            CASE WHEN user_id IS NULL OR record IS DISTINCT FROM 'last_active' OR unit <> 'count'
                   OR NOT model.touches(detail) THEN 'invalid_stat_activity' END
        ELSE 'unknown_projection' END
$$;

-- Claims take the lowest pending ids; a claim that holds an invalid row takes the whole rest of its
-- event out of the queue, so the next slice begins further on. Only a replay finds these slices.
CREATE PROCEDURE model.decide_fates(batch integer) LANGUAGE plpgsql AS $$
DECLARE
    claimed bigint[];
    last_id bigint := 0;
BEGIN
    INSERT INTO model.fate (id, event_id, own_reason)
    SELECT e.id, e.event_id,
           model.invalid_reason(e.entry_type, e.user_id, u.id IS NOT NULL, e.worker_id, e.unit, e.stat_action, e.record,
                                e.detail, (SELECT array_agg(v::text) FROM unnest(enum_range(NULL::public.userrecordtypes)) v))
      FROM opening.kudos_stat_events e
      LEFT JOIN opening.users u ON u.id = e.user_id
     WHERE NOT e.applied AND NOT e.quarantined;
    ANALYZE model.fate;
    LOOP
        SELECT array_agg(id), max(id) INTO claimed, last_id
          FROM (SELECT id FROM model.fate WHERE id > last_id AND fate IS NULL ORDER BY id LIMIT batch) slice;
        EXIT WHEN claimed IS NULL;
        IF EXISTS (SELECT FROM model.fate WHERE id = ANY (claimed) AND own_reason IS NOT NULL) THEN
            UPDATE model.fate f SET fate = first.own_reason
              FROM (SELECT DISTINCT ON (event_id) event_id, own_reason FROM model.fate
                     WHERE id = ANY (claimed) AND own_reason IS NOT NULL ORDER BY event_id, id) first
             WHERE f.event_id = first.event_id AND f.fate IS NULL;
        END IF;
        UPDATE model.fate SET fate = 'applied' WHERE id = ANY (claimed) AND fate IS NULL;
    END LOOP;
END $$;

-- A balance that is lifted to its floor after every slice has a closed form. With S(k) the sum of
-- the user's slices up to k, the balance after k is the larger of "never lifted", opening + S(k),
-- and "last lifted at j", floor + S(k) - S(j), over all j <= k in which the user has rows.
CREATE PROCEDURE model.find_floor_adjustments(batch integer) LANGUAGE sql AS $$
    INSERT INTO model.floor_adjustment
    WITH pending AS (
        SELECT user_id, escrow, amount, (row_number() OVER (ORDER BY id) - 1) / batch AS cycle
          FROM opening.kudos_ledger WHERE NOT applied),
    slice AS (
        SELECT user_id, cycle, sum(amount) AS delta FROM pending WHERE NOT escrow GROUP BY user_id, cycle),
    running AS (
        SELECT *, sum(delta) OVER (PARTITION BY user_id ORDER BY cycle) AS total FROM slice),
    lifted AS (
        SELECT user_id, cycle, delta, o.exact AS opening,
               total + greatest(o.exact, o.floor - min(total) OVER (PARTITION BY user_id ORDER BY cycle)) AS balance
          FROM running
          JOIN (SELECT u.id, u.kudos + coalesce(r.kudos, 0) / 100.0 AS exact, model.balance_floor(u.oauth_id) AS floor
                  FROM opening.users u LEFT JOIN opening.kudos_remainder_users r ON r.id = u.id) o ON o.id = user_id),
    adjusted AS (
        SELECT user_id, cycle,
               balance - lag(balance, 1, opening) OVER (PARTITION BY user_id ORDER BY cycle) - delta AS amount FROM lifted)
    SELECT user_id, cycle, amount FROM adjusted WHERE amount <> 0;
$$;

-- An exact value as the projector stores it: the whole number next to it, and the cents between.
-- numeric's round() is half away from zero.
CREATE FUNCTION model.shown(exact numeric) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$ SELECT round(exact)::bigint $$;
CREATE FUNCTION model.cents(exact numeric) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT ((exact - round(exact)) * 100)::integer $$;
-- an integer column with its remainder
CREATE FUNCTION model.exact(shown numeric, cents integer) RETURNS numeric LANGUAGE sql IMMUTABLE AS $$
    SELECT shown + coalesce(cents, 0) / 100.0 $$;
-- timestamps that a fold stamps cannot be predicted, only bounded
CREATE FUNCTION model.stamp(value timestamp) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN value BETWEEN started AND clock_timestamp() AT TIME ZONE 'utc' THEN 'while folding' ELSE value::text END
      FROM model.span $$;

-- Where a target refuses what would leave its range, some rows wait: their flags say which, and all
-- else follows from them. (Which cycle lifted a balance cannot be said then.)
CREATE PROCEDURE model.expect(batch integer, by_flags boolean DEFAULT false) LANGUAGE plpgsql AS $$
BEGIN
    TRUNCATE model.expected, model.fate, model.floor_adjustment;
    CALL model.decide_fates(batch);
    CREATE TEMP TABLE folded_currency ON COMMIT DROP AS SELECT * FROM opening.kudos_ledger WHERE NOT applied;
    IF by_flags THEN
        DELETE FROM folded_currency WHERE id IN (SELECT id FROM public.kudos_ledger WHERE NOT applied);
        UPDATE model.fate SET fate = NULL
         WHERE fate = 'applied' AND id IN (SELECT id FROM public.kudos_stat_events WHERE NOT applied);
        INSERT INTO model.floor_adjustment
        SELECT user_id, NULL, amount FROM public.kudos_ledger WHERE id NOT IN (SELECT id FROM opening.kudos_ledger);
    ELSE
        CALL model.find_floor_adjustments(batch);
    END IF;
    CREATE TEMP TABLE folded_stat ON COMMIT DROP AS
    SELECT e.* FROM opening.kudos_stat_events e JOIN model.fate f USING (id) WHERE f.fate = 'applied';
    ANALYZE folded_currency, folded_stat;

    INSERT INTO model.expected
    WITH moved AS (
        SELECT user_id, sum(amount) FILTER (WHERE NOT escrow) AS kudos, sum(amount) FILTER (WHERE escrow) AS escrow
          FROM (SELECT user_id, escrow, amount FROM folded_currency
                UNION ALL SELECT user_id, false, amount FROM model.floor_adjustment) part
         GROUP BY user_id),
    touched AS (
        SELECT user_id, max(created) AS last_active FROM folded_stat WHERE model.touches(detail) GROUP BY user_id),
    total AS (
        SELECT u.id, model.exact(u.kudos, r.kudos) + coalesce(m.kudos, 0) AS kudos,
               model.exact(u.evaluating_kudos, r.evaluating_kudos) + coalesce(m.escrow, 0) AS escrow,
               greatest(u.last_active, t.last_active) AS last_active
          FROM opening.users u
          LEFT JOIN opening.kudos_remainder_users r ON r.id = u.id
          LEFT JOIN moved m ON m.user_id = u.id
          LEFT JOIN touched t ON t.user_id = u.id)
    SELECT 'users', u.id::text,
           to_jsonb(u) || jsonb_build_object('last_active', t.last_active,
               'kudos', model.shown(t.kudos), 'kudos_cents', model.cents(t.kudos),
               'evaluating_kudos', model.shown(t.escrow), 'evaluating_kudos_cents', model.cents(t.escrow))
      FROM opening.users u JOIN total t USING (id);

    INSERT INTO model.expected
    WITH total AS (
        SELECT user_id, action, sum(value) AS value FROM (
            SELECT s.user_id, s.action, model.exact(s.value, r.value) AS value
              FROM opening.user_stats s LEFT JOIN opening.kudos_remainder_user_stats r USING (user_id, action)
            UNION ALL
            SELECT user_id, stat_action, amount FROM folded_stat WHERE record = 'user_kudos') part
         GROUP BY user_id, action)
    SELECT 'user_stats', format('%s/%s', user_id, action),
           jsonb_build_object('value', model.shown(value), 'cents', model.cents(value)) FROM total;

    INSERT INTO model.expected
    WITH total AS (
        SELECT worker_id, action, sum(value) AS value FROM (
            SELECT s.worker_id, s.action, model.exact(s.value, r.value) AS value
              FROM opening.worker_stats s LEFT JOIN opening.kudos_remainder_worker_stats r USING (worker_id, action)
            UNION ALL
            SELECT worker_id, stat_action, amount FROM folded_stat
             WHERE record = 'worker_kudos' AND worker_id IN (SELECT id FROM opening.workers)) part
         GROUP BY worker_id, action)
    SELECT 'worker_stats', format('%s/%s', worker_id, action),
           jsonb_build_object('value', model.shown(value), 'cents', model.cents(value)) FROM total;

    -- A double precision column holds the value itself, to two places; one that got nothing is left as it was.
    INSERT INTO model.expected
    WITH delta AS (
        SELECT user_id, stat_action AS record_type, record, sum(amount) AS value FROM folded_stat
         WHERE entry_type = 'STAT_RECORD' AND record IS DISTINCT FROM 'user_kudos' AND record IS DISTINCT FROM 'worker_kudos'
         GROUP BY user_id, stat_action, record)
    SELECT 'user_records', format('%s/%s/%s', user_id, record_type, record),
           jsonb_build_object('value', CASE WHEN d.value IS NULL THEN s.value
                                            ELSE round(coalesce(s.value::numeric, 0) + d.value, 2)::float8 END, 'cents', 0)
      FROM (SELECT user_id, record_type::text AS record_type, record, value FROM opening.user_records) s
      FULL JOIN delta d USING (user_id, record_type, record);

    -- the three counters of a worker, and of the team that is named on the same rows
    CREATE TEMP TABLE share ON COMMIT DROP AS
    SELECT worker_id, team_id,
           CASE WHEN record = 'worker_kudos' THEN amount ELSE 0 END AS kudos,
           CASE WHEN record IS DISTINCT FROM 'worker_kudos' AND stat_action = 'contributions' THEN amount ELSE 0 END AS contributions,
           CASE WHEN record IS DISTINCT FROM 'worker_kudos' AND stat_action = 'fulfilments' THEN amount ELSE 0 END AS fulfilments
      FROM folded_stat
     WHERE record = 'worker_kudos'
        OR entry_type = 'STAT_CONTRIBUTION' AND record IS DISTINCT FROM 'user_kudos';

    INSERT INTO model.expected
    WITH total AS (
        SELECT w.id, model.exact(w.kudos, r.kudos) + coalesce(sum(s.kudos), 0) AS kudos,
               model.exact(w.contributions, r.contributions) + coalesce(sum(s.contributions), 0) AS contributions,
               model.exact(w.fulfilments, r.fulfilments) + coalesce(sum(s.fulfilments), 0) AS fulfilments
          FROM opening.workers w
          LEFT JOIN opening.kudos_remainder_workers r USING (id)
          LEFT JOIN share s ON s.worker_id = w.id
         GROUP BY w.id, w.kudos, w.contributions, w.fulfilments, r.kudos, r.contributions, r.fulfilments)
    SELECT 'workers', w.id::text, to_jsonb(w) || jsonb_build_object(
               'kudos', model.shown(t.kudos), 'kudos_cents', model.cents(t.kudos),
               'contributions', model.shown(t.contributions), 'contributions_cents', model.cents(t.contributions),
               'fulfilments', model.shown(t.fulfilments), 'fulfilments_cents', model.cents(t.fulfilments))
      FROM opening.workers w JOIN total t USING (id);

    INSERT INTO model.expected
    WITH total AS (
        SELECT w.id, model.exact(w.kudos, r.kudos) + coalesce(sum(s.kudos), 0) AS kudos,
               model.exact(w.contributions, r.contributions) + coalesce(sum(s.contributions), 0) AS contributions,
               model.exact(w.fulfilments, r.fulfilments) + coalesce(sum(s.fulfilments), 0) AS fulfilments
          FROM opening.teams w
          LEFT JOIN opening.kudos_remainder_teams r USING (id)
          LEFT JOIN share s ON s.team_id = w.id
         GROUP BY w.id, w.kudos, w.contributions, w.fulfilments, r.kudos, r.contributions, r.fulfilments)
    SELECT 'teams', w.id::text, to_jsonb(w) || jsonb_build_object(
               'kudos', model.shown(t.kudos), 'kudos_cents', model.cents(t.kudos),
               'contributions', model.shown(t.contributions), 'contributions_cents', model.cents(t.contributions),
               'fulfilments', model.shown(t.fulfilments), 'fulfilments_cents', model.cents(t.fulfilments))
      FROM opening.teams w JOIN total t USING (id);

    -- Taking at most what remains, slice by slice, ends where taking all of it at once ends, and a
    -- released hold has nothing left to take: the slices do not matter. An event completes when a
    -- row of it was folded and none is left.
    INSERT INTO model.expected
    WITH debit AS (
        SELECT detail->>'reservation_id' AS business_id, -sum(amount) AS amount FROM folded_currency
         WHERE NOT escrow AND amount < 0 AND jsonb_typeof(detail) = 'object' AND jsonb_typeof(detail->'reservation_id') = 'string'
         GROUP BY 1),
    completed AS (
        SELECT event_id FROM folded_currency
        EXCEPT
        SELECT event_id FROM opening.kudos_ledger WHERE NOT applied AND id NOT IN (SELECT id FROM folded_currency)),
    hold AS (
        SELECT r.id, CASE WHEN c.event_id IS NOT NULL THEN 0
                          ELSE greatest(0, r.remaining_amount - coalesce(d.amount, 0)) END AS remaining,
               c.event_id IS NOT NULL OR d.amount IS NOT NULL AS met
          FROM opening.kudos_reservations r
          LEFT JOIN debit d USING (business_id)
          LEFT JOIN completed c ON c.event_id = r.event_id
         WHERE r.released_at IS NULL)
    SELECT 'kudos_reservations', r.id::text, to_jsonb(r) || jsonb_build_object(
               'remaining_amount', coalesce(h.remaining, r.remaining_amount),
               'released_at', CASE WHEN h.met AND h.remaining = 0 THEN 'while folding' ELSE r.released_at::text END)
      FROM opening.kudos_reservations r LEFT JOIN hold h USING (id);

    -- the archive: flags only
    INSERT INTO model.expected
    SELECT 'kudos_ledger', l.id::text,
           to_jsonb(l) || jsonb_build_object('applied', l.applied OR l.id IN (SELECT id FROM folded_currency))
      FROM opening.kudos_ledger l;
    INSERT INTO model.expected
    SELECT 'kudos_stat_events', e.id::text,
           to_jsonb(e) || CASE WHEN f.fate = 'applied' THEN '{"applied": true}'
                               WHEN f.fate IS NOT NULL THEN jsonb_build_object('quarantined', true, 'quarantine_reason', f.fate)
                               ELSE '{}' END
                       || jsonb_build_object('quarantined_at',
                              CASE WHEN f.fate <> 'applied' THEN 'while folding' ELSE e.quarantined_at::text END)
      FROM opening.kudos_stat_events e LEFT JOIN model.fate f USING (id);

    INSERT INTO model.expected
    SELECT 'floor_adjustments', format('%s/%s', user_id, row_number() OVER (PARTITION BY user_id ORDER BY cycle)),
           jsonb_build_object('cycle', cycle + 1, 'amount', round(amount, 2), 'entry_type', 'FLOOR_ADJUSTMENT', 'escrow', false,
                              'applied', true, 'job_id', null, 'wp_type', null, 'created', 'while folding',
                              'detail', '{"reason": "minimum_balance_floor"}'::jsonb)
      FROM model.floor_adjustment;

    INSERT INTO model.expected SELECT 'user_roles', id::text, to_jsonb(t) FROM opening.user_roles t;
    INSERT INTO model.expected SELECT 'user_suspicions', id::text, to_jsonb(t) FROM opening.user_suspicions t;
    INSERT INTO model.expected SELECT 'kudos_transfers', id::text, to_jsonb(t) FROM opening.kudos_transfers t;
    INSERT INTO model.expected SELECT 'kudos_ledger_control', id::text, to_jsonb(t) FROM opening.kudos_ledger_control t;
END $$;

-- The same shape, read from the tables themselves.
CREATE FUNCTION model.actual() RETURNS TABLE (target text, key text, content jsonb) LANGUAGE sql STABLE AS $$
    SELECT 'users', u.id::text, to_jsonb(u) || jsonb_build_object('kudos_cents', coalesce(r.kudos, 0),
                                                                  'evaluating_kudos_cents', coalesce(r.evaluating_kudos, 0))
      FROM public.users u LEFT JOIN public.kudos_remainder_users r ON r.id = u.id
    UNION ALL
    SELECT 'user_stats', format('%s/%s', user_id, action), jsonb_build_object('value', s.value, 'cents', coalesce(r.value, 0))
      FROM public.user_stats s LEFT JOIN public.kudos_remainder_user_stats r USING (user_id, action)
    UNION ALL
    SELECT 'worker_stats', format('%s/%s', worker_id, action), jsonb_build_object('value', s.value, 'cents', coalesce(r.value, 0))
      FROM public.worker_stats s LEFT JOIN public.kudos_remainder_worker_stats r USING (worker_id, action)
    UNION ALL
    SELECT 'user_records', format('%s/%s/%s', s.user_id, s.record_type, s.record),
           jsonb_build_object('value', s.value, 'cents', coalesce(r.value, 0))
      FROM public.user_records s
      LEFT JOIN public.kudos_remainder_user_records r
        ON (r.user_id, r.record_type, r.record) = (s.user_id, s.record_type::text, s.record)
    UNION ALL
    SELECT 'workers', w.id::text, to_jsonb(w) || jsonb_build_object('kudos_cents', coalesce(r.kudos, 0),
               'contributions_cents', coalesce(r.contributions, 0), 'fulfilments_cents', coalesce(r.fulfilments, 0))
      FROM public.workers w LEFT JOIN public.kudos_remainder_workers r USING (id)
    UNION ALL
    SELECT 'teams', w.id::text, to_jsonb(w) || jsonb_build_object('kudos_cents', coalesce(r.kudos, 0),
               'contributions_cents', coalesce(r.contributions, 0), 'fulfilments_cents', coalesce(r.fulfilments, 0))
      FROM public.teams w LEFT JOIN public.kudos_remainder_teams r USING (id)
    UNION ALL
    SELECT 'kudos_reservations', r.id::text, to_jsonb(r) || jsonb_build_object('released_at', model.stamp(r.released_at))
      FROM public.kudos_reservations r
    UNION ALL
    SELECT 'kudos_ledger', l.id::text, to_jsonb(l) FROM public.kudos_ledger l WHERE id IN (SELECT id FROM opening.kudos_ledger)
    UNION ALL
    SELECT 'kudos_stat_events', e.id::text, to_jsonb(e) || jsonb_build_object('quarantined_at', model.stamp(e.quarantined_at))
      FROM public.kudos_stat_events e
    UNION ALL
    SELECT 'floor_adjustments', format('%s/%s', user_id, row_number() OVER (PARTITION BY user_id ORDER BY id)),
           to_jsonb(l) - '{id,user_id,event_id}'::text[]
               || jsonb_build_object('created', model.stamp(created),
                      'cycle', (SELECT min(cycle) FROM model.cycle_log c WHERE c.last_currency_id >= l.id))
      FROM public.kudos_ledger l WHERE id NOT IN (SELECT id FROM opening.kudos_ledger)
    UNION ALL SELECT 'user_roles', id::text, to_jsonb(t) FROM public.user_roles t
    UNION ALL SELECT 'user_suspicions', id::text, to_jsonb(t) FROM public.user_suspicions t
    UNION ALL SELECT 'kudos_transfers', id::text, to_jsonb(t) FROM public.kudos_transfers t
    UNION ALL SELECT 'kudos_ledger_control', id::text, to_jsonb(t) FROM public.kudos_ledger_control t
$$;

-- every row that only one side has, one target or all of them
CREATE FUNCTION model.differences(wanted text DEFAULT NULL)
RETURNS TABLE (target text, key text, side text, content jsonb) LANGUAGE sql STABLE AS $$
    WITH actual AS MATERIALIZED (SELECT * FROM model.actual())
    SELECT target, key, side, content FROM (
        (SELECT 'expected' AS side, e.* FROM model.expected e EXCEPT ALL SELECT 'expected', a.* FROM actual a)
        UNION ALL
        (SELECT 'actual', a.* FROM actual a EXCEPT ALL SELECT 'actual', e.* FROM model.expected e)) d
     WHERE target = wanted OR wanted IS NULL
     ORDER BY target, key, side
$$;

-- What holds after any fold, said without the model's numbers.
CREATE FUNCTION model.violations() RETURNS TABLE (rule text, example text) LANGUAGE sql STABLE AS $$
    WITH created AS MATERIALIZED (
        SELECT * FROM public.kudos_ledger WHERE id NOT IN (SELECT id FROM opening.kudos_ledger)),
    -- what became applied, and what was applied from its birth
    moved AS MATERIALIZED (
        SELECT user_id, sum(amount) AS amount FROM (
            SELECT user_id, amount FROM public.kudos_ledger WHERE applied AND NOT escrow
            UNION ALL
            SELECT user_id, -amount FROM opening.kudos_ledger WHERE applied AND NOT escrow) part
         GROUP BY user_id)
    SELECT 'a stat row is both applied and quarantined', id::text FROM public.kudos_stat_events WHERE applied AND quarantined
    UNION ALL
    SELECT 'a quarantined stat row has no reason or time', id::text FROM public.kudos_stat_events
     WHERE quarantined AND (quarantine_reason IS NULL OR quarantined_at IS NULL)
    UNION ALL
    SELECT 'a row is left in the queue', 'currency ' || id FROM public.kudos_ledger WHERE NOT applied
    UNION ALL
    SELECT 'a row is left in the queue', 'stat ' || id FROM public.kudos_stat_events WHERE NOT applied AND NOT quarantined
    UNION ALL
    SELECT 'replaying the applied rows does not give the balance', u.id::text
      FROM public.users u
      LEFT JOIN public.kudos_remainder_users r USING (id)
      JOIN opening.users o USING (id)
      LEFT JOIN opening.kudos_remainder_users s USING (id)
      LEFT JOIN moved m ON m.user_id = u.id
     WHERE model.exact(u.kudos, r.kudos) - model.exact(o.kudos, s.kudos) <> coalesce(m.amount, 0)
    UNION ALL
    SELECT 'a balance with a folded row is below its floor', u.id::text
      FROM public.users u LEFT JOIN public.kudos_remainder_users r USING (id)
     WHERE model.exact(u.kudos, r.kudos) < model.balance_floor(u.oauth_id)
       AND u.id IN (SELECT user_id FROM opening.kudos_ledger WHERE NOT applied AND NOT escrow)
    UNION ALL
    SELECT 'a floor adjustment shares its event', l.id::text
      FROM created l
     WHERE l.event_id IN (SELECT event_id FROM public.kudos_ledger GROUP BY event_id HAVING count(*) > 1)
        OR l.event_id IN (SELECT event_id FROM public.kudos_stat_events)
    UNION ALL
    SELECT 'a counter row changed its identity', format('user_stats %s', id) FROM opening.user_stats o
     WHERE NOT EXISTS (SELECT FROM public.user_stats s WHERE (s.id, s.user_id, s.action) = (o.id, o.user_id, o.action))
    UNION ALL
    SELECT 'a counter row changed its identity', format('worker_stats %s', id) FROM opening.worker_stats o
     WHERE NOT EXISTS (SELECT FROM public.worker_stats s WHERE (s.id, s.worker_id, s.action) = (o.id, o.worker_id, o.action))
    UNION ALL
    SELECT 'a counter row changed its identity', format('user_records %s', id) FROM opening.user_records o
     WHERE NOT EXISTS (SELECT FROM public.user_records s
                        WHERE (s.id, s.user_id, s.record_type, s.record) = (o.id, o.user_id, o.record_type, o.record))
    UNION ALL
    SELECT 'a remainder has no target', format('user_stats %s/%s', user_id, action) FROM public.kudos_remainder_user_stats r
     WHERE value <> 0 AND NOT EXISTS (SELECT FROM public.user_stats s WHERE (s.user_id, s.action) = (r.user_id, r.action))
    UNION ALL
    SELECT 'a remainder has no target', format('worker_stats %s/%s', worker_id, action) FROM public.kudos_remainder_worker_stats r
     WHERE value <> 0 AND NOT EXISTS (SELECT FROM public.worker_stats s WHERE (s.worker_id, s.action) = (r.worker_id, r.action))
    UNION ALL
    SELECT 'a remainder has no target', format('user_records %s', user_id) FROM public.kudos_remainder_user_records
    UNION ALL
    SELECT 'a remainder has no target', format('users %s', id) FROM public.kudos_remainder_users r
     WHERE (kudos, evaluating_kudos) <> (0, 0) AND NOT EXISTS (SELECT FROM public.users u WHERE u.id = r.id)
    UNION ALL
    SELECT 'a remainder has no target', format('workers %s', id) FROM public.kudos_remainder_workers r
     WHERE (kudos, contributions, fulfilments) <> (0, 0, 0) AND NOT EXISTS (SELECT FROM public.workers w WHERE w.id = r.id)
    UNION ALL
    SELECT 'a remainder has no target', format('teams %s', id) FROM public.kudos_remainder_teams r
     WHERE (kudos, contributions, fulfilments) <> (0, 0, 0) AND NOT EXISTS (SELECT FROM public.teams t WHERE t.id = r.id)
    UNION ALL
    SELECT 'the heartbeat was not stamped', coalesce((SELECT applied_at::text FROM public.kudos_ledger_applier_state WHERE id = 1), 'no row')
     WHERE NOT EXISTS (SELECT FROM public.kudos_ledger_applier_state WHERE id = 1 AND model.stamp(applied_at) = 'while folding')
    UNION ALL
    SELECT 'the heartbeat has more than one row', count(*)::text FROM public.kudos_ledger_applier_state HAVING count(*) > 1
    UNION ALL
    SELECT 'the cycles report another number of currency rows', format('%s, pending were %s', reported, pending)
      FROM (SELECT sum(currency_rows) FROM model.cycle_log) c (reported),
           (SELECT count(*) FROM opening.kudos_ledger WHERE NOT applied) p (pending)
     WHERE reported IS DISTINCT FROM pending
    UNION ALL
    SELECT 'the cycles report another number of quarantined rows', format('%s, became so %s', reported, became)
      FROM (SELECT sum(quarantined_rows) FROM model.cycle_log) c (reported),
           (SELECT count(*) FROM public.kudos_stat_events WHERE quarantined AND model.stamp(quarantined_at) = 'while folding') p (became)
     WHERE reported IS DISTINCT FROM became
    UNION ALL
    SELECT 'a cycle reports another number of floor adjustments', format('cycle %s: %s', cycle, floor_adjustments)
      FROM model.cycle_log c
     WHERE floor_adjustments <> (SELECT count(*) FROM created l
                                  WHERE l.id <= c.last_currency_id
                                    AND l.id > coalesce((SELECT last_currency_id FROM model.cycle_log p WHERE p.cycle = c.cycle - 1), 0))
$$;

-- Events whose stat rows come to different ends with different batch sizes: an invalid row behind a
-- valid one sets aside only what was not folded before it is seen.
CREATE VIEW model.boundary_dependent_event AS
SELECT event_id FROM model.fate GROUP BY event_id
HAVING bool_or(own_reason IS NOT NULL) AND (array_agg(own_reason ORDER BY id))[1] IS NULL;

-- What any batch size must give alike: everything but the floor (balances without what it created) and
-- the targets of boundary dependent events.
CREATE FUNCTION model.independent_of_batches() RETURNS TABLE (target text, key text, content jsonb) LANGUAGE sql STABLE AS $$
    WITH named AS (
        SELECT user_id, worker_id, team_id, id FROM opening.kudos_stat_events
         WHERE event_id IN (SELECT event_id FROM model.boundary_dependent_event))
    SELECT 'balance without floor', u.id::text, to_jsonb(
               model.exact(u.kudos, r.kudos) - (SELECT coalesce(sum(amount), 0) FROM public.kudos_ledger l
                  WHERE l.user_id = u.id AND NOT EXISTS (SELECT FROM opening.kudos_ledger o WHERE o.id = l.id)))
      FROM public.users u LEFT JOIN public.kudos_remainder_users r USING (id)
    UNION ALL
    SELECT target, key, CASE target WHEN 'users' THEN content - 'kudos' - 'kudos_cents' ELSE content END
      FROM model.actual()
     WHERE target <> 'floor_adjustments'
       AND NOT (target IN ('users', 'user_stats', 'user_records', 'workers', 'worker_stats', 'teams')
                AND split_part(key, '/', 1) IN (SELECT user_id::text FROM named WHERE user_id IS NOT NULL
                                                UNION SELECT worker_id::text FROM named WHERE worker_id IS NOT NULL
                                                UNION SELECT team_id::text FROM named WHERE team_id IS NOT NULL))
       AND NOT (target = 'kudos_stat_events' AND key IN (SELECT id::text FROM named))
$$;

-- Post the opposite of everything that was folded since the opening, latest first, so that a counter
-- walks back the way it came and ends where it began, whatever fractions lie between.
CREATE PROCEDURE model.post_reversal() LANGUAGE sql AS $$
    INSERT INTO public.kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
    SELECT created, md5('reversal ' || event_id)::uuid, entry_type, user_id, escrow, -amount, false
      FROM opening.kudos_ledger WHERE NOT applied ORDER BY id DESC;
    INSERT INTO public.kudos_stat_events (created, event_id, entry_type, user_id, worker_user_id, worker_id, team_id,
                                          amount, unit, stat_action, record, detail, applied)
    SELECT e.created, md5('reversal ' || e.event_id)::uuid, entry_type, user_id, worker_user_id, worker_id, team_id,
           -amount, unit, stat_action, record, detail, false
      FROM opening.kudos_stat_events e JOIN model.fate f USING (id) WHERE f.fate = 'applied' ORDER BY id DESC;
$$;

CREATE FUNCTION model.counters() RETURNS TABLE (target text, key text, content jsonb) LANGUAGE sql STABLE AS $$
    SELECT * FROM model.actual() WHERE target IN ('user_stats', 'user_records', 'worker_stats', 'workers', 'teams')
$$;
CREATE TABLE model.counters_at_first (target text, key text, content jsonb);
-- counters that are not as they were; one that did not exist may stay as a zero
CREATE FUNCTION model.not_reversed() RETURNS TABLE (target text, key text, side text, content jsonb) LANGUAGE sql STABLE AS $$
    WITH now AS MATERIALIZED (SELECT * FROM model.counters())
    SELECT target, key, side, content FROM (
        (SELECT 'at first' AS side, f.* FROM model.counters_at_first f EXCEPT SELECT 'at first', n.* FROM now n)
        UNION ALL
        (SELECT 'now', n.* FROM now n WHERE content <> '{"value": 0, "cents": 0}'
         EXCEPT SELECT 'now', f.* FROM model.counters_at_first f)) d
     ORDER BY target, key, side
$$;
