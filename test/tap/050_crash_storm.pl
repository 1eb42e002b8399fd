# A short crash storm (the long one is test/torture/run), and whether its check would see what it looks for.
use strict;
use warnings;
use CrashStorm;
use KudosTest;
use Test::More;

is_deeply([ first_actions(1, 50) ], [ first_actions(1, 50) ], 'a seed repeats its choices');
isnt(join("\n", first_actions(1, 50)), join("\n", first_actions(2, 50)), 'another one chooses otherwise');

my $storm = crash_storm(seed => 1, kills => 12, seconds => 12, kills_per_round => 6);
my $node = $storm->{node};

# Each of these is undone again.
for my $wrong (
	[ 'a balance', 'UPDATE users SET kudos = kudos + 1 WHERE id = 1', qr/users\.kudos 1 is exactly \S+, should be \S+/ ],
	[ 'a remainder', 'UPDATE kudos_remainder_users SET kudos = kudos - sign(kudos - 0.5) WHERE id = 2', qr/users\.kudos 2 is exactly \S+, should be \S+/ ],
	[ 'the statistics of a worker', "UPDATE worker_stats SET value = value + 1 WHERE worker_id = (SELECT worker_id FROM worker_stats LIMIT 1)", qr/worker_stats \S+ is exactly \S+, should be \S+/ ],
	[ 'an activity', "UPDATE users SET last_active = 'infinity' WHERE id = 1", qr/users\.last_active 1 is infinity, should be .*/ ],
	[ 'a flag', "UPDATE kudos_ledger SET applied = false WHERE id = (SELECT min(id) FROM kudos_ledger WHERE amount <> 0 AND user_id = 1 AND NOT escrow AND detail IS NULL)",
		qr/kudos_ledger (\d+): is unapplied\nusers\.kudos 1 is exactly \S+, should be \S+/ ],
)
{
	my ($what, $change, $expected) = @$wrong;
	my $said = $node->safe_psql('horde',
		"BEGIN; SET LOCAL session_replication_role = replica; $change; SELECT * FROM storm.errors(true); ROLLBACK");
	like($said, qr/^$expected$/, "the check sees $what that is wrong");
}

ends_well($node, qr/signal 9|was not properly shut down/);
done_testing();
