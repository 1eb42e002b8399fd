# W01: the worker is in nobody's way: commands that want a database for themselves (DROP, TEMPLATE, RENAME, TABLESPACE) get
# it at once, whether they succeed or fail the worker comes back, and nobody but the database's owner can send it
# away. The extension is updated under it, and a worker that waits for a synchronous standby can be stopped.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A copy of the server's files, into whose folder of extensions we can write.
my $copy = PostgreSQL::Test::Utils::tempdir() . '/server';
my %folder = map { my $value = `pg_config --$_`; chomp $value; $_ => $value } qw(bindir pkglibdir sharedir);
for my $folder (values %folder) { PostgreSQL::Test::Utils::system_or_bail('mkdir', '-p', "$copy$folder"); }
PostgreSQL::Test::Utils::system_or_bail('sh', '-c', "cp -L $folder{bindir}/* $copy$folder{bindir}/ && cp -L $folder{pkglibdir}/*.so $copy$folder{pkglibdir}/"
	. " && cp -rL $folder{sharedir}/. $copy$folder{sharedir}/");
my $node = new_server('way',
	{
		'kudos_projector.databases' => 'horde, renamed, moved, watch',
		'kudos_projector.lock_timeout' => '5min',
		'allow_in_place_tablespaces' => 'on',
		'jit' => 'off', # the copy has no bitcode
	},
	allows_streaming => 1,
	install_path => "$copy$folder{bindir}/..");
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(horde watch);
load_fixture($node, $_) for qw(horde watch);
wait_for_worker($node, $_) for qw(horde watch);
my $watch = worker_pid($node, 'watch');

