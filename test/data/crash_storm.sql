-- What a crash storm needs in the database: a cast, the application's business, an applier that is not ours, and
-- the check of everything against the archive.
--
--   SELECT storm.settle(...);                  an event of up to ten rows; the other functions are further business
--   SELECT storm.other_applier(100);           a cycle of somebody else's applier
--   SELECT * FROM storm.errors(false);         nothing, at every commit; otherwise what is wrong
--   SELECT * FROM storm.errors(true);          likewise, and nothing is left to do
--
-- Needs the tables of the application, the extension, and isolation_helpers.sql, all in "public".
\set QUIET on
SET client_min_messages = warning;
CREATE SCHEMA storm;

-- ---------------------------------------------------------------------------------------------------
-- The cast. Odd accounts, workers and teams only ever see whole kudos, so that an applier that knows of no
-- remainders can fold theirs; even ones see cents. 1 and 2 are in most events.

CREATE FUNCTION storm.utc() RETURNS timestamp LANGUAGE sql VOLATILE AS $$ SELECT clock_timestamp() AT TIME ZONE 'utc' $$;

CREATE FUNCTION storm.add_user(name text, account text, balance bigint, id int DEFAULT nextval('users_id_seq')::int)
RETURNS int LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO users (id, username, oauth_id, api_key, client_id, created, last_active, kudos, monthly_kudos,
                     evaluating_kudos, usage_multiplier, worker_invited, public_workers, concurrency)
    VALUES (add_user.id, name, account, 'key-' || name, 'client-' || name, '2022-01-01', '2022-01-01', balance, 0, 0, 1, 0,
            true, 30);
  INSERT INTO t_touched VALUES (add_user.id, '2022-01-01');
  RETURN id;
END $$;

CREATE FUNCTION storm.add_worker(id uuid, name text, owner int, team uuid) RETURNS void LANGUAGE sql AS $$
  INSERT INTO workers (id, worker_type, user_id, name, kudos, contributions, fulfilments, aborted_jobs, uncompleted_jobs,
      uptime, threads, bridge_agent, last_reward_uptime, max_power, extra_slow_worker, paused, maintenance,
      maintenance_msg, team_id, allow_unsafe_ipaddr, speed, nsfw, max_length, max_context_length, max_pixels,
      allow_img2img, allow_painting, allow_post_processing, allow_controlnet, allow_sdxl_controlnet, allow_lora,
      limit_max_steps)
    VALUES (id, 'worker', owner, name, 0, 0, 0, 0, 0, 0, 1, 'storm', 0, 8, false, true, false, '', team, false, 1, true, 80,
            1024, 1, true, true, true, true, true, true, false)
$$;

CREATE FUNCTION storm.add_team(id uuid, name text) RETURNS void LANGUAGE sql AS $$
  INSERT INTO teams (id, name, owner_id, contributions, fulfilments, kudos, uptime, created, last_active)
    VALUES (id, name, 1, 0, 0, 0, 0, '2022-01-01', '2022-01-01')
$$;

-- Whoever is deleted comes back as another one in the same slot. Guests are users who may be wiped.
CREATE TABLE storm.slots (kind text, slot int, generation int NOT NULL, PRIMARY KEY (kind, slot));
CREATE TABLE storm.guests (slot int PRIMARY KEY, user_id int NOT NULL);

CREATE FUNCTION storm.id_of(wanted text, wanted_slot int, generations_ago int DEFAULT 0) RETURNS uuid LANGUAGE sql STABLE AS $$
  SELECT md5(format('%s/%s/%s', wanted, wanted_slot, generation - generations_ago))::uuid
    FROM storm.slots WHERE kind = wanted AND slot = wanted_slot
$$;

-- Accounts below 100 are permanent; from 100 on they are slots of guests.
CREATE FUNCTION storm.account(number int) RETURNS int LANGUAGE sql STABLE AS $$
  SELECT CASE WHEN number < 100 THEN number ELSE (SELECT user_id FROM storm.guests WHERE slot = number) END
$$;

SELECT storm.add_user('user-' || n, CASE WHEN n = 0 THEN 'anon' WHEN n % 5 = 0 THEN md5(n::text)::uuid::text ELSE 'acct-' || n END,
                      CASE WHEN n < 3 THEN 100000 WHEN n % 3 = 0 THEN 40 ELSE 1000 END, n)
  FROM generate_series(0, 29) n \g /dev/null
SELECT setval('users_id_seq', 1000) \g /dev/null
INSERT INTO user_roles (user_id, user_role, value) SELECT n, 'TRUSTED', true FROM generate_series(0, 29) n WHERE n % 4 = 0;
INSERT INTO storm.guests SELECT n, storm.add_user('guest-' || n, 'acct-guest-' || n, 0) FROM generate_series(100, 107) n;
INSERT INTO storm.slots SELECT 'worker', n, 1 FROM generate_series(1, 12) n;
INSERT INTO storm.slots SELECT 'team', n, 1 FROM generate_series(1, 4) n;
SELECT storm.add_team(storm.id_of('team', n), 'team-' || n) FROM generate_series(1, 4) n \g /dev/null
SELECT storm.add_worker(storm.id_of('worker', n), 'worker-' || n, storm.account(CASE WHEN n < 9 THEN n ELSE n + 91 END), NULL)
  FROM generate_series(1, 12) n \g /dev/null
