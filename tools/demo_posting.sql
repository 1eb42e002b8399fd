-- What a Horde's requests do, for the demo: each transfer appends its rows and commits.
CREATE PROCEDURE demo_post(transfers integer)
LANGUAGE plpgsql AS $$
DECLARE
    event uuid;
    payer integer;
    payee integer;
    amount numeric;
    utc timestamp;
BEGIN
    FOR i IN 1..transfers LOOP
        event := gen_random_uuid();
        payer := 1 + i % 2;
        payee := 3 - payer;
        amount := (i % 40) + 0.25;
        utc := clock_timestamp() AT TIME ZONE 'utc';
        INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
        VALUES (utc, event, 'TRANSFER', payer, false, -amount, false),
               (utc, event, 'TRANSFER', payee, false, amount, false);
        INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
        VALUES (utc, event, 'TRANSFER', payer, -amount, 'kudos', 'gifted', 'user_kudos', false),
               (utc, event, 'TRANSFER', payee, amount, 'kudos', 'received', 'user_kudos', false);
        COMMIT;
    END LOOP;
END
$$;
