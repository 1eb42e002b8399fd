# What runs out: worker slots, and room on the disk. Whoever gets none waits and says so once, nothing of a cycle that
# found no room is half done, and all goes on by itself once there is some.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Worker slots: one for the launcher, one for whichever database is first -------------------------------

my $node = new_server('slots',
	{ 'kudos_projector.databases' => 'one, two', 'max_worker_processes' => 2, 'max_logical_replication_workers' => 0 });
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(one two);
load_fixture($node, $_) for qw(one two);
wait_until($node, 'one', q{
	SELECT count(*) FILTER (WHERE state = 'idle') = 1
	   AND count(*) FILTER (WHERE state = 'waiting' AND reason = 'no background worker slot is free') = 1 FROM kudos_projector_stats},
	'with room for one worker, one database has it and the other waits');
my $waiting = number($node, 'one', q{SELECT database FROM kudos_projector_stats WHERE state = 'waiting'});
like(number($node, $waiting, 'SELECT problem FROM kudos_health()'), qr/no background worker slot is free/, 'health of that one says so');
$node->safe_psql($waiting, 'SELECT t_post(1, 5)');
is(number($node, $waiting, 'SELECT one, ledger FROM t_look'), '1000|1', 'its rows wait');
set_config($node, 'kudos_projector.databases' => $waiting);
wait_until($node, $waiting, 'SELECT one = 1005 FROM t_look', 'it is folded once a slot is free');
is_right($node, $waiting);
wait_until($node, $waiting, 'SELECT problem IS NULL FROM kudos_health()', 'health has no problem left');
cmp_ok(scalar(log_lines($node, qr/no background worker slot is free/)), '<=', 2, 'it was not said again and again');
ends_well($node);

# No room: files cannot grow, which ends in "could not extend file", like a full disk ---------------------

SKIP:
{
	skip 'prlimit is missing', 14 unless grep { -x "$_/prlimit" } split /:/, $ENV{PATH};
	$node = new_server('full', { 'kudos_projector.databases' => 'horde', 'kudos_projector.enabled' => 'off', 'autovacuum' => 'off' },
		extra => [ '-E', 'UTF8', '--locale=C.UTF-8', '--wal-segsize=1' ]);
	$node->safe_psql('postgres', 'CREATE DATABASE horde');
	load_fixture($node, 'horde');
	$node->safe_psql('horde', q{
		SELECT count(t_post(1, 1)), count(t_ustat(1, 'accumulated', 0.35)) FROM generate_series(1, 20000);
		CHECKPOINT});
	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];
	my $size = number($node, 'horde', q{SELECT pg_relation_size('kudos_ledger')});
	PostgreSQL::Test::Utils::system_or_bail('prlimit', '--pid', $postmaster, "--fsize=$size:unlimited");
	set_config($node, 'kudos_projector.enabled' => 'on');
	wait_until($node, 'horde', q{SELECT consecutive_errors > 1 FROM kudos_health()}, 'the worker finds no room, and tries again');
	my $pid = worker_pid($node, 'horde');
	like(number($node, 'horde', 'SELECT problem FROM kudos_health()'), qr/could not extend file/, 'health says why nothing is folded');
	is(number($node, 'horde', 'SELECT one, ledger, stats FROM t_look'), '1000|20000|20000', 'every posting is kept, nothing is half done');
	is_right($node, 'horde');
	my ($status, $out, $err) = $node->psql('horde', 'SELECT kudos_fold_now()');
	like($err, qr/could not extend file/, 'a caller is told');
	($status, $out, $err) = $node->psql('horde', 'SELECT count(t_post(2, 1)) FROM generate_series(1, 1000)');
	like($err, qr/could not extend file/, 'who posts is told');
	is(scalar(log_lines($node, qr/\[$pid\].*ERROR:/)), 1, 'the worker says it once');

	for my $process ($postmaster, $pid)
	{
		PostgreSQL::Test::Utils::system_or_bail('prlimit', '--pid', $process, '--fsize=unlimited');
	}
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'with room again, all is folded');
	is(number($node, 'horde', 'SELECT one, two FROM t_look'), '21000|500', 'each row once');
	is(worker_pid($node, 'horde'), $pid, 'by the same worker');
	is_right($node, 'horde');
	is(number($node, 'horde', 'SELECT problem FROM kudos_health()'), '', 'health has no problem left');
	ends_well($node);
}
done_testing();
