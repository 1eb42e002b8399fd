-- Statistic events: where they go, what is quarantined and why.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\set e1 '''00000000-0000-0000-0000-0000000000e1'''
\set e2 '''00000000-0000-0000-0000-0000000000e2'''
\set e3 '''00000000-0000-0000-0000-0000000000e3'''
\set f1 '''00000000-0000-0000-0000-0000000000f1'''
\set f2 '''00000000-0000-0000-0000-0000000000f2'''
\set a1 '''00000000-0000-0000-0000-0000000000a1'''
\set b1 '''00000000-0000-0000-0000-0000000000b1'''
\i :fixture

\echo -- S01 one over-long action sets its event aside, and nothing else
SELECT t_ustat(1, 'accumulated', 5, :e1), t_ustat(1, 'abcdefghijklmnopqrstuvwxy', 1, :e1), t_rec(1, 'USAGE', 'image', 2, :e1), t_post(1, 50, false, :e1) \gset
SELECT t_ustat(2, 'accumulated', 7, :e2), t_post(2, 7, false, :e2) \gset
CALL drain(1000);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_ustats;
SELECT * FROM t_records;
SELECT * FROM t_quarantine;
SELECT count(DISTINCT event_id) AS events, bool_and(event_id = :e1) AS e1 FROM kudos_stat_events WHERE quarantined;
\echo -- S01 again: nothing is retried
SELECT currency_rows, stat_rows, quarantined_rows, settled FROM kudos_fold_now(1000);
CALL drain(1000);
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);
SELECT * FROM t_ustats;
SELECT count(*) AS quarantined FROM t_quarantine;

\echo -- S03 worker, team or user deleted before the fold
\i :fixture
SELECT t_wstat(:f2, 'generated', 9), t_ustat(1, 'accumulated', 7), t_ustat(777, 'accumulated', 3), t_post(2, 9) \gset
SELECT t_wstat(:f1, 'generated', 4, '00000000-0000-0000-0000-0000000000c9') \gset
DELETE FROM workers WHERE id = :f2;
CALL drain(1000);
SELECT kudos FROM users WHERE id = 2;
SELECT * FROM t_ustats;
SELECT name, kudos FROM workers;
SELECT * FROM t_wstats;
SELECT name, kudos FROM teams ORDER BY name;
SELECT id, applied, quarantine_reason FROM kudos_stat_events ORDER BY id;
\echo -- S03 the team of a deleted worker still gets its share
SELECT t_wstat(:f2, 'generated', 5, :b1), t_contrib(:f2, 'contributions', 3, :b1), t_contrib(:f2, 'fulfilments', 1, :b1) \gset
CALL drain(1000);
SELECT name, kudos, contributions, fulfilments FROM teams ORDER BY name;
SELECT count(*) AS pending FROM kudos_stat_events WHERE NOT applied AND NOT quarantined;

\echo -- S04 value outside the enum
\i :fixture
SELECT t_rec(1, 'DOWNLOAD', 'image', 1, :e3), t_rec(1, 'USAGE', 'image', 2), t_rec(1, 'usage', 'image', 4) \gset
CALL drain(1000);
SELECT * FROM t_records;
SELECT * FROM t_quarantine;
\echo -- S04 the schema follows, the event is queued again
ALTER TYPE userrecordtypes ADD VALUE 'DOWNLOAD';
UPDATE kudos_stat_events SET quarantined = false, quarantine_reason = NULL, quarantined_at = NULL WHERE event_id = :e3;
CALL drain(1000);
SELECT * FROM t_records;
SELECT * FROM t_quarantine;
\echo -- S04 a later label counts things or units, nothing else
SELECT t_rec(1, 'DOWNLOAD', 'text', 1) \gset
INSERT INTO kudos_stat_events (event_id, entry_type, user_id, amount, unit, stat_action, record) VALUES
  (gen_random_uuid(), 'STAT_RECORD', 1, 1, 'count', 'DOWNLOAD', 'text'),
  (gen_random_uuid(), 'STAT_RECORD', 1, 1, 'kudos', 'DOWNLOAD', 'text');
CALL drain(1000);
SELECT * FROM t_records;
SELECT * FROM t_quarantine;

