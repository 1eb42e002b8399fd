# N06: a fold by hand that is cancelled, times out or is terminated. What is committed stays, the open transaction
# never was, the session is usable, and somebody else folds the rest. KUDOS_ROWS=300000 for the long form.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = $ENV{KUDOS_ROWS} // 15000;
my $node = new_server('cancelled', { 'kudos_projector.batch_size' => 100, 'max_wal_size' => '2GB' });
load_fixture($node, 'postgres');

sub number_of
{
	my ($query) = @_;
	return number($node, 'postgres', $query);
}

my $applied = 'SELECT count(*) FROM kudos_ledger WHERE applied';

# The cast as it was, and a backlog of postings and counters of 1 for user 1.
sub post
{
	$node->safe_psql('postgres', qq{
		CALL reset_case();
		INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount) SELECT gen_random_uuid(), 'GENERATION', 1, 1
			FROM generate_series(1, $rows);
		INSERT INTO kudos_stat_events (event_id, entry_type, user_id, amount, unit, stat_action, record)
			SELECT gen_random_uuid(), 'GENERATION', 1, 1, 'kudos', 'accumulated', 'user_kudos' FROM generate_series(1, $rows)});
}

# Starts CALL in a session, which goes on with what follows whatever becomes of it.
sub start
{
	my ($call) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	$session->query_until(qr/started/, "\\set VERBOSITY sqlstate\n\\echo started\n$call;\n");
	return ($session, $pid);
}

sub is_exact
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( number_of(q{SELECT one - 1000 = (SELECT count(*) FROM kudos_ledger WHERE applied), ledger = stats,
			coalesce((SELECT value FROM user_stats), 0) = (SELECT count(*) FROM kudos_stat_events WHERE applied) FROM t_look}),
		't|t|t', "what is applied is counted: $name");
	is_right($node, 'postgres', "targets are right: $name");
}

sub is_free
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(number_of(q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'}), 0, "no lock is left: $name");
}

# The rest, by whoever comes; then everything is folded once.
sub drain
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->safe_psql('postgres', 'SET client_min_messages = warning; SET kudos_projector.batch_size = 10000; CALL kudos_catch_up()');
	is(number_of('SELECT one, ledger, stats, quarantined FROM t_look'), join('|', 1000 + $rows, 0, 0, 0), "each row once: $name");
	is_right($node, 'postgres', "targets are right in the end: $name");
}

# kudos_catch_up(): a transaction a cycle --------------------------------------------------------------

for my $end ([ 'pg_cancel_backend', '57014' ], [ 'pg_terminate_backend', '57P01' ])
{
	my ($function, $state) = @$end;
	post();
	my ($session, $pid) = start('CALL kudos_catch_up()');
	wait_until($node, 'postgres', 'SELECT EXISTS (SELECT FROM kudos_ledger WHERE applied)', 'kudos_catch_up() commits its first cycles');
	is(number_of("SELECT $function($pid)"), 't', "$function in the middle");
	wait_until($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid AND state = 'active'", 'takes effect');
	my $kept = number_of($applied);
	cmp_ok($kept, '<', $rows, "before the end, with $kept of $rows rows committed");
	cmp_ok($kept, '>', 0, 'and what was committed stays');
	is($kept % 100, 0, 'in whole cycles');
	is_exact($function);
	is_free($function);
	if ($state eq '57014')
	{
		is($session->query('SELECT 1'), '1', 'the session is usable');
		like($session->{stderr}, qr/ERROR:  57014/, 'and was told why');
		is($session->query('SELECT currency_rows FROM kudos_fold_now(100, 1)'), '100', 'it folds on');
		$session->quit;
	}
	else { lose($session); }
	drain($function);
}

# kudos_fold_now(): the caller's transaction -----------------------------------------------------------

post();
my ($session, $pid) = start('SELECT * FROM kudos_fold_now(100, 1000000)');
wait_until($node, 'postgres', "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND pid = $pid AND granted", 'kudos_fold_now() folds');
is(number_of("SELECT pg_cancel_backend($pid)"), 't', 'and is cancelled');
is($session->query('SELECT 1'), '1', 'the session is usable');
like($session->{stderr}, qr/ERROR:  57014/, 'and was told why');
is(number_of($applied), 0, 'nothing is folded');
is_exact('kudos_fold_now() cancelled');
is_free('kudos_fold_now() cancelled');

# inside a block, a savepoint takes what is cancelled back, and the block goes on
$session->query('BEGIN; SELECT currency_rows FROM kudos_fold_now(100, 1); SAVEPOINT s');
$session->query_until(qr/started/, "\\echo started\nSELECT * FROM kudos_fold_now(100, 1000000);\n");
wait_until($node, 'postgres', "SELECT query ~ '1000000' AND state = 'active' FROM pg_stat_activity WHERE pid = $pid", 'in a block');
is(number_of("SELECT pg_cancel_backend($pid)"), 't', 'cancelled again');
$session->query('ROLLBACK TO s; COMMIT');
is(number_of($applied), 100, 'the cycle before the savepoint stays');
is_exact('cancelled in a block');
$session->quit;
drain('cancelled, twice');

# Time-outs: many cycles in one transaction, each in its own, and one of all rows -------------------------

for my $call ('SELECT * FROM kudos_fold_now(100, 1000000)', 'CALL kudos_catch_up()', 'SELECT * FROM kudos_fold_now(100000, 1)')
{
	post();
	my ($status, $out, $err) = $node->psql('postgres',
		"\\set VERBOSITY sqlstate\nSET client_min_messages = warning;\nSET statement_timeout = '50ms';\n$call");
	like($err, qr/ERROR:  57014/, "$call is timed out");
	is(number_of("SELECT ledger > 0 FROM t_look"), 't', 'before its end');
	is_exact("$call timed out");
	is_free("$call timed out");
	drain("$call timed out");
}

ends_well($node);
done_testing();
