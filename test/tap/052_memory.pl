# P02, D11: the memory of a worker after many cycles, many ticks, many changed tables and many errors is what it was
# after few, and so is that of a session that folds by hand. Errors leave no frame of C++ behind that matters later.
#
# KUDOS_CYCLES=100000 KUDOS_TICKS=20000 KUDOS_FAILURES=500 for the long form.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $cycles = $ENV{KUDOS_CYCLES} // 2000;
my $ticks = $ENV{KUDOS_TICKS} // 300;
my $failures = $ENV{KUDOS_FAILURES} // 3;

plan skip_all => 'memory is read from /proc' unless -r '/proc/self/status';

# So few buffers that the shared ones, which a process counts as its own once it has touched them, are within the bound.
my $node = new_server('memory',
	{
		'kudos_projector.databases' => 'horde',
		'kudos_projector.interval' => '10ms',
		'kudos_projector.batch_size' => 1,
		'kudos_projector.max_catchup_cycles' => 10000,
		'kudos_projector.wake_on_commit' => 'on',
		'shared_buffers' => '2MB',
		'jit' => 'on',
		'jit_above_cost' => 0,
	});
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(horde calls);
load_fixture($node, $_) for qw(horde calls);
# a worker compiles nothing, whoever is told to; of those who post and look, nobody
$node->safe_psql('postgres', 'ALTER DATABASE calls SET jit = off');
my $pid = wait_for_worker($node, 'horde');
local $ENV{PGOPTIONS} = '-c jit=off';

# All that a process holds, and what of it is nobody else's, in kB.
sub memory_of
{
	my ($pid, $when) = @_;
	my $status = slurp_file("/proc/$pid/status");
	my ($all) = $status =~ /^VmRSS:\s+(\d+) kB/m;
	my ($own) = $status =~ /^RssAnon:\s+(\d+) kB/m;
	note("$when: $all kB, $own of them its own");
	return { all => $all, own => $own };
}