\echo -- S07 an event is quarantined whole or not at all: cut in two by the batch limit
\i :fixture
SELECT t_ustat(1, 'accumulated', 5, :e1) \gset
SELECT t_ustat(1, 'abcdefghijklmnopqrstuvwxy', 1, :e1) \gset
SELECT t_ustat(1, 'accumulated', 3, :e1) \gset
CALL drain(1);
SELECT id, applied, quarantined, quarantine_reason FROM kudos_stat_events ORDER BY id;
SELECT * FROM t_ustats;
\echo -- S07 claimed together
\i :fixture
SELECT t_ustat(1, 'accumulated', 5, :e1) \gset
SELECT t_ustat(1, 'abcdefghijklmnopqrstuvwxy', 1, :e1) \gset
SELECT t_ustat(1, 'accumulated', 3, :e1) \gset
CALL drain(2);
SELECT id, applied, quarantined, quarantine_reason FROM kudos_stat_events ORDER BY id;
SELECT * FROM t_ustats;

\echo -- S09 attribution is the stamped one, not the one of today
\i :fixture
SELECT t_wstat(:f1, 'generated', 10.5, :a1), t_contrib(:f1, 'contributions', 2.5, :a1), t_contrib(:f1, 'fulfilments', 1, :a1) \gset
UPDATE kudos_stat_events SET worker_user_id = 2;
UPDATE workers SET team_id = :b1 WHERE name = 'wk-1';
CALL fold(10);
SELECT name, kudos, contributions, fulfilments FROM workers ORDER BY name;
SELECT name, kudos, contributions, fulfilments FROM teams ORDER BY name;
SELECT * FROM t_wstats;
SELECT id, kudos FROM t_bal WHERE id IN (1, 2);

