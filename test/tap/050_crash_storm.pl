# A short crash storm (the long one is test/torture/run), and whether its checks would see what they look for.
use strict;
use warnings;
use CrashStorm;
use KudosTest;
use Test::More;

is_deeply([ first_actions(1, 50) ], [ first_actions(1, 50) ], 'a seed repeats its choices');
isnt(join("\n", first_actions(1, 50)), join("\n", first_actions(2, 50)), 'another one chooses otherwise');

my $storm = crash_storm(seed => 1, kills => 10, seconds => 11, kills_per_round => 5);
my $node = $storm->{node};

# What each check is about, whatever the storm left -------------------------------------------------

$node->safe_psql('horde', q{
	SELECT storm.reserve(99, 1, 1, 0, 500, false);
	SELECT storm.reserve(99, 2, 1, 1, 500, true);
	SELECT storm.spend(99, 3, 'plain', 1, 1, 200, true);
	SELECT storm.transfer(99, 4, 1, 3, 100, 'looked at');
	SELECT storm.count_guest(99, 5, 'plain', 101, 100, true);
	SELECT storm.settle(99, 6, 'plain', 1, 4, 30000, 2, 0, 2, 2 + 4);
	SELECT storm.settle(99, 7, 'plain', 1, 2, 1234, 2, 0, 2, 127);
	SELECT storm.settle(99, 8, 'plain', 9, 1, 1000000, 1, 0, 1, 1);
});
wait_until($node, 'horde', 'SELECT count(*) = 0 FROM storm.unsettled', 'more business is folded');
is(number($node, 'horde', 'SELECT * FROM storm.errors(true)'), '', 'and is right');

# Each of these is undone again, and seen until then. No trigger notes it.
my $credit = "event_id = (SELECT event_id FROM kudos_transfer_requests ORDER BY created DESC LIMIT 1) AND user_id = 3";
my @wrong = (
	[ 'a balance', 'UPDATE users SET kudos = kudos + 1 WHERE id = 1', qr/users\.kudos 1 is exactly \S+, should be \S+/ ],
	[
		'a remainder',
		'UPDATE kudos_remainder_users SET kudos = kudos + CASE WHEN kudos > 0 THEN -1 ELSE 1 END WHERE id = 2',
		qr/users\.kudos 2 is exactly \S+, should be \S+/
	],
	[
		'the statistics of a worker',
		q{UPDATE worker_stats SET value = value + 1 WHERE worker_id = storm.id_of('worker', 2) AND action = 'generated'},
		qr/worker_stats \S+ is exactly \S+, should be \S+/
	],
	[
		'a missing counter',
		q{DELETE FROM user_stats WHERE user_id = 3 AND action = 'received'},
		qr{user_stats 3/received is missing, should be \S+}
	],
	[ 'an activity', "UPDATE users SET last_active = 'infinity' WHERE id = 1", qr/users\.last_active 1 is infinity, should be .*/ ],
	[
		'a row that is folded and not marked',
		"UPDATE kudos_ledger SET applied = false WHERE $credit",
		qr/kudos_ledger \d+: is unapplied\nusers\.kudos 3 is exactly \S+, should be \S+/
	],
	[
		'a row that is marked and not folded',
		q{UPDATE kudos_stat_events SET applied = true, quarantined = false WHERE id =
			(SELECT max(id) FROM kudos_stat_events WHERE detail ? 'is_invalid')},
		qr{kudos_stat_events \d+: is applied, which it cannot be\nuser_records 1/USAGE/image is exactly \S+, should be \S+}
	],
	[
		'a row that is gone',
		"DELETE FROM kudos_ledger WHERE $credit",
		qr/kudos_ledger \d+: is gone\ntransfer \S+: is not one debit, .*\nusers\.kudos 3 is exactly \S+, should be \S+/
	],
	[ 'a row that was changed', "UPDATE kudos_ledger SET wp_type = 'other' WHERE $credit", qr/kudos_ledger \d+: was changed/ ],
	[
		'a row that nobody posted',
		q{INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
			VALUES (storm.utc(), gen_random_uuid(), 'GENERATION', 1, false, 7, true);
		UPDATE users SET kudos = kudos + 7 WHERE id = 1},
		qr/kudos_ledger \d+: was never posted/
	],
	[
		'a quarantine without a reason',
		"UPDATE kudos_stat_events SET applied = false, quarantined = true WHERE $credit",
		qr{kudos_stat_events event \S+: is in quarantine for nothing\nuser_stats 3/received .*}
	],
	[
		'half a drain',
		q{DELETE FROM kudos_stat_events WHERE id =
			(SELECT max(id) FROM kudos_stat_events WHERE entry_type = 'EVALUATION_PROMOTION' AND user_id = 4)},
		qr{drain \S+: is not one pair and one counter\nkudos_stat_events \d+: is gone\nuser_stats 4/accumulated .*}
	],
	[
		'a hold with too much',
		q{UPDATE kudos_reservations SET remaining_amount = remaining_amount + 1 WHERE business_id = 'hold:99:0'},
		qr/hold hold:99:0: has 6 \(f\), should have 5 \(f\)/
	],
	[
		'a hold released for nothing',
		q{UPDATE kudos_reservations SET remaining_amount = 0, released_at = storm.utc() WHERE business_id = 'hold:99:0'},
		qr/hold hold:99:0: has 0 \(t\), should have 5 \(f\)/
	],
	[
		'a hold that outlives its event',
		q{UPDATE kudos_reservations SET remaining_amount = 3, released_at = NULL WHERE business_id = 'hold:99:1'},
		qr/hold hold:99:1: has 3 \(f\), should have 0 \(t\)\nkudos_reservations hold:99:1 its event is settled and it is open/
	],
	[
		'a balance below the floor',
		q{UPDATE users SET kudos = kudos - 5 WHERE id = 9; CALL outside('users.kudos', '9', -5)},
		qr/user 9: is at 20\S*, below the floor of 25/
	],
	[
		'escrow that was not drained',
		q{UPDATE users SET evaluating_kudos = evaluating_kudos + 100 WHERE id = 4; CALL outside('users.evaluating_kudos', '4', 100)},
		qr/user 4: is trusted and has \S+ in escrow/
	],
);
my @said = split /^--\n/m, number($node, 'horde', join '', map {
		"BEGIN; SET LOCAL session_replication_role = replica; $_->[1]; SELECT * FROM storm.errors(true); ROLLBACK; SELECT '--';\n"
	} @wrong) . "\n";
for my $wrong (@wrong)
{
	my ($what, $change, $expected) = @$wrong;
	like(shift @said, qr/^$expected\n$/, "the check sees $what");
}

my ($client) = grep { $_->{said} } @{ $storm->{clients} };
$client->{said} = [ $client->{said}[0] + 1, 'none' ];
is(scalar(lost_steps($storm)), 1, 'and a step that was acknowledged and is not there');
is(scalar(surprises($storm, 0)), 0, 'the log tells of no kill but ours');
$storm->{killed} = {};
cmp_ok(scalar(surprises($storm, 0)), '>', 0, 'others would be seen');

ends_well($node, qr/signal 9|was not properly shut down/);
done_testing();
