# D11: a cycle that fails after any of its steps, at any statement, or for want of memory anywhere, has done
# nothing; one that goes through has done everything; and neither leaves anything in its session.
use strict;
use warnings;
use Failpoints;
use KudosTest;
use Test::More;

my $node = failpoint_server('steps', {});
my $fold = 'SELECT kudos_fold_now(1000, 1)';

my @steps = places('cycle.cpp');
cmp_ok(scalar @steps, '>', 15, 'the cycle has a place after each step');
for my $action (qw(error out_of_memory cancel))
{
	my $messages = attempt_at_each($node, $fold, map { "$_:$action" } @steps);
	is(judged($node, scalar @steps, "after each step: $action"), scalar @steps, 'each of them fails the cycle');
	my $code = { error => 'XX000', out_of_memory => '53200', cancel => '57014' }->{$action};
	is(scalar(() = $messages =~ /ERROR:  $code/g), scalar @steps, "with SQLSTATE $code");
}

# Every action at each would be the same three times over.
my %action_at = (statement => 'error', statement_end => 'cancel', server_allocation => 'out_of_memory');
for my $place (sort keys %action_at)
{
	my $action = $action_at{$place};
	my $passes = passes($node, $place, 'kudos_fold_now(1000, 1)');
	cmp_ok($passes, '>', 20, "a cycle comes by $passes of $place");
	attempt_at_each($node, $fold, map { "$place\@$_:$action" } 1 .. $passes);
	cmp_ok(judged($node, $passes, "at each $place: $action"), '>=', $passes - 3, 'and fails at them');
}

my $allocations = passes($node, 'allocation', 'kudos_fold_now(1000, 1)');
cmp_ok($allocations, '>', 20, "the core allocates $allocations times");
# one more than there are: that one goes through
my $messages = attempt_at_each($node, $fold, map { "allocation\@$_:out_of_memory" } 1 .. $allocations + 1);
is(judged($node, $allocations + 1, 'at each allocation of the core'), $allocations, 'each of them fails the cycle');
is(scalar(() = $messages =~ /ERROR:  53200/g), $allocations, 'as out of memory');

# In a block that catches what is raised, the transaction goes on.
my $caught = 'DO $$ BEGIN PERFORM kudos_fold_now(1000, 1); EXCEPTION WHEN OTHERS OR query_canceled THEN'
  . ' IF EXISTS (SELECT FROM kudos_ledger WHERE applied) THEN RAISE \'half done\'; END IF;'
  . ' PERFORM 1/0; END $$';
attempt_at_each($node, $caught, map { ("$_:error", "$_:cancel") } @steps);
is(judged($node, 2 * @steps, 'caught by the caller'), 2 * @steps, 'each was undone before it was caught');

# What a trigger raises, if it says nothing about a target, is tried once more with care.
attempt_at_each($node, $fold, map { "$_:raise" } @steps);
cmp_ok(judged($node, scalar @steps, 'raised once, by whatever'), '<', scalar @steps, 'and goes through then');

# Over and over in one session: it does not grow.
my $many = join '', map { "SET kudos_projector.failpoint = '$_:error'; SELECT kudos_fold_now(1000, 1);\n" } @steps;
my $size = 'SELECT sum(total_bytes) AS bytes FROM pg_backend_memory_contexts \gset';
my $grown = '';
$node->psql('horde', "\\o /dev/null\n" . $many x 5 . "$size\n\\set before :bytes\n" . $many x 20
	  . "$size\n\\o\nSELECT :bytes - :before", stdout => \$grown, on_error_stop => 0);
cmp_ok($grown, '<', 64 * 1024, "after 20 times as many failures the session has $grown bytes more");

$node->safe_psql('horde', 'CALL begin_case()');
$node->safe_psql('horde', 'SELECT kudos_fold_now()');
is_right($node, 'horde');
ends_well($node);
done_testing();
