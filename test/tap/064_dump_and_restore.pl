# A dump carries everything of ours: remainders, quarantine and its decisions, snapshots, transfers, holds, settings,
# rights and the queue. Plain, custom and in parallel, whole or schema and data apart, with everything in "public" or
# nothing; and what was restored is folded once and reconciles with snapshots from before.
use strict;
use warnings;
use FindBin;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('dump', { 'kudos_projector.databases' => 'horde, elsewhere', 'kudos_projector.interval' => '10ms', 'kudos_projector.enabled' => 'off' });
$node->safe_psql('postgres', q{
	CREATE ROLE clerk LOGIN;
	CREATE DATABASE horde;
	CREATE DATABASE elsewhere;
	ALTER DATABASE elsewhere SET search_path = 'Horde tables', tools;
	ALTER DATABASE elsewhere SET kudos_projector.schema = 'Horde tables';
	ALTER DATABASE horde SET kudos_projector.batch_size = 7;
	ALTER ROLE clerk IN DATABASE horde SET kudos_projector.lock_timeout = '250ms';
});
my $data = "$FindBin::RealBin/../data";
load_fixture($node, 'horde');
$node->safe_psql('horde', 'GRANT EXECUTE ON FUNCTION kudos_reserve(integer, text, numeric, uuid) TO clerk');
$node->safe_psql('elsewhere', 'CREATE SCHEMA "Horde tables"; CREATE SCHEMA tools; CREATE EXTENSION kudos_projector SCHEMA tools');
load_fixture($node, 'elsewhere', bare => 1);
$node->safe_psql('elsewhere', slurp_file("$data/isolation_helpers.sql") . "\nCALL reset_case();");
my $post = slurp_file("$data/every_kind.sql");
for my $database (qw(horde elsewhere))
{
	$node->safe_psql($database, slurp_file("$data/transfers.sql"));
	$node->safe_psql($database, "$post; SELECT kudos_fold_now(1000); SELECT kudos_snapshot();
		SELECT kudos_accept_quarantined('00000000-0000-0000-0000-00000000aaaa', 'nobody misses it'); $post");
	is( number($node, $database, q{
			SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c
			  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
			  JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND extname = 'kudos_projector'
			 WHERE c.relkind IN ('r', 'p', 'S') AND c.oid <> ALL (e.extconfig)}),
		'',
		"every table and sequence of ours in $database is marked to be dumped");
}

my $folder = PostgreSQL::Test::Utils::tempdir();
my $copies = 0;

# The database gives its name to what is restored by COMMANDS from it.
sub restore
{
	my ($database, @commands) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for my $command (@commands)
	{
		if ($command eq 'rename')
		{
			$node->safe_psql('postgres', "ALTER DATABASE $database RENAME TO ${database}_" . ++$copies);
			next;
		}
		$node->command_ok([ 'sh', '-c', $command ], (split / /, $command)[0] . " of $database");
	}
}

sub goes_on
{
	my ($database) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, $database, 'SELECT count(*) = 0 FROM (SELECT FROM kudos_ledger WHERE NOT applied'
		. ' UNION ALL SELECT FROM kudos_stat_events WHERE NOT applied AND NOT quarantined) q', "the queue of $database is folded");
	is_right($node, $database);
	is($node->safe_psql($database, 'SELECT * FROM kudos_snapshots s, kudos_reconcile(s.snapshot_id)'), '', 'the snapshot from before finds no drift');
	is($node->safe_psql($database, 'SELECT * FROM kudos_snapshots s, kudos_reconcile(s.snapshot_id, true)'), '', 'nor does the whole archive');
	is(number($node, $database, q{SELECT bool_or(accepted = 'nobody misses it') FROM kudos_quarantine}), 't', 'an accepted loss stays accepted');
	# the next decision takes a number of its own
	$node->safe_psql($database, q{SELECT kudos_accept_quarantined(event_id, 'nor that') FROM kudos_quarantine WHERE accepted IS NULL LIMIT 1});
}

my @names = ('-h', $node->host, '-p', $node->port);
my $where = "@names";
for my $database (qw(horde elsewhere))
{
	my $file = "$folder/$database";
	my $before = contents($node, $database);
	restore($database, "pg_dump $where -C $database > $file.sql", 'rename', "psql -X -q -v ON_ERROR_STOP=1 $where -d postgres -f $file.sql");
	ok(contents($node, $database) eq $before, "plain: all of $database is what it was");
	restore($database, "pg_dump $where -C -Fc -f $file.dump $database", 'rename', "pg_restore $where -e -C -d postgres $file.dump");
	ok(contents($node, $database) eq $before, "custom: all of $database is what it was");
	restore($database, "pg_dump $where -C -s $database > $file.schema", "pg_dump $where -a $database > $file.data", 'rename',
		"psql -X -q -v ON_ERROR_STOP=1 $where -d postgres -f $file.schema", "psql -X -q -v ON_ERROR_STOP=1 $where -d $database -f $file.data");
	ok(contents($node, $database) eq $before, "schema and data apart: all of $database is what it was");
}

# While the worker watches.
set_config($node, 'kudos_projector.enabled' => 'on');
for my $database (qw(horde elsewhere))
{
	wait_for_worker($node, $database);
	goes_on($database);
	$node->safe_psql($database, $post);
	my $file = "$folder/$database.folder";
	restore($database, "pg_dump $where -C -Fd -j 2 -f $file $database", 'rename', "pg_restore $where -e -C -d postgres $file");
	goes_on($database);
}
ends_well($node);
done_testing();
