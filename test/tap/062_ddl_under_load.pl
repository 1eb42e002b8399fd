# D05, and what else is done to the tables while the worker works: columns that come, go and change their type,
# names that change, indexes that are dropped or built anew, TRUNCATE, other owners. Each row is folded once; what
# stops the worker is named, and it goes on by itself.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('ddl',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.batch_size' => 50,
		'autovacuum_naptime' => '1s',
	});
$node->safe_psql('postgres', 'CREATE DATABASE horde; CREATE ROLE keeper LOGIN; CREATE ROLE heir LOGIN');
load_fixture($node, 'horde');
my $pid = wait_for_worker($node, 'horde');
my ($kudos, $counted) = (1000, 0);

# Rows that a worker is folding when the change comes, and rows that come after it.
sub post
{
	my ($rows, $change) = @_;
	$node->safe_psql('horde', ($change // 'SELECT 1') . ";\nSELECT count(t_post(1, 1)), count(t_ustat(1, 'accumulated', 1)), count(t_wstat('00000000-0000-0000-0000-0000000000f1',"
		  . " 'generated', 1, '00000000-0000-0000-0000-0000000000a1')), count(t_rec(1, 'USAGE', 'image', 1)) FROM generate_series(1, $rows)");
	$kudos += $rows;
	$counted += $rows;
}

sub is_folded
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'horde', 'SELECT NOT EXISTS (SELECT FROM kudos_ledger WHERE NOT applied) AND NOT EXISTS (SELECT FROM kudos_stat_events WHERE NOT applied)', "$name: everything is folded");
	is(number($node, 'horde', q{SELECT u.kudos::bigint, s.value::bigint, w.value::bigint, r.value::bigint, t.kudos::bigint FROM users u, user_stats s, worker_stats w, user_records r, teams t
			WHERE u.id = 1 AND s.user_id = 1 AND r.user_id = 1 AND t.name = 'team-a'}),
		join('|', $kudos, ($counted) x 4), "$name: once");
}

# The whole of a change under load, without an error of the worker unless one is allowed.
sub survives
{
	my ($name, @changes) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	post(100);
	post(30, $_) for @changes;
	is_folded($name);
}

# The views of the fixture stand in the way of new types.
$node->safe_psql('horde', 'DROP VIEW t_standing, t_archived, t_bal, t_pending, t_look, t_hold CASCADE');

# Types --------------------------------------------------------------------------------------------

survives('bigint and numeric', map { "ALTER TABLE users ALTER kudos TYPE $_" } 'numeric(20,2)', 'numeric', 'numeric(20,0)', 'bigint', 'double precision', 'bigint');
survives('integer and bigint', map { "ALTER TABLE users ALTER evaluating_kudos TYPE $_" } 'bigint', 'numeric(12,2)', 'integer');
survives('counters', map { ("ALTER TABLE user_stats ALTER value TYPE $_", "ALTER TABLE worker_stats ALTER value TYPE $_", "ALTER TABLE user_records ALTER value TYPE $_") }
	  'numeric(20,2)', 'double precision', 'bigint', 'double precision');
survives('columns of two tables at once', map { "ALTER TABLE workers ALTER kudos TYPE $_; ALTER TABLE teams ALTER kudos TYPE $_, ALTER fulfilments TYPE $_" } 'numeric(20,2)', 'bigint');
survives('keys and codes', 'ALTER TABLE user_stats ALTER action TYPE text, ALTER user_id TYPE bigint', 'ALTER TABLE user_stats ALTER action TYPE varchar(20), ALTER user_id TYPE int',
	'ALTER TABLE kudos_ledger ALTER entry_type TYPE text', 'ALTER TABLE kudos_stat_events ALTER stat_action TYPE varchar(64), ALTER record TYPE text', 'ALTER TABLE users ALTER id TYPE bigint', 'ALTER TABLE users ALTER id TYPE int');

# Columns ------------------------------------------------------------------------------------------

survives('columns that nobody needs', 'ALTER TABLE users ADD note text DEFAULT clock_timestamp()::text', 'ALTER TABLE kudos_ledger ADD note int, DROP COLUMN job_id', 'ALTER TABLE users DROP COLUMN note',
	'ALTER TABLE teams ADD twice numeric GENERATED ALWAYS AS (kudos * 2.0) STORED', 'ALTER TABLE user_stats ADD note text NOT NULL DEFAULT $$$$', 'ALTER TABLE teams DROP COLUMN twice');

# A change that stops everything is named by health and undone: the worker goes on by itself.
sub stops
{
	my ($name, $change, $problem, $undo) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	post(100);
	$node->safe_psql('horde', $change);
	wait_until($node, 'horde', "SELECT problem ~ '$problem' FROM kudos_health()", "$name: health says so");
	wait_until($node, 'horde', "SELECT errors > 0 AND last_error ~ '$problem' FROM kudos_projector_stats", "$name: the worker keeps the error");
	post(30, $undo);
	is_folded($name);
	is(number($node, 'horde', 'SELECT problem IS NULL FROM kudos_health()'), 't', "$name: afterwards all is well");
}

stops('a column renamed', 'ALTER TABLE kudos_reservations RENAME remaining_amount TO rest', 'remaining_amount', 'ALTER TABLE kudos_reservations RENAME rest TO remaining_amount');
stops('a column dropped', 'CREATE TABLE kept AS SELECT id, fulfilments FROM workers; ALTER TABLE workers DROP COLUMN fulfilments', 'fulfilments',
	'ALTER TABLE workers ADD fulfilments int NOT NULL DEFAULT 0; UPDATE workers w SET fulfilments = k.fulfilments FROM kept k WHERE k.id = w.id');
