# pg_upgrade from 15 to the server of PATH: remainders, quarantine and its decisions, snapshots, holds, transfers,
# settings, rights and what is still queued are what they were; the projector of the new server folds the rest, and
# the snapshots from before find no drift. Run by test/upgrade/run; OLD_SERVER is the folder of 15.
use strict;
use warnings;
use FindBin;
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'OLD_SERVER names no server to upgrade from' unless $ENV{OLD_SERVER};

my %settings = ('kudos_projector.databases' => 'horde, elsewhere', 'kudos_projector.enabled' => 'off', 'max_prepared_transactions' => 2);
my $old = new_server('old', \%settings, install_path => $ENV{OLD_SERVER});
like($old->safe_psql('postgres', 'SHOW server_version'), qr/^15\./, 'from 15');

# "horde" belongs to a role that cannot log in; in "elsewhere" nothing stands in "public".
$old->safe_psql('postgres', q{
	CREATE ROLE keeper NOLOGIN;
	CREATE ROLE clerk LOGIN;
	CREATE DATABASE horde;
	CREATE DATABASE elsewhere;
	ALTER DATABASE elsewhere SET search_path = 'Horde tables', tools;
	ALTER DATABASE elsewhere SET kudos_projector.schema = 'Horde tables';
	ALTER DATABASE horde SET kudos_projector.batch_size = 7;
	ALTER ROLE clerk IN DATABASE horde SET kudos_projector.lock_timeout = '250ms';
});
load_fixture($old, 'horde');
$old->safe_psql('elsewhere', 'CREATE SCHEMA "Horde tables"; CREATE SCHEMA tools; CREATE EXTENSION kudos_projector SCHEMA tools');
load_fixture($old, 'elsewhere', bare => 1);
my $data = "$FindBin::RealBin/../data";
$old->safe_psql('elsewhere', slurp_file("$data/isolation_helpers.sql") . "\nCALL reset_case();");
$old->safe_psql($_, slurp_file("$data/transfers.sql")) for qw(horde elsewhere);
$old->safe_psql('horde', q{
	GRANT EXECUTE ON FUNCTION kudos_reserve(integer, text, numeric, uuid) TO clerk;
	DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT c.oid::regclass FROM pg_class c LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass
			AND d.objid = c.oid AND d.deptype = 'e'
			WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND d.objid IS NULL LOOP
			EXECUTE format('ALTER TABLE %s OWNER TO keeper', name);
		END LOOP;
	END $$;
});

my $post = slurp_file("$data/every_kind.sql");
for my $database (qw(horde elsewhere))
{
	$old->safe_psql($database, $post);
	is(number($old, $database, 'SELECT settled FROM kudos_fold_now(1000)'), 't', "$database is folded");
	$old->safe_psql($database, q{
		SELECT kudos_snapshot();
		SELECT kudos_accept_quarantined('00000000-0000-0000-0000-00000000aaaa', 'nobody misses it');});
	$old->safe_psql($database, $post);
	is_right($old, $database);
}

my %before = map { $_ => contents($old, $_) } qw(horde elsewhere);
$old->stop('fast');

# A new cluster of the same form, with the settings of its files set by hand, as an operator does.
my $new = PostgreSQL::Test::Cluster->new('new');
$new->init(extra => [ '-E', 'UTF8', '--locale=C.UTF-8' ]);
$new->append_conf('postgresql.conf', join '', map { "$_ = '$settings{$_}'\n" } sort keys %settings);
# Were the projector to run while pg_upgrade works, it would fold the queue.
$new->append_conf('postgresql.conf',
	"shared_preload_libraries = 'kudos_projector'\nkudos_projector.interval = '10ms'\nkudos_projector.enabled = on\n");
chdir PostgreSQL::Test::Utils::tempdir() or die;
my @upgrade = ('pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', "$ENV{OLD_SERVER}/bin",
	'-B', $new->config_data('--bindir'), '-s', $new->host, '-p', $old->port, '-P', $new->port);
$new->command_ok([ @upgrade, '--check' ], 'pg_upgrade --check finds nothing in the way');
$new->command_ok([@upgrade], 'pg_upgrade');
$new->append_conf('postgresql.conf', "kudos_projector.enabled = off\n");
$new->start;
diag('to ' . $new->safe_psql('postgres', 'SHOW server_version'));

for my $database (qw(horde elsewhere))
{
	my $after = contents($new, $database);
	ok($after eq $before{$database}, "all of $database is what it was");
	if ($after ne $before{$database})
	{
		my %was = map { $_ => 1 } split /\n/, $before{$database};
		my %is = map { $_ => 1 } split /\n/, $after;
		diag(join "\n", (map { "- $_" } grep { !$is{$_} } sort keys %was), map { "+ $_" } grep { !$was{$_} } sort keys %is);
	}
	is_right($new, $database);
	cmp_ok(number($new, $database, 'SELECT least(ledger, stats) FROM t_pending'), '>', 0, "$database has a queue");
}
set_config($new, 'kudos_projector.enabled' => 'on');
my $unapplied = 'SELECT count(*) = 0 FROM (SELECT FROM kudos_ledger WHERE NOT applied UNION ALL SELECT FROM kudos_stat_events WHERE NOT applied AND NOT quarantined) q';
for my $database (qw(horde elsewhere))
{
	wait_until($new, $database, $unapplied, "the new server folds the queue of $database");
	is_right($new, $database);
	is($new->safe_psql($database, 'SELECT * FROM kudos_snapshots s, kudos_reconcile(s.snapshot_id)'), '', 'the snapshot from before finds no drift');
	is($new->safe_psql($database, 'SELECT * FROM kudos_snapshots s, kudos_reconcile(s.snapshot_id, true)'), '', 'nor does the whole archive');
	is(number($new, $database, 'SELECT problem FROM kudos_health()'), '', 'health has no problem to tell');
	is(number($new, $database, q{SELECT event_id, accepted FROM kudos_quarantine WHERE accepted IS NOT NULL}),
		'00000000-0000-0000-0000-00000000aaaa|nobody misses it', 'the accepted loss is still accepted');
	is($new->safe_psql($database, q{SELECT replayed FROM kudos_transfer(1, 2, 3, 'new key'); SELECT replayed FROM kudos_transfer(1, 2, 3, 'new key')}),
		"f\nt", 'transfers go on');
}
is(number($new, 'postgres', q{SELECT usename FROM pg_stat_activity WHERE backend_type = 'kudos_projector worker' AND datname = 'horde'}),
	'keeper', 'a role that cannot log in is what the worker is on the new server');
ends_well($new);
done_testing();
