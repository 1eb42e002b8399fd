\set ECHO none
-- What the regression tests share: the fixture, the extension created anew, and short ways to fold
-- and to look. Loading it again resets everything.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS kudos_projector CASCADE;
\ir cases_fixture.sql
\set QUIET on
CREATE EXTENSION kudos_projector;

-- One cycle of at most n rows of each kind.
CREATE OR REPLACE PROCEDURE fold(n int DEFAULT 1000) LANGUAGE plpgsql AS $$
BEGIN
  PERFORM kudos_fold_now(n, 1);
END $$;

-- Cycles of at most n rows, a transaction each, until one finds nothing.
CREATE OR REPLACE PROCEDURE drain(n int DEFAULT 1000) LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
  LOOP
    SELECT * INTO r FROM kudos_fold_now(n, 1);
    COMMIT;
    EXIT WHEN r.currency_rows + r.stat_rows + r.quarantined_rows = 0;
  END LOOP;
END $$;

-- What a refused fold must leave as it was.
CREATE OR REPLACE VIEW t_state AS
  SELECT (SELECT count(*) FROM kudos_ledger WHERE NOT applied) AS ledger,
         (SELECT count(*) FROM kudos_stat_events WHERE NOT applied) AS stats,
         (SELECT count(*) FROM kudos_stat_events WHERE quarantined) AS quarantined,
         (SELECT kudos FROM users WHERE id = 1) AS kudos,
         (SELECT value FROM user_stats WHERE user_id = 1 AND action = 'accumulated') AS accumulated,
         (SELECT applied_at IS NOT NULL FROM kudos_ledger_applier_state) AS heartbeat;
CREATE OR REPLACE VIEW t_floored AS
  SELECT user_id, amount, escrow, applied, detail FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT' ORDER BY id;
CREATE OR REPLACE VIEW t_holds AS
  SELECT business_id, remaining_amount AS remaining, released_at IS NOT NULL AS released
  FROM kudos_reservations ORDER BY business_id;
CREATE OR REPLACE VIEW t_quarantine AS
  SELECT id, quarantine_reason AS reason, applied, quarantined_at IS NOT NULL AS dated
  FROM kudos_stat_events WHERE quarantined ORDER BY id;
CREATE OR REPLACE VIEW t_ustats AS SELECT user_id, action, value FROM user_stats ORDER BY 1, 2;
CREATE OR REPLACE VIEW t_wstats AS SELECT worker_id, action, value FROM worker_stats ORDER BY 1, 2;
CREATE OR REPLACE VIEW t_records AS SELECT user_id, record_type, record, value FROM user_records ORDER BY 1, 2, 3;
RESET client_min_messages;
\set ECHO all
