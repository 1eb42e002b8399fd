# G02, G03, G05, D05, P01, P03: settings of the database and of everybody that a worker inherits, shadows on
# the path, tables that change under it, and what weeks of running need.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('hostile',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.lock_timeout' => '100ms',
		'max_prepared_transactions' => 2,
		'autovacuum_naptime' => '1s',
	});
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');
wait_for_worker($node, 'horde');

sub worker_is
{
	my ($value) = @_;
	set_config($node, 'kudos_projector.enabled' => $value);
	if ($value eq 'on') { wait_for_worker($node, 'horde'); return; }
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type'")
	  or die 'the worker does not stop';
}

# A new worker, which inherits what STATEMENTS set, over the cast as it was.
sub anew
{
	my (@statements) = @_;
	worker_is('off');
	$node->safe_psql('horde', join ";\n", "SET statement_timeout = 0", "SET lock_timeout = 0", 'RESET search_path',
		'CALL public.reset_case()', @statements);
	worker_is('on');
}

sub is_folded
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM public.t_pending', $name);
}

my $now = q{clock_timestamp() AT TIME ZONE 'utc'};

# G02 ----------------------------------------------------------------------------------------------

for my $zone ('Asia/Tokyo', 'America/New_York')
{
	anew("ALTER DATABASE horde SET timezone = '$zone'",
		'ALTER TABLE kudos_ledger ALTER created SET DEFAULT now()',
		"ALTER DATABASE horde SET DateStyle = 'SQL, DMY'",
		'ALTER DATABASE horde SET extra_float_digits = 0',
		"ALTER DATABASE horde SET lc_numeric = 'C'");
	for my $by ('the worker', 'a caller')
	{
		worker_is('off') if $by eq 'a caller';
		$node->safe_psql('horde', q{
			CALL reset_case();
			INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
			SELECT t_post(1, -60, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(4, -100.25), t_rec(1, 'USAGE', 'image', 0.30);
			INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail) VALUES
				('2026-06-02 08:00', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": true}');
		}) if $by eq 'a caller';
		$node->safe_psql('horde', q{
			INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:j1', 1, 60, 60);
			BEGIN;
			SELECT t_post(1, -60, false, gen_random_uuid(), '{"reservation_id": "upfront:j1"}'), t_post(4, -100.25), t_rec(1, 'USAGE', 'image', 0.30);
			INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, record, detail) VALUES
				('2026-06-02 08:00', gen_random_uuid(), 'STAT_ACTIVITY', 2, 0, 'count', 'last_active', '{"touch_last_active": true}');
			COMMIT;
		}) if $by eq 'the worker';
		$node->safe_psql('horde', 'SELECT kudos_fold_now()') if $by eq 'a caller';
		is_folded("$zone: folded by $by");
		is( number($node, 'horde', qq{
				SELECT abs(extract(epoch FROM s.applied_at - ($now))) < 60, abs(extract(epoch FROM h.released_at - ($now))) < 60,
				       abs(extract(epoch FROM l.created - ($now))) < 60, l.amount
				  FROM kudos_ledger_applier_state s, kudos_reservations h, kudos_ledger l WHERE l.entry_type = 'FLOOR_ADJUSTMENT'}),
			't|t|t|95.25',
			"$zone: heartbeat, release and floor adjustment are in UTC");
		is(number($node, 'horde', q{SELECT to_char(last_active, 'YYYY-MM-DD HH24:MI'), value = 0.3 FROM users, user_records WHERE users.id = 2}),
			'2026-06-02 08:00|t', "$zone: times and decimals of targets are those of the rows");
		is(number($node, 'horde', 'SELECT heartbeat_seconds BETWEEN -1 AND 60, coalesce(oldest_pending_seconds, 0) >= -1 FROM kudos_health()'),
			't|t', "$zone: so are the ages that health tells");
		is_right($node, 'horde');
	}
}
$node->safe_psql('horde', "INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, amount) VALUES ($now, gen_random_uuid(), 'GENERATION', 1, 1)");
is(number($node, 'horde', 'SELECT oldest_pending_seconds BETWEEN -1 AND 60 FROM kudos_health()'), 't', 'the age of a pending row, too');
$node->safe_psql('horde', q{ALTER DATABASE horde RESET ALL; ALTER TABLE kudos_ledger ALTER created SET DEFAULT (now() AT TIME ZONE 'utc')});

