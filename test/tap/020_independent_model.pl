# Folds two backlogs - one like an ordinary day, one of everything that should not happen - in both
# forms of the schema and with several batch sizes, and compares every target with values that
# test/data/model.sql computes from the rules alone.
use strict;
use warnings FATAL => 'all';

use FindBin;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $data = "$FindBin::RealBin/../data";
my @targets = qw(users user_stats user_records worker_stats workers teams kudos_reservations floor_adjustments
  kudos_ledger kudos_stat_events user_roles user_suspicions kudos_transfers kudos_ledger_control);
my @reasons = sort qw(missing_user stat_action_too_long record_too_long invalid_user_kudos invalid_worker_kudos
  invalid_stat_record invalid_stat_record_unit invalid_stat_contribution invalid_stat_activity unknown_projection);
my $large = { users => 300, workers => 60, teams => 8, events => 2000, seed => 7 };
my $small = { users => 80, workers => 20, teams => 4, events => 250, seed => 11 };

# A session zone far from UTC shows every timestamp that was taken from the session's clock.
delete $ENV{PGTZ};
my $node = PostgreSQL::Test::Cluster->new('model');
$node->init;
$node->append_conf('postgresql.conf', <<'CONF');
shared_preload_libraries = 'kudos_projector'
timezone = 'Pacific/Kiritimati'
client_min_messages = warning
autovacuum = off
CONF
$node->start;

sub run_file
{
	my ($db, $file, %variable) = @_;
	return $node->safe_psql($db, slurp_file("$data/$file"),
		extra_params => [ map { ('-v', "$_=$variable{$_}") } sort keys %variable ]);
}

# Both sides of a comparison in a message are rows; a few tell what is wrong.
sub no_rows
{
	my ($db, $query, $name) = @_;
	my $rows = $node->safe_psql($db, $query);
	my @rows = split /\n/, $rows;
	ok(!@rows, $name) or diag(join("\n", scalar(@rows) . " rows, the first:", grep { defined } @rows[ 0 .. 5 ]));
	return;
}

# Every cycle is a transaction of its own, and so is the line about it: many in one session, since a
# client for each would take longer than the fold.
sub fold_until_settled
{
	my ($db, $batch) = @_;
	my $cycle = <<'SQL';
SELECT * FROM kudos_fold_now(:batch, 1) \gset f_
INSERT INTO model.cycle_log (currency_rows, stat_rows, quarantined_rows, floor_adjustments, settled, last_currency_id)
SELECT :f_currency_rows, :f_stat_rows, :f_quarantined_rows, :f_floor_adjustments, :'f_settled' AND :'f_lock_acquired',
       (SELECT coalesce(max(id), 0) FROM kudos_ledger);
SQL
	my $pending = $node->safe_psql($db, <<'SQL');
SELECT greatest((SELECT count(*) FROM kudos_ledger WHERE NOT applied),
                (SELECT count(*) FROM kudos_stat_events WHERE NOT applied AND NOT quarantined))
SQL
	my $cycles = int($pending / $batch) + 2;
	for (1 .. 3)
	{
		$node->safe_psql($db, $cycle x $cycles, extra_params => [ '-v', "batch=$batch" ]);
		my $rest = $node->safe_psql($db, <<'SQL');
SELECT settled AND currency_rows + stat_rows + quarantined_rows = 0 FROM model.cycle_log ORDER BY cycle DESC LIMIT 1
SQL
		return 1 if $rest eq 't';
		$cycles = 5;
	}
	return 0;
}

