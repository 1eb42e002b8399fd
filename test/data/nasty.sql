-- A backlog of what should not happen and does: invalid rows of every kind alone and among valid
-- ones, targets that are gone, amounts at the edges of their columns, odd details, holds in every
-- state, floors crossed again and again. Deterministic by seed.
--   psql -v users=300 -v workers=60 -v teams=8 -v events=2000 -v seed=1 -f nasty.sql
-- On empty tables made by app_tables.sql, a ledger file and ledger_5_1_11.sql; users >= 60.
-- Nothing here overflows, in whatever slices the rows are folded: an account at an edge of its column
-- moves in one direction only.
\set ON_ERROR_STOP on
SET client_min_messages = warning;
SET synchronize_seqscans = off;
-- a label that the code of a projector cannot know; must be committed before it is used
ALTER TYPE userrecordtypes ADD VALUE 'GIFT';
BEGIN;
SELECT set_config('nasty.seed', :'seed', false) \g /dev/null
CREATE FUNCTION pg_temp.u(stream int, n bigint) RETURNS float8 LANGUAGE sql IMMUTABLE AS
  'SELECT ((hashint8extended(n, current_setting(''nasty.seed'')::bigint * 1000 + stream)) & 9007199254740991)::float8 / 9007199254740992.0';
CREATE FUNCTION pg_temp.upto(stream int, n bigint, k bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
  'SELECT 1 + floor(pg_temp.u(stream, n) * k)::bigint';
CREATE FUNCTION pg_temp.pick(stream int, n bigint, choices anyarray) RETURNS anyelement LANGUAGE sql IMMUTABLE AS
  'SELECT choices[pg_temp.upto(stream, n, cardinality(choices))]';
CREATE FUNCTION pg_temp.uid(stream int, n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
  'SELECT md5(current_setting(''nasty.seed'') || ''/'' || stream || ''/'' || n)::uuid';

-- Accounts: 0 .. users-1 ordinary, then some at the edges (+0 ..), some that only events use which
-- are folded in part (+20 ..), and some that are gone by the end (+30 ..).
CREATE TEMP TABLE odd_name (id serial, oauth_id text);
INSERT INTO odd_name (oauth_id)
SELECT v FROM unnest(ARRAY[
  'ANON', 'anon ', ' anon', 'Anon', '<wiped>', '',
  -- read as a UUID
  'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12}', 'a0eebc999c0b4ef8bb6d6bb9bd380a13',
  'urn:uuid:a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a14', 'uuid:a0eebc999c0b4ef8bb6d6bb9bd380a15', 'urn:a0eebc999c0b4ef8bb6d6bb9bd380a16',
  '{{a0eebc999c0b4ef8bb6d6bb9bd380a17}', '}a0eebc999c0b4ef8bb6d6bb9bd380a18{', '-a0ee-bc99-9c0b-4ef8--bb6d-6bb9bd380a19-',
  'a0eebc99urn:9c0b4ef8bb6d6bb9bd380a1a', '0xeebc999c0b4ef8bb6d6bb9bd380a1b', '+0eebc999c0b4ef8bb6d6bb9bd380a1c',
  'a0eebc99_c0b4ef8bb6d6bb9bd380a1d', '0X_ebc999c0b4ef8bb6d6bb9bd380a1e', '+0xebc999c0b4ef8bb6d6bb9bd380a2a', ' 0eebc999c0b4ef8bb6d6bb9bd380a1 ', U&'\FF10\0661eebc999c0b4ef8bb6d6bb9bd380a1f',
  U&'\00A00eebc999c0b4ef8bb6d6bb9bd380a2\2003', '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff',
  -- not read as one
  'URN:UUID:a0eebc999c0b4ef8bb6d6bb9bd380a20', '(a0eebc999c0b4ef8bb6d6bb9bd380a21)', ' a0eebc999c0b4ef8bb6d6bb9bd380a22',
  'a0eebc999c0b4ef8bb6d6bb9bd380a2', 'a0eebc999c0b4ef8bb6d6bb9bd380a244', 'g0eebc999c0b4ef8bb6d6bb9bd380a25',
  'a0eebc99__0b4ef8bb6d6bb9bd380a26', '_0eebc999c0b4ef8bb6d6bb9bd380a27', 'a0eebc999c0b4ef8bb6d6bb9bd380a2_',
  '0oeebc999c0b4ef8bb6d6bb9bd380a29', U&'a0eebc99\2010c0b4ef8bb6d6bb9bd380a30', '-{a0eebc999c0b4ef8bb6d6bb9bd380a31}',
  'g_a0eebc999c0b4ef8bb6d6bb9bd380a3', '0x0xbc999c0b4ef8bb6d6bb9bd380a33']) v;

INSERT INTO users (id, username, oauth_id, api_key, client_id, created, last_active, kudos, monthly_kudos,
                   evaluating_kudos, usage_multiplier, worker_invited, public_workers, concurrency)
SELECT i, 'user' || i,
       CASE WHEN i = 0 THEN 'anon'
            WHEN o.oauth_id IS NOT NULL THEN o.oauth_id
            WHEN pg_temp.u(1, i) < 0.3 THEN pg_temp.uid(1, i)::text
            ELSE 'g_' || pg_temp.uid(1, i) END,
       'key' || i, 'client' || i, '2022-01-01',
       CASE i % 17 WHEN 5 THEN 'infinity' WHEN 6 THEN '-infinity'
                   ELSE timestamp '2026-06-01' + (pg_temp.u(2, i) - 0.5) * interval '2 days' END,
       CASE WHEN i = :users THEN 9223372036854775000
            WHEN i = :users + 2 THEN 9223372036854775807
            -- so that the floor creates no more than one ledger row can carry
            WHEN i IN (:users + 3, :users + 4) THEN 1000000
            ELSE pg_temp.pick(3, i, ARRAY[-1000, -51, -50, -49, 0, 10, 13, 14, 15, 24, 25, 26, 27, 100, 5000, 1000000]::bigint[]) END,
       0,
       CASE WHEN i = :users THEN 2147483000
            WHEN i = :users + 1 THEN -2147483000
            ELSE pg_temp.pick(4, i, ARRAY[0, 0, 0, 1, -1, -500, 499, 100000]) END,
       1.0, 0, true, 30
  FROM generate_series(0, :users + 34) i LEFT JOIN odd_name o ON o.id = i AND i < :users;

INSERT INTO teams (id, info, name, owner_id, contributions, fulfilments, kudos, uptime, created, last_active)
SELECT pg_temp.uid(20, i), '', 'team' || i, 1 + i % (:users - 1),
       CASE i - :teams WHEN 1 THEN 9223372036854775000 WHEN 2 THEN -9223372036854775000 ELSE pg_temp.upto(21, i, 1000) - 500 END,
       CASE i - :teams WHEN 1 THEN 2147483000 WHEN 2 THEN -2147483000 ELSE pg_temp.upto(22, i, 1000) - 500 END,
       CASE i - :teams WHEN 1 THEN 9223372036854775000 WHEN 2 THEN -9223372036854775000 ELSE pg_temp.upto(23, i, 1000) - 500 END,
       0, '2026-01-01', '2026-06-01'
  FROM generate_series(1, :teams + 4) i;
-- workers: 1 .. workers ordinary, +1 and +2 at the edges, +11 .. for partly folded events, +21 .. gone by the end
INSERT INTO workers (id, worker_type, user_id, name, info, ipaddr, created, last_check_in, last_aborted_job, kudos,
  contributions, fulfilments, aborted_jobs, uncompleted_jobs, uptime, threads, bridge_agent, last_reward_uptime,
  max_power, extra_slow_worker, paused, maintenance, maintenance_msg, team_id, allow_unsafe_ipaddr, speed, nsfw,
  max_length, max_context_length, max_pixels, allow_img2img, allow_painting, allow_post_processing, allow_controlnet,
  allow_sdxl_controlnet, allow_lora, limit_max_steps)
SELECT pg_temp.uid(30, i), 'stable_worker', 1 + i % (:users - 1), 'worker' || i, '', '10.0.0.1', '2026-01-01', '2026-06-01', '2026-01-01',
       CASE i - :workers WHEN 1 THEN 9223372036854775000 WHEN 2 THEN -9223372036854775000 ELSE pg_temp.upto(31, i, 1000) - 500 END,
       CASE i - :workers WHEN 1 THEN 9223372036854775000 WHEN 2 THEN -9223372036854775000 ELSE pg_temp.upto(32, i, 1000) - 500 END,
       CASE i - :workers WHEN 1 THEN 2147483000 WHEN 2 THEN -2147483000 ELSE pg_temp.upto(33, i, 1000) - 500 END,
       0, 0, 0, 1, 'peer:1:x', 0, 20, false, i % 9 = 0, false, '',
       CASE WHEN i % 3 = 0 THEN pg_temp.uid(20, 1 + i % :teams) END,
       true, 0.1, true, 80, 1024, 4194304, true, true, true, true, true, true, false
  FROM generate_series(1, :workers + 24) i;
INSERT INTO user_stats (user_id, action, value)
SELECT i, a, pg_temp.upto(34, i, 1000) - 500 FROM generate_series(0, :users - 1) i, unnest(ARRAY['accumulated', 'gifted']) a
 WHERE pg_temp.u(35, i) < 0.4;
INSERT INTO user_stats (user_id, action, value)
VALUES (:users, 'accumulated', 9223372036854775000), (:users + 1, 'accumulated', -9223372036854775000);
INSERT INTO worker_stats (worker_id, action, value)
SELECT pg_temp.uid(30, i), 'generated',
       CASE i - :workers WHEN 1 THEN 9223372036854775000 WHEN 2 THEN -9223372036854775000 ELSE -3 END
  FROM generate_series(1, :workers + 2) i WHERE i % 2 = 0 OR i > :workers;
INSERT INTO user_records (user_id, record_type, record, value)
SELECT i, t::userrecordtypes, 'image', floor(pg_temp.u(36, i) * 1e4) / 4 - 100
  FROM generate_series(0, :users - 1) i, unnest(ARRAY['REQUEST', 'USAGE']) t WHERE pg_temp.u(37, i) < 0.4;

-- The shapes of a stat row. "who": user, worker, or one that is gone.
CREATE TEMP TABLE shape (no serial, ok bool, who text, entry_type text, stat_action text, record text, unit text, detail jsonb);
INSERT INTO shape (ok, who, entry_type, stat_action, record, unit, detail) VALUES
  (true, 'user', 'GENERATION', 'accumulated', 'user_kudos', 'kudos', NULL),
  (true, 'user', 'TRANSFER', 'gifted', 'user_kudos', 'kudos', '{"touch_last_active": true}'),
  (true, 'user', 'STAT_RECORD', 'accumulated', 'user_kudos', 'kudos', '{"touch_last_active": false}'),
  (true, 'user', 'STAT_ACTIVITY', 'gifted', 'user_kudos', 'kudos', '{"touch_last_active": null}'),
  (true, 'user', 'no such type', '', 'user_kudos', 'kudos', '{"touch_last_active": 0}'),
  (true, 'user', 'AWARD', 'accumulated ', 'user_kudos', 'kudos', '{"touch_last_active": 0.0}'),
  (true, 'user', 'AWARD', ' accumulated', 'user_kudos', 'kudos', '{"touch_last_active": -0.00}'),
  (true, 'user', 'AWARD', 'Accumulated', 'user_kudos', 'kudos', '{"touch_last_active": ""}'),
  (true, 'user', 'AWARD', repeat(U&'\00E9', 20), 'user_kudos', 'kudos', '{"touch_last_active": []}'),
  (true, 'user', 'AWARD', repeat(U&'\+01F600', 20), 'user_kudos', 'kudos', '{"touch_last_active": {}}'),
  (true, 'user', 'AWARD', repeat('x', 20), 'user_kudos', 'kudos', '["touch_last_active"]'),
  (true, 'user', 'AWARD', 'accumulated', 'user_kudos', 'kudos', '"touch_last_active"'),
  (true, 'user', 'AWARD', 'gifted', 'user_kudos', 'kudos', '7'),
  (true, 'user', 'AWARD', 'gifted', 'user_kudos', 'kudos', 'null'),
  (true, 'user', 'AWARD', 'gifted', 'user_kudos', 'kudos', '[{"touch_last_active": true}]'),
  (true, 'user', 'AWARD', 'gifted', 'user_kudos', 'kudos', '{"Touch_last_active": true, "touch_last_active ": 1}'),
  (true, 'user', 'AWARD', 'it''s "odd", \{}', 'user_kudos', 'kudos', '{"touch_last_active": "false"}'),
  (true, 'user', 'STAT_RECORD', 'CONTRIBUTION', 'image', 'things', NULL),
  (true, 'user', 'STAT_RECORD', 'USAGE', 'image', 'things', '{"touch_last_active": [0]}'),
  (true, 'user', 'STAT_RECORD', 'FULFILLMENT', 'image', 'count', NULL),
  (true, 'user', 'STAT_RECORD', 'REQUEST', 'image', 'count', '{"touch_last_active": 1}'),
  (true, 'user', 'STAT_RECORD', 'STYLE', '', 'count', '{"touch_last_active": "0"}'),
  (true, 'user', 'STAT_RECORD', 'REQUEST', repeat(U&'\6F22', 30), 'count', NULL),
  (true, 'user', 'STAT_RECORD', 'REQUEST', repeat('y', 30), 'count', NULL),
  (true, 'user', 'STAT_RECORD', 'REQUEST', 'last_active', 'count', '{"touch_last_active": {"a": null}}'),
  (true, 'user', 'STAT_RECORD', 'GIFT', 'text', 'count', NULL),
  (true, 'user', 'STAT_RECORD', 'GIFT', 'text', 'things', NULL),
  (true, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": true}'),
  (true, 'user', 'STAT_ACTIVITY', 'anything', 'last_active', 'count', '{"touch_last_active": "false"}'),
  (true, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": [0]}'),
  (true, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": -1e-7}'),
  (true, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": [[]]}'),
  (true, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": " "}'),
  (true, 'worker', 'GENERATION', 'generated', 'worker_kudos', 'kudos', NULL),
  (true, 'worker', 'GENERATION', 'generated', 'worker_kudos', 'kudos', '{"touch_last_active": true}'),
  (true, 'worker', 'STAT_RECORD', 'uptime', 'worker_kudos', 'kudos', '[1]'),
  (true, 'worker', 'STAT_CONTRIBUTION', 'contributions', 'worker_kudos', 'kudos', NULL),
  (true, 'worker', 'GENERATION', '', 'worker_kudos', 'kudos', NULL),
  (true, 'worker', 'GENERATION', repeat(U&'\6F22', 20), 'worker_kudos', 'kudos', NULL),
  (true, 'worker', 'STAT_CONTRIBUTION', 'contributions', NULL, 'things', NULL),
  (true, 'worker', 'STAT_CONTRIBUTION', 'fulfilments', NULL, 'count', NULL),
  (true, 'worker', 'STAT_CONTRIBUTION', 'contributions', 'image', 'things', '"x"'),
  (true, 'worker', 'STAT_CONTRIBUTION', 'fulfilments', repeat('z', 30), 'count', NULL),
  (true, 'gone worker', 'GENERATION', 'generated', 'worker_kudos', 'kudos', NULL),
  (true, 'gone worker', 'STAT_CONTRIBUTION', 'contributions', NULL, 'things', NULL),
  (true, 'gone worker', 'STAT_CONTRIBUTION', 'fulfilments', NULL, 'count', NULL),
  -- a user that is gone comes first, whatever else is wrong
  (false, 'gone user', 'GENERATION', 'accumulated', 'user_kudos', 'kudos', NULL),
  (false, 'gone user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": true}'),
  (false, 'gone user', 'STAT_RECORD', repeat('x', 21), repeat('y', 31), 'tokens', NULL),
  -- too long, in characters
  (false, 'user', 'AWARD', repeat('x', 21), 'user_kudos', 'kudos', NULL),
  (false, 'user', 'AWARD', repeat(U&'\00E9', 21), 'user_kudos', 'kudos', '{"touch_last_active": true}'),
  (false, 'user', 'AWARD', rpad('accumulated', 21), 'user_kudos', 'kudos', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', repeat('x', 32), repeat('y', 32), 'things', NULL),
  (false, 'user', 'no such type', repeat('x', 21), NULL, 'kudos', NULL),
  (false, 'user', 'STAT_RECORD', 'REQUEST', repeat('y', 31), 'count', NULL),
  (false, 'user', 'STAT_RECORD', 'REQUEST', repeat(U&'\6F22', 31), 'count', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', 'contributions', rpad('image', 31), 'things', NULL),
  (false, 'user', 'AWARD', NULL, repeat('y', 32), 'things', NULL),
  (false, 'worker', 'GENERATION', 'accumulated', 'user_kudos', 'kudos', NULL),
  (false, 'user', 'GENERATION', NULL, 'user_kudos', 'kudos', NULL),
  (false, 'user', 'GENERATION', 'accumulated', 'user_kudos', 'count', NULL),
  (false, 'user', 'STAT_RECORD', 'REQUEST', 'user_kudos', 'things', NULL),
  (false, 'user', 'GENERATION', 'accumulated', 'user_kudos', 'Kudos', NULL),
  (false, 'user', 'GENERATION', 'generated', 'worker_kudos', 'kudos', NULL),
  (false, 'worker', 'GENERATION', NULL, 'worker_kudos', 'kudos', NULL),
  (false, 'worker', 'GENERATION', 'generated', 'worker_kudos', 'things', NULL),
  (false, 'gone worker', 'STAT_CONTRIBUTION', 'contributions', 'worker_kudos', 'things', NULL),
  (false, 'worker', 'STAT_RECORD', 'REQUEST', 'image', 'count', NULL),
  (false, 'user', 'STAT_RECORD', NULL, 'image', 'count', NULL),
  (false, 'user', 'STAT_RECORD', 'REQUEST', NULL, 'count', NULL),
  (false, 'user', 'STAT_RECORD', 'request', 'image', 'count', NULL),
  (false, 'user', 'STAT_RECORD', 'REQUEST ', 'image', 'count', NULL),
  (false, 'user', 'STAT_RECORD', '', 'image', 'tokens', NULL),
  (false, 'user', 'STAT_RECORD', 'NOVELTY', 'image', 'things', NULL),
  (false, 'user', 'STAT_RECORD', 'CONTRIBUTION', 'image', 'count', NULL),
  (false, 'user', 'STAT_RECORD', 'USAGE', 'image', 'kudos', NULL),
  (false, 'user', 'STAT_RECORD', 'FULFILLMENT', 'image', 'things', NULL),
  (false, 'user', 'STAT_RECORD', 'REQUEST', 'image', 'things', NULL),
  (false, 'user', 'STAT_RECORD', 'STYLE', 'image', 'Count', NULL),
  (false, 'user', 'STAT_RECORD', 'GIFT', 'text', 'kudos', NULL),
  (false, 'user', 'STAT_CONTRIBUTION', 'contributions', NULL, 'things', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', NULL, NULL, 'things', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', 'contributions', NULL, 'count', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', 'fulfilments', NULL, 'things', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', 'uptime', NULL, 'count', NULL),
  (false, 'worker', 'STAT_CONTRIBUTION', 'Contributions', NULL, 'things', NULL),
  (false, 'gone worker', 'STAT_CONTRIBUTION', '', NULL, 'things', NULL),
  (false, 'worker', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": true}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, NULL, 'count', '{"touch_last_active": true}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'image', 'count', '{"touch_last_active": true}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'things', '{"touch_last_active": true}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', NULL),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": null}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": false}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": 0.0}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": 0e7}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": ""}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": []}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '{"touch_last_active": {}}'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', '["touch_last_active"]'),
  (false, 'user', 'STAT_ACTIVITY', NULL, 'last_active', 'count', 'true'),
  (false, 'user', 'GENERATION', 'accumulated', NULL, 'kudos', NULL),
  (false, 'worker', 'GENERATION', 'generated', 'Worker_kudos', 'kudos', NULL),
  (false, 'user', 'stat_record', 'REQUEST', 'image', 'count', NULL),
  (false, 'user', '', NULL, NULL, '', '{"touch_last_active": true}'),
  (false, 'gone worker', 'UPTIME_REWARD', 'uptime', NULL, 'kudos', NULL);
CREATE TEMP TABLE shape_of AS
SELECT ok, row_number() OVER (PARTITION BY ok ORDER BY no) AS rank, who, entry_type, stat_action, record, unit, detail FROM shape;

-- Events: all valid; led by an invalid row; an invalid row behind a valid one (their targets, of which
-- nothing else depends, differ with the batch size); currency alone.
CREATE TEMP TABLE event AS
SELECT *, row_number() OVER (PARTITION BY kind ORDER BY n) AS rank FROM (
  SELECT n, pg_temp.uid(40, n) AS event_id,
         CASE WHEN v < 0.50 THEN 'valid' WHEN v < 0.80 THEN 'broken' WHEN v < 0.92 THEN 'split' ELSE 'currency' END AS kind
    FROM (SELECT n, pg_temp.u(41, n) AS v FROM generate_series(1, :events) n) d) e;

-- Some events are spread over the queue; the first row of an event stays the first.
CREATE TEMP TABLE stat_row AS
SELECT e.*, pos, e.n * 10 + pos AS m,
       e.n * 10 + pos + CASE WHEN pos > 1 AND pg_temp.u(42, e.n) < 0.4 THEN pg_temp.upto(43, e.n * 10 + pos, 700) ELSE 0 END AS place,
       CASE WHEN kind = 'valid' OR kind = 'split' AND pos = 1 THEN true
            WHEN kind = 'broken' AND pos = 1 OR kind = 'split' AND pos = 2 THEN false
            ELSE pg_temp.u(44, e.n * 10 + pos) < 0.7 END AS ok
  FROM event e, generate_series(1, CASE kind WHEN 'currency' THEN 0 WHEN 'split' THEN 3 ELSE pg_temp.upto(45, e.n, 5) END) pos;
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, worker_user_id, worker_id, team_id, amount, unit,
                               stat_action, record, detail, applied, quarantined, quarantine_reason, quarantined_at)
SELECT CASE pg_temp.upto(46, r.m, 300) WHEN 1 THEN 'infinity' WHEN 2 THEN '-infinity'
            ELSE timestamp '2026-06-01' + (pg_temp.u(47, r.m) - 0.5) * interval '3 days' END,
       r.event_id, s.entry_type,
       CASE WHEN s.who = 'gone user' THEN pg_temp.pick(48, r.m, ARRAY[:users + 30, :users + 33, 900001, -7, 2147483647])
            WHEN s.who = 'user' AND r.kind = 'split' THEN :users + 20 + r.n % 5
            WHEN s.who = 'user' THEN pg_temp.upto(49, r.m, CASE WHEN r.m % 2 = 0 THEN 12 ELSE :users END) - 1 END,
       CASE WHEN s.who LIKE '%worker' THEN pg_temp.pick(50, r.m, ARRAY[NULL, 1, 900001]) END,
       CASE WHEN s.who = 'gone worker' THEN pg_temp.pick(51, r.m, ARRAY[pg_temp.uid(30, :workers + 21), pg_temp.uid(30, :workers + 22), pg_temp.uid(99, r.m)])
            WHEN s.who = 'worker' THEN pg_temp.uid(30, CASE WHEN r.kind = 'split' THEN :workers + 11 + r.n % 3
                                                            WHEN r.m % 2 = 0 THEN pg_temp.upto(52, r.m, 4)
                                                            ELSE pg_temp.upto(52, r.m, :workers) END) END,
       CASE WHEN s.who LIKE '%user' OR pg_temp.u(53, r.m) < 0.3 THEN NULL
            WHEN pg_temp.u(53, r.m) < 0.4 THEN pg_temp.uid(98, r.m % 3)
            WHEN r.kind = 'split' THEN pg_temp.uid(20, :teams + 3 + r.n % 2)
            ELSE pg_temp.uid(20, pg_temp.upto(54, r.m, :teams)) END,
       pg_temp.pick(55, r.m, ARRAY['0.00', '-0.00', '0.01', '-0.01', '0.40', '0.49', '-0.49', '0.50', '-0.50', '0.51', '1', '-1', '1.50',
                                   '-1.50', '2.50', '33.33', '-66.67', '12345.67', '-12345.68', '1000000.50']::numeric[]),
       s.unit, s.stat_action, s.record, s.detail,
       f.flag = 'applied', f.flag = 'quarantined',
       CASE f.flag WHEN 'quarantined' THEN 'an older reason' END, CASE f.flag WHEN 'quarantined' THEN timestamp '2026-05-01' END
  FROM stat_row r
  JOIN (SELECT ok, count(*) AS size FROM shape_of GROUP BY ok) c USING (ok)
  -- leaders walk the list so that every shape leads an event, the rest is drawn
  JOIN shape_of s ON s.ok = r.ok
                 AND s.rank = CASE WHEN pos = 1 OR kind = 'split' AND pos = 2 THEN 1 + (r.rank - 1) % c.size ELSE pg_temp.upto(56, r.m, c.size) END
  CROSS JOIN LATERAL (SELECT CASE WHEN pos > 2 AND pg_temp.u(57, r.m) < 0.08 THEN 'applied'
                                  WHEN pos > 2 AND pg_temp.u(57, r.m) < 0.16 THEN 'quarantined' ELSE '' END) f (flag)
 ORDER BY place, r.m;

-- Currency: the accounts around their floors get most of it.
CREATE TEMP TABLE currency_row AS
SELECT e.*, pos, e.n * 10 + pos AS m,
       e.n * 10 + pos + CASE WHEN pos > 1 AND pg_temp.u(60, e.n) < 0.4 THEN pg_temp.upto(61, e.n * 10 + pos, 700) ELSE 0 END AS place
  FROM event e, generate_series(1, CASE kind WHEN 'currency' THEN 3 ELSE pg_temp.upto(62, e.n, 4) - 1 END) pos;
INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied, detail)
SELECT timestamp '2026-06-01' + n * interval '1 second', event_id,
       pg_temp.pick(63, m, ARRAY['GENERATION', 'TRANSFER', 'AWARD', 'FLOOR_ADJUSTMENT', 'RECONCILIATION', 'anything']),
       CASE WHEN m % 3 > 0 THEN pg_temp.upto(64, m, 40) ELSE pg_temp.upto(64, m, :users) END - 1,
       pg_temp.u(65, m) < 0.25,
       pg_temp.pick(66, m, ARRAY['0.00', '-0.00', '0.01', '-0.01', '0.30', '-0.30', '0.49', '0.50', '-0.50', '-0.51', '1.50', '-1.50', '10', '-10',
                                 '14.99', '-24.50', '25', '-25.01', '40.40', '-77.77', '500.05', '-500.05', '-100000', '20000.99']::numeric[]),
       pos > 1 AND pg_temp.u(67, m) < 0.08,
       CASE WHEN pg_temp.u(68, m) < 0.4 THEN NULL
            WHEN pg_temp.u(68, m) < 0.8 THEN jsonb_build_object('reservation_id', 'hold:' || pg_temp.upto(69, m, 1 + :events / 4))
            ELSE pg_temp.pick(70, m, ARRAY['null', '[]', '{}', '"hold:1"', '5', 'true', '["reservation_id"]', '[{"reservation_id": "hold:1"}]',
                   '{"reservation_id": null}', '{"reservation_id": 5}', '{"reservation_id": "5"}', '{"reservation_id": true}', '{"reservation_id": "true"}',
                   '{"reservation_id": ["hold:1"]}', '{"reservation_id": {"reservation_id": "hold:1"}}', '{"Reservation_id": "hold:1"}',
                   '{"reservation_id": "hold:1 "}', '{"reservation_id": ""}', '{"reservation_id": "HOLD:1"}', '{"reservation_id": "null"}',
                   '{"a": {"reservation_id": "hold:2"}, "reservation_id": "it''s \"quoted\" \\ {braced,comma}"}']::jsonb[]
                   || jsonb_build_object('reservation_id', repeat(U&'\6F22', 128)) || jsonb_build_object('reservation_id', repeat('h', 3000))) END
  FROM currency_row ORDER BY place, m;

-- Holds in every state; whose they are does not matter.
INSERT INTO kudos_reservations (id, business_id, user_id, event_id, original_amount, remaining_amount, created, released_at)
SELECT pg_temp.uid(80, h), business_id, pg_temp.upto(81, h, :users) - 1,
       CASE WHEN pg_temp.u(82, h) < 0.4 THEN pg_temp.uid(40, pg_temp.upto(83, h, :events)) WHEN pg_temp.u(82, h) < 0.5 THEN pg_temp.uid(97, h) END,
       greatest(amount, 0.01), amount, '2026-06-01', CASE WHEN pg_temp.u(84, h) < 0.15 THEN timestamp '2026-06-02' END
  FROM (SELECT h, 'hold:' || h AS business_id FROM generate_series(1, 1 + :events / 5) h
        UNION ALL
        SELECT 1000000 + ordinality, b FROM unnest(ARRAY['', '5', 'true', 'null', 'hold:1 ', 'it''s "quoted" \ {braced,comma}',
                                                         repeat(U&'\6F22', 128)]) WITH ORDINALITY AS t (b, ordinality)) names,
       LATERAL (SELECT pg_temp.pick(85, h, ARRAY['0', '0.01', '0.50', '10', '24.50', '25.01', '77.77', '1000', '999999999999999999.99']::numeric[])) a (amount);

-- At the edges of the columns: the largest values whose rounding still fits, reached by whole
-- amounts first and fractions after them; and the largest amounts a row can carry.
INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
SELECT '2026-06-03', pg_temp.uid(90, row_number() OVER ()), 'AWARD', user_id, escrow, amount, false FROM (VALUES
  (:users, false, 807), (:users, false, 0.25), (:users, false, 0.24), (:users, true, 647), (:users, true, 0.49),
  (:users + 1, true, -648.40), (:users + 1, true, -0.09),
  (:users + 2, false, 0.49), (:users + 2, false, -0.98), (:users + 2, false, -999999999999999999.99),
  (:users + 3, false, -999999999999999999.99), (:users + 3, false, 999999999999999999.99), (:users + 3, false, 0.01),
  (:users + 4, false, -999999999999999999.99), (:users + 4, false, 0.01)) v (user_id, escrow, amount);
INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
SELECT '2026-06-03', pg_temp.uid(91, i), 'AWARD', :users + 5, false, 999999999999999999.99, false FROM generate_series(1, 9) i;
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, worker_id, team_id, amount, unit, stat_action, record, applied)
SELECT '2026-06-03', pg_temp.uid(92, row_number() OVER ()), entry_type, user_id, worker_id, team_id, amount, unit, stat_action, record, false
  FROM (
  SELECT 'AWARD', u, NULL::uuid, NULL::uuid, a, 'kudos', 'accumulated', 'user_kudos'
    FROM (VALUES (:users, 807), (:users, 0.49), (:users + 1, -808), (:users + 1, -0.49)) v (u, a)
  UNION ALL
  SELECT 'AWARD', :users + 2, NULL, NULL, sign * 999999999999999999.99, 'kudos', 'edge' || sign, 'user_kudos'
    FROM unnest(ARRAY[1, -1]) sign, generate_series(1, 9)
  UNION ALL
  SELECT 'GENERATION', NULL, pg_temp.uid(30, :workers + edge), pg_temp.uid(20, :teams + edge), a, 'kudos', 'generated', 'worker_kudos'
    FROM (VALUES (1, 807), (1, 0.49), (2, -808), (2, -0.49)) v (edge, a)
  UNION ALL
  SELECT 'STAT_CONTRIBUTION', NULL, pg_temp.uid(30, :workers + edge), pg_temp.uid(20, :teams + edge), a, 'things', 'contributions', NULL
    FROM (VALUES (1, 807), (1, 0.49), (2, -808), (2, -0.49)) v (edge, a)
  UNION ALL
  SELECT 'STAT_CONTRIBUTION', NULL, pg_temp.uid(30, :workers + edge), pg_temp.uid(20, :teams + edge), a, 'count', 'fulfilments', NULL
    FROM (VALUES (1, 647), (1, 0.49), (2, -648), (2, -0.49)) v (edge, a)
  UNION ALL
  -- as far as a double still tells cents apart in the 15 digits that it keeps for certain
  SELECT 'STAT_RECORD', :users + 3, NULL, NULL, a, 'things', 'USAGE', r
    FROM (VALUES (9999999999999.50, 'large'), (0.49, 'large'), (-9999999999999.99, 'low'), (0.01, 'tiny')) v (a, r)
  ) v (entry_type, user_id, worker_id, team_id, amount, unit, stat_action, record);

-- gone: their rows stay in the queue
DELETE FROM users WHERE id >= :users + 30;
DELETE FROM workers WHERE id IN (SELECT pg_temp.uid(30, :workers + i) FROM generate_series(21, 24) i);
COMMIT;
ANALYZE;
