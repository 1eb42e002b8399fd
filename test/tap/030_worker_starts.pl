# W04: the workers start by themselves once what they need is there, and say once what is missing; settings
# that are reloaded (W06) start, stop, move and pace them.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

# debug1 tells of every process that is started
my $node = new_server('starter',
	{
		'kudos_projector.databases' => 'one, two, missing, bare, untabled',
		'kudos_projector.interval' => '1h',
		'log_min_messages' => 'debug1',
	});

sub reason_is
{
	my ($database, $pattern, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'one', "SELECT reason ~ '$pattern' FROM kudos_projector_stats WHERE database = '$database'", $name);
}

sub is_folded
{
	my ($database, $kudos, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, $database, "SELECT kudos = $kudos FROM users WHERE id = 1", $name);
	is_right($node, $database);
}

sub post
{
	my ($database) = @_;
	$node->safe_psql($database, q{SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5)});
}

# Nothing there yet --------------------------------------------------------------------------------

is(number($node, 'postgres', 'SELECT 1'), 1, 'a server without any of its databases accepts connections');
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(bare untabled one two);
load_fixture($node, 'bare', bare => 1);
$node->safe_psql('untabled', 'CREATE EXTENSION kudos_projector');
load_fixture($node, 'one');
load_fixture($node, 'two');
for my $database (qw(one two))
{
	wait_for_worker($node, $database);
	wait_until($node, $database, "SELECT state = 'idle' FROM kudos_projector_stats WHERE database = '$database'",
		"a worker starts for $database and does its first tick");
}
# the next comes after an hour
post('one');
post('two');

reason_is('missing', 'database "missing" does not exist', 'it is said that a database is missing');
reason_is('bare', 'extension.*kudos_projector', 'it is said that the extension is missing');
reason_is('untabled', 'kudos_ledger|users', 'it is said that tables are missing');
is( number($node, 'postgres', q{
		SELECT string_agg(DISTINCT backend_type, ', ') FROM pg_stat_activity WHERE backend_type ~ 'kudos'}),
	'kudos_projector launcher, kudos_projector worker',
	'processes are named after what they are');
is( number($node, 'one', q{SELECT string_agg(database || ' ' || state, ', ' ORDER BY database) FROM kudos_projector_stats}),
	'bare waiting, missing waiting, one idle, two idle, untabled waiting',
	'the view names every database and its state');
is( number($node, 'postgres', q{
		SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'kudos_projector worker' AND datname IN ('bare', 'untabled')
		   AND xact_start IS NOT NULL AND state = 'idle in transaction'}),
	0, 'nobody sits in a transaction where there is nothing to do');

# A reload reaches a worker that sleeps for an hour ------------------------------------------------

is(number($node, $_, 'SELECT ledger, stats FROM t_pending'), '1|1', "the worker of $_ sleeps") for qw(one two);
my %pid = map { $_ => worker_pid($node, $_) } qw(one two);
set_config($node, 'kudos_projector.interval' => '100ms');
is_folded('one', 1005, 'a shorter interval takes effect at once');
is_folded('two', 1005, 'in every database');
is(worker_pid($node, $_), $pid{$_}, "without a restart in $_") for qw(one two);

# Each missing thing, once it is there --------------------------------------------------------------

$node->safe_psql('bare', 'CREATE EXTENSION kudos_projector');
$node->safe_psql('postgres', 'CREATE DATABASE missing');
load_fixture($node, 'untabled', bare => 1);
load_fixture($node, 'missing');
post('missing');
$node->safe_psql($_, q{SELECT t_post(1, 5)}) for qw(bare untabled);
for my $database (qw(missing bare untabled))
{
	wait_until($node, $database, 'SELECT kudos = 1005 FROM users WHERE id = 1', "$database is folded once all is there");
	wait_until($node, $database, 'SELECT problem IS NULL FROM kudos_health()', "health of $database has no problem left");
}
is_right($node, 'missing');

for my $database (qw(missing bare untabled))
{
	my @lines = log_lines($node, qr/LOG:  .*kudos_projector .*(?:\b$database\b|"$database")/);
	cmp_ok(scalar @lines, '<=', 6, "few lines in the log about $database")
	  or diag(join "\n", @lines);
	my @starts = log_lines($node, qr/starting background worker process "kudos_projector worker for $database"/);
	cmp_ok(scalar @starts, '<=', 12, "few processes were started for $database");
}
is(scalar(log_lines($node, qr/(?:ERROR|FATAL):/)), 0, 'and nothing was logged as an error');

# Which databases ----------------------------------------------------------------------------------

$node->safe_psql('postgres', 'CREATE DATABASE "Mixed, Case"');
load_fixture($node, 'Mixed, Case');
post('Mixed, Case');
set_config($node, 'kudos_projector.databases' => 'one, "Mixed, Case"');
is_folded('Mixed, Case', 1005, 'a database is added by a reload, whatever its name');
wait_until($node, 'postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type' AND datname IN ('two', 'missing', 'bare')",
	'workers of databases that are no longer named leave');
is(worker_pid($node, 'one'), $pid{one}, 'the others stay');
wait_until($node, 'one', 'SELECT count(*) = 2 FROM kudos_projector_stats', 'so do their lines in the view');
my ($status, $out, $err) = $node->psql('postgres', q{ALTER SYSTEM SET kudos_projector.databases = 'one,,two'});
isnt($status, 0, 'a list that is none is refused');
like($err, qr/invalid value for parameter "kudos_projector.databases"/, 'with the name of the setting');

# Off and on ---------------------------------------------------------------------------------------

set_config($node, 'kudos_projector.enabled' => 'off');
wait_until($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type'",
	'"enabled" off stops every worker');
is(number($node, 'one', 'SELECT worker_pid IS NULL, problem FROM kudos_health()'),
	't|kudos_projector.enabled is off', 'and health says so');
$node->safe_psql('postgres', 'ALTER DATABASE one RENAME TO uno; ALTER DATABASE uno RENAME TO one');
pass('their databases are free');
post('one');
is(number($node, 'one', 'SELECT ledger, stats FROM t_pending'), '1|1', 'rows wait');
set_config($node, 'kudos_projector.enabled' => 'on');
is_folded('one', 1010, '"enabled" on folds them');

ends_well($node);
done_testing();
