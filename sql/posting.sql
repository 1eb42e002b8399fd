-- kudos_post() and kudos_post_stat(): rows that the projector folds; what could never be folded is refused.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture
\set event '''00000000-0000-0000-0000-00000000e001'''
\set f1 '''00000000-0000-0000-0000-0000000000f1'''
\set a1 '''00000000-0000-0000-0000-0000000000a1'''

-- What a call gives: ok, or the SQLSTATE and what is said.
CREATE FUNCTION outcome(command text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE detail text;
BEGIN
  EXECUTE command;
  RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
  GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
  RETURN concat_ws(' | ', SQLSTATE, SQLERRM, nullif(detail, ''));
END $$;

\echo -- A row as it is stored
SELECT event_id IS NOT NULL AS event, id FROM kudos_post(1, 10, 'GENERATION');
SELECT * FROM kudos_post(user_id => 2, amount => -0.25, entry_type => 'ANYTHING', escrow => true, event_id => :event,
  detail => '{"reservation_id": "upfront:j1"}', job_id => '00000000-0000-0000-0000-00000000ab01', wp_type => 'image', created => '2026-02-03 04:05:06');
SELECT id, entry_type, user_id, escrow, amount, applied, detail, job_id, wp_type FROM kudos_ledger ORDER BY id;
SELECT event_id, created FROM kudos_ledger WHERE id = 2;
\echo -- an event id of its own where none is given
SELECT event_id AS first FROM kudos_post(1, 0, 'GENERATION') \gset
SELECT event_id AS second FROM kudos_post(1, 0, 'GENERATION') \gset
SELECT :'first' <> :'second' AS differ;

\echo -- An idempotency key gives the event id: uuid5 of the URL namespace over aihorde-kudos:KEY
SELECT event_id FROM kudos_post(1, 1, 'GENERATION', idempotency_key => 'abc');
SELECT event_id FROM kudos_post_stat('GENERATION', 1, 'kudos', user_id => 1, stat_action => 'accumulated', record => 'user_kudos', idempotency_key => 'abc');
\echo -- the same for the same key, another for another: no folding of case, the empty one and one beyond ASCII included
SELECT (kudos_post(1, 1, 'GENERATION', idempotency_key => k)).event_id FROM unnest(ARRAY['abc', 'ABC', 'abc ', '', 'käse 🧀', 'aihorde-kudos:abc', repeat('x', 10000)]) k;
SELECT outcome('SELECT kudos_post(1, 1, ''GENERATION'', event_id => gen_random_uuid(), idempotency_key => ''abc'')') AS both;
SELECT outcome('SELECT kudos_post_stat(''STAT_RECORD'', 1, ''things'', user_id => 1, stat_action => ''USAGE'', record => ''image'',
  event_id => gen_random_uuid(), idempotency_key => ''abc'')') AS both;

\echo -- created is UTC whatever the session thinks the time is
\i :fixture
SET timezone = 'Asia/Tokyo';
BEGIN;
SELECT id FROM kudos_post(1, 1, 'GENERATION') \gset
SELECT id FROM kudos_post_stat('GENERATION', 1, 'kudos', user_id => 1, stat_action => 'accumulated', record => 'user_kudos') \gset
SELECT created BETWEEN (now() AT TIME ZONE 'utc') AND (clock_timestamp() AT TIME ZONE 'utc') AS utc FROM kudos_ledger;
SELECT created BETWEEN (now() AT TIME ZONE 'utc') AND (clock_timestamp() AT TIME ZONE 'utc') AS utc FROM kudos_stat_events;
COMMIT;
RESET timezone;

\echo -- A currency row that is refused
\i :fixture
SELECT call, outcome('SELECT kudos_post(' || call || ')') FROM (VALUES
  ('NULL, 1, ''GENERATION'''),
  ('1, NULL, ''GENERATION'''),
  ('1, 1, NULL'),
  ('1, 1, ''GENERATION'', NULL'),
  ('1, ''NaN'', ''GENERATION'''),
  ('1, ''Infinity'', ''GENERATION'''),
  ('1, ''-Infinity'', ''GENERATION'''),
  ('1, 0.001, ''GENERATION'''),
  ('1, -10.005, ''GENERATION'''),
  ('1, 1000000000000000000, ''GENERATION'''),
  ('1, -1e40, ''GENERATION'''),
  ('777, 1, ''GENERATION'''),
  ('1, 1, repeat(''x'', 33)'),
  ('1, 1, ''GENERATION'', wp_type => repeat(''x'', 21)'),
  ('1, 1, ''GENERATION'', event_id => gen_random_uuid(), idempotency_key => ''''')) t (call);
SELECT * FROM t_pending;
\echo -- and one that is not: the largest amounts, a zero, two places spelled with more
SELECT call, outcome('SELECT kudos_post(' || call || ')') FROM (VALUES
  ('1, 999999999999999999.99, ''GENERATION'''),
  ('1, -999999999999999999.99, ''GENERATION'''),
  ('1, 0, ''GENERATION'''),
  ('1, 1.2500000, ''GENERATION'''),
  ('1, 1e2, repeat(''ä'', 32)')) t (call);
SELECT amount FROM kudos_ledger ORDER BY id;

\echo -- A stat row that could never be folded is refused, with the reason for which it would be quarantined
\i :fixture
ALTER TABLE kudos_stat_events ALTER stat_action TYPE text, ALTER record TYPE text;
SELECT call, outcome('SELECT kudos_post_stat(' || replace(call, 'f1', :f1) || ')') FROM (VALUES
  ('''GENERATION'', 1, ''kudos'', 777, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 1, ''kudos'', 1, stat_action => repeat(''x'', 21), record => ''user_kudos'''),
  ('''STAT_RECORD'', 1, ''things'', 1, stat_action => ''USAGE'', record => repeat(''x'', 31)'),
  ('''GENERATION'', 1, ''kudos'', 1, record => ''user_kudos'''),
  ('''GENERATION'', 1, ''things'', 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 1, ''kudos'', worker_id => ''f1'', stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 1, ''kudos'', 1, stat_action => ''generated'', record => ''worker_kudos'''),
  ('''GENERATION'', 1, ''count'', worker_id => ''f1'', stat_action => ''generated'', record => ''worker_kudos'''),
  ('''STAT_RECORD'', 1, ''things'', 1, stat_action => ''NONSENSE'', record => ''image'''),
  ('''STAT_RECORD'', 1, ''things'', 1, stat_action => ''USAGE'''),
  ('''STAT_RECORD'', 1, ''count'', 1, stat_action => ''USAGE'', record => ''image'''),
  ('''STAT_RECORD'', 1, ''things'', 1, stat_action => ''REQUEST'', record => ''image'''),
  ('''STAT_CONTRIBUTION'', 1, ''count'', worker_id => ''f1'', stat_action => ''contributions'''),
  ('''STAT_CONTRIBUTION'', 1, ''things'', worker_id => ''f1'', stat_action => ''fulfilments'''),
  ('''STAT_CONTRIBUTION'', 1, ''things'', 1, stat_action => ''contributions'''),
  ('''STAT_ACTIVITY'', 0, ''count'', 1'),
  ('''STAT_ACTIVITY'', 0, ''count'', 1, detail => ''{"touch_last_active": false}'''),
  ('''STAT_ACTIVITY'', 0, ''count'', 1, detail => ''{"touch_last_active": {}}'''),
  ('''STAT_ACTIVITY'', 0, ''count'', 1, detail => ''["touch_last_active"]'''),
  ('''STAT_ACTIVITY'', 0, ''things'', 1, record => ''last_active'', detail => ''{"touch_last_active": true}'''),
  ('''STAT_ACTIVITY'', 0, ''count'', 1, record => ''other'', detail => ''{"touch_last_active": true}'''),
  ('''STAT_ACTIVITY'', 0, ''count'', worker_id => ''f1'', record => ''last_active'', detail => ''{"touch_last_active": true}'''),
  ('''NONSENSE'', 1, ''kudos'', 1')) t (call);
\echo -- or for what it is
SELECT call, outcome('SELECT kudos_post_stat(' || replace(call, 'f1', :f1) || ')') FROM (VALUES
  ('''GENERATION'', 1, ''kudos'', stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 1, ''kudos'', 1, ''f1'', stat_action => ''accumulated'', record => ''user_kudos'''),
  ('NULL, 1, ''kudos'', 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', NULL, ''kudos'', 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 1, NULL, 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', ''NaN'', ''kudos'', 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 0.001, ''kudos'', 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('repeat(''x'', 33), 1, ''kudos'', 1, stat_action => ''accumulated'', record => ''user_kudos''')) t (call);
SELECT * FROM t_pending;
\echo -- the longest that fit are counted in characters, not bytes
SELECT call, outcome('SELECT kudos_post_stat(' || call || ')') FROM (VALUES
  ('''GENERATION'', 1, ''kudos'', 1, stat_action => repeat(''ä'', 20), record => ''user_kudos'''),
  ('''STAT_RECORD'', 1, ''things'', 1, stat_action => ''USAGE'', record => repeat(''ä'', 30)')) t (call);
\echo -- a worker or team that is gone is no fault of the row
SELECT outcome('SELECT kudos_post_stat(''GENERATION'', 1, ''kudos'', worker_id => gen_random_uuid(), team_id => gen_random_uuid(),
  stat_action => ''generated'', record => ''worker_kudos'')');

\echo -- M03 in shadow the application posts, inline
\i :fixture
UPDATE kudos_ledger_control SET mode = 'shadow';
SELECT kudos_post(1, 1, 'GENERATION');
SELECT kudos_post_stat('GENERATION', 1, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos');
\set VERBOSITY sqlstate
SELECT kudos_post(1, 1, 'GENERATION');
DELETE FROM kudos_ledger_control;
SELECT kudos_post(1, 1, 'GENERATION');
SELECT kudos_post_stat('GENERATION', 1, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos');
\echo -- N03 and in a read-only transaction nobody
\i :fixture
BEGIN READ ONLY;
SELECT kudos_post(1, 1, 'GENERATION');
ROLLBACK;
BEGIN READ ONLY;
SELECT kudos_post_stat('GENERATION', 1, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos');
ROLLBACK;
\echo -- A row that a trigger keeps from the table was not posted
CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER veto BEFORE INSERT ON kudos_ledger FOR EACH ROW EXECUTE FUNCTION veto();
CREATE TRIGGER veto BEFORE INSERT ON kudos_stat_events FOR EACH ROW EXECUTE FUNCTION veto();
SELECT kudos_post(1, 1, 'GENERATION');
SELECT kudos_post_stat('GENERATION', 1, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos');
DROP TRIGGER veto ON kudos_ledger;
DROP TRIGGER veto ON kudos_stat_events;
DROP FUNCTION veto();
\set VERBOSITY default
SELECT * FROM t_pending;

\echo -- A posting pins the mode until its transaction ends
BEGIN;
SELECT kudos_post(1, 1, 'GENERATION') IS NOT NULL AS posted;
SELECT classid, objid, objsubid, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;
SELECT * FROM t_pending;

\echo -- What was posted is folded like any other row
\i :fixture
SELECT outcome('SELECT kudos_post(' || call || ')') FROM (VALUES
  ('1, 10.25, ''GENERATION'''), ('1, 0.25, ''GENERATION'''), ('4, -100, ''GENERATION'''), ('2, 12, ''GENERATION'', true'), ('3, 0, ''GENERATION''')) t (call);
SELECT outcome('SELECT kudos_post_stat(' || replace(replace(call, 'f1', :f1), 'a1', :a1) || ')') FROM (VALUES
  ('''GENERATION'', 7, ''kudos'', 1, stat_action => ''accumulated'', record => ''user_kudos'''),
  ('''GENERATION'', 8, ''kudos'', worker_id => ''f1'', worker_user_id => 1, team_id => ''a1'', stat_action => ''generated'', record => ''worker_kudos'''),
  ('''STAT_RECORD'', 9, ''things'', 1, stat_action => ''USAGE'', record => ''image'''),
  ('''STAT_CONTRIBUTION'', 10, ''things'', worker_id => ''f1'', team_id => ''a1'', stat_action => ''contributions'''),
  ('''STAT_CONTRIBUTION'', 1, ''count'', worker_id => ''f1'', team_id => ''a1'', stat_action => ''fulfilments'''),
  ('''STAT_ACTIVITY'', 0, ''count'', 1, record => ''last_active'', detail => ''{"touch_last_active": true}'', created => ''2030-01-02''')) t (call);
SELECT * FROM t_pending;
CALL drain();
SELECT * FROM t_pending;
SELECT * FROM t_bal WHERE id IN (1, 2, 3, 4);
SELECT * FROM t_floored;
SELECT * FROM t_ustats;
SELECT * FROM t_wstats;
SELECT * FROM t_records;
SELECT kudos, contributions, fulfilments FROM workers WHERE id = :f1;
SELECT kudos, contributions, fulfilments FROM teams WHERE id = :a1;
SELECT last_active FROM users WHERE id = 1;
SELECT * FROM t_quarantine;
DROP FUNCTION outcome;