INSERT INTO kudos_ledger_control (id, mode, changed_at) VALUES (1, 'ledger', '2026-01-01')
  ON CONFLICT (id) DO UPDATE SET mode = 'ledger';
CALL remember_opening();

-- ---------------------------------------------------------------------------------------------------
-- What is kept beside the archive, in the transaction that posts or folds.

CREATE TABLE storm.clients (client int PRIMARY KEY, step bigint NOT NULL);
CREATE TABLE storm.ledger_journal (LIKE kudos_ledger);
CREATE TABLE storm.stat_journal (LIKE kudos_stat_events);
CREATE INDEX ON storm.ledger_journal ((detail->>'reservation_id'));
CREATE TABLE storm.folds (path text, rows bigint);
-- A hold as it was made last; what was consumed under its name before that is not its own.
CREATE TABLE storm.holds (business_id text PRIMARY KEY, amount numeric NOT NULL, event_id uuid, consumed_before numeric NOT NULL,
                          is_released boolean NOT NULL, is_event_posted boolean NOT NULL);

CREATE FUNCTION storm.note_rows() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('INSERT INTO storm.%I SELECT * FROM new_rows', TG_ARGV[0]);
  RETURN NULL;
END $$;
CREATE TRIGGER storm_rows AFTER INSERT ON kudos_ledger REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION storm.note_rows('ledger_journal');
CREATE TRIGGER storm_rows AFTER INSERT ON kudos_stat_events REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION storm.note_rows('stat_journal');

CREATE FUNCTION storm.note_fold() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO storm.folds
    SELECT coalesce(nullif(pg_catalog.current_setting('storm.path', true), ''), 'worker'), pg_catalog.count(*)
      FROM new_rows WHERE applied HAVING pg_catalog.count(*) > 0;
  RETURN NULL;
END $$;
CREATE TRIGGER storm_folds AFTER UPDATE ON kudos_ledger REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION storm.note_fold();
CREATE TRIGGER storm_folds AFTER UPDATE ON kudos_stat_events REFERENCING NEW TABLE AS new_rows
  FOR EACH STATEMENT EXECUTE FUNCTION storm.note_fold();

-- A client tells the number of his step in the transaction of the step, and knows which were acknowledged.
CREATE FUNCTION storm.begin_step(number int, step bigint) RETURNS uuid LANGUAGE sql VOLATILE AS $$
  INSERT INTO storm.clients AS c VALUES (number, begin_step.step)
    ON CONFLICT (client) DO UPDATE SET step = begin_step.step;
  SELECT md5(format('event/%s/%s', number, begin_step.step))::uuid
$$;

-- ---------------------------------------------------------------------------------------------------
-- The application's business. HOW a row is posted: "call" by our functions, "plain" by an INSERT as the Horde
-- does, "inline" in shadow mode, when it is born applied and the application writes the target itself.

CREATE FUNCTION storm.post(how text, event uuid, account int, cents bigint, escrow boolean DEFAULT false,
                           reservation text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  amount numeric(20, 2) := cents / 100.0;
  detail jsonb := CASE WHEN reservation IS NOT NULL THEN jsonb_build_object('reservation_id', reservation) END;
BEGIN
  IF how = 'call' THEN
    PERFORM kudos_post(account, amount, 'GENERATION', escrow, event, detail => detail);
  ELSE
    INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied, detail)
      VALUES (storm.utc(), event, 'GENERATION', account, escrow, amount, how = 'inline', detail);
  END IF;
  IF how = 'inline' THEN
    UPDATE users SET kudos = kudos + amount WHERE id = account;
  END IF;
END $$;

CREATE FUNCTION storm.post_stat(how text, event uuid, entry_type text, cents bigint, unit text, action text, record text,
                                account int DEFAULT NULL, worker uuid DEFAULT NULL, team uuid DEFAULT NULL,
                                detail jsonb DEFAULT NULL)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  amount numeric(20, 2) := cents / 100.0;
BEGIN
  IF how = 'call' THEN
    PERFORM kudos_post_stat(entry_type, amount, unit, account, worker, NULL, team, action, record, event, detail => detail);
  ELSE
    INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, worker_id, team_id, amount, unit, stat_action,
                                   record, detail, applied)
      VALUES (storm.utc(), event, entry_type, account, worker, team, amount, unit, action, record, detail, how = 'inline');
  END IF;
END $$;

