# Q04, Q07, Q10, D09 (a), N05: many writers, many callers of kudos_fold_now() and the worker at once; every row is
# folded once, nothing deadlocks, and the isolation that a database prefers does not matter.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('crowd',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.interval' => '10ms',
		'kudos_projector.batch_size' => 50,
		'deadlock_timeout' => '200ms',
	});
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
wait_for_worker($node, 'horde');

# run(WHAT => [CLIENTS, TRANSACTIONS, SQL], ...): pgbench for each, all at once; gives what they said.
sub run
{
	my ($database, %load) = @_;
	my (@runs, %output);
	for my $what (sort keys %load)
	{
		my ($clients, $transactions, $sql) = @{ $load{$what} };
		my $script = PostgreSQL::Test::Utils::tempdir() . "/$what.sql";
		append_to_file($script, $sql);
		$output{$what} = '';
		my @command = ('pgbench', '-n', '-M', 'prepared', '--max-tries', 1000, '-c', $clients, '-j', 1, '-t', $transactions, '-f', $script,
			$node->connstr($database));
		push @runs, IPC::Run::start(\@command, '<', \undef, '>&', \$output{$what});
	}
	IPC::Run::finish($_) for @runs;
	return %output;
}

sub drain
{
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'all is folded');
}

# The cast as it was, and a new worker.
sub anew
{
	set_config($node, 'kudos_projector.enabled' => 'off');
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type'")
	  or die 'the worker does not stop';
	$node->safe_psql('horde', 'CALL reset_case()');
	set_config($node, 'kudos_projector.enabled' => 'on');
}