# G03 ----------------------------------------------------------------------------------------------

anew('SELECT count(t_post(1, 1)) FROM generate_series(1, 20000)',
	"ALTER ROLE ALL SET lock_timeout = '50ms'",
	"ALTER DATABASE horde SET statement_timeout = '10ms'",
	"ALTER DATABASE horde SET idle_in_transaction_session_timeout = '10ms'");
my $pid = worker_pid($node, 'horde');
$node->poll_query_until('horde', "SET statement_timeout = 0;\nSELECT count(*) = 0 FROM kudos_ledger WHERE NOT applied", "SET\nt");
is(number($node, 'horde', 'SET statement_timeout = 0; SELECT one FROM t_look'), 21000, 'time-outs for everybody do not reach the worker');
is(worker_pid($node, 'horde'), $pid, 'which is the same');
worker_is('off');
$node->safe_psql('postgres', 'ALTER ROLE ALL RESET lock_timeout; ALTER DATABASE horde RESET ALL');

anew();
my $session = hold($node, 'horde', 'UPDATE users SET kudos = kudos WHERE id = 1');
$node->safe_psql('horde', 'SELECT t_post(1, 5), t_post(2, 5)');
wait_until($node, 'horde', 'SELECT two = 505 FROM t_look', 'a session that sits on one account delays no other');
wait_until($node, 'horde', 'SELECT stuck_target_count > 0 FROM kudos_health()', 'health tells of it');
is(number($node, 'horde', 'SELECT stuck_targets FROM kudos_health()'), '{"users 1 (locked)"}', 'names the account, and why');
wait_until($node, 'horde', 'SELECT pg_try_advisory_xact_lock(1263879247)', 'the lock of the applier is not held meanwhile');
is(number($node, 'horde', 'SELECT one, ledger, quarantined FROM t_look'), '1000|1|0', 'its row waits');
like(number($node, 'horde', 'SELECT state, query FROM pg_stat_activity WHERE pid = ANY ((SELECT blocking_pids FROM kudos_health())::int[])'),
	qr/^idle in transaction\|UPDATE users SET kudos = kudos WHERE id = 1/, 'health names the session that sits on it');
let_go($session);
wait_until($node, 'horde', 'SELECT one = 1005 FROM t_look', 'and is folded afterwards');
wait_until($node, 'horde', 'SELECT stuck_target_count = 0 AND problem IS NULL FROM kudos_health()', 'health has nothing left to tell');
is_right($node, 'horde');

# D03
$node->safe_psql('horde', q{CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'audit table full'; END$$;
	CREATE TRIGGER boom BEFORE UPDATE ON users FOR EACH ROW WHEN (OLD.id = 2) EXECUTE FUNCTION boom();
	SELECT t_post(1, 5), t_post(2, 5), t_ustat(1, 'accumulated', 5)});
wait_until($node, 'horde', 'SELECT one = 1010 FROM t_look', 'a trigger that raises for one account delays no other');
wait_until($node, 'horde', q{SELECT stuck_targets = '{"users 2 (raised: audit table full)"}' AND blocking_pids = '{NULL}' FROM kudos_health()},
	'health tells what it says');
$node->safe_psql('horde', 'DROP TRIGGER boom ON users');
wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 AND two = 510 FROM t_look', 'once it is gone, the rest is folded');
$node->safe_psql('horde', q{CREATE CONSTRAINT TRIGGER boom AFTER UPDATE ON users DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION boom(); SELECT t_post(1, 5), t_post(2, 5)});
wait_until($node, 'horde', 'SELECT one = 1015 FROM t_look', 'nor does one that is deferred to the commit');
wait_until($node, 'horde', q{SELECT stuck_targets = '{"users 2 (raised: audit table full)"}' AND consecutive_errors = 0 FROM kudos_health()},
	'which is named as well');
$node->safe_psql('horde', 'DROP TRIGGER boom ON users');
wait_until($node, 'horde', 'SELECT ledger = 0 AND two = 515 FROM t_look', 'and delays its own no longer than it is there');
is_right($node, 'horde');

