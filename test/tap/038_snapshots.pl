# C04: snapshots while others post and a worker folds; then those that outlive the server they were taken on:
# a crash with a prepared transaction, a standby, a dump. And what a reconciliation reads of the archive.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('snapshots',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.interval' => '10ms',
		'kudos_projector.batch_size' => 50,
		'max_prepared_transactions' => 4,
		'autovacuum' => 'off',
		'wal_level' => 'replica',
		'max_wal_senders' => 4,
		'hot_standby' => 'on',
	},
	allows_streaming => 1);
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
wait_for_worker($node, 'horde');

# Drift of all snapshots, by the rows since and by the whole archive.
my $all_drift = q{
	SELECT s.snapshot_id, w.full, d.* FROM kudos_snapshots s CROSS JOIN (VALUES (false), (true)) w ("full")
	CROSS JOIN LATERAL kudos_reconcile(s.snapshot_id, w.full) d};

sub drain
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'horde', 'SELECT ledger + stats = 0 FROM t_pending', 'all is folded');
}

# C04 ----------------------------------------------------------------------------------------------

my $scripts = PostgreSQL::Test::Utils::tempdir();
append_to_file("$scripts/post.sql", q{
\set amount random(-5, 15)
\set user random(1, 2)
SELECT t_post(:user, :amount), t_post(3 - :user, 1, true), t_ustat(:user, 'accumulated', :amount),
	t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', :amount, '00000000-0000-0000-0000-0000000000a1'),
	t_contrib('00000000-0000-0000-0000-0000000000f2', 'contributions', 2, '00000000-0000-0000-0000-0000000000b1'),
	t_rec(:user, 'USAGE', 'image', 0.25);
});
append_to_file("$scripts/snapshot.sql", "SELECT kudos_snapshot();\n");
my @bench = ('pgbench', '-n', '-d', $node->connstr('horde'));
my $posters = IPC::Run::start([ @bench, '-c', 4, '-t', 300, '-f', "$scripts/post.sql" ], '>', \my $post_out, '2>', \my $post_err);
my $taker = IPC::Run::start([ @bench, '-c', 1, '-t', 20, '-f', "$scripts/snapshot.sql" ], '>', \my $take_out, '2>', \my $take_err);
ok($taker->finish, 'snapshots are taken while others post and a worker folds') or diag $take_err;
ok($posters->finish, 'and they post') or diag $post_err;
drain();
is(number($node, 'horde', 'SELECT count(*) FROM kudos_snapshots'), 20, 'twenty of them');
is($node->safe_psql('horde', $all_drift), '', 'none finds any drift');
is_right($node, 'horde');
cmp_ok(number($node, 'horde', "SELECT count(DISTINCT mark) FROM kudos_snapshot_marks WHERE archive = 'kudos_ledger'"),
	'>', 1, 'and their marks follow the archive');
$node->safe_psql('horde', 'UPDATE users SET kudos = kudos + 7 WHERE id = 1; UPDATE workers SET contributions = contributions - 1');
is($node->safe_psql('horde', "SELECT DISTINCT target, key, drift FROM ($all_drift) d ORDER BY 1, 2"),
	"users.kudos|1|7.00\n"
	  . "workers.contributions|00000000-0000-0000-0000-0000000000f1|-1.00\n"
	  . "workers.contributions|00000000-0000-0000-0000-0000000000f2|-1.00",
	'what somebody changed behind their backs is found by each, and nothing else');
$node->safe_psql('horde', 'UPDATE users SET kudos = kudos - 7 WHERE id = 1; UPDATE workers SET contributions = contributions + 1');

# A crash, with ids held by a prepared transaction ---------------------------------------------------

my $settled = number($node, 'horde', "SELECT max(mark) FROM kudos_snapshot_marks WHERE archive = 'kudos_ledger'");
$node->safe_psql('horde', q{
	BEGIN;
	SELECT t_post(1, 10), t_ustat(1, 'accumulated', 10);
	PREPARE TRANSACTION 'late';
	SELECT t_post(2, 20), t_ustat(2, 'accumulated', 20)});
$node->stop('immediate');
$node->start;
wait_for_worker($node, 'horde');
drain();
$node->safe_psql('horde', "SET kudos_projector.lock_timeout = '10ms'; SELECT kudos_snapshot()");
my $latest = "SELECT mark FROM kudos_snapshot_marks JOIN kudos_snapshots USING (snapshot_id)"
  . " WHERE archive = 'kudos_ledger' ORDER BY created DESC LIMIT 1";
is(number($node, 'horde', $latest), $settled, 'ids of a transaction that was prepared before a crash are not settled');
$node->safe_psql('horde', "COMMIT PREPARED 'late'");
drain();
is($node->safe_psql('horde', $all_drift), '', 'so they are no drift once it commits');
$node->safe_psql('horde', 'SELECT kudos_snapshot()');
cmp_ok(number($node, 'horde', $latest), '>', $settled, 'and then they are settled');