stops('a table renamed', 'ALTER TABLE user_stats RENAME TO old_stats', 'user_stats', 'ALTER TABLE old_stats RENAME TO user_stats');
stops('a table moved', 'CREATE SCHEMA attic; ALTER TABLE teams SET SCHEMA attic', 'teams', 'ALTER TABLE attic.teams SET SCHEMA public');
stops('an unfit type', 'ALTER TABLE teams ALTER kudos TYPE real', 'real', 'ALTER TABLE teams ALTER kudos TYPE bigint');
stops('the index of the queue dropped', 'DROP INDEX ix_kudos_ledger_unapplied', 'no valid index on its unapplied rows', 'CREATE INDEX CONCURRENTLY ix_kudos_ledger_unapplied ON kudos_ledger (id) WHERE applied IS FALSE');
stops('a unique index dropped', 'ALTER TABLE user_records DROP CONSTRAINT user_records_user_id_record_type_record_key', 'no valid unique index', 'CREATE UNIQUE INDEX CONCURRENTLY ON user_records (user_id, record_type, record)');

# The schema, renamed and back; and by the setting
stops('the schema of the setting', q{ALTER SYSTEM SET kudos_projector.schema = 'attic'; SELECT pg_reload_conf()}, 'attic', q{ALTER SYSTEM RESET kudos_projector.schema; SELECT pg_reload_conf()});
is(worker_pid($node, 'horde'), $pid, 'by the same worker');

# Maintenance --------------------------------------------------------------------------------------

survives('indexes built anew', 'REINDEX TABLE CONCURRENTLY kudos_ledger', 'REINDEX TABLE CONCURRENTLY kudos_stat_events', 'REINDEX TABLE CONCURRENTLY user_stats', 'REINDEX TABLE users',
	'CREATE INDEX CONCURRENTLY again ON kudos_ledger (id) WHERE NOT applied', 'DROP INDEX CONCURRENTLY ix_kudos_ledger_unapplied', 'ALTER INDEX again RENAME TO ix_kudos_ledger_unapplied');
survives('tables written anew', (map { "VACUUM FULL $_" } qw(users kudos_ledger kudos_stat_events user_stats)), 'CLUSTER users USING users_pkey', 'CLUSTER kudos_ledger USING kudos_ledger_pkey', 'ANALYZE', 'VACUUM ANALYZE kudos_ledger');

# An index of the queue that is INVALID serves nobody, beside one that is valid.
$node->psql('horde', 'CREATE INDEX CONCURRENTLY broken ON kudos_ledger (id, (1 / (id - 1)))');
is(number($node, 'horde', q{SELECT indisvalid FROM pg_index WHERE indexrelid = 'broken'::regclass}), 'f', 'an index is INVALID');
survives('an INVALID index', 'SELECT 1', 'DROP INDEX CONCURRENTLY broken');

# Owners -------------------------------------------------------------------------------------------

my $tables = 'kudos_ledger, kudos_stat_events, kudos_reservations, kudos_ledger_applier_state, kudos_ledger_control, users, user_stats, user_records, workers, worker_stats, teams, user_roles, user_suspicions, kudos_balance_snapshots';
my $before = $pid;
for my $owner (qw(keeper heir))
{
	post(100);
	$node->safe_psql('horde', join ';', map { "ALTER TABLE $_ OWNER TO $owner" } split /, /, $tables);
	post(30);
	is_folded("owned by $owner");
	my $now = wait_for_worker($node, 'horde', $before);
	is(number($node, 'postgres', "SELECT usename FROM pg_stat_activity WHERE pid = $now"), $owner, "owned by $owner: the worker is that role");
	$before = $now;
}

# TRUNCATE -----------------------------------------------------------------------------------------

# Of everything at once, while the worker is in the middle of it: either may be the victim of a deadlock, and is tried again.
my $emptying = q{
	BEGIN;
	TRUNCATE teams, workers, worker_stats, user_stats, user_records, kudos_ledger, kudos_stat_events, kudos_remainder_users CASCADE;
	INSERT INTO teams (id, name, owner_id) VALUES ('00000000-0000-0000-0000-0000000000a1', 'team-a', 1);
	INSERT INTO workers (id, user_id, name) VALUES ('00000000-0000-0000-0000-0000000000f1', 1, 'wk-1');
	UPDATE users SET kudos = 1000 WHERE id = 1;
	COMMIT};
my ($tries, $rounds) = (0, 0);
while ($rounds < 5 && $tries++ < 50)
{
	post(200);
	my ($status, undef, $errors) = $node->psql('horde', $emptying, on_error_stop => 1);
	if ($status == 0) { ($kudos, $counted) = (1000, 0); $rounds++; next; }
	like($errors, qr/deadlock detected/, 'it loses against a cycle now and then');
}
is($rounds, 5, 'TRUNCATE gets through');
post(30);
is_folded('emptied while it works');
is(worker_pid($node, 'horde'), $before, 'the worker lives through all of it');
is(number($node, 'horde', 'SELECT problem IS NULL FROM kudos_health()'), 't', 'and has nothing to tell');

ends_well($node);
done_testing();
