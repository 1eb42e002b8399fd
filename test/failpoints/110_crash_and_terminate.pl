# A process that dies after any step of its cycle leaves nothing of it; what it had committed stays. A worker
# comes back and goes on.
use strict;
use warnings;
use Failpoints;
use KudosTest;
use Test::More;

my @steps = (places('cycle.cpp'), places('worker.cpp'));

# A session that is killed: the server starts anew, and the next one folds all.
my $node = failpoint_server('crashes', { 'restart_after_crash' => 'on' });
for my $step (@steps)
{
	$node->psql('horde', "SET kudos_projector.failpoint = '$step:crash'; CALL kudos_catch_up(1)");
	$node->poll_query_until('horde', 'SELECT true');
	my $failed = $step eq 'cycle_committed' ? 'false' : 'true';
	$node->safe_psql('horde', "SELECT judge('$step', $failed)");
}
judged($node, scalar @steps, 'killed after each step');
is(scalar(log_lines($node, qr/terminated by signal 9/)), scalar @steps, 'each of them was killed');
$node->safe_psql('horde', 'SELECT kudos_fold_now()');
is_right($node, 'horde', 'and the next cycle folds what they left');
$node->stop('fast');
is_log_clean($node, qr/terminated by signal 9|was not properly shut down|WARNING:  terminating/);

# A worker that is terminated, or whose cycle fails, over and over until the failpoint is taken away.
my $server = failpoint_server('terminated', {}, 'horde');
for my $step (@steps)
{
	my $pid = wait_for_worker($server, 'horde');
	set_config($server, 'kudos_projector.failpoint' => "$step:terminate");
	$server->safe_psql('horde', 'CALL begin_case()');
	$server->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid")
	  or die "$step:terminate did not happen";
	set_config($server, 'kudos_projector.failpoint' => undef);
	$server->poll_query_until('horde', 'SELECT ledger + stats = 2 FROM t_pending') or die "$step:terminate was not made good";
	is_right($server, 'horde', "a worker terminated at $step: the next one makes it good");
}
my $errors = 0;
for my $step (qw(marked cycle_ended cycle_committed))
{
	wait_for_worker($server, 'horde');
	set_config($server, 'kudos_projector.failpoint' => "$step:error");
	$server->safe_psql('horde', 'CALL begin_case()');
	$server->poll_query_until('horde', "SELECT errors > $errors FROM kudos_projector_stats WHERE database = 'horde'")
	  or die "$step:error did not happen";
	set_config($server, 'kudos_projector.failpoint' => undef);
	$server->poll_query_until('horde', 'SELECT ledger + stats = 2 FROM t_pending') or die "$step:error was not made good";
	is_right($server, 'horde', "a cycle of the worker that fails at $step is done again");
	$errors = number($server, 'horde', q{SELECT errors FROM kudos_projector_stats WHERE database = 'horde'});
}
ends_well($server);
done_testing();