-- Shadow mode: whole credits, and numbers that never change their sign, since an application that adds to the
-- columns rounds nothing.
CREATE FUNCTION storm.settle_inline(event uuid, earner int, cents bigint, worker_of uuid, team_of uuid)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  whole bigint := greatest(1, abs(cents) / 100);
BEGIN
  PERFORM FROM users WHERE id = earner AND kudos >= 14 FOR NO KEY UPDATE;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM storm.post('inline', event, earner, whole * 100);
  PERFORM storm.post_stat('inline', event, 'GENERATION', whole * 100, 'kudos', 'inline', 'user_kudos', earner);
  INSERT INTO user_stats AS s (user_id, action, value) VALUES (earner, 'inline', whole)
    ON CONFLICT (user_id, action) DO UPDATE SET value = s.value + whole;
  PERFORM storm.post_stat('inline', event, 'GENERATION', whole * 100, 'kudos', 'generated', 'worker_kudos',
                          worker => worker_of, team => team_of);
  PERFORM FROM workers WHERE id = worker_of FOR KEY SHARE;
  IF FOUND THEN
    INSERT INTO worker_stats AS s (worker_id, action, value) VALUES (worker_of, 'generated', whole)
      ON CONFLICT (worker_id, action) DO UPDATE SET value = s.value + whole;
    UPDATE workers SET kudos = kudos + whole WHERE id = worker_of;
  END IF;
  UPDATE teams SET kudos = kudos + whole WHERE id = team_of;
END $$;

-- A generation that is paid for. PARTS is a set of bits: which rows the event has.
CREATE FUNCTION storm.settle(client int, step bigint, how text, payer int, earner int, cents bigint, worker_slot int,
                             generations_ago int, team_slot int, parts int)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  event uuid := storm.begin_step(client, step);
  mode text := kudos_pin_mode();
  payer_id int := storm.account(payer);
  earner_id int := storm.account(earner);
  worker uuid := storm.id_of('worker', worker_slot, generations_ago);
  team uuid := storm.id_of('team', team_slot);
BEGIN
  IF mode <> 'ledger' THEN
    PERFORM storm.settle_inline(event, earner_id, cents, worker, team);
    RETURN;
  END IF;
  IF parts & 1 > 0 THEN
    PERFORM storm.post(how, event, payer_id, -cents, reservation => 'upfront:none');
    PERFORM storm.post_stat(how, event, 'GENERATION', -cents, 'kudos', 'accumulated', 'user_kudos', payer_id);
  END IF;
  IF parts & 2 > 0 THEN
    PERFORM storm.post(how, event, earner_id, cents, escrow => parts & 4 > 0);
    PERFORM storm.post_stat(how, event, 'GENERATION', cents, 'kudos', 'accumulated', 'user_kudos', earner_id);
  END IF;
  IF parts & 8 > 0 THEN
    PERFORM storm.post(how, event, payer_id, -cents / 200 * 100, escrow => true);
  END IF;
  IF parts & 16 > 0 THEN
    PERFORM storm.post_stat(how, event, 'GENERATION', cents, 'kudos', 'generated', 'worker_kudos', worker => worker, team => team);
    PERFORM storm.post_stat(how, event, 'STAT_CONTRIBUTION', cents, 'things', 'contributions', NULL, worker => worker, team => team);
    PERFORM storm.post_stat(how, event, 'STAT_CONTRIBUTION', 100, 'count', 'fulfilments', NULL, worker => worker, team => team);
  END IF;
  IF parts & 32 > 0 THEN
    PERFORM storm.post_stat(how, event, 'STAT_RECORD', -cents, 'things', 'USAGE', 'image', payer_id);
    PERFORM storm.post_stat(how, event, 'STAT_RECORD', 100, 'count', 'REQUEST', 'image', payer_id);
  END IF;
  IF parts & 64 > 0 THEN
    PERFORM storm.post_stat(how, event, 'STAT_ACTIVITY', 100, 'count', 'activity', 'last_active', payer_id,
                            detail => '{"touch_last_active": true}');
  END IF;
END $$;