\echo -- S10 last_active only moves forward: row by row
\i :fixture
UPDATE users SET last_active = '2026-05-01 10:00' WHERE id IN (1, 2);
CREATE OR REPLACE PROCEDURE activity() LANGUAGE sql AS $$
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail) VALUES
  ('2026-04-01', gen_random_uuid(), 'STAT_ACTIVITY', 1, 0, 'count', 'last_active', '{"touch_last_active": true}'),
  ('2026-06-02 08:00', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": true}'),
  ('2026-06-01', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": true}'),
  ('2026-07-01', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": false}') $$;
CALL activity();
CALL drain(1);
SELECT id, last_active, kudos FROM users WHERE id IN (1, 2) ORDER BY id;
SELECT * FROM t_quarantine;
\echo -- S10 at once
\i :fixture
UPDATE users SET last_active = '2026-05-01 10:00' WHERE id IN (1, 2);
CALL activity();
CALL drain(1000);
SELECT id, last_active, kudos FROM users WHERE id IN (1, 2) ORDER BY id;
SELECT count(*) FROM (SELECT FROM user_stats UNION ALL SELECT FROM user_records) s;
\echo -- S10 any row of a user may carry the touch, a worker row may not
SELECT t_ustat(1, 'accumulated', 1, gen_random_uuid(), '{"touch_last_active": true}'), t_wstat(:f2, 'generated', 1) \gset
UPDATE kudos_stat_events SET created = '2026-08-01' WHERE NOT applied AND NOT quarantined;
UPDATE kudos_stat_events SET detail = '{"touch_last_active": true}', created = '2026-09-01' WHERE worker_id IS NOT NULL;
CALL drain(1000);
SELECT id, last_active FROM users WHERE id IN (1, 2) ORDER BY id;
DROP PROCEDURE activity();

\echo -- S11 counter table without its unique index: nothing of the cycle is applied
\i :fixture
ALTER TABLE user_stats DROP CONSTRAINT uq_user_stats_user_action;
INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 10), (1, 'accumulated', 5);
CREATE UNIQUE INDEX CONCURRENTLY uq_user_stats_user_action ON user_stats (user_id, action);
SELECT t_ustat(1, 'accumulated', 7), t_post(2, 3) \gset
SELECT * FROM kudos_fold_now();
SELECT value FROM user_stats ORDER BY id;
SELECT kudos FROM users WHERE id = 2;
SELECT ledger, stats, quarantined, heartbeat FROM (SELECT ledger, stats FROM t_pending) p,
  (SELECT count(*) AS quarantined FROM t_quarantine) q, (SELECT applied_at IS NOT NULL AS heartbeat FROM kudos_ledger_applier_state) h;
\echo -- S11 duplicates removed, index rebuilt
DELETE FROM user_stats WHERE value = 5;
UPDATE user_stats SET value = 15;
REINDEX INDEX CONCURRENTLY uq_user_stats_user_action;
CALL drain();
SELECT * FROM t_ustats;
SELECT kudos FROM users WHERE id = 2;

\echo -- Every reason of the quarantine, and which one comes first
\i :fixture
CREATE TEMP TABLE posted (id bigint, expected text);
CREATE OR REPLACE PROCEDURE stat(expected text, entry_type text, user_id int, worker uuid, stat_action text, record text, unit text, detail jsonb DEFAULT NULL)
LANGUAGE sql AS $$
  WITH row AS (INSERT INTO kudos_stat_events (event_id, entry_type, user_id, worker_id, amount, unit, stat_action, record, detail)
    VALUES (gen_random_uuid(), $2, $3, $4, 1, $7, $5, $6, $8) RETURNING id)
  INSERT INTO posted SELECT id, $1 FROM row $$;
\set long21 'abcdefghijklmnopqrstu'
\set long31 'abcdefghijklmnopqrstuvwxyz01234'
\set true '''{"touch_last_active": true}'''
CALL stat('missing_user', 'GENERATION', 777, NULL, 'accumulated', 'user_kudos', 'kudos');
CALL stat('missing_user', 'GENERATION', 777, NULL, :'long21', :'long31', 'things');
CALL stat('missing_user', 'STAT_ACTIVITY', 777, NULL, NULL, 'last_active', 'count', :true);
CALL stat('stat_action_too_long', 'GENERATION', 1, NULL, :'long21', 'user_kudos', 'kudos');
CALL stat('stat_action_too_long', 'GENERATION', 1, NULL, :'long21', 'user_kudos', 'things');
CALL stat('stat_action_too_long', 'GENERATION', NULL, :f1, :'long21', 'worker_kudos', 'kudos');
CALL stat('stat_action_too_long', 'STAT_RECORD', 1, NULL, :'long21', :'long31', 'things');
CALL stat('stat_action_too_long', 'STAT_CONTRIBUTION', NULL, :f1, :'long21', NULL, 'things');
CALL stat('stat_action_too_long', 'STAT_ACTIVITY', 1, NULL, :'long21', 'last_active', 'count', :true);
CALL stat('stat_action_too_long', 'SOMETHING', 1, NULL, 'ééééééééééééééééééééé', NULL, 'count');
CALL stat('record_too_long', 'STAT_RECORD', 1, NULL, 'USAGE', :'long31', 'things');
CALL stat('record_too_long', 'STAT_RECORD', 1, NULL, 'NONE', :'long31', 'kudos');
CALL stat('record_too_long', 'STAT_CONTRIBUTION', NULL, :f1, 'contributions', :'long31', 'count');
CALL stat('record_too_long', 'STAT_ACTIVITY', 1, NULL, NULL, :'long31', 'count');
CALL stat('record_too_long', 'SOMETHING', 1, NULL, NULL, :'long31', 'count');
CALL stat('record_too_long', 'STAT_RECORD', 1, NULL, 'USAGE', 'ééééééééééééééééééééééééééééééé', 'things');
CALL stat('invalid_user_kudos', 'GENERATION', NULL, :f1, 'accumulated', 'user_kudos', 'kudos');
CALL stat('invalid_user_kudos', 'GENERATION', 1, NULL, NULL, 'user_kudos', 'kudos');
CALL stat('invalid_user_kudos', 'GENERATION', 1, NULL, 'accumulated', 'user_kudos', 'things');
CALL stat('invalid_user_kudos', 'STAT_RECORD', 1, NULL, 'USAGE', 'user_kudos', 'things');
CALL stat('invalid_worker_kudos', 'GENERATION', 1, NULL, 'generated', 'worker_kudos', 'kudos');
CALL stat('invalid_worker_kudos', 'GENERATION', NULL, :f1, NULL, 'worker_kudos', 'kudos');
CALL stat('invalid_worker_kudos', 'GENERATION', NULL, :f1, 'generated', 'worker_kudos', 'count');
CALL stat('invalid_worker_kudos', 'STAT_CONTRIBUTION', NULL, :f1, 'contributions', 'worker_kudos', 'things');
CALL stat('invalid_stat_record', 'STAT_RECORD', NULL, :f1, 'USAGE', 'image', 'things');
CALL stat('invalid_stat_record', 'STAT_RECORD', 1, NULL, NULL, 'image', 'things');
CALL stat('invalid_stat_record', 'STAT_RECORD', 1, NULL, 'USAGE', NULL, 'things');
CALL stat('invalid_stat_record', 'STAT_RECORD', 1, NULL, 'DOWNLOAD', 'image', 'things');
CALL stat('invalid_stat_record', 'STAT_RECORD', 1, NULL, 'USAGE ', 'image', 'things');
CALL stat('invalid_stat_record', 'STAT_RECORD', 1, NULL, '', 'image', 'kudos');
CALL stat('invalid_stat_record_unit', 'STAT_RECORD', 1, NULL, 'USAGE', 'image', 'kudos');
CALL stat('invalid_stat_record_unit', 'STAT_RECORD', 1, NULL, 'USAGE', 'image', 'count');
CALL stat('invalid_stat_record_unit', 'STAT_RECORD', 1, NULL, 'CONTRIBUTION', 'image', 'count');
CALL stat('invalid_stat_record_unit', 'STAT_RECORD', 1, NULL, 'FULFILLMENT', 'image', 'things');
CALL stat('invalid_stat_record_unit', 'STAT_RECORD', 1, NULL, 'REQUEST', 'image', 'things');
CALL stat('invalid_stat_record_unit', 'STAT_RECORD', 1, NULL, 'STYLE', 'image', 'things');
CALL stat('invalid_stat_contribution', 'STAT_CONTRIBUTION', 1, NULL, 'contributions', NULL, 'things');
CALL stat('invalid_stat_contribution', 'STAT_CONTRIBUTION', NULL, :f1, NULL, NULL, 'things');
CALL stat('invalid_stat_contribution', 'STAT_CONTRIBUTION', NULL, :f1, 'contributions', NULL, 'count');
CALL stat('invalid_stat_contribution', 'STAT_CONTRIBUTION', NULL, :f1, 'fulfilments', NULL, 'things');
CALL stat('invalid_stat_contribution', 'STAT_CONTRIBUTION', NULL, :f1, 'fulfillments', NULL, 'count');
CALL stat('invalid_stat_activity', 'STAT_ACTIVITY', NULL, :f1, NULL, 'last_active', 'count', :true);
CALL stat('invalid_stat_activity', 'STAT_ACTIVITY', 1, NULL, NULL, 'last_seen', 'count', :true);
CALL stat('invalid_stat_activity', 'STAT_ACTIVITY', 1, NULL, NULL, 'last_active', 'things', :true);
CALL stat('invalid_stat_activity', 'STAT_ACTIVITY', 1, NULL, NULL, 'last_active', 'count');
CALL stat('unknown_projection', 'GENERATION', 1, NULL, 'accumulated', NULL, 'kudos');
CALL stat('unknown_projection', 'GENERATION', 1, NULL, 'accumulated', 'User_kudos', 'kudos');
CALL stat('unknown_projection', 'stat_record', 1, NULL, 'USAGE', 'image', 'things');
CALL stat('unknown_projection', 'SOMETHING', NULL, :f1, NULL, NULL, 'count');
\echo -- and rows at the very edge that are good
CALL stat(NULL, 'GENERATION', 1, NULL, 'éééééééééééééééééééé', 'user_kudos', 'kudos');
CALL stat(NULL, 'GENERATION', NULL, :f1, 'abcdefghijklmnopqrst', 'worker_kudos', 'kudos');
CALL stat(NULL, 'STAT_RECORD', 1, NULL, 'USAGE', 'éééééééééééééééééééééééééééééé', 'things');
CALL stat(NULL, 'STAT_RECORD', 1, NULL, 'FULFILLMENT', 'image', 'count');
CALL stat(NULL, 'STAT_RECORD', 1, NULL, 'CONTRIBUTION', 'image', 'things');
CALL stat(NULL, 'STAT_CONTRIBUTION', NULL, :f1, 'fulfilments', NULL, 'count');
CALL stat(NULL, 'STAT_ACTIVITY', 1, NULL, 'anything', 'last_active', 'count', :true);
CALL drain(1000);
SELECT expected, count(*) AS rows, count(*) FILTER (WHERE e.quarantine_reason IS NOT DISTINCT FROM p.expected
    AND e.quarantined = (p.expected IS NOT NULL) AND e.applied = (p.expected IS NULL)) AS as_expected
FROM posted p JOIN kudos_stat_events e USING (id) GROUP BY 1 ORDER BY min(p.id);
SELECT p.*, e.* FROM posted p JOIN kudos_stat_events e USING (id)
WHERE e.quarantine_reason IS DISTINCT FROM p.expected OR e.quarantined <> (p.expected IS NOT NULL) OR e.applied <> (p.expected IS NULL);
SELECT * FROM t_ustats;
SELECT * FROM t_wstats;
SELECT * FROM t_records;
\echo -- The reason of an event is that of its lowest invalid row
INSERT INTO kudos_stat_events (event_id, entry_type, user_id, amount, unit, stat_action, record) VALUES
  (:e1, 'GENERATION', 1, 1, 'kudos', 'accumulated', 'user_kudos'),
  (:e1, 'SOMETHING', 1, 1, 'kudos', NULL, NULL),
  (:e1, 'GENERATION', 777, 1, 'kudos', 'accumulated', 'user_kudos'),
  (:e2, 'GENERATION', 777, 1, 'kudos', 'accumulated', 'user_kudos'),
  (:e2, 'SOMETHING', 1, 1, 'kudos', NULL, NULL),
  (:e2, 'GENERATION', 2, 1, 'kudos', 'accumulated', 'user_kudos');
CALL drain(1000);
SELECT event_id, quarantine_reason, count(*), bool_or(applied) AS applied FROM kudos_stat_events WHERE event_id IN (:e1, :e2) GROUP BY 1, 2 ORDER BY 1, 2;

\echo -- What counts as a touch
\i :fixture
UPDATE users SET last_active = '2026-01-01' WHERE id = 1;
CREATE TEMP TABLE touches (id serial, detail jsonb, touches boolean);
INSERT INTO touches (detail, touches) VALUES
  (NULL, false), ('null', false), ('{}', false), ('{"touch_last_active": null}', false),
  ('{"touch_last_active": false}', false), ('{"touch_last_active": 0}', false), ('{"touch_last_active": 0.0}', false),
  ('{"touch_last_active": ""}', false), ('{"touch_last_active": []}', false), ('{"touch_last_active": {}}', false),
  ('["touch_last_active"]', false), ('"touch_last_active"', false), ('{"a": {"touch_last_active": true}}', false),
  ('{"Touch_last_active": true}', false),
  ('{"touch_last_active": true}', true), ('{"touch_last_active": 1}', true), ('{"touch_last_active": -0.1}', true),
  ('{"touch_last_active": "false"}', true), ('{"touch_last_active": " "}', true), ('{"touch_last_active": [null]}', true),
  ('{"touch_last_active": {"a": null}}', true);
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail)
  SELECT '2026-02-01'::timestamp + id * interval '1 day', gen_random_uuid(), 'STAT_ACTIVITY', 1, 0, 'count', 'last_active', detail FROM touches ORDER BY id;
CALL drain(1000);
SELECT t.detail, t.touches, e.applied, e.quarantine_reason FROM touches t JOIN kudos_stat_events e USING (id) ORDER BY id;
SELECT last_active FROM users WHERE id = 1;
\echo -- the same on a row that is good without one
UPDATE users SET last_active = '2026-01-01';
DELETE FROM kudos_stat_events;
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, detail)
  SELECT '2026-02-01', gen_random_uuid(), 'GENERATION', 100 + id, 1, 'kudos', 'accumulated', 'user_kudos', detail FROM touches;
INSERT INTO users (id, username, oauth_id, last_active) SELECT 100 + id, 'u', id::text, '2026-01-01' FROM touches;
CALL drain(1000);
SELECT count(*) AS rows, count(*) FILTER (WHERE (u.last_active = '2026-02-01') = t.touches) AS as_expected
FROM touches t JOIN users u ON u.id = 100 + t.id;
DROP PROCEDURE stat(text, text, int, uuid, text, text, text, jsonb);
