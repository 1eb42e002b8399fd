# Q08, P05: what a cycle costs does not grow with the archive, whatever the statistics say and however the
# queue indexes are spelled, and the number of its statements does not grow with the accounts it folds.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('cost',
	{
		'shared_preload_libraries' => 'kudos_projector, pg_stat_statements',
		'pg_stat_statements.track' => 'all',
		'pg_stat_statements.track_utility' => 'on',
		'autovacuum' => 'off',
		'shared_buffers' => '128MB',
		'max_wal_size' => '2GB',
	});

my $archive = 300000;

sub fill
{
	my ($database) = @_;
	$node->safe_psql($database, qq{
		CREATE EXTENSION pg_stat_statements;
		SET session_replication_role = replica; -- no check of 300000 keys
		INSERT INTO users (id, username, oauth_id, api_key, client_id, created, last_active, kudos, monthly_kudos, evaluating_kudos,
				usage_multiplier, worker_invited, public_workers, concurrency)
			SELECT n, 'u' || n, 'acct-' || n, 'key-' || n, 'client-' || n, '2022-01-01', '2022-01-01', 1000, 0, 0, 1, 0, false, 30
			  FROM generate_series(1, 600) n;
		INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
			SELECT '2026-01-01', gen_random_uuid(), 'GENERATION', 1, false, 0.01, true FROM generate_series(1, $archive);
		INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
			SELECT '2026-01-01', gen_random_uuid(), 'GENERATION', 1, 0.01, 'kudos', 'accumulated', 'user_kudos', true
			  FROM generate_series(1, $archive / 3);
		INSERT INTO user_stats (user_id, action, value) VALUES (1, 'accumulated', 1000);
		CALL remember_opening();
	});
	# from here on the statistics say that nothing is ever pending
	$node->safe_psql($database, 'VACUUM ANALYZE');
	# 1000 rows of each kind, among them one of an event with a hold, one that the floor meets, and a bad one
	$node->safe_psql($database, q{
		INSERT INTO kudos_reservations (id, business_id, user_id, event_id, original_amount, remaining_amount, created)
			VALUES (gen_random_uuid(), 'transfer:1:e', 1, '00000000-0000-0000-0000-00000000e001', 60, 60, '2026-01-01');
		INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
			SELECT '2026-01-01', CASE n WHEN 1 THEN '00000000-0000-0000-0000-00000000e001' ELSE gen_random_uuid() END, 'GENERATION',
			       CASE n WHEN 2 THEN 2 ELSE 1 END, false, CASE n WHEN 2 THEN -2000 ELSE 1 END, false FROM generate_series(1, 1000) n;
		INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
			SELECT '2026-01-01', gen_random_uuid(), CASE n WHEN 1 THEN 'NONSENSE' ELSE 'GENERATION' END, 1, 1, 'kudos', 'accumulated',
			       CASE WHEN n > 1 THEN 'user_kudos' END, false FROM generate_series(1, 1000) n;
	});
}

# What a fold answers, and the plans of every statement that it ran.
sub explained_fold
{
	my ($database) = @_;
	my ($status, $out, $err) = $node->psql($database, q{
		LOAD 'auto_explain';
		SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_nested_statements = on;
		SET auto_explain.log_analyze = on;
		SET auto_explain.log_timing = off;
		SET client_min_messages = log;
		SELECT fold(1000);});
	return ($out, $err);
}

for my $form (qw(fresh migrated))
{
	$node->safe_psql('postgres', "CREATE DATABASE $form");
	load_tables($node, $form, $form);
	fill($form);
	my ($answer, $plans) = explained_fold($form);
	is($answer, 'acquired=t cycles=1 currency=1000 stat=999 quarantined=1 floored=1 settled=f', "$form: a full batch is folded");
	my @claims = grep { /Query Text: SELECT l\.id.*SKIP LOCKED|Query Text: SELECT e\.id.*SKIP LOCKED/s } split /LOG:  duration/, $plans;
	is(scalar @claims, 2, "$form: both claims are explained");
	like($claims[0], qr/Index (Only )?Scan using ix_kudos_ledger_unapplied\b/, "$form: the ledger is claimed through its queue index");
	like($claims[1], qr/Index (Only )?Scan using ix_kudos_stat_events_(unapplied|drainable)\b/,
		"$form: the stat events are claimed through theirs");
	unlike($plans, qr/Seq Scan on (public\.)?kudos_(ledger|stat_events)\b/, "$form: no statement scans an archive");
	# no node of any plan saw more rows than a small multiple of the batch
	my @big = grep { $_ > 5000 } $plans =~ /actual rows=(\d+)/g, $plans =~ /Rows Removed by \w+(?: \w+)*: (\d+)/g;
	is("@big", '', "$form: no step of the cycle looks at more than the batch");
	is_right($node, $form);

	# an empty cycle
	($answer, $plans) = explained_fold($form);
	is($answer, 'acquired=t cycles=1 currency=0 stat=0 quarantined=0 floored=0 settled=t', "$form: nothing is left");
	$node->safe_psql($form, 'VACUUM');
	# the first fold of a session fills its caches
	my ($touched) = reverse split /\n/, $node->safe_psql($form, q{
		SELECT fold(1000);
		SELECT pg_stat_statements_reset();
		SELECT fold(1000);
		SELECT shared_blks_hit + shared_blks_read FROM pg_stat_statements
			WHERE toplevel AND query ~ 'SELECT fold' AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database());});
	cmp_ok($touched, '<', 50, "$form: an empty cycle touches few buffers");
}

# Statements of a cycle ----------------------------------------------------------------------------

# Statements of one cycle that folds the accounts FIRST to LAST: all, and those that update; the checks of
# foreign keys aside.
sub calls_for
{
	my ($first, $last) = @_;
	my $users = $last - $first + 1;
	$node->safe_psql('fresh', qq{
		INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, applied)
			SELECT '2026-01-01', gen_random_uuid(), 'GENERATION', n, n % 2 = 0, 1.25, false FROM generate_series($first, $last) n;
		INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
			SELECT '2026-01-01', gen_random_uuid(), 'GENERATION', n, 1.25, 'kudos', 'generated', 'user_kudos', false
			  FROM generate_series($first, $last) n;
		INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, amount, unit, stat_action, record, applied)
			SELECT '2026-01-01', gen_random_uuid(), 'STAT_RECORD', n, 1.25, 'things', 'USAGE', 'image', false
			  FROM generate_series($first, $last) n;
		SELECT pg_stat_statements_reset();});
	my $answer = $node->safe_psql('fresh', 'SELECT fold(2000)');
	is($answer, sprintf('acquired=t cycles=1 currency=%d stat=%d quarantined=0 floored=0 settled=t', $users, 2 * $users),
		"a cycle folds $users accounts");
	return number($node, 'fresh', q{SELECT sum(calls), sum(calls) FILTER (WHERE query ~ '^ *UPDATE|UPDATE .* SET ') FROM pg_stat_statements
		WHERE NOT toplevel AND query !~ 'FROM ONLY' AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())});
}

is(calls_for(11, 510), calls_for(1, 10), 'as many statements for 500 accounts as for 10, where rows are new');
is(calls_for(11, 510), calls_for(1, 10), 'and where they are there');
is_right($node, 'fresh');

ends_well($node);
done_testing();
