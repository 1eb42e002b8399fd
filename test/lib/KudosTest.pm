# What the tests with servers of their own share: a cluster with the extension preloaded, the tables in
# it, waits that end when something happened, and the looks that every test ends with.
package KudosTest;

use strict;
use warnings;

BEGIN { $ENV{PG_TEST_TIMEOUT_DEFAULT} //= 60; }

use Exporter 'import';
use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(
  new_server load_fixture load_tables set_config wait_until wait_for_worker wait_for_wait worker_pid number is_right
  hold let_go lose contents is_log_clean log_lines ends_well $worker_type $launcher_type
);

our $worker_type = 'kudos_projector worker';
our $launcher_type = 'kudos_projector launcher';

my $data = "$FindBin::RealBin/../data";

# new_server(NAME, { setting => value, ... }, init parameters): started, with the extension preloaded; with
# "install_path" by the programs of another version.
sub new_server
{
	my ($name, $settings, %init) = @_;
	my $install_path = delete $init{install_path};
	my $node = PostgreSQL::Test::Cluster->new($name, defined $install_path ? (install_path => $install_path) : ());
	unlink $node->logfile; # of an earlier run
	$node->init(extra => [ '-E', 'UTF8', '--locale=C.UTF-8' ], %init);
	my %all = (
		'shared_preload_libraries' => 'kudos_projector',
		'kudos_projector.interval' => '100ms',
		'log_statement' => 'none',
		'shared_buffers' => '32MB',
		'max_connections' => 40,
		%$settings);
	$node->append_conf('postgresql.conf', join '', map { "$_ = '$all{$_}'\n" } sort keys %all);
	$node->start;
	return $node;
}

# The fixture of the cases, the extension, and the second computation of what must come out. With
# "bare" the extension is left out, and what needs it.
sub load_fixture
{
	my ($node, $database, %with) = @_;
	my @files = ('-f', "$data/cases_fixture.sql");
	push @files, '-c', 'CREATE EXTENSION kudos_projector', '-f', "$data/isolation_helpers.sql", '-c', 'CALL reset_case()'
	  unless $with{bare};
	run_psql($node, $database, @files);
}

# The tables as an application has them, FORM being "fresh" or "migrated", and the rest as above.
sub load_tables
{
	my ($node, $database, $form) = @_;
	run_psql($node, $database, (map { ('-f', "$data/$_.sql") } 'app_tables', "ledger_$form", 'ledger_5_1_11'),
		'-c', 'CREATE EXTENSION kudos_projector', '-f', "$data/isolation_helpers.sql");
}

sub run_psql
{
	my ($node, $database, @arguments) = @_;
	PostgreSQL::Test::Utils::system_or_bail('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database),
		@arguments);
}

# set_config(NODE, setting => value, ...): undef resets; reloads.
sub set_config
{
	my ($node, %settings) = @_;
	for my $name (sort keys %settings)
	{
		$node->safe_psql('postgres',
			defined $settings{$name} ? "ALTER SYSTEM SET $name = '$settings{$name}'" : "ALTER SYSTEM RESET $name");
	}
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
}

# A test that passes once QUERY answers "t".
sub wait_until
{
	my ($node, $database, $query, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($node->poll_query_until($database, $query), $name);
}

sub worker_pid
{
	my ($node, $database) = @_;
	return $node->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type = '$worker_type' AND datname = '$database'");
}

# Waits for a worker that has begun to fold DATABASE (no scout), another one than NOT_PID, and gives its
# process id.
sub wait_for_worker
{
	my ($node, $database, $not_pid) = @_;
	$not_pid //= 0;
	$node->poll_query_until($database,
		"SELECT count(*) = 1 FROM kudos_projector_stats WHERE database = '$database' AND pid <> $not_pid"
		  . " AND state IN ('idle', 'folding')")
	  or die "no worker for database $database";
	return worker_pid($node, $database);
}

# Waits until the worker of DATABASE waits for a lock.
sub wait_for_wait
{
	my ($node, $database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = '$worker_type' AND datname = '$database'"
		  . " AND wait_event_type = 'Lock'",
		$name);
}

# A session that holds what STATEMENT locks, until it is let go, or lost with the server.
sub hold
{
	my ($node, $database, $statement) = @_;
	my $session = $node->background_psql($database);
	$session->query_safe("BEGIN; $statement");
	return $session;
}

sub let_go
{
	my ($session) = @_;
	$session->query_safe('COMMIT');
	$session->quit;
}

sub lose
{
	my ($session) = @_;
	eval { $session->quit };
}

sub number
{
	my ($node, $database, $query) = @_;
	return $node->safe_psql($database, $query);
}

# Every target is what the archive says.
sub is_right
{
	my ($node, $database, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql($database, 'SELECT * FROM target_errors()'), '', $name // "targets of $database are right");
}

# Every row of every table, every sequence, setting and right, and what is said of the schema.
sub contents
{
	my ($node, $database) = @_;
	my $rows = $node->safe_psql($database, q{
		SELECT format(CASE relkind WHEN 'r' THEN 'SELECT %1$L, r FROM %1$s r ORDER BY r::text;'
				ELSE 'SELECT %1$L, last_value, is_called FROM %1$s;' END, c.oid::regclass)
		  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname !~ '^pg_|^information_schema$' AND c.relkind IN ('r', 'S') ORDER BY 1});
	return $node->safe_psql($database, $rows) . "\n" . $node->safe_psql($database, q{
		SELECT setrole::regrole, setconfig FROM pg_db_role_setting s JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database() ORDER BY 1;
		SELECT p.oid::regprocedure, r.* FROM pg_proc p, LATERAL (SELECT grantee::regrole, privilege_type FROM aclexplode(coalesce(p.proacl, acldefault('f', proowner)))) r
		 WHERE proname ~ '^kudos' ORDER BY 1::text, 2::text, 3;
		SELECT c.oid::regclass, r.* FROM pg_class c, LATERAL (SELECT grantee::regrole, privilege_type FROM aclexplode(coalesce(c.relacl, acldefault('r', relowner)))) r
		 WHERE relname ~ '^kudos' AND privilege_type <> 'MAINTAIN' ORDER BY 1::text, 2::text, 3;
		SELECT extname, extversion, extnamespace::regnamespace, (SELECT array_agg(c::regclass) FROM unnest(extconfig) c), extcondition
		  FROM pg_extension WHERE extname = 'kudos_projector';
		SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
		 WHERE d.deptype = 'e' AND e.extname = 'kudos_projector' AND pg_describe_object(classid, objid, objsubid) !~ '^type ' ORDER BY 1;
		SELECT c.* FROM kudos_check_schema() c ORDER BY 1, 2, 3});
}

sub log_lines
{
	my ($node, $pattern, $offset) = @_;
	return grep { /$pattern/ } split /\n/, slurp_file($node->logfile, $offset // 0);
}

# A crash restarts too fast for a client to see; the log keeps it. What is ALLOWED is no crash.
sub is_log_clean
{
	my ($node, $allowed) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @bad = log_lines($node, qr/terminated by signal|PANIC:|TRAP:|WARNING:.*leak|was not properly shut down/);
	@bad = grep { !/$allowed/ } @bad if defined $allowed;
	is(join("\n", @bad), '', 'the log of ' . $node->name . ' tells of no crash and no leak');
}

# Stops the server as an operator does, and looks at the log.
sub ends_well
{
	my ($node, $allowed) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $from = -s $node->logfile;
	$node->stop('fast');
	is(join("\n", log_lines($node, qr/exited with exit code [^01]|abnormal|terminated by/, $from)),
		'', 'a fast shutdown ends every process in order');
	is_log_clean($node, $allowed);
}

1;
