# Every statement of docs/operations/README.md, run in its order on a server with a worker; the outcome that
# the page promises is looked at after each part.
use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../lib";
use KudosTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $page = slurp_file("$FindBin::RealBin/../../docs/operations/README.md");
my (%part, $title);
for my $piece (split /^## /m, $page)
{
	($title) = $piece =~ /^(.*)\n/;
	$part{$title} = [ $piece =~ /^```sql\n(.*?)^```$/msg ];
}

my $node = new_server('operations', { 'kudos_projector.databases' => 'horde' });
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
wait_for_worker($node, 'horde');

my %value;

# Runs a part of the page, a statement at a time; gives what it printed. Names of columns are kept as values.
sub run_part
{
	my ($name) = @_;
	my $printed = '';
	die "the page has no part \"$name\"" unless $part{$name};
	for my $statement (map { split /;\n/ } @{ delete $part{$name} })
	{
		next unless $statement =~ /\S/;
		$statement =~ s/\$(\w+)/$value{$1} \/\/ die "no value for $1"/ge;
		my ($status, $out, $err) = $node->psql('horde', $statement);
		is($status, 0, "$name: " . ($statement =~ /^\s*(.{1,60})/)[0]) or diag($err);
		my ($name_of_result) = $statement =~ / AS (\w+)$/;
		$value{$name_of_result} = $out if defined $name_of_result;
		$printed .= "$out\n" if $out ne '';
	}
	return $printed;
}

like(run_part('First look'), qr/^\|idle|^\|folding/, 'all is well: no problem');

# a user's escrow that is full, and a row held by somebody
my $held = hold($node, 'horde', 'UPDATE users SET kudos = kudos WHERE id = 2');
set_config($node, 'kudos_projector.lock_timeout' => '50ms');
$node->safe_psql('horde', 'SELECT t_post(1, 3000000000, true), t_post(2, 5), t_post(3, 5)');
wait_until($node, 'horde', 'SELECT stuck_target_count = 2 FROM kudos_health()', 'both are named');
$node->safe_psql('horde', 'DROP VIEW t_bal, t_standing CASCADE');
$part{'Locked'} = [ shift @{ $part{'Stuck targets'} } ];
run_part('Locked');
let_go($held);
run_part('Stuck targets');
wait_until($node, 'horde', 'SELECT ledger = 0 FROM t_pending', 'both fold when they can');
is(number($node, 'horde', 'SELECT evaluating_kudos FROM users WHERE id = 1'), '3000000000', 'the escrow is whole');

($value{event}, $value{other_event}) = ('00000000-0000-0000-0000-00000000e001', '00000000-0000-0000-0000-00000000e002');
$node->safe_psql('horde', "SELECT t_ustat(777, 'accumulated', 3, '$value{event}'), t_ustat(778, 'accumulated', 4, '$value{other_event}')");
wait_until($node, 'horde', 'SELECT count(*) = 2 FROM kudos_quarantine', 'two events are quarantined');
$node->safe_psql('horde', q(INSERT INTO users (id, username, oauth_id) VALUES (777, 'back', 'acct-0777')));
like(run_part('Quarantine'), qr/requeue.*accept/s, 'both decisions are on record');
wait_until($node, 'horde', q(SELECT count(*) = 1 FROM user_stats WHERE user_id = 777 AND value = 3), 'the event that came back is folded');

my $stop_and_start = $part{'Stop and start'};
$part{'Stop'} = [ shift @$stop_and_start ];
run_part('Stop');
wait_until($node, 'horde', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'kudos_projector worker'), 'the worker leaves');
run_part('Stop and start');
wait_for_worker($node, 'horde');

$node->safe_psql('horde', "SELECT kudos_set_mode('shadow')");
unlike(run_part('Cutover, with proof'), qr/users|user_stats|workers/, 'nothing differs after the cutover');
is(number($node, 'horde', 'SELECT kudos_mode()'), 'ledger', 'the projector owns the balances');
$node->safe_psql('horde', 'SELECT t_post(1, 7)');
run_part('Rollback');
is(number($node, 'horde', 'SELECT kudos_mode(), ledger FROM t_pending'), 'shadow|0', 'nothing is queued any more');

$node->safe_psql('horde', "SELECT kudos_set_mode('ledger')");
$value{snapshot} = number($node, 'horde', 'SELECT kudos_snapshot()');
my $before = number($node, 'horde', 'SELECT kudos FROM users WHERE id = 2');
$node->safe_psql('horde', 'UPDATE users SET kudos = kudos + 100 WHERE id = 2');
run_part('Repair');
is(number($node, 'horde', 'SELECT kudos FROM users WHERE id = 2'), $before, 'the drift is mended');
is(number($node, 'horde', "SELECT * FROM kudos_reconcile('$value{snapshot}')"), '', 'and nothing differs');

like(run_part('Disaster recovery'), qr/^\s*$/, 'no error, no problem');
is(join(' ', grep { @{ $part{$_} } } sort keys %part), '', 'no statement of the page was left out');
ends_well($node);
done_testing();
