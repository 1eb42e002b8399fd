# Q09: somebody's open snapshot keeps every dead entry of the queue index. A fold walks them once a tick, in order, so
# that its cost in buffers stays within three times what it was; it is as before once the snapshot is gone. F05: who has
# very many suspicions costs a fold no more than who has five.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rounds = $ENV{KUDOS_ROUNDS} // 100;
my $node = new_server('held',
	{
		'shared_preload_libraries' => 'kudos_projector, pg_stat_statements',
		'pg_stat_statements.track' => 'all',
		'shared_buffers' => '128MB',
		'autovacuum' => 'off',
		'kudos_projector.trust_threshold' => 100,
	});
load_fixture($node, 'postgres');
$node->safe_psql('postgres', q{
	CREATE EXTENSION pg_stat_statements;
	CREATE TABLE spent (round serial, ms float8, blocks bigint);
	CREATE PROCEDURE rounds(n int) LANGUAGE plpgsql AS $$
	DECLARE spent_ms float8;
	BEGIN
		FOR i IN 1..n LOOP
			PERFORM t_post(1, 1) FROM generate_series(1, 500);
			COMMIT;
			PERFORM pg_stat_statements_reset();
			SELECT elapsed_ms INTO spent_ms FROM kudos_fold_now(1000, 1);
			COMMIT;
			INSERT INTO spent (ms, blocks) SELECT spent_ms, sum(shared_blks_hit + shared_blks_read) FROM pg_stat_statements
				WHERE query ~ 'FROM kudos_fold_now';
			COMMIT;
		END LOOP;
	END $$});

# Medians of the rounds FIRST to LAST: buffers, and the time as a note.
sub median
{
	my ($first, $last) = @_;
	my ($blocks, $ms) = split /\|/, number($node, 'postgres', qq{
		SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY blocks), round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms))::numeric, 2)
		  FROM spent WHERE round BETWEEN $first AND $last});
	note("rounds $first to $last: $blocks buffers, $ms ms");
	return $blocks;
}

my $holder = $node->background_psql('postgres');
$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM users');
$node->safe_psql('postgres', "CALL rounds($rounds)");
is(number($node, 'postgres', 'SELECT one, ledger FROM t_look'), 1000 + 500 * $rounds . '|0', 'all is folded under an open snapshot');
my ($early, $late) = (median(1, 20), median($rounds - 19, $rounds));
cmp_ok($late, '<=', 3 * $early, 'a fold costs at most three times what it did');
$holder->query_safe('COMMIT');
$holder->quit;
$node->safe_psql('postgres', $_) for 'VACUUM kudos_ledger', 'VACUUM users', 'CALL rounds(20)';
cmp_ok(median($rounds + 1, $rounds + 20), '<=', 1.5 * $early, 'and what it did once that is gone');
is_right($node, 'postgres');

# F05 ----------------------------------------------------------------------------------------------

# Rows that the search for who may be promoted looks at, with SUSPICIONS of user 2.
sub rows_for
{
	my ($suspicions) = @_;
	my ($status, $out, $err) = $node->psql('postgres', qq{
		TRUNCATE user_suspicions;
		INSERT INTO user_suspicions (user_id, suspicion_id) SELECT 2, n FROM generate_series(1, $suspicions) n;
		ANALYZE user_suspicions;
		LOAD 'auto_explain';
		SET auto_explain.log_min_duration = 0;
		SET auto_explain.log_nested_statements = on;
		SET auto_explain.log_analyze = on;
		SET auto_explain.log_timing = off;
		SET client_min_messages = log;
		SELECT promoted_users FROM kudos_fold_now()});
	is($out, 0, "a user with $suspicions suspicions is not promoted");
	my ($plan) = grep { /user_suspicions/ } split /LOG:  duration/, $err;
	my ($rows) = $plan =~ /Scan[^\n]* on (?:public\.)?user_suspicions[^\n]*actual rows=(\d+)/;
	return $rows;
}

$node->safe_psql('postgres', q{
	CREATE INDEX ON user_suspicions (user_id);
	UPDATE users SET evaluating_kudos = 101 WHERE id = 2;
	CALL remember_opening()});
is(rows_for($_), 5, "five of $_ are looked at") for (5, 20000);

ends_well($node);
done_testing();