sub compare_with_model
{
	my ($db, $batch) = @_;
	$node->safe_psql($db, "CALL model.expect($batch)");
	no_rows($db, "SELECT cycle, currency_rows FROM model.cycle_log WHERE currency_rows > $batch", 'no cycle folds more than a batch');
	my %differs;
	push @{ $differs{ (split /\|/)[0] } }, $_ for split /\n/, $node->safe_psql($db, 'SELECT * FROM model.differences()');
	for my $target (@targets)
	{
		my @rows = @{ delete $differs{$target} // [] };
		ok(!@rows, "$target as the model has it")
		  or diag(join("\n", scalar(@rows) . " rows differ, the first:", grep { defined } @rows[ 0 .. 5 ]));
	}
	is_deeply([ sort keys %differs ], [], 'and nothing else differs');
	no_rows($db, 'SELECT * FROM model.violations()', 'no rule is violated');
	return;
}

# What does not depend on the batch size, one digest a target.
sub independent_digests
{
	my ($db) = @_;
	my $digests = $node->safe_psql($db, <<'SQL');
SELECT target, md5(string_agg(key || ' ' || content, E'\n' ORDER BY key COLLATE "C"))
  FROM model.independent_of_batches() WHERE target <> 'kudos_ledger_control' GROUP BY target ORDER BY target
SQL
	return { map { split /\|/ } split /\n/, $digests };
}

sub first_lines_apart
{
	my ($target, @databases) = @_;
	my @rows = map {
		$node->safe_psql($_, "SELECT key, content FROM model.independent_of_batches() WHERE target = '$target'")
	} @databases;
	for my $this (0, 1)
	{
		my %other = map { $_ => 1 } split /\n/, $rows[ 1 - $this ];
		my @only = sort grep { !$other{$_} } split /\n/, $rows[$this];
		diag(join("\n", "$target only in $databases[$this]:", grep { defined } @only[ 0 .. 3 ])) if @only;
	}
	return;
}

my %first;    # workload and size => [ database, digests ] of the first fold of it
for my $form (qw(fresh migrated))
{
	for my $workload (qw(workload nasty))
	{
		for my $size ([ large => $large, 1000, 137 ], [ small => $small, 1000, 137, 1 ])
		{
			my ($label, $variables, @batches) = @$size;
			my $loaded = "${form}_${workload}_$label";
			$node->safe_psql('postgres', "CREATE DATABASE $loaded TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'");
			run_file($loaded, $_) for 'app_tables.sql', "ledger_$form.sql", 'ledger_5_1_11.sql';
			run_file($loaded, "$workload.sql", %$variables);
			$node->safe_psql($loaded, 'CREATE EXTENSION kudos_projector');
			run_file($loaded, 'model.sql');
			for my $batch (@batches)
			{
				my $db = "${loaded}_$batch";
				$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE $loaded");
				subtest "$form schema, $label $workload backlog, batches of $batch" => sub {
					$node->safe_psql($db, 'CALL model.remember_opening(); INSERT INTO model.counters_at_first SELECT * FROM model.counters()');
					ok(fold_until_settled($db, $batch), 'the queue settles');
					compare_with_model($db, $batch);

					if ($workload eq 'nasty')
					{
						is($node->safe_psql($db, <<'SQL'), join("\n", @reasons), 'every reason of a quarantine was met');
SELECT DISTINCT quarantine_reason FROM kudos_stat_events
 WHERE quarantine_reason <> 'an older reason' ORDER BY quarantine_reason
SQL
					}
					cmp_ok($node->safe_psql($db, 'SELECT count(*) FROM model.floor_adjustment'), '>', 10, 'floors were crossed');

					my $digests = independent_digests($db);
					my $reference = $first{"$workload $label"} //= [ $db, $digests ];
					my @apart = grep { ($digests->{$_} // '') ne ($reference->[1]{$_} // '') }
					  sort keys %{ { %$digests, %{ $reference->[1] } } };
					is_deeply(\@apart, [], "as $reference->[0], floors apart");
					first_lines_apart($_, $reference->[0], $db) for @apart;

					# The second fold begins with remainders, of which the first one had none.
					my $back = $batch == 1000 ? 137 : $batch == 137 ? 1000 : 50;
					$node->safe_psql($db, 'CALL model.post_reversal()');
					$node->safe_psql($db, 'CALL model.remember_opening()');
					ok(fold_until_settled($db, $back), "the opposite postings settle in batches of $back");
					compare_with_model($db, $back);
					no_rows($db, 'SELECT * FROM model.not_reversed()', 'every counter is back where it began');
				};
			}
		}
	}
}

# What would leave a column's range is refused for that target alone. The rows that must wait say so in
# a column that no rule reads; whatever else is in the queue is folded, and a row that feeds a
# target that has room and one that has not is folded into neither.
subtest 'targets without room hold up their own rows alone' => sub {
	my $db = 'out_of_range';
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE fresh_nasty_small");
	$node->safe_psql($db, <<'SQL');
UPDATE users SET evaluating_kudos = CASE id WHEN 71 THEN 2147483647 WHEN 72 THEN -2147483648 ELSE 0 END,
                 kudos = CASE id WHEN 73 THEN 9223372036854775807 ELSE 1000 END WHERE id IN (71, 72, 73);
DELETE FROM kudos_ledger WHERE user_id IN (71, 72, 73);
CREATE FUNCTION post(u int, esc boolean, a numeric, e int, expectation text DEFAULT NULL, d jsonb DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied, wp_type, detail)
VALUES ('2026-06-05', md5('e' || e)::uuid, 'AWARD', u, esc, a, false, expectation, d) $$;
SELECT post(71, true, 0.50, 1, 'waits'), post(71, false, 5.50, 1), post(72, true, -0.25, 2, 'waits'), post(72, true, -0.25, 3, 'waits'),
       post(72, false, -1, 3, NULL, '{"reservation_id": "named"}'), post(73, false, 0.50, 4, 'waits'), post(73, true, -3.50, 4), post(74, false, 1, 4);
-- a hold of an event that is not complete stays; a debit consumes though another row of its event waits
INSERT INTO kudos_reservations (id, business_id, user_id, event_id, original_amount, remaining_amount, created)
VALUES (md5('h1')::uuid, 'incomplete', 71, md5('e1')::uuid, 10, 10, '2026-06-05'),
       (md5('h3')::uuid, 'named', 74, NULL, 10, 10, '2026-06-05');
CREATE FUNCTION count_up(w uuid, t uuid, kind text, a numeric, expectation text DEFAULT NULL) RETURNS void LANGUAGE sql AS $$
INSERT INTO kudos_stat_events (created, event_id, entry_type, worker_id, team_id, amount, unit, stat_action, record, applied, wp_type)
VALUES ('2026-06-05', gen_random_uuid(), 'STAT_CONTRIBUTION', w, t, a, CASE kind WHEN 'kudos' THEN 'kudos' WHEN 'fulfilments' THEN 'count' ELSE 'things' END,
        CASE kind WHEN 'kudos' THEN 'generated' ELSE kind END, CASE kind WHEN 'kudos' THEN 'worker_kudos' END, false, expectation) $$;
INSERT INTO teams (id, name, owner_id, contributions, fulfilments, kudos, uptime, created, last_active)
VALUES (md5('full team')::uuid, 'full team', 1, 9223372036854775807, 2147483647, -9223372036854775808, 0, '2026-01-01', '2026-01-01'),
       (md5('team')::uuid, 'a team', 1, 1, 1, 1, 0, '2026-01-01', '2026-01-01');
DELETE FROM kudos_stat_events WHERE worker_id IN (SELECT id FROM workers ORDER BY id LIMIT 3);
CREATE TEMP TABLE w AS SELECT id, row_number() OVER (ORDER BY id) AS no FROM workers ORDER BY id LIMIT 3;
UPDATE workers SET kudos = 100, contributions = 100, fulfilments = CASE w.no WHEN 1 THEN 2147483647 ELSE 100 END FROM w WHERE w.id = workers.id;
DELETE FROM worker_stats WHERE worker_id IN (SELECT id FROM w);
INSERT INTO worker_stats (worker_id, action, value) SELECT id, 'generated', 9223372036854775807 FROM w WHERE no = 2;
SELECT count_up(id, md5('team')::uuid, 'fulfilments', 1, 'waits'), count_up(id, md5('team')::uuid, 'contributions', 1.25),
       count_up(id, md5('full team')::uuid, 'contributions', 0.50, 'waits'), count_up(id, md5('full team')::uuid, 'kudos', 1.25) FROM w WHERE no = 1;
SELECT count_up(id, md5('team')::uuid, 'kudos', 0.75, 'waits'), count_up(id, md5('team')::uuid, 'fulfilments', 0.75) FROM w WHERE no = 2;
SELECT count_up(id, md5('full team')::uuid, 'fulfilments', 0.75, 'waits'), count_up(id, md5('team')::uuid, 'kudos', 0.75) FROM w WHERE no = 3;
-- the second user's rows have room together
INSERT INTO user_stats (user_id, action, value) VALUES (75, 'full', 9223372036854775807), (76, 'full', 9223372036854775807);
INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied, wp_type)
SELECT '2026-06-05', md5('s' || n)::uuid, 'AWARD', u, a, 'kudos', action, 'user_kudos', false, expectation
  FROM (VALUES (1, 75, 0.50, 'full', 'waits'), (2, 75, 0.50, 'gifted', NULL), (3, 76, 1, 'full', NULL), (4, 76, -1.50, 'full', NULL)) v (n, u, a, action, expectation);
CALL model.remember_opening();
SQL
	ok(fold_until_settled($db, 10000), 'the queue settles') or return;
	$node->safe_psql($db, 'CALL model.expect(10000, true)');
	no_rows($db, q{SELECT * FROM model.differences() WHERE target <> 'floor_adjustments'}, 'targets are what the applied rows make them');
	no_rows($db, <<'SQL', 'the rows that wait are those that must');
SELECT 'currency', user_id::text, amount, wp_type, applied FROM kudos_ledger WHERE applied = (wp_type IS NOT DISTINCT FROM 'waits')
UNION ALL
SELECT 'stat', coalesce(user_id::text, worker_id::text), amount, wp_type, applied FROM kudos_stat_events
 WHERE NOT quarantined AND applied = (wp_type IS NOT DISTINCT FROM 'waits')
SQL
	no_rows($db, q{SELECT * FROM model.violations() WHERE rule NOT IN ('a row is left in the queue',
		'the cycles report another number of currency rows')}, 'no rule is violated');
};

# The floor creates what was missing, and a posting can carry less than a balance can lack.
subtest 'a floor adjustment that no posting can carry holds up its own user alone' => sub {
	my $db = 'floor_out_of_range';
	$node->safe_psql('postgres', "CREATE DATABASE $db TEMPLATE fresh_nasty_small");
	$node->safe_psql($db, <<'SQL');
UPDATE kudos_ledger SET applied = true;
UPDATE kudos_stat_events SET applied = true WHERE NOT quarantined;
UPDATE users SET kudos = CASE id WHEN 1 THEN -9000000000000000000 ELSE 100 END WHERE id IN (1, 2);
INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
VALUES ('2026-06-05', gen_random_uuid(), 'AWARD', 1, false, 10, false),
       ('2026-06-05', gen_random_uuid(), 'AWARD', 2, false, 10, false);
SQL
	my ($result, $out, $err) = $node->psql($db, 'SELECT currency_rows FROM kudos_fold_now(1000, 1)');
	is($result, 0, 'the cycle goes on') or diag($err);
	is($out, '1', 'one row was folded');
	is($node->safe_psql($db, 'SELECT id, kudos FROM users WHERE id IN (1, 2) ORDER BY id'),
		"1|-9000000000000000000\n2|110", 'for the other user');
	is($node->safe_psql($db, 'SELECT user_id FROM kudos_ledger WHERE NOT applied'), '1', 'and the refused row waits');
};

$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|terminated by signal|TRAP/, 'the server did not crash');
done_testing();