# A standby ------------------------------------------------------------------------------------------

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('snapshots_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->safe_psql('horde', "SELECT t_post(2, 5)");
drain();
$node->wait_for_catchup($standby);
is($standby->safe_psql('horde', $all_drift), '', 'a standby reconciles');
my ($status, $out, $err) = $standby->psql('horde', 'SELECT kudos_snapshot()');
like($err, qr/cannot execute kudos_snapshot\(\) in a read-only transaction/, 'and takes no snapshot');
$standby->stop;

# A dump ---------------------------------------------------------------------------------------------

my $dump = "$scripts/horde.dump";
command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('horde') ], 'a dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
command_ok([ 'pg_restore', '-d', $node->connstr('restored'), $dump ], 'restored');
is($node->safe_psql('restored', $all_drift), '', 'its snapshots serve in the restored database');
$node->safe_psql('restored', "SELECT t_post(1, 4); SELECT * FROM kudos_fold_now()");
is($node->safe_psql('restored', $all_drift), '', 'also once that goes on by itself');
is($node->safe_psql('restored', 'SELECT count(kudos_snapshot())'), 1, 'a new one is taken there');
is($node->safe_psql('restored', $all_drift), '', 'and serves');

# More rows are queued than a snapshot can name: its mark stays below
$node->safe_psql('restored', 'SELECT count(t_post(1, 1)) FROM generate_series(1, 10005)');
is($node->safe_psql('restored', q{
	SELECT kudos_snapshot() AS s \gset
	SELECT cardinality(open_ids), last_id - mark FROM kudos_snapshot_marks WHERE snapshot_id = :'s' AND archive = 'kudos_ledger'}),
	'10000|5', 'of 10005 queued rows 10000 are named');
$node->safe_psql('restored', 'SELECT kudos_fold_now(4000, 100)');
is($node->safe_psql('restored', $all_drift), '', 'and all of them count when they are folded');

# Both forms of the schema -----------------------------------------------------------------------------

for my $form (qw(fresh migrated))
{
	$node->safe_psql('postgres', "CREATE DATABASE $form");
	load_tables($node, $form, $form);
	$node->safe_psql($form, slurp_file("$FindBin::RealBin/../data/workload.sql"),
		extra_params => [ map { ('-v', $_) } qw(users=80 workers=20 teams=4 events=250 seed=11) ]);
	for my $cycles (1, 2, 2, 100)
	{
		$node->safe_psql($form, 'SELECT kudos_snapshot()');
		$node->safe_psql($form, "SELECT kudos_fold_now(70, $cycles)");
	}
	is($node->safe_psql($form, 'SELECT count(*) FROM kudos_ledger WHERE NOT applied'), 0, "$form: a backlog is folded");
	is($node->safe_psql($form, $all_drift), '', "$form: and snapshots taken meanwhile find no drift");
	is($node->safe_psql($form, 'SELECT bool_and(last_id IS NOT NULL) FROM kudos_snapshot_marks'), 't',
		"$form: they know how ids are numbered");
	$node->safe_psql($form, q{
		UPDATE users SET evaluating_kudos = evaluating_kudos + 1 WHERE id = 3;
		UPDATE user_stats SET value = value + 1 WHERE id = (SELECT min(id) FROM user_stats);
		UPDATE user_records SET value = value + 1 WHERE id = (SELECT min(id) FROM user_records);
		UPDATE workers SET fulfilments = fulfilments + 1 WHERE id = (SELECT id FROM workers ORDER BY id LIMIT 1)});
	my $third = '(SELECT snapshot_id FROM kudos_snapshots ORDER BY created OFFSET 2 LIMIT 1)';
	is($node->safe_psql($form, "SELECT target, amount, outcome FROM kudos_repair($third) ORDER BY 1"),
		join("\n", map { "$_|-1.00|posted" } qw(user_records user_stats users.evaluating_kudos workers.fulfilments)),
		"$form: what drifted is repaired");
	$node->safe_psql($form, 'SELECT kudos_fold_now(1000, 100)');
	is($node->safe_psql($form, $all_drift), '', "$form: for every snapshot");
}

# The archive is not read ------------------------------------------------------------------------------

$node->safe_psql('horde', q{
	INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount, applied)
		SELECT gen_random_uuid(), 'GENERATION', 1 + n % 2, 1 - n % 3, true FROM generate_series(1, 100000) n;
	INSERT INTO kudos_stat_events (event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
		SELECT gen_random_uuid(), 'GENERATION', 1 + n % 2, 1, 'kudos', 'accumulated', 'user_kudos', true
		  FROM generate_series(1, 100000) n;
	DELETE FROM pg_statistic;
	SELECT kudos_snapshot();
	SELECT t_post(1, 1), t_ustat(1, 'accumulated', 1)});
drain();
for my $analyzed ('without statistics', 'with statistics')
{
	$node->safe_psql('horde', 'VACUUM ANALYZE') if $analyzed =~ /^with /;
	for my $call ('kudos_snapshot()',
		'kudos_reconcile((SELECT snapshot_id FROM kudos_snapshots ORDER BY created DESC LIMIT 1))')
	{
		($status, $out, $err) = $node->psql('horde', qq{
			LOAD 'auto_explain';
			SET auto_explain.log_min_duration = 0;
			SET auto_explain.log_nested_statements = on;
			SET client_min_messages = log;
			SELECT count(*) FROM $call});
		unlike($err, qr/Seq Scan on (public\.)?kudos_(ledger|stat_events)\b/, "$call scans no archive $analyzed");
		like($err, qr/Index Scan (using|on) kudos_ledger_pkey/, "it reads a range of the primary key");
	}
}

ends_well($node, qr/was not properly shut down/);
done_testing();
