# A hundred who spend the same account at once, with the worker folding under them, never overspend it, and
# spend all that there is; retries and holds included.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('spenders',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.interval' => '10ms',
		'kudos_projector.batch_size' => 30,
		'kudos_projector.lock_timeout' => '60s', # no wait here is to end by itself
		'max_connections' => 130,
		'deadlock_timeout' => '200ms',
	});
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
my $transfers = q{
	CREATE TABLE kudos_transfers (id serial PRIMARY KEY, source_id integer NOT NULL REFERENCES users ON DELETE CASCADE,
		dest_id integer NOT NULL REFERENCES users ON DELETE CASCADE, kudos bigint NOT NULL, created timestamp NOT NULL);
};
$node->safe_psql('horde', $transfers);
$node->safe_psql('horde', q{
	CREATE TABLE t_answers (source int, amount numeric, transferred bool, replayed bool);
	-- Nothing that anybody commits, the worker included, may leave less than can be spent.
	CREATE TABLE t_lowest (user_id int PRIMARY KEY, kudos bigint);
	INSERT INTO t_lowest SELECT id, kudos FROM users;
	CREATE FUNCTION lowest() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE public.t_lowest l SET kudos = NEW.kudos WHERE l.user_id = NEW.id AND l.kudos > NEW.kudos;
		RETURN NULL;
	END $$;
	CREATE TRIGGER lowest AFTER UPDATE OF kudos ON users FOR EACH ROW EXECUTE FUNCTION lowest();
});
wait_for_worker($node, 'horde');

# spend(CLIENTS, TRANSACTIONS, SQL)
sub spend
{
	my ($clients, $transactions, $sql) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $script = PostgreSQL::Test::Utils::tempdir() . '/spenders.sql';
	unlink $script;
	append_to_file($script, $sql);
	my $from = -s $node->logfile;
	my $output = '';
	my $run = IPC::Run::start(
		[ 'pgbench', '-n', '-M', 'prepared', '-c', $clients, '-j', 2, '-t', $transactions, '-f', $script, $node->connstr('horde') ],
		'<', \undef, '>&', \$output);
	ok($run->finish, 'the spenders finish') or diag($output);
	is(join("\n", log_lines($node, qr/(?:ERROR|FATAL|WARNING):/, $from)), '', 'nobody deadlocks or fails');
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', 'all is folded');
}

# A hundred clients, one account of which 975 can be spent -------------------------------------------

is(number($node, 'horde', 'SELECT kudos_available(1)'), '975.00', 'what there is');
spend(100, 12, q{
\set dest random(2, 4)
INSERT INTO t_answers SELECT 1, 1, transferred, replayed FROM kudos_transfer(1, :dest, 1, gen_random_uuid()::text);
});
is( number($node, 'horde', 'SELECT count(*), count(*) FILTER (WHERE transferred), count(*) FILTER (WHERE replayed) FROM t_answers'),
	'1200|975|0',
	'of 1200 who ask for one each 975 get it');
is(number($node, 'horde', 'SELECT kudos, kudos_available(1) FROM users WHERE id = 1'), '25|0.00', 'the account is at its floor');
is(number($node, 'horde', q{SELECT count(*) FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT'}), 0, 'the floor forgave nothing');
is( number($node, 'horde', q{SELECT -sum(amount) FILTER (WHERE amount < 0), sum(amount) FILTER (WHERE amount > 0), count(DISTINCT event_id),
		(SELECT sum(kudos) FROM kudos_transfers), (SELECT count(*) FROM kudos_transfer_requests) FROM kudos_ledger}),
	'975.00|975.00|975|975|975',
	'debits, credits and records are one another');
is(number($node, 'horde', 'SELECT count(*), count(*) FILTER (WHERE released_at IS NULL) FROM kudos_reservations'), '975|0',
	'no hold is left');
is(number($node, 'horde', 'SELECT sum(kudos) FROM users WHERE id BETWEEN 1 AND 4'), 1630, 'nothing was made or lost');

# Two accounts, amounts with cents, retries of the same key, holds that come and go -------------------

$node->safe_psql('horde', q{
	DROP TABLE kudos_transfers;
	CALL reset_case();
	TRUNCATE t_answers, t_lowest, kudos_transfer_requests;
	INSERT INTO t_lowest SELECT id, kudos FROM users;
});
$node->safe_psql('horde', $transfers);
spend(20, 60, q{
\set source random(1, 2)
\set cents random(1, 500)
SELECT gen_random_uuid() AS key \gset
SELECT granted FROM kudos_reserve(:source, 'upfront:' || :source || ':' || :client_id, :cents / 100.0);
INSERT INTO t_answers SELECT :source, :cents / 100.0, transferred, replayed FROM kudos_transfer(:source, 3, :cents / 100.0, :key);
SELECT kudos_release('upfront:' || :source || ':' || :client_id);
INSERT INTO t_answers SELECT :source, :cents / 100.0, transferred, replayed FROM kudos_transfer(:source, 3, :cents / 100.0, :key);
});
is( number($node, 'horde', q{SELECT source, sum(amount) FILTER (WHERE transferred AND NOT replayed) <= CASE source WHEN 1 THEN 975 ELSE 475 END,
		count(*) FILTER (WHERE transferred AND NOT replayed) > 0, count(*) FILTER (WHERE replayed) > 0 FROM t_answers GROUP BY source ORDER BY source}),
	"1|t|t|t\n2|t|t|t",
	'neither account spends more than it had, and retries are replays');
is( number($node, 'horde', q{SELECT bool_and(amount = spent) FROM
		(SELECT source, sum(amount) AS amount FROM t_answers WHERE transferred AND NOT replayed GROUP BY source) a
		JOIN (SELECT user_id AS source, -sum(amount) AS spent FROM kudos_ledger WHERE amount < 0 GROUP BY user_id) l USING (source)}),
	't',
	'each transfer that was answered with yes was made once');
is(number($node, 'horde', q{SELECT count(*) FROM kudos_ledger WHERE entry_type = 'FLOOR_ADJUSTMENT'}), 0, 'the floor forgave nothing');
is(number($node, 'horde', 'SELECT count(*) FROM t_lowest WHERE kudos < 25 AND user_id IN (1, 2)'), 0, 'no balance was ever below its floor');
is(number($node, 'horde', 'SELECT count(*) FROM kudos_reservations WHERE released_at IS NULL'), 0, 'no hold is left');
is(number($node, 'horde', 'SELECT count(*) FROM users WHERE id IN (1, 2) AND kudos_available(id) <> kudos_effective(id) - 25'), 0,
	'what can be spent is the balance above the floor');
is_right($node, 'horde');

ends_well($node);
done_testing();
