# W06, W07, W09: the worker is terminated, cancelled, killed, and the server stopped in every way, in the
# middle of a fold; whatever happens, each row is folded once.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('survivor',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.lock_timeout' => '5min',
		'kudos_projector.batch_size' => 500,
		'restart_after_crash' => 'on',
	});
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
$node->safe_psql('horde', q{
	INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 0);
	INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 6000, 6000);
	CALL remember_opening();
});
my $pid = wait_for_worker($node, 'horde');
my $rounds = 0;

# The counter of user 1 is written late in a cycle: a worker that waits for it has marked its rows and
# written balances already.
my $counter = q{UPDATE user_stats SET value = value WHERE user_id = 1};

sub post
{
	$rounds++;
	$node->safe_psql('horde', q{
		SET synchronous_commit = on; -- what was posted is to survive, whatever the server is set to
		SELECT count(t_post(1, 2)), count(t_post(1, -1, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}')),
		       count(t_ustat(1, 'accumulated', 1)) FROM generate_series(1, 1000)});
}

# Stops the worker in the middle of a cycle; gives the session that does.
sub stop_in_the_middle
{
	my ($name) = @_;
	my $session = hold($node, 'horde', $counter);
	post();
	wait_for_wait($node, 'horde', "the worker is in the middle of a fold: $name");
	return $session;
}

sub is_folded_once
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', "all is folded: $name");
	is(number($node, 'horde', q{SELECT kudos, value, (SELECT count(*) FROM kudos_ledger WHERE NOT applied),
	                                   (SELECT count(*) FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT')
	                              FROM users, user_stats WHERE users.id = 1 AND user_id = 1}),
		join('|', 1000 + 1000 * $rounds, 1000 * $rounds, 0, 0), "and once: $name");
	is_right($node, 'horde', "targets are right: $name");
}

# Terminated and cancelled, idle and in the middle --------------------------------------------------

$node->safe_psql('horde', "SELECT pg_terminate_backend($pid)");
my $next = wait_for_worker($node, 'horde', $pid);
isnt($next, $pid, 'a terminated worker comes back');
post();
is_folded_once('after pg_terminate_backend');

$node->safe_psql('horde', "SELECT pg_cancel_backend($next)");
post();
is_folded_once('after pg_cancel_backend of an idle worker');
is(worker_pid($node, 'horde'), $next, 'a cancelled worker lives on');

my $session = stop_in_the_middle('terminate');
$node->safe_psql('horde', "SELECT pg_terminate_backend($next)");
my $third = wait_for_worker($node, 'horde', $next);
let_go($session);
is_folded_once('terminated in the middle');

$session = stop_in_the_middle('cancel');
$node->safe_psql('horde', "SELECT pg_cancel_backend($third)");
wait_until($node, 'horde', 'SELECT errors > 0 FROM kudos_projector_stats', 'the cancelled cycle is an error that is kept');
let_go($session);
is_folded_once('cancelled in the middle');
is(worker_pid($node, 'horde'), $third, 'and the worker lives on');
is(number($node, 'horde', 'SELECT consecutive_errors, last_error_code FROM kudos_health()'), '0|57014',
	'health keeps the last error, no longer as a problem');

# the launcher, too
my $launcher = number($node, 'postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = '$launcher_type'");
$node->safe_psql('postgres', "SELECT pg_terminate_backend($launcher)");
wait_until($node, 'postgres',
	"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = '$launcher_type' AND pid <> $launcher",
	'a terminated launcher comes back');
is(worker_pid($node, 'horde'), $third, 'without disturbing the worker');
$node->safe_psql('horde', "SELECT pg_terminate_backend($third)");
$pid = wait_for_worker($node, 'horde', $third);
post();
is_folded_once('under a new launcher');

# Killed -------------------------------------------------------------------------------------------

$session = stop_in_the_middle('kill -9');
kill 'KILL', $pid;
$node->wait_for_log(qr/server process|background worker .* was terminated by signal 9/);
lose($session);
$node->poll_query_until('postgres', 'SELECT true') or die 'no recovery';
wait_for_worker($node, 'horde', $pid);
is_folded_once('killed in the middle, recovered');

$session = stop_in_the_middle('immediate shutdown');
$node->stop('immediate');
lose($session);
$node->start;
wait_for_worker($node, 'horde');
is_folded_once('stopped at once in the middle, restarted');

# where nobody else waits for the disk, neither a posting nor its fold is lost
set_config($node, 'synchronous_commit' => 'off');
$session = stop_in_the_middle('immediate shutdown, synchronous_commit off');
$node->stop('immediate');
lose($session);
$node->start;
wait_for_worker($node, 'horde');
is_folded_once('stopped at once, synchronous_commit off');
set_config($node, 'synchronous_commit' => undef);

# Stopped ------------------------------------------------------------------------------------------

$session = stop_in_the_middle('fast shutdown');
my $from = -s $node->logfile;
$node->stop('fast');
lose($session);
is(scalar(log_lines($node, qr/abnormal|terminated by signal/, $from)), 0, 'a fast shutdown interrupts the fold in order');
$from = -s $node->logfile;
$node->start;
is(scalar(log_lines($node, qr/not properly shut down|redo starts/, $from)), 0, 'no recovery is needed after it');
wait_for_worker($node, 'horde');
is_folded_once('stopped fast in the middle, restarted');

post();
$from = -s $node->logfile;
$node->stop('smart');
is(scalar(log_lines($node, qr/abnormal|terminated by signal/, $from)), 0, 'a smart shutdown ends a busy worker in order');
$node->start;
wait_for_worker($node, 'horde');
is_folded_once('stopped smart while folding, restarted');

wait_until($node, 'horde', 'SELECT worker_state = $$idle$$ FROM kudos_health()', 'the worker is idle');
$node->restart;
wait_for_worker($node, 'horde');
post();
is_folded_once('stopped idle, restarted');

# the hold of 6000 took every debit that it could
is(number($node, 'horde', 'SELECT remaining, released FROM t_hold'), '0.00|t', 'the hold was consumed and released once');
ends_well($node, qr/signal 9|was not properly shut down/);
done_testing();
