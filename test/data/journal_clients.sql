-- Clients who keep a journal of what was acknowledged: what client C does in its step N, in one transaction. Done again,
-- a step that was done does nothing. Load after transfers.sql. User 1 gets the kudos for all that they spend.
CREATE TABLE made (c int, n int, event_id uuid, PRIMARY KEY (c, n));
CREATE FUNCTION event_of(c int, n int) RETURNS uuid LANGUAGE sql AS $$ SELECT md5(c || '/' || n)::uuid $$;
CREATE FUNCTION hold_of(c int, n int) RETURNS text LANGUAGE sql AS $$ SELECT 'upfront:' || c || '/' || n $$;
CREATE FUNCTION is_done(c int, n int) RETURNS boolean LANGUAGE sql AS $$ SELECT CASE n % 5
	WHEN 1 THEN EXISTS (SELECT FROM kudos_ledger WHERE event_id = event_of(c, n))
		AND (SELECT count(*) = 2 FROM kudos_stat_events WHERE event_id = event_of(c, n))
	WHEN 2 THEN EXISTS (SELECT FROM made m WHERE (m.c, m.n) = ($1, $2)
		AND (SELECT count(*) = 2 FROM kudos_ledger l WHERE l.event_id = m.event_id))
	WHEN 3 THEN EXISTS (SELECT FROM kudos_reservations WHERE business_id = hold_of(c, n))
	WHEN 4 THEN EXISTS (SELECT FROM kudos_ledger WHERE event_id = event_of(c, n))
	ELSE EXISTS (SELECT FROM kudos_reservations WHERE business_id = hold_of(c, n - 2) AND released_at IS NOT NULL) END $$;
CREATE FUNCTION step(c int, n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF n % 5 = 2 THEN -- the key alone keeps a second transfer out
		INSERT INTO made SELECT c, n, t.event_id FROM kudos_transfer(1, 2, 1.25, c || '/' || n) t ON CONFLICT DO NOTHING;
	ELSIF NOT is_done(c, n) THEN
		CASE n % 5
			WHEN 1 THEN PERFORM t_post(1, 0.40, false, event_of(c, n)), t_ustat(1, 'accumulated', 0.40, event_of(c, n)),
				t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.40, '00000000-0000-0000-0000-0000000000a1', event_of(c, n));
			WHEN 3 THEN PERFORM kudos_reserve(1, hold_of(c, n), 2.50);
			WHEN 4 THEN PERFORM t_post(1, -1.75, false, event_of(c, n), jsonb_build_object('reservation_id', hold_of(c, n - 1)));
			ELSE PERFORM kudos_release(hold_of(c, n - 2));
		END CASE;
	END IF;
END $$;
CREATE INDEX ON kudos_ledger (event_id);
UPDATE users SET kudos = 1000000 WHERE id = 1;
CALL remember_opening();
