-- Remainders: what is between the exact value of a target and the integer that its column shows,
-- in cents (exact value = column * 100 + remainder). Written by the projector in the transaction
-- that writes the column, and only where a fraction ever existed. One table beside each target.

CREATE TABLE kudos_remainder_users (
    id bigint PRIMARY KEY,
    kudos smallint NOT NULL,
    evaluating_kudos smallint NOT NULL
);
-- Escrow that rounds to nothing is drained like any other.
CREATE INDEX kudos_remainder_users_escrow ON kudos_remainder_users (id) WHERE evaluating_kudos > 0;
COMMENT ON INDEX kudos_remainder_users_escrow IS 'users with a positive remainder of escrow';
CREATE TABLE kudos_remainder_user_stats (
    user_id bigint,
    action text,
    value smallint NOT NULL,
    PRIMARY KEY (user_id, action)
);
CREATE TABLE kudos_remainder_worker_stats (
    worker_id uuid,
    action text,
    value smallint NOT NULL,
    PRIMARY KEY (worker_id, action)
);
CREATE TABLE kudos_remainder_user_records (
    user_id bigint,
    record_type text,
    record text,
    value smallint NOT NULL,
    PRIMARY KEY (user_id, record_type, record)
);
CREATE TABLE kudos_remainder_workers (
    id uuid PRIMARY KEY,
    kudos smallint NOT NULL,
    contributions smallint NOT NULL,
    fulfilments smallint NOT NULL
);
CREATE TABLE kudos_remainder_teams (
    id uuid PRIMARY KEY,
    kudos smallint NOT NULL,
    contributions smallint NOT NULL,
    fulfilments smallint NOT NULL
);

COMMENT ON TABLE kudos_remainder_users IS 'cents between the exact values of users and the integers shown';
COMMENT ON TABLE kudos_remainder_user_stats IS 'cents between the exact values of user_stats and the integers shown';
COMMENT ON TABLE kudos_remainder_worker_stats IS 'cents between the exact values of worker_stats and the integers shown';
COMMENT ON TABLE kudos_remainder_user_records IS 'cents between the exact values of user_records and integers shown; empty while the column is fractional';
COMMENT ON TABLE kudos_remainder_workers IS 'cents between the exact values of workers and the integers shown';
COMMENT ON TABLE kudos_remainder_teams IS 'cents between the exact values of teams and the integers shown';

-- They are money: a dump carries their rows.
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_users', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_user_stats', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_worker_stats', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_user_records', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_workers', '');
SELECT pg_catalog.pg_extension_config_dump('kudos_remainder_teams', '');
