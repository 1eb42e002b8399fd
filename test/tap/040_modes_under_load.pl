# M02, M05: writers that pin the mode without a gap do not starve a switch, as they would at a gate made of
# row locks; and fifty switches under a running worker and four writers neither deadlock nor lose a row.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('modes',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.interval' => '10ms',
		'kudos_projector.batch_size' => 20,
		'kudos_projector.lock_timeout' => '60s', # no wait here is to end by itself
		'kudos_projector.trust_threshold' => '10',
		'deadlock_timeout' => '200ms',
	});
for my $database (qw(gate horde)) # "gate" has no worker
{
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	load_fixture($node, $database);
}

# Starts pgbench with CLIENTS that run SQL, TRANSACTIONS times or until it is stopped.
sub writers
{
	my ($database, $clients, $transactions, $sql) = @_;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/writers.sql';
	unlink $script;
	append_to_file($script, $sql);
	my $output = '';
	my $run = IPC::Run::start(
		[ 'pgbench', '-n', '-c', $clients, '-j', 1, '-t', $transactions, '-f', $script, $node->connstr($database) ],
		'<', \undef, '>&', \$output);
	return ($run, \$output);
}

sub stop
{
	my ($run) = @_;
	$run->signal('TERM');
	$run->finish;
	return wait_until($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'",
		'the writers stop');
}

# Starts STATEMENT in a session of its own, which will wait.
sub begin_waiting
{
	my ($database, $statement) = @_;
	my $session = $node->background_psql($database);
	$session->query_until(qr/started/, "\\echo started\n$statement;\n");
	return $session;
}

sub refused_or_failed
{
	my ($from) = @_;
	# a writer is stopped in the middle of a transaction
	return join "\n", grep { !/connection to client lost/ } log_lines($node, qr/(?:ERROR|FATAL|WARNING):|deadlock/, $from);
}

# M02: who waits first is served first --------------------------------------------------------------

$node->safe_psql('gate', q{
	CREATE TABLE t_granted (id serial, who text);
	CREATE TABLE t_gate (id int PRIMARY KEY, mode text);
	INSERT INTO t_gate VALUES (1, 'ledger');
	CREATE VIEW t_pins AS
		SELECT count(*) FILTER (WHERE mode = 'ShareLock' AND granted) AS held,
		       count(*) FILTER (WHERE mode = 'ShareLock' AND NOT granted) AS wanted,
		       count(*) FILTER (WHERE mode = 'ExclusiveLock' AND granted) AS switching,
		       count(*) FILTER (WHERE mode = 'ExclusiveLock' AND NOT granted) AS waiting
		  FROM pg_locks WHERE locktype = 'advisory' AND classid = 0 AND objid = 1263879245 AND objsubid = 1
		   AND database = (SELECT oid FROM pg_database WHERE datname = 'gate');
});

my $from = -s $node->logfile;
my $holder = hold($node, 'gate', 'SELECT kudos_pin_mode()');
my $switch = begin_waiting('gate',
	q{BEGIN; SELECT kudos_set_mode('shadow'); INSERT INTO t_granted (who) VALUES ('switch'); COMMIT});
wait_until($node, 'gate', 'SELECT held = 1 AND waiting = 1 FROM t_pins', 'a switch waits for a pinned writer');
my ($run, $said) = writers('gate', 4, 25, "BEGIN;\nSELECT kudos_pin_mode();\nINSERT INTO t_granted (who) VALUES ('writer');\nCOMMIT;\n");
wait_until($node, 'gate', 'SELECT held = 1 AND wanted = 4 AND waiting = 1 FROM t_pins', 'writers who come later queue behind it');
is(number($node, 'gate', 'SELECT kudos_mode()'), 'ledger', 'who only reads the mode does not wait');
let_go($holder);
ok($run->finish, 'they finish') or diag($$said);
$switch->quit;
is(number($node, 'gate', 'SELECT kudos_mode()'), 'shadow', 'so does the switch');
is( number($node, 'gate', q{SELECT who, count(*), min(id) < ALL (SELECT id FROM t_granted WHERE who = 'writer') FROM t_granted
		GROUP BY who ORDER BY who}),
	"switch|1|t\nwriter|100|f",
	'it was served before each of them');

# the same with row locks: KEY SHARE for a pin, an update for a switch
$node->safe_psql('gate', 'TRUNCATE t_granted');
$holder = hold($node, 'gate', 'SELECT mode FROM t_gate FOR KEY SHARE');
$switch = begin_waiting('gate',
	q{BEGIN; SELECT mode FROM t_gate FOR UPDATE; INSERT INTO t_granted (who) VALUES ('switch'); COMMIT});
wait_until($node, 'gate', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'gate' AND wait_event_type = 'Lock'},
	'a switch at a gate of row locks waits, too');
($run, $said) = writers('gate', 4, 25, "BEGIN;\nSELECT mode FROM t_gate FOR KEY SHARE;\nINSERT INTO t_granted (who) VALUES ('writer');\nCOMMIT;\n");
ok($run->finish, 'but writers do not wait for it') or diag($$said);
is(number($node, 'gate', 'SELECT who, count(*) FROM t_granted GROUP BY who'), 'writer|100', 'all have overtaken it');
let_go($holder);
$switch->quit;

# M02: writers without a gap -------------------------------------------------------------------------

# Each keeps his pin until somebody else has one, or has asked for one: there is no moment without.
$node->safe_psql('gate', q{
	CREATE TABLE t_done ();
	CREATE FUNCTION wait_for_another() RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		WHILE NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1263879245 AND mode = 'ShareLock'
				AND pid <> pg_backend_pid()) AND NOT EXISTS (SELECT FROM t_done) LOOP
			NULL;
		END LOOP;
	END $$;
	TRUNCATE t_granted;
});
($run, $said) = writers('gate', 4, 1000000,
	"BEGIN;\nSELECT kudos_pin_mode();\nSELECT wait_for_another();\nINSERT INTO t_granted (who) VALUES ('writer');\nCOMMIT;\n");
