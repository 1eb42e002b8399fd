# W11: a standby with the same settings folds nothing and logs nothing; promoted, its worker folds what is
# queued, once, without a restart.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $primary = new_server('primary',
	{ 'kudos_projector.databases' => 'horde', 'kudos_projector.enabled' => 'off', 'max_connections' => 20 },
	allows_streaming => 1);
$primary->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($primary, 'horde');
$primary->backup('backup');

my $standby = PostgreSQL::Test::Cluster->new('standby');
unlink $standby->logfile; # of an earlier run
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "kudos_projector.enabled = on\n");
$standby->start;

$primary->safe_psql('horde', 'SELECT count(t_post(1, 1)) FROM generate_series(1, 100)');
$primary->safe_psql('horde', q{SELECT t_ustat(1, 'accumulated', 100), t_post(4, -10)});
$primary->wait_for_catchup($standby, 'replay');

# On the standby -----------------------------------------------------------------------------------

is(number($standby, 'horde', 'SELECT ledger, stats FROM t_pending'), '101|1', 'the standby has the rows');
for my $call ('SELECT kudos_fold_now()', 'CALL kudos_catch_up()')
{
	my ($status, $out, $err) = $standby->psql('horde', "\\set VERBOSITY verbose\n$call");
	isnt($status, 0, "$call fails on a standby");
	like($err, qr/25006/, 'as in a read-only transaction');
}
is(number($standby, 'horde', 'SELECT mode, ledger_pending_rows, stat_pending_rows FROM kudos_health()'), 'ledger|101|1',
	'kudos_health() answers there');
is(number($standby, 'postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type ~ 'kudos'"), 0,
	'no process of ours runs there');
is(join("\n", grep { !/cannot execute|STATEMENT:/ } log_lines($standby, qr/kudos|ERROR:|FATAL:/)), '', 'nothing is said in its log');
is(number($standby, 'horde', 'SELECT one, ledger FROM t_look'), '1000|101', 'nothing was folded');

# Promoted -----------------------------------------------------------------------------------------

$primary->stop('fast');
$standby->promote;
wait_until($standby, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'the promoted server folds by itself');
is(number($standby, 'horde', 'SELECT one, ledger FROM t_look'), '1100|0', 'each row once');
is(number($standby, 'horde', q{SELECT kudos FROM users WHERE id = 4}), 25, 'floors and all');
is_right($standby, 'horde');
$standby->safe_psql('horde', 'SELECT t_post(1, 1)');
wait_until($standby, 'horde', 'SELECT one = 1101 FROM t_look', 'and goes on');

is_log_clean($primary);
ends_well($standby);
done_testing();