# N01 (b) with the worker
$node->safe_psql('horde', q{BEGIN; SELECT t_post(1, 10); SELECT pg_advisory_xact_lock(1263879247); SELECT kudos_fold_now(); PREPARE TRANSACTION 'f'});
$node->safe_psql('horde', 'SELECT t_post(1, 1)');
is(number($node, 'horde', 'SELECT one, ledger FROM t_look'), '1015|1', 'the worker stands back from a prepared fold');
$node->safe_psql('horde', "COMMIT PREPARED 'f'");
wait_until($node, 'horde', 'SELECT one = 1026 FROM t_look', 'and goes on after it');
is_right($node, 'horde');

# G05 ----------------------------------------------------------------------------------------------

anew(q{CREATE SCHEMA evil},
	q{CREATE FUNCTION evil.round(numeric, int) RETURNS numeric LANGUAGE sql AS 'SELECT 0::numeric'},
	q{CREATE TABLE evil.users (LIKE public.users)},
	q{INSERT INTO evil.users SELECT * FROM public.users},
	q{CREATE TABLE evil.kudos_ledger (LIKE public.kudos_ledger)},
	q{CREATE FUNCTION evil.boom(numeric, numeric) RETURNS numeric LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$},
	q{CREATE FUNCTION evil.boom(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$},
	q{CREATE FUNCTION evil.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$},
	q{CREATE OPERATOR evil.+ (leftarg = numeric, rightarg = numeric, function = evil.boom)},
	q{CREATE OPERATOR evil.+ (leftarg = bigint, rightarg = bigint, function = evil.boom)},
	q{CREATE FUNCTION evil.same(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false'},
	q{CREATE OPERATOR evil.= (leftarg = bigint, rightarg = bigint, function = evil.same)},
	q{ALTER DATABASE horde SET search_path = evil, pg_catalog, public},
	q{ALTER DATABASE horde SET session_replication_role = replica},
	q{CREATE TABLE public.audit (id int, kudos bigint)},
	q{CREATE FUNCTION public.audit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO public.audit VALUES (NEW.id, NEW.kudos); RETURN NULL; END$$},
	q{CREATE TRIGGER audit AFTER UPDATE ON public.users FOR EACH ROW EXECUTE FUNCTION public.audit()});
my $path = 'SET search_path = public; SET session_replication_role = origin;';
$node->safe_psql('horde', "$path SELECT t_post(1, 10.25), t_ustat(1, 'accumulated', 10.25);");
is_folded('the path of the database leads the worker nowhere');
is(number($node, 'horde', "$path SELECT one FROM t_look; SELECT sum(kudos) FROM evil.users; SELECT count(*) FROM audit;"),
	"1010\n1730\n1", 'rows are in the right tables, and triggers of replicas are not the ones that fire');
$node->safe_psql('horde', "$path SELECT t_post(1, 10.25);");
worker_is('off');
$node->safe_psql('horde', q{
	SELECT public.t_post(2, 1) FROM (SELECT set_config('search_path', 'public', false)) s;
	SET search_path = evil, pg_catalog, public;
	CREATE TEMP TABLE kudos_ledger (LIKE public.kudos_ledger);
	CREATE TEMP TABLE users (LIKE public.users);
	SELECT public.kudos_fold_now();});
is(number($node, 'horde', "$path SELECT one, two, ledger FROM t_look"), '1021|501|0', 'neither path nor temporary tables mislead a caller');
is(number($node, 'horde', "$path SELECT * FROM target_errors()"), '', 'targets are right');
is(scalar(log_lines($node, qr/hijacked/)), 0, 'nothing was hijacked');
$node->safe_psql('horde', "$path ALTER DATABASE horde RESET ALL; DROP SCHEMA evil CASCADE; DROP TABLE audit CASCADE; DROP FUNCTION audit() CASCADE");

# P01 ----------------------------------------------------------------------------------------------

anew();
$node->safe_psql('horde', q{
	SELECT pg_stat_reset();
	SELECT count(t_post(1, 1)), count(t_ustat(1, 'accumulated', 1)) FROM generate_series(1, 1000)});
is_folded('a thousand rows are folded');
wait_until($node, 'horde', q{
	SELECT count(*) = 3 FROM pg_stat_user_tables
	 WHERE n_tup_upd >= CASE relname WHEN 'users' THEN 1 ELSE 1000 END
	   AND relname IN ('users', 'kudos_ledger', 'kudos_stat_events')},
	'the statistics tell what the worker writes');
wait_until($node, 'horde', q{
	SELECT count(*) = 2 FROM pg_stat_user_tables
	 WHERE last_autovacuum IS NOT NULL AND relname IN ('kudos_ledger', 'kudos_stat_events')},
	'and autovacuum acts on it');
is_right($node, 'horde');

# D05 ----------------------------------------------------------------------------------------------

worker_is('off');
$node->safe_psql('horde', 'DROP EXTENSION kudos_projector CASCADE');
load_fixture($node, 'horde', bare => 1);
$node->safe_psql('horde', q{DROP VIEW IF EXISTS t_look; DROP VIEW t_bal; CREATE EXTENSION kudos_projector});
worker_is('on');
$pid = worker_pid($node, 'horde');
my $from = -s $node->logfile;
for my $step (
	[ 'SELECT 1', 1, '1001' ],
	[ 'ALTER TABLE users ADD note text', 1, '1002' ],
	[ 'ALTER TABLE users ALTER kudos TYPE numeric(20,2)', 0.50, '1002.50' ],
	[ 'ALTER TABLE user_stats ALTER action TYPE varchar(40)', 0.50, '1003.00' ],
	[ 'REINDEX TABLE CONCURRENTLY kudos_ledger', 0.50, '1003.50' ],
	[ 'VACUUM FULL users', 0.50, '1004.00' ],
	[ 'ALTER TABLE kudos_ledger DROP COLUMN job_id', 0.50, '1004.50' ],
	[ 'ALTER TABLE users DROP COLUMN note', 0.50, '1005.00' ])
{
	my ($change, $amount, $kudos) = @$step;
	$node->safe_psql('horde', $change);
	$node->safe_psql('horde', "SELECT t_post(1, $amount), t_ustat(1, 'accumulated', $amount)");
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_pending', "folded after: $change");
	is(number($node, 'horde', 'SELECT kudos FROM users WHERE id = 1'), $kudos, 'to the exact balance');
}
is(number($node, 'horde', 'SELECT value FROM user_stats'), 5, 'and so is the counter');
is(worker_pid($node, 'horde'), $pid, 'by the same worker');
is(join("\n", log_lines($node, qr/\[$pid\].*(?:ERROR|FATAL|WARNING):/, $from)), '', 'which met no error');

# P03 ----------------------------------------------------------------------------------------------

set_config($node, 'kudos_projector.interval' => '1h');
my $ticks = 0;
# the reload may have met it in a tick, or just before one
$node->poll_query_until('horde', "SELECT state = 'idle' AND last_tick_at < clock_timestamp() - interval '300ms' FROM kudos_projector_stats")
  or die 'the worker still ticks';
$ticks = number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats');
$from = -s $node->logfile;
$node->safe_psql('horde', "SELECT count(pg_log_backend_memory_contexts($pid)) FROM generate_series(1, 200)");
$node->safe_psql('horde', 'SELECT count(pg_reload_conf()) FROM generate_series(1, 20)');
$node->safe_psql('postgres', "CREATE DATABASE other");
$node->safe_psql('postgres', "DROP DATABASE other");
$node->safe_psql('horde', "SELECT pg_log_backend_memory_contexts($pid)");
$node->wait_for_log(qr/Grand total/, $from);
is(number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats'), $ticks, 'signals and reloads cost no tick');
is(number($node, 'postgres', "SELECT wait_event_type || ' ' || wait_event FROM pg_stat_activity WHERE pid = $pid"), 'Extension Extension',
	'the worker sleeps');
# while others work it is not scheduled at all
sub times_scheduled { return join ' ', slurp_file("/proc/$pid/status") =~ /ctxt_switches:\s+(\d+)/g; }
if (-r "/proc/$pid/status")
{
	my $scheduled = times_scheduled();
	number($node, 'horde', 'SELECT count(*) FROM generate_series(1, 100000)') for (1 .. 10);
	is(times_scheduled(), $scheduled, 'soundly');
}
is( join("\n", grep { !/memory contexts|level:|Grand total|STATEMENT/ } log_lines($node, qr/\[$pid\]/, $from)),
	'', 'and says nothing');

ends_well($node);
done_testing();
