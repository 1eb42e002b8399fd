# The primary dies under load and the standby is promoted: the projector goes on there by itself, everything that
# the standby had is folded once, and clients who repeat what they are not sure of end as if nothing had happened.
# With a synchronous standby no acknowledged step is lost; with an asynchronous one the end of each client's journal
# is, at most. Then: a synchronous standby that is away, and an old primary that is rewound and takes over again.
use strict;
use warnings;
use FindBin;
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my @clients = (1 .. 4);
my $steps = 10000; # of a client at most, far more than it gets done
my $scripts = PostgreSQL::Test::Utils::tempdir();

# Clients --------------------------------------------------------------------------------------------

# Each does its steps up to LAST and keeps a journal of those that were acknowledged, until it is done or loses
# its server.
sub start_clients
{
	my ($node, $last) = @_;
	my @running;
	for my $c (@clients)
	{
		my $script = "$scripts/client$c.sql";
		unlink $script;
		append_to_file($script, join '', map { "SELECT step($c, $_) \\g /dev/null\n\\echo $_\n" } 1 .. $last);
		my %client = (journal => '', said => '');
		$client{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('horde'), '-f', $script ],
			'<', \undef, '>', \$client{journal}, '2>', \$client{said});
		push @running, \%client;
	}
	return @running;
}

# The last step that each was told of.
sub acknowledged
{
	my (@running) = @_;
	IPC::Run::pump_nb($_->{run}) for grep { $_->{run}->pumpable } @running;
	return map { (split /\n/, $_->{journal})[-1] // 0 } @running;
}

sub lose_server
{
	my (@running) = @_;
	$_->{run}->finish for @running;
	return acknowledged(@running);
}

# The steps of each client, up to its last acknowledged one, that are not there.
sub missing
{
	my ($node, @acknowledged) = @_;
	my $journals = join ', ', map { "($_, " . shift(@acknowledged) . ')' } @clients;
	return split /\n/, $node->safe_psql('horde',
		"SELECT c, n FROM (VALUES $journals) j (c, acknowledged), generate_series(1, acknowledged) n WHERE NOT is_done(c, n) ORDER BY 1, 2");
}

# Servers --------------------------------------------------------------------------------------------

my $archive = q{
	SELECT 'ledger', id, event_id, user_id, amount, NULL::text FROM kudos_ledger
	UNION ALL SELECT 'stats', id, event_id, user_id, amount, worker_id::text FROM kudos_stat_events ORDER BY 1, 2};

sub pair
{
	my ($name) = @_;
	my $primary = new_server("${name}_1",
		{
			'kudos_projector.databases' => 'horde',
			'kudos_projector.interval' => '10ms',
			'kudos_projector.batch_size' => 40,
			'kudos_projector.lock_timeout' => '50ms',
			'wal_log_hints' => 'on',
			'wal_keep_size' => '512MB',
			'autovacuum' => 'off',
		},
		allows_streaming => 1);
	$primary->safe_psql('postgres', 'CREATE DATABASE horde');
	load_fixture($primary, 'horde');
	$primary->safe_psql('horde', slurp_file("$FindBin::RealBin/../data/$_.sql")) for 'transfers', 'journal_clients';
	$primary->backup('backup');
	my $standby = PostgreSQL::Test::Cluster->new("${name}_2");
	unlink $standby->logfile; # of an earlier run
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	$primary->safe_psql('horde', 'SELECT kudos_snapshot()');
	wait_for_worker($primary, 'horde');
	return ($primary, $standby);
}

# Clients write, the worker folds, and then a locked account lets a queue grow.
sub under_load
{
	my ($primary) = @_;
	my @running = start_clients($primary, $steps);
	wait_until($primary, 'horde', 'SELECT count(*) > 200 FROM kudos_ledger WHERE applied', 'clients write and the worker folds');
	my $holder = hold($primary, 'horde', 'UPDATE users SET kudos = kudos WHERE id = 1; UPDATE user_stats SET value = value');
	wait_until($primary, 'horde', 'SELECT ledger > 100 AND stats > 50 FROM t_pending', 'a queue has grown');
	return ($holder, @running);
}

# What the standby has, once it has replayed all that it got.
sub what_is_there
{
	my ($standby) = @_;
	wait_until($standby, 'postgres', q{SELECT pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn()
		AND NOT EXISTS (SELECT FROM pg_stat_wal_receiver)}, 'the standby has replayed what it got');
	cmp_ok(number($standby, 'horde', 'SELECT least(ledger, stats) FROM t_pending'), '>', 0, 'a part of it is unapplied');
	return $standby->safe_psql('horde', $archive);
}

# The projector of the promoted server folded exactly what was there.
sub is_taken_over
{
	my ($standby, $there) = @_;
	wait_until($standby, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'the projector goes on by itself and folds all');
	ok($standby->safe_psql('horde', $archive) eq $there, 'nothing that the standby had is lost, nothing is doubled');
	is_whole($standby);
}

sub is_whole
{
	my ($node) = @_;
	is_right($node, 'horde');
	is($node->safe_psql('horde', 'SELECT * FROM kudos_snapshots s, kudos_reconcile(s.snapshot_id)'), '',
		'a snapshot from before finds no drift');
	is($node->safe_psql('horde', 'SELECT * FROM kudos_snapshots s, kudos_reconcile(s.snapshot_id, true)'), '',
		'nor does the whole archive');
	is(number($node, 'horde', q{SELECT problem FROM kudos_health()}), '', 'health has no problem to tell');
}

# The clients repeat all that they did, and what they had not been told of, and go on a little.
sub is_as_if_nothing_happened
{
	my ($node, @acknowledged) = @_;
	my $last = 5 * (int((sort { $a <=> $b } @acknowledged)[-1] / 5) + 4);
	my @running = start_clients($node, $last);
	is(join(' ', lose_server(@running)), join(' ', ($last) x @clients), "clients repeat their steps up to $last");
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'all is folded');
	is(join(' ', missing($node, ($last) x @clients)), '', 'every step is done');
	my $times = @clients * $last / 5;
	is( number($node, 'horde', q{SELECT u.exact, v.exact, s.exact, w.exact, (SELECT count(*) FROM kudos_ledger), (SELECT count(*) FROM kudos_stat_events)
			FROM (SELECT key, trim_scale(shown + cents / 100.0) AS exact FROM t_standing WHERE target = 'users.kudos') u,
			     (SELECT key, trim_scale(shown + cents / 100.0) AS exact FROM t_standing WHERE target = 'users.kudos') v,
			     (SELECT key, trim_scale(shown + cents / 100.0) AS exact FROM t_standing WHERE target = 'user_stats') s,
			     (SELECT key, trim_scale(shown + cents / 100.0) AS exact FROM t_standing WHERE target = 'worker_stats') w
			WHERE u.key = '1' AND v.key = '2' AND s.key = '1/accumulated'}),
		join('|', 1000000 + $times * (0.40 - 1.25 - 1.75), 500 + $times * 1.25, $times * 0.40, $times * 0.40, 4 * $times, 4 * $times),
		'and all is as if nothing had happened');
	is( number($node, 'horde', 'SELECT count(*), sum(remaining_amount), count(*) FILTER (WHERE released_at IS NULL) FROM kudos_reservations'),
		join('|', 2 * $times, '0.00', 0),
		'holds, too');
	is_whole($node);
}