# COMMAND must succeed although the worker is connected.
sub command
{
	my ($command, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($status, $out, $err) = $node->psql('postgres', $command, timeout => $PostgreSQL::Test::Utils::timeout_default,
		timed_out => \my $late);
	ok(!$late && $status == 0, $name) or diag($err);
}

# The worker of DATABASE folds a row that is posted now.
sub folds
{
	my ($database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $kudos = number($node, $database, 'SELECT kudos + 5 FROM users WHERE id = 1');
	$node->safe_psql($database, 'SELECT t_post(1, 5)');
	wait_until($node, $database, "SELECT kudos = $kudos FROM users WHERE id = 1", $name);
}

# Idle, and in the middle of a cycle that would wait for five minutes
my $holder;
sub make_stuck
{
	my ($database) = @_;
	$holder = hold($node, $database, 'LOCK TABLE user_stats IN ACCESS EXCLUSIVE MODE');
	$node->safe_psql($database, q{SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5)});
	wait_for_wait($node, $database, "the worker of $database waits in a cycle");
}

# Commands on the whole database ---------------------------------------------------------------------

command('CREATE DATABASE copy TEMPLATE horde', 'the database of an idle worker is copied');
folds('horde', 'and the worker comes back');
is(number($node, 'copy', 'SELECT kudos FROM users WHERE id = 1'), 1000, 'the copy is whole');
command('ALTER DATABASE horde RENAME TO renamed', 'it is renamed');
folds('renamed', 'and the worker of the new name folds it');
command('ALTER DATABASE renamed RENAME TO horde', 'and back');
folds('horde', 'and back');
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION ''");
command('ALTER DATABASE horde SET TABLESPACE elsewhere', 'it is moved');
folds('horde', 'and the worker comes back');

# A command that fails: somebody else is connected, too.
my $session = $node->background_psql('horde');
my ($status, $out, $err) = $node->psql('postgres', 'DROP DATABASE horde');
like($err, qr/being accessed by other users\nDETAIL:  There is 1 other session/, 'of others connected, one is left, not the worker');
folds('horde', 'the worker comes back after a command that failed');

# Who sends the worker away is gone before his command is over.
my $killed = $node->background_psql('postgres', on_error_stop => 0);
$killed->query_until(qr/asked/, "\\echo asked\nDROP DATABASE horde;\n");
wait_until($node, 'postgres', q{SELECT count(pg_terminate_backend(pid)) = 1 FROM pg_stat_activity
	WHERE query ~ '^DROP DATABASE horde' AND state = 'active' AND pid <> pg_backend_pid()}, 'a command is terminated');
lose($killed);
folds('horde', 'the worker comes back after it');
$session->quit;

# Nobody but the owner.
my $pid = wait_for_worker($node, 'horde');
$node->safe_psql('postgres', 'CREATE ROLE stranger LOGIN CREATEDB');
for my $command ('DROP DATABASE horde', 'CREATE DATABASE mine TEMPLATE horde', 'ALTER DATABASE horde RENAME TO mine',
	'ALTER DATABASE horde SET TABLESPACE pg_default')
{
	($status, $out, $err) = $node->psql('postgres', "\\set VERBOSITY sqlstate\n$command", extra_params => [ '-U', 'stranger' ]);
	like($err, qr/42501/, "a stranger may not: $command");
}
is(worker_pid($node, 'horde'), $pid, 'and does not disturb the worker');

# In the middle of a cycle, which is undone.
make_stuck('horde');
my $dropped = $node->background_psql('postgres', on_error_stop => 0);
$dropped->query_until(qr/asked/, "\\echo asked\nDROP DATABASE horde;\n");
wait_until($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type' AND datname = 'horde'",
	'a command ends a cycle that waits');
lose($holder);
$dropped->query_until(qr/over/, "\\echo over\n");
$dropped->quit;
is(number($node, 'postgres', q{SELECT count(*) FROM pg_database WHERE datname = 'horde'}), 0, 'the database is gone');
wait_until($node, 'watch', q{SELECT reason = 'database "horde" does not exist' FROM kudos_projector_stats WHERE database = 'horde'},
	'the reason is known');
command('ALTER DATABASE copy RENAME TO horde', 'the copy takes its place');
folds('horde', 'and is folded');
is_right($node, 'horde');
is(join("\n", grep { !/terminating (?:background worker|connection)/ } log_lines($node, qr/FATAL:/)), '', 'nobody met a database that was gone');
is(worker_pid($node, 'watch'), $watch, 'the worker of another database was never disturbed');

# ALTER EXTENSION ... UPDATE --------------------------------------------------------------------------

append_to_file("$copy$folder{sharedir}/extension/kudos_projector--0.1--0.1.1.sql", "COMMENT ON FUNCTION kudos_mode() IS 'updated';\n");
$node->safe_psql('horde', 'SELECT count(t_post(1, 1)) FROM generate_series(1, 20000)');
wait_until($node, 'horde', 'SELECT count(*) > 0 FROM kudos_ledger WHERE applied AND amount = 1', 'the worker folds a backlog');
is($node->psql('horde', "ALTER EXTENSION kudos_projector UPDATE TO '0.1.1'", timeout => $PostgreSQL::Test::Utils::timeout_default), 0,
	'the extension is updated meanwhile');
wait_until($node, 'horde', 'SELECT ledger = 0 FROM t_pending', 'the worker goes on');
is(number($node, 'horde', "SELECT obj_description('kudos_mode()'::regprocedure), extversion FROM pg_extension WHERE extname = 'kudos_projector'"),
	'updated|0.1.1', 'with what the update brought');
is_right($node, 'horde');

# A synchronous standby that is away ------------------------------------------------------------------

wait_until($node, 'horde', 'SELECT ledger = 0 FROM t_pending', 'all is folded');
set_config($node, 'synchronous_standby_names' => 'nobody');
my $in_sync_wait = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = '$worker_type' AND datname = 'horde' AND wait_event = 'SyncRep'";
my $post = q{SET synchronous_commit = local; SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5)};
$node->safe_psql('horde', $post);
my $kudos = number($node, 'horde', 'SELECT kudos FROM users WHERE id = 1');
wait_until($node, 'postgres', $in_sync_wait, 'the worker waits for a standby that is away');
is_right($node, 'horde', 'nothing of its cycle is seen by half');
$pid = worker_pid($node, 'horde');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
wait_until($node, 'postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = '$worker_type' AND datname = 'horde'
	AND wait_event = 'SyncRep' AND pid <> $pid", 'terminated, another one takes its place');
is_right($node, 'horde', 'what it had committed is whole');
set_config($node, 'kudos_projector.enabled' => 'off');
wait_until($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type'", '"enabled" off stops it');
$node->safe_psql('horde', $post);
set_config($node, 'kudos_projector.enabled' => 'on');
wait_until($node, 'postgres', $in_sync_wait, 'on again, it waits again');
my $from = -s $node->logfile;
$node->stop('fast');
is(scalar(log_lines($node, qr/abnormal|terminated by signal/, $from)), 0, 'a fast shutdown ends it in order');
$node->start;
wait_until($node, 'postgres', $in_sync_wait, 'started anew, it waits again');
set_config($node, 'synchronous_standby_names' => undef);
wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'nobody to wait for, it goes on');
is(number($node, 'horde', 'SELECT kudos FROM users WHERE id = 1'), $kudos + 10, 'each row once');
is_right($node, 'horde');

ends_well($node);
done_testing();