-- Statistics alone: what may stand behind a guest who can still be deleted; and, if it is to be, a row that
-- nobody can fold.
CREATE FUNCTION storm.count_guest(client int, step bigint, how text, guest int, cents bigint, is_invalid boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  event uuid := storm.begin_step(client, step);
  guest_id int := storm.account(guest);
BEGIN
  IF kudos_pin_mode() <> 'ledger' THEN
    RETURN;
  END IF;
  PERFORM storm.post_stat(how, event, 'GENERATION', cents, 'kudos', 'accumulated', 'user_kudos', guest_id);
  PERFORM storm.post_stat(how, event, 'STAT_RECORD', cents, 'things', 'CONTRIBUTION', 'text', guest_id);
  IF is_invalid THEN
    PERFORM storm.post_stat('plain', event, 'STAT_RECORD', 100, 'count', 'USAGE', 'image', 1, detail => '{"is_invalid": true}');
  END IF;
END $$;

CREATE FUNCTION storm.transfer(client int, step bigint, source int, dest int, cents bigint, key text)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM storm.begin_step(client, step);
  PERFORM kudos_transfer(storm.account(source), storm.account(dest), (cents / 100.0)::numeric(20, 2), key);
END $$;

-- Holds. Each belongs to one client and one account, so that nobody else names it.
CREATE FUNCTION storm.reserve(client int, step bigint, account int, slot int, cents bigint, has_event boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  event uuid := storm.begin_step(client, step);
  key text := format('hold:%s:%s', client, slot);
  was_active boolean;
  consumed numeric;
BEGIN
  -- A debit of an earlier life that is still queued would run into the new one.
  PERFORM FROM storm.ledger_journal j JOIN kudos_ledger l USING (id) WHERE j.detail->>'reservation_id' = key AND NOT l.applied;
  IF FOUND THEN
    RETURN;
  END IF;
  SELECT released_at IS NULL INTO was_active FROM kudos_reservations WHERE business_id = key FOR NO KEY UPDATE;
  IF (SELECT granted FROM kudos_reserve(account, key, (cents / 100.0)::numeric(20, 2), CASE WHEN has_event THEN event END))
     AND was_active IS NOT TRUE THEN
    SELECT coalesce(-sum(amount), 0) INTO consumed FROM storm.ledger_journal WHERE detail->>'reservation_id' = key;
    INSERT INTO storm.holds VALUES (key, cents / 100.0, CASE WHEN has_event THEN event END, consumed, false, false)
      ON CONFLICT (business_id) DO UPDATE SET amount = excluded.amount, event_id = excluded.event_id,
        consumed_before = excluded.consumed_before, is_released = false, is_event_posted = false;
  END IF;
END $$;

-- A debit under the hold; the rows of the hold's own event are posted once, and together.
CREATE FUNCTION storm.spend(client int, step bigint, how text, account int, slot int, cents bigint, settles boolean)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  event uuid := storm.begin_step(client, step);
  key text := format('hold:%s:%s', client, slot);
  hold storm.holds;
BEGIN
  IF kudos_pin_mode() <> 'ledger' THEN
    RETURN;
  END IF;
  SELECT * INTO hold FROM storm.holds WHERE business_id = key;
  IF settles AND hold.event_id IS NOT NULL AND NOT hold.is_event_posted THEN
    UPDATE storm.holds SET is_event_posted = true WHERE business_id = key;
    event := hold.event_id;
  END IF;
  PERFORM storm.post(how, event, account, -cents, reservation => key);
  PERFORM storm.post(how, event, 1 + account % 2, cents / 100 * 100);
END $$;

CREATE FUNCTION storm.release(client int, step bigint, slot int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  key text := format('hold:%s:%s', client, slot);
BEGIN
  PERFORM storm.begin_step(client, step);
  -- Those with an event are released by it.
  UPDATE storm.holds SET is_released = true WHERE business_id = key AND event_id IS NULL;
  IF FOUND THEN
    PERFORM kudos_release(key);
  END IF;
END $$;

CREATE FUNCTION storm.replace_worker(client int, step bigint, of_slot int, team_slot int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  owner int := storm.account(CASE WHEN of_slot < 9 THEN of_slot ELSE of_slot + 91 END);
BEGIN
  PERFORM storm.begin_step(client, step);
  PERFORM FROM storm.slots WHERE kind = 'worker' AND slot = of_slot FOR UPDATE;
  DELETE FROM workers WHERE id = storm.id_of('worker', of_slot);
  UPDATE storm.slots SET generation = generation + 1 WHERE kind = 'worker' AND slot = of_slot;
  PERFORM storm.add_worker(storm.id_of('worker', of_slot), format('worker-%s-%s', of_slot, step || '/' || client), owner,
                           (SELECT id FROM teams WHERE id = storm.id_of('team', team_slot)));
END $$;

CREATE FUNCTION storm.replace_team(client int, step bigint, of_slot int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  old uuid;
BEGIN
  PERFORM storm.begin_step(client, step);
  PERFORM FROM storm.slots WHERE kind = 'team' AND slot = of_slot FOR UPDATE;
  old := storm.id_of('team', of_slot);
  PERFORM FROM workers WHERE team_id = old ORDER BY id FOR NO KEY UPDATE;
  UPDATE workers SET team_id = NULL WHERE team_id = old;
  BEGIN
    DELETE FROM teams WHERE id = old;
  EXCEPTION WHEN foreign_key_violation THEN
    RETURN; -- somebody joined meanwhile
  END;
  UPDATE storm.slots SET generation = generation + 1 WHERE kind = 'team' AND slot = of_slot;
  PERFORM storm.add_team(storm.id_of('team', of_slot), format('team-%s-%s', of_slot, step || '/' || client));
END $$;

CREATE FUNCTION storm.check_in(client int, step bigint, of_slot int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM storm.begin_step(client, step);
  UPDATE workers SET last_check_in = storm.utc(), uptime = uptime + 1, paused = NOT paused WHERE id = storm.id_of('worker', of_slot);
END $$;

-- A user with currency rows cannot be deleted; he is made nobody instead, and his floor is another one then.
CREATE FUNCTION storm.wipe_guest(client int, step bigint, of_slot int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  old int;
BEGIN
  PERFORM storm.begin_step(client, step);
  SELECT user_id INTO old FROM storm.guests WHERE slot = of_slot FOR UPDATE;
  BEGIN
    DELETE FROM users WHERE id = old;
  EXCEPTION WHEN foreign_key_violation THEN
    UPDATE users SET username = '<wiped>', oauth_id = '<wiped>' || old, contact = NULL WHERE id = old;
  END;
  UPDATE storm.guests SET user_id = storm.add_user(format('guest-%s-%s-%s', of_slot, client, step),
                                                   CASE WHEN step % 2 = 0 THEN md5(client || '/' || step)::uuid::text
                                                        ELSE format('acct-%s-%s', client, step) END, 0)
   WHERE slot = of_slot;
END $$;

-- ---------------------------------------------------------------------------------------------------
-- An applier that is not ours, in the manner of the Horde's: the same advisory key, the same order of locks, but no
-- remainders. So it takes only what it can fold without rounding: whole amounts into numbers without a
-- remainder. It neither promotes nor drains, and knows no quarantine.

CREATE FUNCTION storm.floor_of(oauth_id text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN oauth_id = 'anon' THEN -50 WHEN oauth_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN 14 ELSE 25 END
$$;

CREATE FUNCTION storm.other_applier(batch int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
  ledger_ids bigint[];
  stat_ids bigint[];
BEGIN
  IF NOT pg_try_advisory_xact_lock(1263879247) THEN
    RETURN 0;
  END IF;

  SELECT coalesce(array_agg(id), '{}') INTO ledger_ids FROM (
    SELECT l.id FROM kudos_ledger l
     WHERE NOT l.applied AND l.applied IS FALSE AND l.amount = trunc(l.amount)
       AND NOT EXISTS (SELECT FROM kudos_remainder_users r WHERE r.id = l.user_id AND (r.kudos, r.evaluating_kudos) <> (0, 0))
     ORDER BY l.id LIMIT batch FOR UPDATE SKIP LOCKED) claimed;
  SELECT coalesce(array_agg(id), '{}') INTO stat_ids FROM (
    SELECT e.id FROM kudos_stat_events e
     WHERE NOT e.applied AND e.applied IS FALSE AND e.quarantined IS FALSE AND e.amount = trunc(e.amount)
       AND e.detail->'is_invalid' IS NULL
       AND (e.record IS DISTINCT FROM 'user_kudos' OR NOT EXISTS
            (SELECT FROM kudos_remainder_user_stats r WHERE r.user_id = e.user_id AND r.action = e.stat_action AND r.value <> 0))
       AND NOT EXISTS (SELECT FROM kudos_remainder_worker_stats r WHERE r.worker_id = e.worker_id AND r.value <> 0)
       AND NOT EXISTS (SELECT FROM kudos_remainder_workers r
                        WHERE r.id = e.worker_id AND (r.kudos, r.contributions, r.fulfilments) <> (0, 0, 0))
       AND NOT EXISTS (SELECT FROM kudos_remainder_teams r
                        WHERE r.id = e.team_id AND (r.kudos, r.contributions, r.fulfilments) <> (0, 0, 0))
     ORDER BY e.id LIMIT batch FOR UPDATE SKIP LOCKED) claimed;

  PERFORM FROM users WHERE id IN (SELECT user_id FROM kudos_ledger WHERE id = ANY (ledger_ids)
                                  UNION SELECT user_id FROM kudos_stat_events WHERE id = ANY (stat_ids))
    ORDER BY id FOR NO KEY UPDATE;
  SELECT coalesce(array_agg(e.id), '{}') INTO stat_ids FROM kudos_stat_events e
   WHERE e.id = ANY (stat_ids) AND (e.user_id IS NULL OR EXISTS (SELECT FROM users u WHERE u.id = e.user_id));

  UPDATE kudos_ledger SET applied = true WHERE id = ANY (ledger_ids);
  UPDATE kudos_stat_events SET applied = true WHERE id = ANY (stat_ids);

  WITH outcome AS (
    SELECT u.id, storm.floor_of(u.oauth_id) AS lowest, u.kudos + sum(l.amount) FILTER (WHERE NOT l.escrow) AS balance,
           u.evaluating_kudos + sum(l.amount) FILTER (WHERE l.escrow) AS escrow
      FROM users u JOIN kudos_ledger l ON l.user_id = u.id WHERE l.id = ANY (ledger_ids) GROUP BY u.id),
  written AS (
    UPDATE users u SET kudos = CASE WHEN o.balance IS NULL THEN u.kudos ELSE greatest(o.balance, o.lowest) END,
                       evaluating_kudos = coalesce(o.escrow, u.evaluating_kudos) FROM outcome o WHERE u.id = o.id)
  INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied, detail)
    SELECT storm.utc(), gen_random_uuid(), 'FLOOR_ADJUSTMENT', id, false, lowest - balance, true,
           '{"reason": "minimum_balance_floor"}' FROM outcome WHERE balance < lowest ORDER BY id;
  UPDATE users u SET last_active = t.latest
    FROM (SELECT user_id, max(created) AS latest FROM kudos_stat_events
           WHERE id = ANY (stat_ids) AND detail->'touch_last_active' = 'true' GROUP BY user_id) t
   WHERE u.id = t.user_id AND u.last_active < t.latest;

  INSERT INTO user_stats AS s (user_id, action, value)
    SELECT user_id, stat_action, sum(amount) FROM kudos_stat_events WHERE id = ANY (stat_ids) AND record = 'user_kudos'
     GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (user_id, action) DO UPDATE SET value = s.value + excluded.value;
  PERFORM FROM workers WHERE id IN (SELECT worker_id FROM kudos_stat_events WHERE id = ANY (stat_ids)) ORDER BY id FOR KEY SHARE;
  INSERT INTO worker_stats AS s (worker_id, action, value)
    SELECT worker_id, stat_action, sum(amount) FROM kudos_stat_events e WHERE id = ANY (stat_ids) AND record = 'worker_kudos'
       AND EXISTS (SELECT FROM workers w WHERE w.id = e.worker_id)
     GROUP BY 1, 2 ORDER BY 1, 2
    ON CONFLICT (worker_id, action) DO UPDATE SET value = s.value + excluded.value;
  INSERT INTO user_records AS s (user_id, record_type, record, value)
    SELECT user_id, stat_action::userrecordtypes, record, sum(amount) FROM kudos_stat_events
     WHERE id = ANY (stat_ids) AND entry_type = 'STAT_RECORD'
     GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (user_id, record_type, record) DO UPDATE SET value = round((s.value + excluded.value)::numeric, 2);

  PERFORM FROM kudos_reservations
    WHERE released_at IS NULL
      AND (business_id IN (SELECT detail->>'reservation_id' FROM kudos_ledger WHERE id = ANY (ledger_ids))
           OR event_id IN (SELECT event_id FROM kudos_ledger WHERE id = ANY (ledger_ids)))
    ORDER BY id FOR NO KEY UPDATE;
  WITH consumed AS (
    SELECT detail->>'reservation_id' AS business_id, -sum(amount) AS amount FROM kudos_ledger
     WHERE id = ANY (ledger_ids) AND NOT escrow AND amount < 0 AND jsonb_typeof(detail->'reservation_id') = 'string' GROUP BY 1)
  UPDATE kudos_reservations h SET remaining_amount = greatest(0, h.remaining_amount - c.amount),
         released_at = CASE WHEN h.remaining_amount <= c.amount THEN storm.utc() END
    FROM consumed c WHERE h.business_id = c.business_id AND h.released_at IS NULL;
  UPDATE kudos_reservations h SET remaining_amount = 0, released_at = storm.utc()
   WHERE released_at IS NULL AND event_id IN (SELECT event_id FROM kudos_ledger WHERE id = ANY (ledger_ids))
     AND NOT EXISTS (SELECT FROM kudos_ledger l WHERE l.event_id = h.event_id AND NOT l.applied AND l.applied IS FALSE);

  PERFORM FROM workers WHERE id IN (SELECT worker_id FROM kudos_stat_events WHERE id = ANY (stat_ids))
    ORDER BY id FOR NO KEY UPDATE;
  UPDATE workers w SET kudos = w.kudos + d.kudos, contributions = w.contributions + d.contributions,
                       fulfilments = w.fulfilments + d.fulfilments
    FROM storm.totals(stat_ids, 'worker') d WHERE w.id = d.id;
  PERFORM FROM teams WHERE id IN (SELECT team_id FROM kudos_stat_events WHERE id = ANY (stat_ids)) ORDER BY id FOR NO KEY UPDATE;
  UPDATE teams t SET kudos = t.kudos + d.kudos, contributions = t.contributions + d.contributions,
                     fulfilments = t.fulfilments + d.fulfilments
    FROM storm.totals(stat_ids, 'team') d WHERE t.id = d.id;

  INSERT INTO kudos_ledger_applier_state (id, applied_at) VALUES (1, storm.utc())
    ON CONFLICT (id) DO UPDATE SET applied_at = excluded.applied_at;
  RETURN cardinality(ledger_ids) + cardinality(stat_ids);
END $$;

CREATE FUNCTION storm.totals(ids bigint[], of text) RETURNS TABLE (id uuid, kudos numeric, contributions numeric, fulfilments numeric)
LANGUAGE sql STABLE AS $$
  SELECT CASE of WHEN 'team' THEN team_id ELSE worker_id END,
         coalesce(sum(amount) FILTER (WHERE record = 'worker_kudos'), 0),
         coalesce(sum(amount) FILTER (WHERE record IS NULL AND stat_action = 'contributions'), 0),
         coalesce(sum(amount) FILTER (WHERE record IS NULL AND stat_action = 'fulfilments'), 0)
    FROM kudos_stat_events e WHERE e.id = ANY (ids) AND e.worker_id IS NOT NULL GROUP BY 1
$$;

-- Waits, not for long, until PID holds the applier lock.
CREATE FUNCTION storm.is_in_the_middle(wanted int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  until timestamptz := clock_timestamp() + interval '500 ms';
BEGIN
  WHILE clock_timestamp() < until LOOP
    PERFORM FROM pg_locks WHERE locktype = 'advisory' AND objid = 1263879247 AND granted AND pid = wanted;
    IF FOUND THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

-- ---------------------------------------------------------------------------------------------------
-- The check: each view is empty, at every commit; those of "unsettled" once everything is folded.

CREATE VIEW storm.archive_errors AS
  SELECT format('%s %s: %s', archive, id, CASE WHEN stored IS NULL THEN 'is gone' WHEN posted IS NULL THEN 'was never posted'
                                               ELSE 'was changed' END) AS problem
    FROM (SELECT 'kudos_ledger' AS archive, id, to_jsonb(l) - 'applied' AS stored, to_jsonb(j) - 'applied' AS posted
            FROM kudos_ledger l FULL JOIN storm.ledger_journal j USING (id)
           WHERE (l.created, l.event_id, l.entry_type, l.user_id, l.escrow, l.amount, l.job_id, l.wp_type, l.detail)
             IS DISTINCT FROM (j.created, j.event_id, j.entry_type, j.user_id, j.escrow, j.amount, j.job_id, j.wp_type, j.detail)
          UNION ALL
          SELECT 'kudos_stat_events', id, to_jsonb(e), to_jsonb(j) FROM kudos_stat_events e FULL JOIN storm.stat_journal j USING (id)
           WHERE (e.created, e.event_id, e.entry_type, e.user_id, e.worker_user_id, e.worker_id, e.team_id, e.job_id, e.wp_type,
                  e.amount, e.unit, e.stat_action, e.record, e.detail)
             IS DISTINCT FROM (j.created, j.event_id, j.entry_type, j.user_id, j.worker_user_id, j.worker_id, j.team_id, j.job_id,
                  j.wp_type, j.amount, j.unit, j.stat_action, j.record, j.detail)) differing
  UNION ALL
  -- what was born applied was in its target from the start
  SELECT format('kudos_ledger %s: is no longer applied', l.id) FROM kudos_ledger l JOIN storm.ledger_journal j USING (id)
   WHERE j.applied AND NOT l.applied
  UNION ALL
  SELECT format('kudos_stat_events %s: is no longer applied', e.id) FROM kudos_stat_events e JOIN storm.stat_journal j USING (id)
   WHERE j.applied AND NOT e.applied
  UNION ALL
  SELECT format('kudos_ledger event %s: floor adjustment of several rows, or not as it should be', l.event_id) FROM kudos_ledger l
   WHERE l.event_id IN (SELECT event_id FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT')
   GROUP BY l.event_id
  HAVING count(*) <> 1 OR bool_or(l.detail IS DISTINCT FROM '{"reason": "minimum_balance_floor"}')
  UNION ALL
  SELECT format('kudos_stat_events event %s: is in quarantine for nothing', event_id) FROM kudos_stat_events e
   WHERE quarantined AND NOT EXISTS (SELECT FROM kudos_stat_events i LEFT JOIN users u ON u.id = i.user_id
                                      WHERE i.event_id = e.event_id
                                        AND (i.detail ? 'is_invalid' OR i.user_id IS NOT NULL AND u.id IS NULL))
  UNION ALL
  SELECT format('kudos_stat_events %s: is applied, which it cannot be', id) FROM kudos_stat_events
   WHERE applied AND detail ? 'is_invalid';

CREATE VIEW storm.hold_errors AS
  SELECT format('hold %s: has %s (%s), should have %s (%s)', business_id, trim_scale(remaining_amount), is_released,
                trim_scale(due), must_be_released) AS problem
    FROM (SELECT c.*, CASE WHEN must_be_released THEN 0 ELSE amount - consumed END AS due
            FROM (SELECT h.business_id, h.remaining_amount, h.released_at IS NOT NULL AS is_released, b.amount, u.consumed,
                         b.is_released OR b.amount <= u.consumed OR coalesce(e.is_settled, false) AS must_be_released
                    FROM kudos_reservations h
                    LEFT JOIN storm.holds s USING (business_id)
                    LEFT JOIN (SELECT detail->>'reservation_id' AS business_id, -sum(amount) AS amount FROM kudos_ledger
                                WHERE applied AND NOT escrow AND amount < 0 AND jsonb_typeof(detail->'reservation_id') = 'string'
                                GROUP BY 1) d USING (business_id)
                    LEFT JOIN (SELECT event_id, bool_and(applied) AS is_settled FROM kudos_ledger GROUP BY 1) e
                      ON e.event_id = h.event_id
                    CROSS JOIN LATERAL (SELECT coalesce(s.amount, h.original_amount) AS amount,
                                               coalesce(s.is_released, false) AS is_released) b
                    CROSS JOIN LATERAL (SELECT coalesce(d.amount, 0) - coalesce(s.consumed_before, 0) AS consumed) u) c) due
   WHERE is_released <> must_be_released OR remaining_amount <> due
  UNION ALL
  SELECT format('hold %s: is gone', business_id) FROM storm.holds s
   WHERE NOT EXISTS (SELECT FROM kudos_reservations h WHERE h.business_id = s.business_id AND h.original_amount = s.amount
                        AND h.event_id IS NOT DISTINCT FROM s.event_id);

CREATE VIEW storm.event_errors AS
  SELECT format('transfer %s: is not one debit, one credit and two counters', r.event_id) AS problem
    FROM kudos_transfer_requests r
    LEFT JOIN (SELECT event_id, array_agg((user_id, amount)::text ORDER BY amount) AS rows FROM kudos_ledger
                WHERE entry_type = 'TRANSFER' GROUP BY 1) l USING (event_id)
    LEFT JOIN (SELECT event_id, array_agg((user_id, amount)::text ORDER BY amount) AS rows FROM kudos_stat_events
                WHERE entry_type = 'TRANSFER' GROUP BY 1) e USING (event_id)
   WHERE l.rows IS DISTINCT FROM ARRAY[(r.source_id::int, -r.amount)::text, (r.dest_id::int, r.amount)::text]
      OR e.rows IS DISTINCT FROM l.rows
  UNION ALL
  SELECT format('drain %s: is not one pair and one counter', event_id)
    FROM (SELECT event_id, array_agg((user_id, escrow, amount)::text ORDER BY amount) AS rows, max(amount) AS amount,
                 max(user_id) AS user_id FROM kudos_ledger WHERE entry_type = 'EVALUATION_PROMOTION' GROUP BY 1) l
    FULL JOIN (SELECT event_id, array_agg((user_id, amount)::text) AS rows FROM kudos_stat_events
                WHERE entry_type = 'EVALUATION_PROMOTION' GROUP BY 1) e USING (event_id)
   WHERE l.rows IS DISTINCT FROM ARRAY[(l.user_id, true, -l.amount)::text, (l.user_id, false, l.amount)::text]
      OR e.rows IS DISTINCT FROM ARRAY[(l.user_id, l.amount)::text]
  UNION ALL
  SELECT format('drains of user %s: %s pairs are queued at once', user_id, count(DISTINCT event_id)) FROM kudos_ledger
   WHERE entry_type = 'EVALUATION_PROMOTION' AND NOT applied GROUP BY user_id HAVING count(DISTINCT event_id) > 1;

-- A wiped account keeps its balance until something is folded into it.
CREATE VIEW storm.balance_errors AS
  SELECT format('user %s: is at %s, below the floor of %s', u.id, u.kudos + coalesce(r.kudos, 0) * 0.01, lowest) AS problem
    FROM users u LEFT JOIN kudos_remainder_users r ON r.id = u.id
    CROSS JOIN LATERAL (SELECT CASE WHEN u.username = '<wiped>' THEN 14 ELSE storm.floor_of(u.oauth_id) END AS lowest) f
   WHERE u.kudos + coalesce(r.kudos, 0) * 0.01 < lowest
     AND EXISTS (SELECT FROM kudos_ledger l WHERE l.user_id = u.id AND l.applied AND NOT l.escrow);

CREATE VIEW storm.unsettled AS
  SELECT format('kudos_ledger %s: is unapplied', id) AS problem FROM kudos_ledger WHERE NOT applied AND applied IS FALSE
  UNION ALL
  SELECT format('kudos_stat_events %s: is unapplied', id) FROM kudos_stat_events
   WHERE NOT applied AND applied IS FALSE AND quarantined IS FALSE
  UNION ALL
  SELECT format('user %s: is trusted and has %s in escrow', u.id, u.evaluating_kudos + coalesce(r.evaluating_kudos, 0) * 0.01)
    FROM users u JOIN user_roles t ON t.user_id = u.id AND t.user_role = 'TRUSTED' AND t.value
    LEFT JOIN kudos_remainder_users r ON r.id = u.id
   WHERE u.evaluating_kudos + coalesce(r.evaluating_kudos, 0) * 0.01 > 0
  UNION ALL
  SELECT format('user %s: has %s in escrow and is not trusted', u.id, u.evaluating_kudos) FROM users u
   WHERE u.evaluating_kudos > current_setting('kudos_projector.trust_threshold')::numeric
     AND NOT EXISTS (SELECT FROM user_roles t WHERE t.user_id = u.id AND t.user_role = 'TRUSTED' AND t.value);

CREATE FUNCTION storm.errors(is_settled boolean) RETURNS SETOF text LANGUAGE sql STABLE AS $$
  SELECT concat_ws(' ', target, key, problem) FROM target_errors()
  UNION ALL SELECT problem FROM storm.archive_errors
  UNION ALL SELECT problem FROM storm.hold_errors
  UNION ALL SELECT problem FROM storm.event_errors
  UNION ALL SELECT problem FROM storm.balance_errors
  UNION ALL SELECT problem FROM storm.unsettled WHERE is_settled
  ORDER BY 1
$$;
RESET client_min_messages;
\set QUIET off