# Synchronous ----------------------------------------------------------------------------------------

my ($primary, $standby) = pair('sync');
set_config($primary, 'synchronous_standby_names' => '*');
wait_until($primary, 'postgres', q{SELECT sync_state = 'sync' FROM pg_stat_replication}, 'the standby is synchronous');
my ($holder, @running) = under_load($primary);
$primary->kill9;
lose($holder);
my @acknowledged = lose_server(@running);
my $there = what_is_there($standby);
$standby->promote;
is(join(' ', missing($standby, @acknowledged)), '', 'every step that was acknowledged is there');
is_taken_over($standby, $there);
is_as_if_nothing_happened($standby, @acknowledged);
is_log_clean($primary);
ends_well($standby);

# Asynchronous, rewound, and back --------------------------------------------------------------------

($primary, $standby) = pair('async');
($holder, @running) = under_load($primary);
$primary->wait_for_catchup($standby, 'replay');
my @safe = acknowledged(@running);
# What is written from here on gets lost.
set_config($standby, 'primary_conninfo' => '');
wait_until($primary, 'postgres', 'SELECT count(*) = 0 FROM pg_stat_replication', 'the standby is cut off');
my $written = number($primary, 'horde', 'SELECT count(*) FROM kudos_ledger');
wait_until($primary, 'horde', "SELECT count(*) > $written + 100 FROM kudos_ledger", 'clients go on');
$primary->stop('immediate');
lose($holder);
@acknowledged = lose_server(@running);
$there = what_is_there($standby);
$standby->promote;
set_config($standby, 'primary_conninfo' => undef);
my @lost = missing($standby, @acknowledged);
my %last_kept;
for my $c (@clients) { $last_kept{$c} = $acknowledged[ $c - 1 ] - grep { /^$c\|/ } @lost; }
cmp_ok(scalar @lost, '>', 0, 'what was acknowledged behind the back of the standby is lost');
is(join(' ', @lost), join(' ', map { my $c = $_; map { "$c|$_" } $last_kept{$c} + 1 .. $acknowledged[ $c - 1 ] } @clients),
	'it is the end of each journal, without a gap');
is(join(' ', grep { $last_kept{$_} < $safe[ $_ - 1 ] } @clients), '', 'what the standby had confirmed is not among it');
is_taken_over($standby, $there);
is_as_if_nothing_happened($standby, @acknowledged);

# pg_rewind brings the configuration of its source along
my $configuration = slurp_file($primary->data_dir . '/postgresql.conf');
$standby->safe_psql('postgres', 'CHECKPOINT');
$primary->command_ok([ 'pg_rewind', '--no-sync', '--source-server', $standby->connstr('postgres'), '--target-pgdata', $primary->data_dir ],
	'the old primary is rewound');
unlink $primary->data_dir . '/postgresql.conf';
append_to_file($primary->data_dir . '/postgresql.conf', $configuration);
$primary->enable_streaming($standby);
$primary->start;
$standby->wait_for_catchup($primary, 'replay');
is(number($primary, 'postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'kudos'"), 0,
	'and as a standby runs no process of ours');
ok($primary->safe_psql('horde', $archive) eq $standby->safe_psql('horde', $archive), 'with the archive of the new one');
($holder, @running) = under_load($standby);
$standby->stop('immediate');
lose($holder);
@acknowledged = lose_server(@running);
$there = what_is_there($primary);
$primary->promote;
is_taken_over($primary, $there);
is_as_if_nothing_happened($primary, @acknowledged);
is_log_clean($standby);
ends_well($primary, qr/was not properly shut down/);
done_testing();
