-- The quarantine desk: what is shown of quarantined events, putting one back, accepting its loss.
\getenv abs_srcdir PG_ABS_SRCDIR
\set fixture :abs_srcdir '/test/data/helpers.sql'
\i :fixture
\set typed '''00000000-0000-0000-0000-0000000000e1'''
\set gone '''00000000-0000-0000-0000-0000000000e2'''
\set long '''00000000-0000-0000-0000-0000000000e3'''
\set f1 '''00000000-0000-0000-0000-0000000000f1'''
\set a1 '''00000000-0000-0000-0000-0000000000a1'''
CREATE VIEW t_desk AS SELECT event_id, reason, rows, first_id, would_change, accepted FROM kudos_quarantine;

\echo -- S04 an event of an unknown record type, one of a missing user, one with an action that is too long
SELECT t_rec(1, 'DOWNLOAD', 'image', 1, :typed), t_ustat(1, 'accumulated', 5, :typed), t_wstat(:f1, 'generated', 2, :a1, :typed),
       t_contrib(:f1, 'contributions', 3, NULL, :typed), t_post(1, 10, false, :typed) \gset
SELECT t_ustat(777, 'accumulated', 3, :gone), t_ustat(2, 'abcdefghijklmnopqrstuvwxyz', 1, :long) \gset
CALL drain();
SELECT * FROM t_desk ORDER BY event_id;
SELECT id, kudos FROM t_bal WHERE id = 1;
SELECT count(*) AS counters FROM user_stats;

\echo -- what would be quarantined again is refused, whatever is wrong with it, and nothing has changed
SELECT kudos_requeue(:typed);
SELECT kudos_requeue(:gone);
SELECT kudos_requeue(:long);
SELECT kudos_requeue('00000000-0000-0000-0000-0000000000ee');
SELECT kudos_requeue(NULL);
SELECT count(*) AS events FROM t_desk;
SELECT count(*) AS decisions FROM kudos_quarantine_decisions;

\echo -- when the cause is gone the whole event comes back, once: type added, user restored, column widened
ALTER TYPE userrecordtypes ADD VALUE 'DOWNLOAD';
INSERT INTO users (id, username, oauth_id) VALUES (777, 'back', 'acct-0777');
DROP VIEW t_state, t_ustats;
ALTER TABLE user_stats ALTER action TYPE varchar(40);
SELECT kudos_requeue(:typed), kudos_requeue(:gone), kudos_requeue(:long);
SELECT count(*) AS events FROM t_desk;
SELECT applied, quarantined, quarantine_reason, quarantined_at FROM kudos_stat_events WHERE event_id = :typed ORDER BY id;
SELECT kudos_requeue(:typed);
CALL drain();
SELECT user_id, action, value FROM user_stats ORDER BY 1, 2;
SELECT user_id, record_type, record, value FROM user_records;
SELECT kudos, contributions FROM workers WHERE id = :f1;
SELECT kudos FROM teams WHERE id = :a1;
SELECT * FROM t_pending;

\echo -- accepting a loss changes no row and is kept with the note; the last one counts
\i :fixture
CREATE VIEW t_desk AS SELECT event_id, reason, rows, first_id, would_change, accepted FROM kudos_quarantine;
SELECT t_ustat(777, 'accumulated', 3, :gone) \gset
CALL drain();
SELECT kudos_accept_quarantined(:gone, NULL);
SELECT kudos_accept_quarantined(:gone, 'deleted on request'), kudos_accept_quarantined(:gone, 'ticket 12');
SELECT * FROM t_desk;
SELECT applied, quarantined, quarantine_reason FROM kudos_stat_events;
SELECT event_id, action, rows, note, decided_by = current_user AS by_me, decided_at <= clock_timestamp() AS dated
  FROM kudos_quarantine_decisions ORDER BY id;
SELECT kudos_accept_quarantined('00000000-0000-0000-0000-0000000000ee', 'nothing there');

\echo -- half an event that was folded before its bad peer came stays folded: only the other half comes back (S07)
\i :fixture
SELECT t_ustat(1, 'accumulated', 5, :typed), t_rec(1, 'LATER', 'image', 1, :typed) \gset
CALL drain(1);
SELECT amount, applied, quarantined FROM kudos_stat_events ORDER BY id;
ALTER TYPE userrecordtypes ADD VALUE 'LATER';
SELECT kudos_requeue(:typed);
CALL drain();
SELECT amount, applied, quarantined FROM kudos_stat_events ORDER BY id;
SELECT user_id, action, value FROM user_stats;
SELECT user_id, record_type, value FROM user_records;

\echo -- a requeue that is rolled back leaves everything as it was
\i :fixture
SELECT t_ustat(777, 'accumulated', 3, :gone) \gset
CALL drain();
INSERT INTO users (id, username, oauth_id) VALUES (777, 'back', 'acct-0777');
BEGIN;
SELECT kudos_requeue(:gone);
ROLLBACK;
SELECT quarantined, quarantine_reason FROM kudos_stat_events;
SELECT count(*) AS decisions FROM kudos_quarantine_decisions;

\echo -- a read-only session may look, no more
BEGIN READ ONLY;
SELECT event_id, reason FROM kudos_quarantine;
SELECT kudos_requeue(:gone);
ROLLBACK;
BEGIN READ ONLY;
SELECT kudos_accept_quarantined(:gone, 'x');
ROLLBACK;
DROP EXTENSION kudos_projector CASCADE;
