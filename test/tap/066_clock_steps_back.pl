# A clock that steps back by a day, and forward, while the worker runs: what is due is told by a clock that
# nobody sets, ages are never negative, and nothing that was newer becomes older.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($faketime) = grep { -e } map { glob "$_/faketime/libfaketimeMT.so.1" } '/usr/lib', '/usr/lib64', '/usr/lib/*';
plan skip_all => 'libfaketime is not installed' unless $faketime;

# The server reads its clock's offset from this file whenever it asks for the time.
my $offset_file = PostgreSQL::Test::Utils::tempdir() . '/offset';

sub set_clock
{
	my ($offset) = @_;
	append_to_file("$offset_file.new", "$offset\n");
	rename "$offset_file.new", $offset_file or die "cannot set the clock: $!";
}

set_clock('+0');
my $node = do
{
	local @ENV{qw(LD_PRELOAD FAKETIME_TIMESTAMP_FILE FAKETIME_NO_CACHE DONT_FAKE_MONOTONIC)} =
	  ($faketime, $offset_file, 1, 1);
	new_server('clock', { 'kudos_projector.databases' => 'horde', 'kudos_projector.lock_timeout' => '100ms' });
};
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
my $pid = wait_for_worker($node, 'horde');

# Of every age that health tells, those below zero.
my $negative_ages = q{SELECT string_agg(key || ' ' || value, ', ') FROM kudos_health() h, jsonb_each_text(to_jsonb(h))
	WHERE key LIKE '%seconds' AND value::float8 < 0};

sub server_time { number($node, 'horde', 'SELECT extract(epoch FROM clock_timestamp())') }

sub steps
{
	my ($offset, $seconds, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $before = server_time();
	set_clock($offset);
	my $stepped = server_time() - $before;
	cmp_ok(abs($stepped - $seconds), '<', 3600, "the clock steps: $name");
	is(number($node, 'horde', $negative_ages), '', "no age is negative at once: $name");
}

sub ticks_on
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $ticks = number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats');
	wait_until($node, 'horde', "SELECT ticks > $ticks + 2 FROM kudos_projector_stats", "the worker ticks on: $name");
}

my $posted = 0;

sub folds_on
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$posted++;
	$node->safe_psql('horde', qq{
		INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount)
		VALUES ('hold $posted', 1, md5('$posted')::uuid, 5, 5);
		SELECT t_post(1, 10, false, md5('$posted')::uuid),
		       t_ustat(1, 'accumulated', 10, md5('$posted')::uuid, '{"touch_last_active": true}')});
	wait_until($node, 'horde', 'SELECT pending_rows = 0 FROM kudos_health()', "what is posted is folded: $name");
	is(number($node, 'horde', q{SELECT kudos, value, (SELECT count(*) FROM kudos_reservations WHERE released_at IS NULL)
	                              FROM users u JOIN user_stats s ON s.user_id = u.id WHERE u.id = 1}),
		join('|', 1000 + 10 * $posted, 10 * $posted, 0), "once, and its hold is released: $name");
	is(number($node, 'horde', $negative_ages), '', "no age is negative: $name");
}

sub last_active { number($node, 'horde', 'SELECT last_active FROM users WHERE id = 1') }

# The same under another date -----------------------------------------------------------------------

folds_on('before any step');
my $last_active = last_active();
steps('-1d', -86400, 'a day back');
ticks_on('a day back');
folds_on('a day back');
is(last_active(), $last_active, 'last_active never moves back');

# A reason to wait that began before the step ------------------------------------------------------

# standing still, with rows, a hold and a quarantined row that are younger than now
set_clock('+0');
$node->safe_psql('horde', q{SELECT t_ustat(777, 'accumulated', 1)});
wait_until($node, 'horde', 'SELECT quarantined_rows = 1 FROM kudos_health()', 'a row is quarantined');
set_config($node, 'kudos_projector.enabled' => 'off');
wait_until($node, 'horde', q{SELECT worker_state = 'stopped' AND worker_pid IS NULL FROM kudos_health()}, 'the worker is stopped');
$node->safe_psql('horde', q{
	INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('later', 2, 5, 5);
	SELECT t_post(2, 10, false, md5('waited for')::uuid), t_ustat(2, 'accumulated', 10)});
my $ages = q{SELECT oldest_ledger_pending_seconds, oldest_stat_pending_seconds, oldest_pending_seconds,
	oldest_quarantined_seconds, newest_quarantined_seconds, heartbeat_seconds, oldest_reservation_seconds,
	last_tick_seconds FROM kudos_health()};
my $waiter = $node->background_psql('horde');
$waiter->query_until(qr/asked/, "\\echo asked\nSELECT kudos_wait_applied(md5('waited for')::uuid, '2s');\n");
wait_until($node, 'horde', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'SELECT kudos_wait_applied%'
	AND wait_event_type = 'Extension'}, 'somebody waits for an event');
steps('-1d', -86400, 'with rows that are younger than now');
is(number($node, 'horde', $ages), '0|0|0|0|0|0|0|0', 'what is younger than now has no age');
like($waiter->query_until(qr/answered/, "\\echo answered\n"), qr/^f$/m, 'the wait ends at its timeout');
$waiter->quit;
$node->safe_psql('horde', q{DELETE FROM kudos_reservations WHERE business_id = 'later'});
set_config($node, 'kudos_projector.enabled' => undef);
$pid = wait_for_worker($node, 'horde');
folds_on('enabled again');

# the launcher, in its pause
set_clock('+0');
$node->safe_psql('horde', "SELECT pg_terminate_backend($pid, 60000)");
steps('-1d', -86400, 'in the pause after a worker that was terminated');
$pid = wait_for_worker($node, 'horde', $pid);
ok($pid, 'the launcher starts another');
folds_on('under another worker');

# the launcher, with a worker that has been told to leave and waits inside a cycle
set_clock('+0');
set_config($node, 'kudos_projector.lock_timeout' => '5min');
my $holder = hold($node, 'horde', 'SELECT 1 FROM user_stats WHERE user_id = 1 FOR UPDATE');
$node->safe_psql('horde', q{SELECT t_ustat(1, 'accumulated', 0)});
wait_for_wait($node, 'horde', 'the worker waits inside a cycle');
set_config($node, 'kudos_projector.enabled' => 'off');
steps('-1d', -86400, 'while the worker is waited for');
wait_until($node, 'horde', 'SELECT worker_pid IS NULL FROM kudos_health()', 'it is terminated all the same');
let_go($holder);
set_config($node, 'kudos_projector.enabled' => undef, 'kudos_projector.lock_timeout' => '100ms');
wait_for_worker($node, 'horde', $pid);
folds_on('after it was terminated');

# Forward, and back again --------------------------------------------------------------------------

set_clock('+0');
steps('+1d', 86400, 'a day forward');
ticks_on('a day forward');
folds_on('a day forward');
$last_active = last_active();
steps('+0', -86400, 'and back again');
ticks_on('and back again');
folds_on('and back again');
is(last_active(), $last_active, 'last_active stays where the day forward left it');

is_right($node, 'horde');
ends_well($node);
done_testing();
