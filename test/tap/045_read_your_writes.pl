# Read your writes: kudos_wait_applied() returns when the event is folded, and holds nothing back while it
# waits; a posting wakes the worker at its commit where that is asked for.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('writes', { 'kudos_projector.interval' => '1h' });
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');

my $event = '00000000-0000-0000-0000-00000000e001';
my $other = '00000000-0000-0000-0000-00000000e002';

# A session of its own that waits for the event; gives the session.
sub wait_in_background
{
	my ($query) = @_;
	my $session = $node->background_psql('horde', on_error_stop => 0);
	$session->query_until(qr/asked/, "\\echo asked\n$query\n");
	return $session;
}
# It sleeps: it was seen waiting, and not for a lock.
my $sleepers = q(SELECT count(*) = %d FROM pg_stat_activity WHERE query LIKE 'SELECT %%kudos_wait_applied%%'
	AND wait_event_type = 'Extension');
sub sleeping { wait_until($node, 'horde', sprintf($sleepers, $_[0]), $_[1]) }
sub answer
{
	my ($session) = @_;
	my $said = $session->query_until(qr/answered/, "\\echo answered\n");
	$session->quit;
	my ($value) = $said =~ /^([tf])$/m;
	return $value;
}

is(number($node, 'horde', "SELECT kudos_wait_applied('$event', '1min')"), 't', 'nothing of the event is queued: at once');
is(number($node, 'horde', "SELECT kudos_wait_applied('$event', '-1s')"), 't', 'also with no time to wait');

$node->safe_psql('horde', "SELECT t_post(1, 10, false, '$event'), t_ustat(1, 'accumulated', 10, '$event')");
is(number($node, 'horde', "SELECT kudos_wait_applied('$event', '10ms')"), 'f', 'nobody folds: false at the timeout');

# Its commit wakes the waiters; the rows of another event do not answer them.
my $first = wait_in_background("SELECT kudos_wait_applied('$event', '10min');");
my $second = wait_in_background("SELECT 'two', kudos_wait_applied('$event', '10min');");
sleeping(2, 'two sessions wait');
is(number($node, 'horde', q(SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT kudos_wait_applied%'
	AND backend_xmin IS NULL AND backend_xid IS NULL)), 1, 'a whole query that waits holds back no vacuum');
my $stat = hold($node, 'horde', "SELECT id FROM kudos_stat_events WHERE event_id = '$event' FOR UPDATE");
$node->safe_psql('horde', 'SELECT kudos_fold_now()');
sleeping(2, 'with one row of the event left they go on waiting');
let_go($stat);
$node->safe_psql('horde', 'SELECT kudos_fold_now()');
is(answer($first), 't', 'true once every row is applied');
like($second->query_until(qr/answered/, "\\echo answered\n"), qr/two\|t/, 'for the other, too');
$second->quit;

# A fold that is undone wakes nobody who then believes it.
$node->safe_psql('horde', "SELECT t_post(2, 5, false, '$other')");
my $third = wait_in_background("SELECT kudos_wait_applied('$other', '10min');");
sleeping(1, 'one waits');
$node->safe_psql('horde', 'BEGIN; SELECT kudos_fold_now(); ROLLBACK');
sleeping(1, 'an undone fold is none');
$node->safe_psql('horde', 'SELECT kudos_fold_now()');
is(answer($third), 't', 'until it is done');

# Quarantined, and shadow: at once, and false.
my ($status, $out, $err) = $node->psql('horde', "SELECT t_ustat(777, 'accumulated', 1, '$event'); SELECT kudos_fold_now();
	SELECT kudos_wait_applied('$event', '10min')");
like($out, qr/^f$/m, 'quarantined: false');
like($err, qr/NOTICE.*quarantined.*\n.*missing_user/, 'with the reason');
$node->safe_psql('horde', "SELECT kudos_set_mode('shadow'); SELECT t_post(1, 1, false, '$other')");
is(number($node, 'horde', "SELECT kudos_wait_applied('$other', '10min')"), 'f', 'shadow: false');
$node->safe_psql('horde', "SELECT kudos_fold_now(); SELECT kudos_set_mode('ledger')");

# A waiter can be cancelled.
$node->safe_psql('horde', "SELECT t_post(1, 1, false, '$other')");
my $fourth = wait_in_background("SELECT kudos_wait_applied('$other', '10min');");
sleeping(1, 'one waits again');
$node->safe_psql('horde', q(SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT kudos_wait_applied%'));
is(answer($fourth), undef, 'a waiter can be cancelled');
$node->safe_psql('horde', 'SELECT kudos_fold_now()');

# With an hour between ticks only a wake-up folds.
set_config($node, 'kudos_projector.databases' => 'horde', 'kudos_projector.wake_on_commit' => 'on');
wait_for_worker($node, 'horde');
wait_until($node, 'horde', 'SELECT ticks > 0 FROM kudos_projector_stats', 'the first tick is over');
for my $round (1 .. 3)
{
	my $posted = number($node, 'horde', "SELECT event_id FROM kudos_post(1, 1, 'AWARD')");
	is(number($node, 'horde', "SELECT kudos_wait_applied('$posted', '5min')"), 't', "posting $round wakes the worker");
}
$node->safe_psql('horde', 'SELECT t_ustat(1, \'accumulated\', 1)');
wait_until($node, 'horde', 'SELECT ledger = 0 AND stats <= 1 FROM t_pending', 'a plain INSERT does, too');

# Off, a posting costs no tick, and signals never do.
set_config($node, 'kudos_projector.wake_on_commit' => undef);
my $ticks = number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats');
$node->safe_psql('horde', "SELECT t_post(1, 1, false, '$other')");
is(number($node, 'horde', "SELECT kudos_wait_applied('$other', '100ms')"), 'f', 'off: it waits for its tick');
is(number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats'), $ticks, 'no tick was spent');
$node->safe_psql('horde', 'SELECT kudos_fold_now()');

is_right($node, 'horde');
ends_well($node);
done_testing();