# BOUND in kB for all that it holds, as the case has it; what is its own must have settled.
sub has_not_grown
{
	my ($before, $after, $bound, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($after->{all} - $before->{all}, '<', $bound, "$name: all together less than $bound kB");
	cmp_ok($after->{own} - $before->{own}, '<', 1024, "$name: of its own less than 1 MB");
}

# One row of each kind a cycle: balances, escrow, holds, floors, every counter, and a bad event now and then.
sub fold_rows
{
	my ($count, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $seen = number($node, 'horde', 'SELECT cycles FROM kudos_projector_stats');
	$node->safe_psql('horde', qq{
		INSERT INTO kudos_reservations (business_id, user_id, original_amount, remaining_amount) VALUES ('upfront:' || $seen, 1, 50, 50);
		SELECT count(CASE n % 8 WHEN 0 THEN t_post(4, -100) WHEN 1 THEN t_post(2, 0.35, true)
		         WHEN 2 THEN t_post(1, -1, false, gen_random_uuid(), '{"reservation_id": "upfront:$seen"}')
		         ELSE t_post(1 + n % 3, 1.25) END),
		       count(CASE n % 8 WHEN 0 THEN t_ustat(777, 'accumulated', 1) WHEN 1 THEN t_rec(1 + n % 5, 'USAGE', 'image', 0.10)
		         WHEN 2 THEN t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 0.35, '00000000-0000-0000-0000-0000000000a1')
		         WHEN 3 THEN t_contrib('00000000-0000-0000-0000-0000000000f2', 'contributions', 0.35, '00000000-0000-0000-0000-0000000000b1')
		         ELSE t_ustat(1 + n % 5, 'accumulated', 0.35) END)
		  FROM generate_series(1, $count) n});
	wait_until($node, 'horde', "SELECT cycles >= $seen + $count AND NOT EXISTS (SELECT FROM kudos_ledger WHERE NOT applied)
		FROM kudos_projector_stats", $name);
}

# Cycles ---------------------------------------------------------------------------------------------

fold_rows(1000, 'a thousand cycles');
my $early = memory_of($pid, 'after 1000 cycles');
while ($cycles > 0)
{
	my $count = $cycles > 10000 ? 10000 : $cycles;
	fold_rows($count, "$count more");
	memory_of($pid, 'after ' . number($node, 'horde', 'SELECT cycles FROM kudos_projector_stats') . ' cycles');
	$cycles -= $count;
}
has_not_grown($early, memory_of($pid, 'in the end'), 8192, 'P02, many cycles');
unlike(slurp_file("/proc/$pid/maps"), qr/llvm/, 'P02: nothing was compiled');

# Ticks ----------------------------------------------------------------------------------------------

# Each commit that posts is a tick, and some post fifty rows.
sub run_ticks
{
	my ($count, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $seen = number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats');
	my $script = PostgreSQL::Test::Utils::tempdir() . '/post.sql';
	unlink $script;
	append_to_file($script, "\\set rows 1 + 49 * (random(1, 10) / 10)\nSELECT count(t_post(1, 1)) FROM generate_series(1, :rows);\n");
	run_log([ 'pgbench', '-n', '-M', 'prepared', '-c', 1, '-t', $count, '-f', $script, $node->connstr('horde') ]);
	wait_until($node, 'horde', "SELECT ticks >= $seen + $count / 2 AND NOT EXISTS (SELECT FROM kudos_ledger WHERE NOT applied)
		FROM kudos_projector_stats", $name);
}

set_config($node, 'kudos_projector.batch_size' => 1000);
run_ticks(200, 'two hundred ticks');
$early = memory_of($pid, 'after 200 ticks');
run_ticks($ticks, 'many more');
has_not_grown($early, memory_of($pid, 'after ' . number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats') . ' ticks'),
	8192, 'P02, many ticks');

# Tables that change, so that everything is looked up and planned anew -----------------------------------

sub change_tables
{
	my ($count) = @_;
	for my $n (1 .. $count)
	{
		my $seen = number($node, 'horde', 'SELECT ticks FROM kudos_projector_stats');
		$node->safe_psql('horde', sprintf(q{ALTER TABLE users ALTER username TYPE varchar(%d); SELECT t_post(1, 1), t_ustat(1, 'accumulated', 1)}, 60 + $n));
		$node->poll_query_until('horde', "SELECT ticks > $seen AND ledger = 0 FROM kudos_projector_stats, t_pending") or die 'not folded';
	}
}

$node->safe_psql('horde', 'DROP VIEW IF EXISTS t_bal');
change_tables(5);
$early = memory_of($pid, 'after 5 changes of a table');
change_tables(10);
has_not_grown($early, memory_of($pid, 'after 15'), 8192, 'the schema is looked up anew');

# Errors in the worker -------------------------------------------------------------------------------

# A full disk, or so it seems, late in every other cycle: it fails whole, pauses, and the next one is good, since a
# sequence is not undone with the cycle. And in every cycle the heartbeat runs into a lock.
set_config($node, 'kudos_projector.lock_timeout' => '10ms');
$node->safe_psql('horde', q{
	CREATE SEQUENCE turn;
	CREATE FUNCTION full() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF nextval('public.turn') % 2 = 1 THEN
			RAISE EXCEPTION 'no space left' USING ERRCODE = 'disk_full';
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER full_disk BEFORE UPDATE ON teams FOR EACH ROW EXECUTE FUNCTION full();
	GRANT USAGE ON SEQUENCE turn TO PUBLIC});

sub fail_cycles
{
	my ($count, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	for (1 .. $count)
	{
		my $errors = number($node, 'horde', 'SELECT errors FROM kudos_projector_stats');
		$node->safe_psql('horde', q{SELECT count(t_post(1 + n % 5, 1)), count(t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 1,
			'00000000-0000-0000-0000-0000000000a1')) FROM generate_series(1, 100) n});
		$node->poll_query_until('horde', "SELECT errors = $errors + 1 AND ledger = 0 FROM kudos_projector_stats, t_pending") or last;
	}
	is(number($node, 'horde', 'SELECT ledger, consecutive_errors, last_error_code FROM t_pending, kudos_health()'), '0|0|53100', $name);
}

my $state = hold($node, 'horde', 'UPDATE kudos_ledger_applier_state SET applied_at = applied_at');
my $from = -s $node->logfile;
fail_cycles(2, 'D11: two cycles fail, and the next ones fold');
$early = memory_of($pid, 'after 2 failures');
fail_cycles($failures, "D11: $failures more");
has_not_grown($early, memory_of($pid, "after $failures more"), 10240, 'D11, failing cycles');
let_go($state);
is(worker_pid($node, 'horde'), $pid, 'it is the same worker all along');
$node->safe_psql('horde', 'DROP TRIGGER full_disk ON teams; SELECT t_post(1, 1)');
wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = quarantined FROM t_look', 'all is folded in the end');
is_right($node, 'horde', 'D11: the sums are exact');

# Errors in a session ----------------------------------------------------------------------------------

# A full disk fails a cycle whole: nothing can be left out of it.
$node->safe_psql('calls', q{
	CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'audit table full' USING ERRCODE = 'disk_full'; END$$;
	CREATE TRIGGER boom BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION boom();
	SELECT count(t_post(1 + n % 5, 1)), count(t_ustat(1 + n % 5, 'accumulated', 1)) FROM generate_series(1, 500) n});
my $session = $node->background_psql('calls');
$session->set_query_timer_restart;
my $session_pid = $session->query('SELECT pg_backend_pid()');

sub fail_in_session
{
	my ($count) = @_;
	$session->query_safe(qq{
		DO \$\$
		DECLARE failed int := 0;
		BEGIN
			FOR i IN 1 .. $count LOOP
				BEGIN
					PERFORM kudos_fold_now(1000, 1);
				EXCEPTION WHEN OTHERS THEN
					failed := failed + 1;
				END;
			END LOOP;
			IF failed <> $count THEN
				RAISE 'only % of $count calls failed', failed;
			END IF;
		END \$\$});
}

fail_in_session(50);
$early = memory_of($session_pid, 'after 50 failing calls');
fail_in_session(450);
has_not_grown($early, memory_of($session_pid, 'after 500'), 10240, 'D11, failing calls');
is(number($node, 'calls', 'SELECT one, ledger, stats, quarantined FROM t_look'), '1000|500|500|0', 'D11: nothing is folded or quarantined');

# a batch as large as they come, with little memory to work in, fails and then folds
$session->query_safe(q{
	SET work_mem = '64kB';
	SELECT count(t_post(1 + n % 5, 1)) FROM generate_series(1, 10000) n;
	DO $$ BEGIN PERFORM kudos_fold_now(100000, 1); RAISE 'it folded'; EXCEPTION WHEN disk_full THEN NULL; END $$});
$early = memory_of($session_pid, 'after a large batch that failed');
$session->query_safe(q{
	DO $$ BEGIN FOR i IN 1..3 LOOP
		BEGIN PERFORM kudos_fold_now(100000, 1); RAISE 'it folded'; EXCEPTION WHEN disk_full THEN NULL; END;
	END LOOP; END $$});
# what was freed of so much is not always given back, so here only the bound counts
cmp_ok(memory_of($session_pid, 'after three more')->{all} - $early->{all}, '<', 10240, 'D11, large batches: less than 10240 kB');
$node->safe_psql('calls', 'DROP TRIGGER boom ON users');
is($session->query_safe('SELECT currency_rows, stat_rows, settled FROM kudos_fold_now(100000, 1)'), '10500|500|t', 'D11: the same session folds it all');
$session->quit;
is_right($node, 'calls', 'D11: and its sums are exact');

cmp_ok(scalar(log_lines($node, qr/ERROR:  no space left/, $from)), '<=', $failures + 2, 'D11: the log has a line for each failure');
ends_well($node);
done_testing();