for my $mode (qw(ledger shadow ledger shadow ledger))
{
	my $seen = number($node, 'gate', 'SELECT count(*) FROM t_granted');
	wait_until($node, 'gate', "SELECT count(*) > $seen + 20 FROM t_granted", "writers write without a gap before the switch to $mode");
	my ($status, $out, $err) = $node->psql('gate', "SELECT kudos_set_mode('$mode')",
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	is("$status $out", "0 $mode", 'and do not starve it');
}
$node->safe_psql('gate', 'INSERT INTO t_done DEFAULT VALUES');
stop($run);
is(refused_or_failed($from), '', 'nobody deadlocks or fails at the gate');

# M05 ----------------------------------------------------------------------------------------------

$node->safe_psql('horde', q{
	INSERT INTO user_roles (user_id, user_role, value) VALUES (2, 'TRUSTED', true);
	CREATE TABLE t_written (id serial, mode text);
	CREATE TABLE t_flips (id serial, mode text, pending_before bigint, pending_after bigint);
	-- What an application does in either mode; the escrow of user 2 is drained, user 3 is promoted.
	CREATE FUNCTION app_post(first int, amount int) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE pinned text := kudos_pin_mode();
	BEGIN
		FOR account IN first .. first + 1 LOOP
			IF pinned = 'ledger' THEN
				PERFORM kudos_post(account, amount, 'GENERATION', account IN (2, 3)),
					kudos_post_stat('GENERATION', amount, 'kudos', account, stat_action => 'accumulated', record => 'user_kudos');
			ELSE
				INSERT INTO kudos_ledger (event_id, entry_type, user_id, amount, escrow, applied)
					VALUES (gen_random_uuid(), 'GENERATION', account, amount, account IN (2, 3), true);
				UPDATE users SET kudos = kudos + CASE WHEN account IN (2, 3) THEN 0 ELSE amount END,
					evaluating_kudos = evaluating_kudos + CASE WHEN account IN (2, 3) THEN amount ELSE 0 END WHERE id = account;
			END IF;
		END LOOP;
		INSERT INTO t_written (mode) VALUES (pinned);
	END $$;
	-- Changes the mode, notes the queue just before and just after, and gives the number of the last writer.
	CREATE FUNCTION flip(target text) RETURNS bigint LANGUAGE plpgsql AS $$
	DECLARE pending bigint := (SELECT ledger + stats FROM t_pending);
	BEGIN
		PERFORM kudos_set_mode(target);
		INSERT INTO t_flips (mode, pending_before, pending_after) SELECT target, pending, ledger + stats FROM t_pending;
		RETURN nextval('t_written_id_seq');
	END $$;
});
wait_for_worker($node, 'horde');
$from = -s $node->logfile;
($run, $said) = writers('horde', 4, 1000000, "\\set first random(1, 3)\n\\set amount random(1, 5)\nSELECT app_post(:first, :amount);\n");
my ($done, $mode, $last_writer) = (0, 'ledger', 0);
for (1 .. 50)
{
	# once somebody has written in the mode that was
	$node->poll_query_until('horde', "SELECT count(*) > 0 FROM t_written WHERE id > $last_writer AND mode = '$mode'") or last;
	$mode = $mode eq 'ledger' ? 'shadow' : 'ledger';
	my ($status, $out, $err) = $node->psql('horde', "SELECT flip('$mode')", timeout => $PostgreSQL::Test::Utils::timeout_default);
	last unless $status == 0;
	$last_writer = $out;
	$done++;
}
is($done, 50, 'a switch comes to its end fifty times under load');
stop($run);
is( number($node, 'horde', 'SELECT mode, count(*) FROM t_flips GROUP BY mode ORDER BY mode'),
	"ledger|25\nshadow|25",
	'as often to one mode as to the other');
is(number($node, 'horde', q{SELECT count(*) FROM t_flips WHERE mode = 'shadow' AND pending_after > 0}), 0,
	'none to shadow leaves a row behind');
is(number($node, 'horde', q{SELECT count(*) FROM t_flips WHERE mode = 'ledger' AND pending_before > 0}), 0,
	'and none comes before the next');
is(refused_or_failed($from), '', 'nobody deadlocks or fails');
is(number($node, 'horde', 'SELECT kudos_mode()'), 'ledger', 'the last was to ledger');
wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 AND NOT EXISTS (SELECT FROM users WHERE evaluating_kudos > 10) FROM t_pending',
	'the worker folds and drains what is left');
is( number($node, 'horde', q{SELECT count(*) > 50, count(*) FILTER (WHERE mode = 'ledger') >= 25, count(*) FILTER (WHERE mode = 'shadow') >= 25
		FROM t_written}),
	't|t|t',
	'there were writers in either mode');
is( number($node, 'horde', q{SELECT count(DISTINCT user_id), bool_and(pairs), bool_and(total = 0) FROM (SELECT user_id, count(*) = 2 AS pairs,
		sum(amount) AS total FROM kudos_ledger WHERE entry_type = 'EVALUATION_PROMOTION' GROUP BY user_id, event_id) e}),
	'2|t|t',
	'escrow was drained by whole pairs');
is_right($node, 'horde', 'every balance is its start and the sum of its rows');
is(number($node, 'horde', q{SELECT errors FROM kudos_projector_stats WHERE database = 'horde'}), 0, 'the worker ran into nothing');

ends_well($node);
done_testing();
