# Installing beside a worker and through two psqls, and what only a server of its own can show of
# kudos_check_schema(): nothing at all when all is well, settings of the server, a standby, no preloading.
use strict;
use warnings FATAL => 'all';

use FindBin;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $data = "$FindBin::RealBin/../data";
delete $ENV{PGTZ};
my $node = PostgreSQL::Test::Cluster->new('install');
$node->init(allows_streaming => 1);
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'kudos_projector'
timezone = 'UTC'
kudos_projector.databases = 'horde'
kudos_projector.interval = '50ms'
CONF
$node->start;
$node->safe_psql('postgres', 'CREATE DATABASE horde');
$node->safe_psql('horde', slurp_file("$data/app_tables.sql") . 'CREATE EXTENSION kudos_projector;');
$node->safe_psql('horde', <<'SQL');
INSERT INTO users (username, oauth_id, api_key, client_id, created, last_active, kudos, monthly_kudos, evaluating_kudos,
                   usage_multiplier, worker_invited, public_workers, concurrency)
VALUES ('ada', 'acct-0001', 'k1', 'c1', '2022-01-01', '2022-01-01', 1000, 0, 0, 1, 0, true, 30);
SQL

my $problems = q(SELECT severity || ' ' || object FROM kudos_check_schema());
is($node->safe_psql('horde', "SELECT DISTINCT severity FROM kudos_check_schema()"),
	'error', 'before: there is a worker, and nothing to fold');

# --- installed under the eyes of the worker, in the way that the documentation gives
my $psql = 'psql -X -q -v ON_ERROR_STOP=1 -d ' . "'" . $node->connstr('horde') . "'";
my $install = qq{$psql -At -c "SELECT statement FROM kudos_install_ledger() WHERE action = 'run CONCURRENTLY'" | $psql};
is(system($install), 0, 'installed by one psql that feeds another');
is($node->safe_psql('horde', 'SELECT * FROM kudos_install_ledger()'), '', 'again: nothing');
$node->safe_psql('horde', q(INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount)
  SELECT gen_random_uuid(), 'AWARD', 1, 0.25 FROM generate_series(1, 2000)));
$node->poll_query_until('horde', 'SELECT kudos = 1500 FROM users')
  or die 'the worker did not find what was installed';
pass('the worker folds by what was installed');
is($node->safe_psql('horde', $problems), '', 'all is well: not one row');

# --- a live database of a migrated form: writers go on while its indexes are built
$node->safe_psql('horde', 'DROP INDEX ix_kudos_ledger_created, ix_kudos_ledger_unapplied_event_id');
my $script = $node->basedir . '/post.sql';
append_to_file($script,
	"INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount) VALUES (gen_random_uuid(), 'AWARD', 1, 1);\n");
my @pgbench = ('pgbench', '-n', '-c', '2', '-t', '500', '-f', $script, '-h', $node->host, '-p', $node->port, 'horde');
my ($out, $err) = ('', '');
my $bench = IPC::Run::start(\@pgbench, '>', \$out, '2>', \$err);
is(system($install), 0, 'indexes are built while others write');
$bench->finish;
like($out, qr{number of transactions actually processed: 1000/1000}, 'and none of them failed');
is($node->safe_psql('horde', 'SELECT * FROM kudos_install_ledger()'), '', 'again: nothing');
$node->poll_query_until('horde', 'SELECT kudos = 2500 FROM users') or die 'not folded';
is($node->safe_psql('horde', $problems), '', 'all is well again');

# --- settings of the server
$node->safe_psql('postgres', 'ALTER SYSTEM SET autovacuum = off');
$node->reload;
$node->poll_query_until('horde', "SELECT current_setting('autovacuum') = 'off'") or die 'not reloaded';
is($node->safe_psql('horde', $problems), 'warning setting autovacuum', 'autovacuum off is found');
$node->safe_psql('horde', $_)
  for split /(?<=;)/, $node->safe_psql('horde', 'SELECT remedy FROM kudos_check_schema()');
$node->poll_query_until('horde', "SELECT current_setting('autovacuum') = 'on'") or die 'not reloaded';
is($node->safe_psql('horde', $problems), '', 'and its remedy mends it');

# --- a standby
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
is($standby->safe_psql('horde', "$problems WHERE severity <> 'info'"), '', 'a standby can be asked');
is($standby->safe_psql('horde', 'SELECT * FROM kudos_install_ledger(true)'), '', 'a dry run works there');
my ($status, $stdout, $stderr) = $standby->psql('horde', 'SELECT * FROM kudos_install_ledger()');
like($stderr, qr/cannot execute kudos_install_ledger\(\) (in a read-only transaction|during recovery)/,
	'and installing is refused');
$standby->stop;

# --- without preloading
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
is($node->safe_psql('horde', $problems), 'info database horde', 'without preloading, that is what is missing');
is($node->safe_psql('horde', 'SELECT count(*) FROM kudos_install_ledger()'), '0', 'and installing works');

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP:|terminated by signal/, 'the server never fell');
done_testing();
