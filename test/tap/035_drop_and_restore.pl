# W01, W03, W13, W14, G01: databases and extensions that go and come back under a running worker, a dump that
# is restored under it, a server that turns read-only, and one without preloading.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('drop',
	{
		'kudos_projector.databases' => 'horde, watch',
		'kudos_projector.interval' => '10ms',
		'kudos_projector.batch_size' => 100,
		'kudos_projector.max_catchup_cycles' => 3,
		'deadlock_timeout' => '200ms',
	});
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(horde watch source target);
load_fixture($node, 'watch');
load_fixture($node, 'horde', bare => 1);
$node->safe_psql('horde', 'CREATE EXTENSION kudos_projector');

# seen from a database whose extension stays
sub state_is
{
	my ($database, $state, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'watch', "SELECT state = '$state' FROM kudos_projector_stats WHERE database = '$database'", $name);
}

# W03 ----------------------------------------------------------------------------------------------

my $posted = 0;
for my $round (1 .. 2)
{
	$posted += 5000;
	$node->safe_psql('horde', 'SELECT count(t_post(1, 1)) FROM generate_series(1, 5000)');
	wait_until($node, 'horde', "SELECT kudos > 1000 + $posted - 5000 FROM users WHERE id = 1", "round $round: the worker folds");
	$node->safe_psql('horde', 'DROP EXTENSION kudos_projector');
	my $left = number($node, 'horde', 'SELECT ledger FROM t_pending');
	state_is('horde', 'waiting', 'it notices that the extension was dropped');
	is(number($node, 'horde', 'SELECT ledger FROM t_pending'), $left, 'and folds nothing without it');
	$node->safe_psql('horde', 'CREATE EXTENSION kudos_projector');
	wait_until($node, 'horde', 'SELECT ledger = 0 FROM t_pending', 'it goes on by itself once it is back');
	is(number($node, 'horde', 'SELECT kudos FROM users WHERE id = 1'), 1000 + $posted, 'each row once');
}
is(scalar(log_lines($node, qr/deadlock detected|ERROR:|FATAL:/)), 0, 'without a deadlock or an error');

# W01 ----------------------------------------------------------------------------------------------

sub other_databases_can_go
{
	my ($when) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $status = $node->psql('postgres', "CREATE DATABASE other;\nDROP DATABASE other;", timeout => 30, timed_out => \my $late);
	ok(!$late && $status == 0, "another database can be dropped $when");
}

other_databases_can_go('while the worker is idle');
$node->safe_psql('horde', 'SELECT count(t_post(1, 1)) FROM generate_series(1, 20000)');
other_databases_can_go('while it folds');
wait_until($node, 'horde', 'SELECT ledger = 0 FROM t_pending', 'all is folded');
my $session = hold($node, 'horde', 'UPDATE users SET kudos = kudos WHERE id = 1');
$node->safe_psql('horde', 'SELECT t_post(1, 1)');
other_databases_can_go('while it meets a locked row');
let_go($session);
is(scalar(log_lines($node, qr/still waiting for backend/)), 0, 'nobody waited for the worker');

my $dropped_at = -s $node->logfile;
my ($status, $out, $err) = $node->psql('postgres', 'DROP DATABASE horde');
like($err, qr/being accessed by other users|^$/, 'its own database: dropped, or refused in order');
$status = $node->psql('postgres', 'DROP DATABASE IF EXISTS horde WITH (FORCE)', timeout => 30);
is($status, 0, 'dropped by force');
wait_until($node, 'watch', q{SELECT reason = 'database "horde" does not exist' FROM kudos_projector_stats WHERE database = 'horde'},
	'the worker is gone, the reason is known');
cmp_ok(scalar(log_lines($node, qr/kudos_projector .*"horde"/, $dropped_at)), '<=', 12, 'and is said in few lines');
is(scalar(log_lines($node, qr/FATAL:/)), scalar(log_lines($node, qr/FATAL:  terminating .* due to administrator command/)),
	'nothing else was fatal');
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
$node->safe_psql('horde', 'SELECT t_post(1, 5)');
wait_until($node, 'horde', 'SELECT one = 1005 FROM t_look', 'a new database of that name is folded');
is_right($node, 'horde');

# W13 ----------------------------------------------------------------------------------------------