# Only a caller who asked for a snapshot of his own may be told that it is too old.
sub is_quiet
{
	my ($from, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @bad = log_lines($node, qr/(?:ERROR|FATAL):/, $from);
	is(join("\n", @bad), '', $name);
}

# Fails unless every target is right at this moment, whoever is in the middle of what.
my $check = "SELECT 1 / (count(*) = 0)::int FROM target_errors();\n";

# N05 and Q07's race -------------------------------------------------------------------------------

# every row of the archive is flipped once
$node->safe_psql('horde', q{
	CREATE TABLE flips (kind text, id bigint);
	CREATE FUNCTION flipped() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN INSERT INTO public.flips VALUES (TG_ARGV[0], NEW.id); RETURN NULL; END $$;
	CREATE TRIGGER flipped AFTER UPDATE OF applied ON kudos_ledger FOR EACH ROW EXECUTE FUNCTION flipped('ledger');
	CREATE TRIGGER flipped AFTER UPDATE OF applied ON kudos_stat_events FOR EACH ROW EXECUTE FUNCTION flipped('stats');
});
my $from = -s $node->logfile;
my %said = run('horde',
	callers => [ 4, 150, "SELECT kudos_fold_now();\n" ],
	small => [ 2, 100, "SELECT kudos_fold_now(3, 2);\n" ],
	writers => [ 8, 250, "SELECT t_post(1, 1), t_post(2, -1), t_ustat(1, 'accumulated', 1);\n" ],
	inlookers => [ 2, 50, "SELECT * FROM kudos_health();\n" ],
	checkers => [ 1, 20, $check ]);
like($said{$_}, qr/number of failed transactions: 0|number of transactions actually processed: (\d+)\/\1/, "$_ finish")
  for sort keys %said;
drain();
is(number($node, 'horde', 'SELECT one, two FROM t_look'), '3000|25', 'balances');
is(number($node, 'horde', q{SELECT sum(amount) FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT'}), '1525.00',
	'what the floor forgave replays exactly');
is(number($node, 'horde', q{SELECT value FROM user_stats WHERE user_id = 1 AND action = 'accumulated'}), 2000, 'the counter');
is( number($node, 'horde', q{SELECT count(*), count(DISTINCT (kind, id)), count(*) FILTER (WHERE kind = 'ledger') FROM flips}),
	'6000|6000|4000',
	'every row was marked once');
is_right($node, 'horde');
is_quiet($from, 'nobody deadlocks or fails, and every target was right at every moment');

# Q10, with the worker -------------------------------------------------------------------------------

my $python = hold($node, 'horde', 'SELECT pg_try_advisory_xact_lock(1263879247)');
my $ticks = number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats');
$node->safe_psql('horde', 'SELECT t_post(1, 10)');
wait_until($node, 'horde', "SELECT ticks >= $ticks + 5 FROM kudos_projector_stats", 'the worker ticks while another applier works');
is(number($node, 'horde', 'SELECT one, ledger FROM t_look'), '3000|1', 'and folds nothing');
let_go($python);
wait_until($node, 'horde', 'SELECT one = 3010 FROM t_look', 'until that one is done');

# D09 (a): the fold takes rows in the order of their keys, as applications do ------------------------

$node->safe_psql('horde', q{
	DROP TRIGGER flipped ON kudos_ledger;
	DROP TRIGGER flipped ON kudos_stat_events;
	DROP FUNCTION flipped;
	DROP TABLE flips;
	INSERT INTO user_stats (user_id, action, value) SELECT u, 'accumulated', 0 FROM generate_series(2, 4) u;
	INSERT INTO worker_stats (worker_id, action, value) SELECT id, 'generated', 0 FROM workers;
	INSERT INTO user_records (user_id, record_type, record, value) SELECT u, 'USAGE', 'image', 0 FROM generate_series(1, 4) u;
	CALL remember_opening();
});
$from = -s $node->logfile;
%said = run('horde',
	callers => [ 2, 150, "SELECT kudos_fold_now(20, 2);\n" ],
	# in falling order
	writers => [ 2, 150, q{
SELECT t_post(4, 50), t_post(3, 50), t_post(2, 50), t_post(1, 50), t_ustat(4, 'accumulated', 1), t_ustat(3, 'accumulated', 1),
 t_ustat(2, 'accumulated', 1), t_ustat(1, 'accumulated', 1), t_rec(2, 'USAGE', 'image', 1), t_rec(1, 'USAGE', 'image', 1),
 t_wstat('00000000-0000-0000-0000-0000000000f2', 'generated', 1, '00000000-0000-0000-0000-0000000000b1'),
 t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 1, '00000000-0000-0000-0000-0000000000a1');
} ],
	# in rising order, table by table
	application => [ 4, 150, q{
BEGIN;
UPDATE users SET kudos = kudos WHERE id = 1;
UPDATE users SET kudos = kudos WHERE id = 2;
UPDATE users SET kudos = kudos WHERE id = 4;
UPDATE user_stats SET value = value WHERE user_id = 1;
UPDATE user_stats SET value = value WHERE user_id = 3;
UPDATE worker_stats SET value = value WHERE worker_id = '00000000-0000-0000-0000-0000000000f1';
UPDATE worker_stats SET value = value WHERE worker_id = '00000000-0000-0000-0000-0000000000f2';
UPDATE user_records SET value = value WHERE user_id = 1;
UPDATE user_records SET value = value WHERE user_id = 2;
UPDATE workers SET paused = paused WHERE name = 'wk-1';
UPDATE workers SET paused = paused WHERE name = 'wk-2';
UPDATE teams SET kudos = kudos WHERE name = 'team-a';
UPDATE teams SET kudos = kudos WHERE name = 'team-b';
COMMIT;
} ]);
drain();
is_right($node, 'horde');
is_quiet($from, 'no deadlock with an application that locks in the order of keys');

# Contract 10.6: sessions that sit on rows, longer than the worker waits, while everything else is folded ----

anew();
$node->safe_psql('horde', q{
	INSERT INTO users (id, username, oauth_id, kudos) SELECT n, 'u' || n, 'acct-1' || n, 100 FROM generate_series(10, 40) n;
	INSERT INTO user_stats (user_id, action, value) SELECT n, 'accumulated', 0 FROM generate_series(10, 40) n;
	CALL remember_opening();
});
set_config($node, 'kudos_projector.lock_timeout' => '20ms');
$from = -s $node->logfile;
%said = run('horde',
	writers => [ 4, 150, q{
\set u random(10, 40)
\set a random(-3000, 3000)
SELECT t_post(:u, :a / 100.0), t_post(:u, :a / 50.0, true), t_ustat(:u, 'accumulated', 0.35),
 t_rec(:u, 'USAGE', 'image', 0.1), t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.35, '00000000-0000-0000-0000-0000000000a1');
} ],
	# one after the other, since two of them may want the same rows in another order
	holders => [ 1, 40, q{
\set u random(10, 40)
BEGIN;
SELECT count(*) FROM (SELECT FROM users WHERE id BETWEEN :u AND :u + 5 ORDER BY id FOR UPDATE) l;
SELECT count(*) FROM generate_series(1, 200000);
COMMIT;
} ],
	sitters => [ 1, 40, q{
\set u random(10, 40)
BEGIN;
UPDATE user_stats SET value = value WHERE user_id BETWEEN :u AND :u + 5;
UPDATE workers SET paused = paused WHERE name = 'wk-1';
SELECT count(*) FROM generate_series(1, 200000);
ROLLBACK;
} ],
	checkers => [ 1, 40, $check ]);
drain();
is_right($node, 'horde');
is_quiet($from, 'nothing fails, and every target was right at every moment');
cmp_ok(number($node, 'horde', 'SELECT lock_waits FROM kudos_projector_stats'), '>', 0, 'locked rows were met');
is(number($node, 'horde', 'SELECT quarantined FROM t_look'), 0, 'nothing is quarantined for it');
set_config($node, 'kudos_projector.lock_timeout' => undef);

# Q04 ----------------------------------------------------------------------------------------------

for my $isolation ('repeatable read', 'serializable')
{
	$node->safe_psql('postgres', "ALTER DATABASE horde SET default_transaction_isolation = '$isolation'");
	anew();
	$from = -s $node->logfile;
	my $errors = number($node, 'horde', 'SELECT errors FROM kudos_projector_stats');
	# A fold that meets a snapshot of its caller's raises 40001 there; pgbench tries again.
	%said = run('horde',
		callers => [ 2, 100, "SELECT kudos_fold_now();\n" ],
		writers => [ 4, 500, "SELECT t_post(1, 1);\n" ]);
	my $pid = wait_for_worker($node, 'horde');
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', "the worker folds under $isolation");
	is(number($node, 'horde', q{SELECT one, (SELECT count(*) FROM kudos_ledger WHERE applied) FROM t_look}), '3000|2000',
		"each row once under $isolation");
	is_right($node, 'horde');
	is(number($node, 'horde', 'SELECT errors FROM kudos_projector_stats'), $errors,
		"the worker itself ran into nothing under $isolation");
	is(join("\n", log_lines($node, qr/\[$pid\].*(?:ERROR|FATAL):/, $from)), '', "and logged nothing under $isolation");
}

ends_well($node);
done_testing();
