# Needs a server with a test build of the extension: which places there are, and scripts that fail at each.
package Failpoints;

use strict;
use warnings;

use Exporter 'import';
use FindBin;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(failpoint_server places passes attempt_at_each judged);

my $root = "$FindBin::RealBin/../..";

# A server with the case loaded; more settings as for new_server(). DATABASE: for the worker, once all is learnt.
sub failpoint_server
{
	my ($name, $settings, $database) = @_;
	$database //= '';
	my $node = new_server($name, { 'kudos_projector.trust_threshold' => '100', %$settings });
	$node->safe_psql('postgres', 'CREATE DATABASE horde');
	load_fixture($node, 'horde');
	KudosTest::run_psql($node, 'horde', '-f', "$root/test/data/failpoint_helpers.sql", '-c', 'CALL learn_outcome()');
	$node->append_conf('postgresql.conf', "kudos_projector.databases = '$database'\n") if $database ne '';
	$node->reload;
	return $node;
}

# The names that the sources give to failpoint(), in their order.
sub places
{
	my (@files) = @_;
	my @places;
	for my $file (map { glob "$root/src/server/$_" } @files)
	{
		push @places, slurp_file($file) =~ /\bfailpoint\("(\w+)"\)/g;
	}
	die "no failpoints in @files" unless @places;
	return @places;
}

# How often CALL passes by PLACE.
sub passes
{
	my ($node, $place, $call) = @_;
	return $node->safe_psql('horde', qq{
		CALL begin_case();
		SET kudos_projector.failpoint = '$place\@1000000000:error';
		DO \$\$ BEGIN PERFORM $call; PERFORM set_config('test.passed', current_setting('kudos_projector.passed'), false); END \$\$;
		RESET kudos_projector.failpoint;
		CALL begin_case();
		SELECT current_setting('test.passed')});
}

# Runs STATEMENT in one session with each of the failpoints, and has what it left judged each time. Gives
# the messages of the session.
sub attempt_at_each
{
	my ($node, $statement, @failpoints) = @_;
	my $script = "\\set VERBOSITY verbose\n\\o /dev/null\nCALL begin_case();\n";
	for my $failpoint (@failpoints)
	{
		$script .= "SET kudos_projector.failpoint = '$failpoint';\n$statement;\n\\set failed :ERROR\n"
		  . "RESET kudos_projector.failpoint;\nSELECT judge('$failpoint', :'failed');\n";
	}
	my ($out, $err) = ('', '');
	$node->psql('horde', $script, stdout => \$out, stderr => \$err, on_error_stop => 0, on_error_die => 0);
	return $err;
}

# How many attempts were judged since the last call; all of them must have been found right.
sub judged
{
	my ($node, $expected, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('horde', 'SELECT * FROM misjudged'), '', "$name: all or nothing, and nothing stays behind");
	is($node->safe_psql('horde', 'SELECT count(*) FROM t_judged'), $expected, "$name: every attempt was judged");
	my $failed = $node->safe_psql('horde', 'SELECT count(*) FROM t_judged WHERE failed');
	$node->safe_psql('horde', 'TRUNCATE t_judged');
	return $failed;
}

1;
