# D07, W17: every table in a publication, and a second server that receives them, with a worker of its own.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my %settings = ('kudos_projector.databases' => 'horde', 'max_connections' => 20);
my $publisher = new_server('publisher', \%settings, allows_streaming => 'logical');
my $subscriber = new_server('subscriber', { %settings, 'kudos_projector.enabled' => 'off' });
for my $node ($publisher, $subscriber)
{
	$node->safe_psql('postgres', 'CREATE DATABASE horde');
	load_fixture($node, 'horde');
}
wait_for_worker($publisher, 'horde');
$publisher->safe_psql('horde', 'CREATE PUBLICATION everything FOR ALL TABLES');

sub is_folded
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($publisher, 'horde',
		'SELECT ledger = 0 AND NOT EXISTS (SELECT FROM kudos_stat_events WHERE NOT applied AND NOT quarantined) FROM t_pending', $name);
	is_right($publisher, 'horde');
}

# D07 ----------------------------------------------------------------------------------------------

my $event = '00000000-0000-0000-0000-0000000000e1';
$publisher->safe_psql('horde', qq{
	BEGIN;
	SELECT t_ustat(1, 'accumulated', 5, '$event'), t_ustat(1, 'abcdefghijklmnopqrstuvwxy', 1, '$event'),
		t_rec(1, 'USAGE', 'image', 2, '$event'), t_post(1, 50, false, '$event'), t_ustat(2, 'accumulated', 7), t_post(2, 7);
	COMMIT});
is_folded('D07: a bad event is set aside where every table is published');
is( number($publisher, 'horde', q{SELECT one, two, quarantined, (SELECT string_agg(user_id || ' ' || action || ' ' || value, ',') FROM user_stats),
		(SELECT count(*) FROM user_records), (SELECT string_agg(DISTINCT quarantine_reason, ',') FROM kudos_stat_events) FROM t_look}),
	'1050|507|3|2 accumulated 7|0|stat_action_too_long',
	'D07: with the same result');
for my $hold ([ 60, '-25, -30', '945|5.00|f' ], [ 40, '-60', '940|0.00|t' ])
{
	my ($remaining, $debits, $result) = @$hold;
	$publisher->safe_psql('horde', qq{
		CALL reset_case();
		BEGIN;
		INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, $remaining);
		SELECT t_post(1, amount, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}') FROM unnest(ARRAY[$debits]) amount;
		COMMIT});
	is_folded("D07: debits of $debits on a hold of $remaining");
	is(number($publisher, 'horde', 'SELECT one, remaining, released FROM t_look, t_hold'), $result, 'D07: consume it as ever');
}
# every table of our own is written
$publisher->safe_psql('horde', q{
	CALL reset_case();
	SELECT t_ustat(777, 'accumulated', 1, '00000000-0000-0000-0000-0000000000e2'), t_post(1, 0.40), t_rec(1, 'USAGE', 'image', 1),
		t_ustat(1, 'accumulated', 0.40), t_post(2, 3000000000, true), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.40,
		'00000000-0000-0000-0000-0000000000a1')});
wait_until($publisher, 'horde', 'SELECT quarantined = 1 AND ledger = 1 FROM t_look', 'D07: quarantined, folded, and one row waits');
$publisher->safe_psql('horde', q{
	SELECT t_post(2, -3000000000, true);
	SELECT kudos_accept_quarantined('00000000-0000-0000-0000-0000000000e2', 'a test');
	INSERT INTO users (id, username, oauth_id) VALUES (777, 'back', 'acct-0777');
	SELECT kudos_requeue('00000000-0000-0000-0000-0000000000e2')});
is_folded('D07: an event that is put back');
$publisher->safe_psql('horde', 'SELECT kudos_snapshot(); UPDATE users SET kudos = kudos + 3 WHERE id = 1');
is(number($publisher, 'horde', 'SELECT amount, outcome FROM kudos_repair(nth_snapshot(1))'), '-3.00|posted', 'D07: a repair');
wait_until($publisher, 'horde', 'SELECT one = 1000 AND ledger = 0 FROM t_look', 'D07: is folded');
is(join("\n", log_lines($publisher, qr/replica identity|ERROR:|FATAL:/)), '', 'D07: no table lacks a replica identity');

# W17, the subscriber's worker off ------------------------------------------------------------------

$publisher->safe_psql('horde', 'CALL reset_case()');
$subscriber->safe_psql('horde', q{
	SELECT format('TRUNCATE %s', string_agg(c.oid::regclass::text, ', '))
	  FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
	\gexec});