load_fixture($node, 'source', bare => 1);
$node->safe_psql('source', q{SELECT t_post(1, 250), t_ustat(1, 'accumulated', 250), t_ustat(777, 'accumulated', 1)});
my $dump = PostgreSQL::Test::Utils::tempdir() . '/source.dump';
my @restore = ('pg_restore', '--exit-on-error', '-d', $node->connstr('target'));
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr('source') ], 'a database with pending rows is dumped');
$node->safe_psql('target', 'CREATE EXTENSION kudos_projector');
$node->command_ok([ @restore, '--section=pre-data', $dump ], 'tables are restored');
my @early = qw(kudos_ledger kudos_stat_events kudos_ledger_control kudos_ledger_applier_state);
$node->command_ok([ @restore, '--data-only', (map { ('-t', $_) } @early), $dump ], 'then the ledger');
set_config($node, 'kudos_projector.databases' => 'horde, watch, target');
state_is('target', 'waiting', 'the worker waits for its end');
like(number($node, 'target', 'SELECT problem FROM kudos_health()'), qr/foreign key|restore/, 'health says that a restore is under way');
is(number($node, 'target', 'SELECT ledger, stats, (SELECT count(*) FROM kudos_stat_events WHERE quarantined) FROM t_pending'),
	'1|2|0', 'nothing is folded or quarantined');
(undef, undef, $err) = $node->psql('target', 'SELECT kudos_fold_now()');
like($err, qr/foreign key|restore/, 'nor by hand');

my $list = "$dump.list";
run_log([ 'pg_restore', '-l', '--section=data', '-f', $list, $dump ]);
my @rest = grep { !/TABLE DATA public (?:@{[join '|', @early]}) / } split /\n/, slurp_file($list);
unlink $list;
append_to_file($list, join("\n", @rest) . "\n");
$node->command_ok([ @restore, '--section=data', '-L', $list, $dump ], 'the remaining rows');
$node->command_ok([ @restore, '--section=post-data', $dump ], 'and the constraints');
wait_until($node, 'target', 'SELECT ledger = 0 FROM t_pending', 'then the worker folds');
is( number($node, 'target', q{SELECT kudos, (SELECT string_agg(user_id || ' ' || action || ' ' || value, ',') FROM user_stats),
	(SELECT count(*) FROM kudos_stat_events WHERE quarantined) FROM users WHERE id = 1}),
	'1250|1 accumulated 250|1', 'each row once; who is missing now, is missing');

# the key goes under a running worker, too
my $key = number($node, 'target', q{SELECT conname FROM pg_constraint WHERE conrelid = 'kudos_ledger'::regclass AND contype = 'f'});
my $definition = number($node, 'target', qq{SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = '$key'});
$node->safe_psql('target', "ALTER TABLE kudos_ledger DROP CONSTRAINT $key");
$node->safe_psql('target', 'SELECT t_post(1, 5)');
wait_until($node, 'target', q{SELECT problem ~ 'foreign key|restore' FROM kudos_health()}, 'without its foreign key nothing is folded');
is(number($node, 'target', 'SELECT kudos, ledger FROM users, t_pending WHERE id = 1'), '1250|1', 'nothing');
$node->safe_psql('target', "ALTER TABLE kudos_ledger ADD CONSTRAINT $key $definition");
wait_until($node, 'target', 'SELECT kudos = 1255 FROM users WHERE id = 1', 'until it is back');

# G01 ----------------------------------------------------------------------------------------------

my $from = -s $node->logfile;
set_config($node, 'default_transaction_read_only' => 'on');
state_is('horde', 'standing down', 'the worker stands down while the server is read-only');
$node->safe_psql('horde', 'SET default_transaction_read_only = off; SELECT t_post(1, 5)');
is(number($node, 'horde', 'SELECT one, ledger FROM t_look'), '1005|1', 'it folds nothing');
is(number($node, 'horde', 'SELECT problem, ledger_pending_rows FROM kudos_health()'), 'default_transaction_read_only is on|1',
	'health says why');
($status, $out, $err) = $node->psql('horde', "\\set VERBOSITY verbose\nSELECT kudos_fold_now()");
like($err, qr/25006/, 'N03: a caller is told, too');
set_config($node, 'default_transaction_read_only' => undef);
wait_until($node, 'horde', 'SELECT one = 1010 FROM t_look', 'and goes on afterwards');
my @lines = log_lines($node, qr/kudos_projector .*"horde"/, $from);
cmp_ok(scalar @lines, '<=', 3, 'few lines in the log') or diag(join "\n", @lines);
is_right($node, 'horde');
ends_well($node);

# W14 ----------------------------------------------------------------------------------------------

my $late = new_server('late', { 'shared_preload_libraries' => '' });
($status, $out, $err) = $late->psql('postgres', 'CREATE EXTENSION kudos_projector');
is($status, 0, 'the extension can be created without preloading');
is(scalar(() = $err =~ /WARNING:/g), 1, 'with one warning');
load_fixture($late, 'postgres', bare => 1);
is( number($late, 'postgres', q{
		SELECT t_post(1, 5) AS posted;
		SELECT currency_rows FROM kudos_fold_now();
		LOAD 'kudos_projector';
		SELECT kudos FROM users WHERE id = 1;
		CALL kudos_catch_up();
		SELECT count(*) FROM kudos_projector_stats;
		SELECT problem FROM kudos_health();}),
	"1\n1\n1005\n0\nkudos_projector is not in shared_preload_libraries, so no worker folds",
	'and all but the worker works');
ends_well($late);
done_testing();