$subscriber->safe_psql('horde', sprintf(q{CREATE SUBSCRIPTION copy CONNECTION '%s dbname=horde' PUBLICATION everything}, $publisher->connstr));
wait_until($subscriber, 'horde', q{SELECT count(*) = 0 FROM pg_subscription_rel WHERE srsubstate <> 'r'}, 'W17: a subscriber has all tables');

# Posts where the rows are folded; both servers then have the same, and the subscription lives.
sub is_folded_once
{
	my ($floored, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$publisher->safe_psql('horde', q{SELECT t_post(4, -100), t_post(1, 0.40), t_ustat(1, 'accumulated', 0.40), t_ustat(777, 'accumulated', 1)});
	is_folded("$name: folded on the publisher");
	$publisher->wait_for_catchup('copy');
	for my $node ($publisher, $subscriber)
	{
		is( number($node, 'horde', q{SELECT kudos, count(amount), sum(amount), ledger FROM t_pending, users
				LEFT JOIN kudos_ledger l ON l.user_id = users.id AND entry_type = 'FLOOR_ADJUSTMENT' WHERE users.id = 4 GROUP BY 1, 4}),
			"25|$floored|0",
			"$name: the balance and the floor's rows of the " . $node->name);
		is_right($node, 'horde');
	}
	is(number($subscriber, 'horde', q{SELECT pid IS NOT NULL, apply_error_count, sync_error_count
			FROM pg_stat_subscription JOIN pg_stat_subscription_stats USING (subid)}),
		't|0|0', "$name: the subscription is healthy");
}
is_folded_once('1|95.00', 'W17, one worker');

# W17, a worker at both -----------------------------------------------------------------------------

set_config($subscriber, 'kudos_projector.enabled' => 'on');
my $reason = 'table public.kudos_ledger is filled by a subscription';
wait_until($subscriber, 'horde', "SELECT state = 'waiting' AND reason = '$reason' FROM kudos_projector_stats",
	'W17: the worker of a subscriber folds nothing, and says why');
is_folded_once('2|195.00', 'W17, two workers');
is(number($subscriber, 'horde', q{SELECT split_part(problem, ' HINT', 1) FROM kudos_health()}), $reason, 'W17: health says why');
is(number($subscriber, 'horde', q{SELECT object, split_part(problem, '. ', 1) FROM kudos_check_schema() WHERE problem ~ 'subscription'}),
	"table public.kudos_ledger|$reason\ntable public.kudos_stat_events|table public.kudos_stat_events is filled by a subscription",
	'W17: so does the check of the schema');
my ($status, $out, $err) = $subscriber->psql('horde', "\\set VERBOSITY sqlstate\nSELECT kudos_fold_now()");
like($err, qr/55000/, 'W17: a caller is refused, too');

# the stat events alone
my $from = -s $subscriber->logfile;
set_config($publisher, 'kudos_projector.enabled' => 'off');
$publisher->safe_psql('horde', q{SELECT t_post(4, -100), t_ustat(1, 'accumulated', 5)});
$publisher->safe_psql('horde', 'CREATE PUBLICATION stats FOR TABLE kudos_stat_events');
$publisher->wait_for_catchup('copy');
is(number($subscriber, 'horde', 'SELECT ledger FROM t_pending'), 1, 'W17: rows of the publisher wait');
$subscriber->safe_psql('horde', 'ALTER SUBSCRIPTION copy SET PUBLICATION stats WITH (copy_data = false)');
wait_until($subscriber, 'horde', q{SELECT reason ~ 'kudos_stat_events is filled' FROM kudos_projector_stats}, 'W17: either table matters');

# W17, the subscriber takes over ---------------------------------------------------------------------

$subscriber->safe_psql('horde', q{
	SELECT setval(pg_get_serial_sequence(t, 'id'), 1000) FROM unnest(ARRAY['kudos_ledger', 'kudos_stat_events', 'user_stats']) t;
	DROP SUBSCRIPTION copy});
wait_until($subscriber, 'horde', 'SELECT ledger = 0 AND quarantined = stats FROM t_look', 'W17: without its subscription it folds');
is( number($subscriber, 'horde', q{SELECT count(*), sum(amount), min(kudos) FROM kudos_ledger JOIN users ON users.id = user_id
		WHERE entry_type = 'FLOOR_ADJUSTMENT'}),
	'3|295.00|25', 'W17: each row once');
is_right($subscriber, 'horde');
is(join("\n", log_lines($subscriber, qr/duplicate key|ERROR:/, $from)), '', 'W17: nothing collides');

ends_well($_) for ($subscriber, $publisher);
done_testing();
