# G02, G03: whatever the database or a role sets for its sessions, the same postings come to the same result: with a
# worker that began under these settings, and with every public function called from such a session.
use strict;
use warnings;
use FindBin;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

# NAME => settings; those of "worker only" would end the calls of a session, and rightly so.
my @groups = (
	[ serializable => { default_transaction_isolation => 'serializable', default_transaction_deferrable => 'on' } ],
	[   repeatable_read => {
			default_transaction_isolation => 'repeatable read',
			plan_cache_mode => 'force_custom_plan',
			synchronous_commit => 'off',
			max_stack_depth => '200kB',
			'kudos_projector.batch_size' => '100000',
			'kudos_projector.lock_timeout' => '50ms',
		} ],
	[   timeouts => {
			lock_timeout => '1ms',
			statement_timeout => '1ms',
			idle_in_transaction_session_timeout => '1ms',
			idle_session_timeout => '1ms',
			deadlock_timeout => '1ms',
		},
		'worker only' ],
	[   long_timeouts => {
			lock_timeout => '1min',
			statement_timeout => '1min',
			idle_in_transaction_session_timeout => '1min',
			deadlock_timeout => '1ms',
		} ],
	[   path => {
			search_path => 'evil, pg_catalog, public',
			session_replication_role => 'replica',
			row_security => 'off',
			default_table_access_method => 'evil_heap',
		} ],
	[   tokyo => {
			TimeZone => 'Asia/Tokyo',
			DateStyle => 'SQL, DMY',
			IntervalStyle => 'iso_8601',
			bytea_output => 'escape',
			extra_float_digits => '-3',
			xmlbinary => 'hex',
			row_security => 'on',
		} ],
	[   new_york => {
			TimeZone => 'America/New_York',
			DateStyle => 'German',
			IntervalStyle => 'sql_standard',
			extra_float_digits => '0',
			lc_numeric => 'C',
			lc_monetary => 'C',
			lc_messages => 'C',
			lc_time => 'C',
		} ],
	[   jit => {
			jit => 'on',
			jit_above_cost => '0',
			plan_cache_mode => 'force_generic_plan',
		} ],
	[   no_plans => {
			map { ("enable_$_" => 'off') }
			  qw(indexscan bitmapscan indexonlyscan seqscan tidscan hashjoin mergejoin nestloop sort incremental_sort hashagg
			  material memoize)
		} ],
	[   parallel => {
			force_parallel_mode => 'on',
			parallel_setup_cost => '0',
			parallel_tuple_cost => '0',
			max_parallel_workers_per_gather => '4',
			min_parallel_table_scan_size => '0',
			min_parallel_index_scan_size => '0',
		} ],
	[   spelling => {
			standard_conforming_strings => 'off',
			backslash_quote => 'off',
			escape_string_warning => 'on',
			quote_all_identifiers => 'on',
			transform_null_equals => 'on',
			array_nulls => 'off',
			client_encoding => 'LATIN1',
			extra_float_digits => '3',
			lo_compat_privileges => 'on',
		} ],
	[   planner => {
			from_collapse_limit => '1',
			join_collapse_limit => '1',
			geqo => 'on',
			geqo_threshold => '2',
			constraint_exclusion => 'on',
			cursor_tuple_fraction => '0.0001',
			work_mem => '64kB',
			random_page_cost => '1e10',
			cpu_index_tuple_cost => '1e10',
			effective_cache_size => '8kB',
			default_statistics_target => '1',
			default_tablespace => 'elsewhere',
			temp_tablespaces => 'elsewhere',
			default_toast_compression => 'pglz',
			check_function_bodies => 'off',
			temp_buffers => '800kB',
			session_preload_libraries => 'auto_explain',
			'auto_explain.log_min_duration' => '0',
			'auto_explain.log_nested_statements' => 'on',
			'auto_explain.log_analyze' => 'on',
		} ],
	[   logging => {
			log_statement => 'all',
			log_min_messages => 'debug1',
			log_error_verbosity => 'verbose',
			log_duration => 'on',
			log_min_duration_statement => '0',
			log_parser_stats => 'on',
			log_planner_stats => 'on',
			log_executor_stats => 'on',
			log_lock_waits => 'on',
			client_min_messages => 'error',
			track_activities => 'off',
			track_counts => 'off',
			track_functions => 'all',
			track_io_timing => 'on',
		} ],
	[ role => { role => 'nobody', exit_on_error => 'on' }, 'worker only' ],
	[ defaults => {} ]);

my $node = new_server('matrix',
	{
		'kudos_projector.databases' => '',
		'kudos_projector.trust_threshold' => '50',
		'max_worker_processes' => 48,
		'allow_in_place_tablespaces' => 'on',
	});
$node->safe_psql('postgres', "SET allow_in_place_tablespaces = on; CREATE DATABASE scene; CREATE ROLE nobody");
$node->safe_psql('postgres', "CREATE TABLESPACE elsewhere LOCATION ''");
$node->safe_psql('postgres', 'GRANT CREATE ON TABLESPACE elsewhere TO PUBLIC; CREATE ROLE caller LOGIN SUPERUSER');
load_fixture($node, 'scene');
my $data = "$FindBin::RealBin/../data";
system_or_bail('psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('scene'), '-f', "$data/transfers.sql", '-f',
	"$data/hostile_scene.sql");
$node->safe_psql('scene', q{
	CREATE ACCESS METHOD evil_heap TYPE TABLE HANDLER heap_tableam_handler;
	CREATE SCHEMA evil;
	CREATE FUNCTION evil.boom(numeric, numeric) RETURNS numeric LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
	CREATE FUNCTION evil.boom(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'hijacked'; END$$;
	CREATE OPERATOR evil.+ (leftarg = numeric, rightarg = numeric, function = evil.boom);
	CREATE OPERATOR evil.= (leftarg = bigint, rightarg = bigint, function = evil.boom);
	CREATE TABLE evil.users (LIKE public.users);
	CREATE TABLE evil.kudos_ledger (LIKE public.kudos_ledger);
	GRANT USAGE ON SCHEMA evil TO PUBLIC;
});

# The four ways to set something for sessions of a role in a database.
my @ways = (
	sub { "ALTER DATABASE $_[0]" },
	sub { "ALTER ROLE $_[1]" },
	sub { "ALTER ROLE $_[1] IN DATABASE $_[0]" },
	sub { "ALTER ROLE ALL IN DATABASE $_[0]" });

sub settings_of
{
	my ($target, $settings) = @_;
	return map { "$target SET $_ = " . ($_ =~ /path|tablespaces/ ? $settings->{$_} : "'$settings->{$_}'") } sort keys %$settings;
}

# The worker: a database for each group, with an owner of its own -------------------------------------

my @statements;
my $turn = 0;
for my $group (@groups)
{
	my ($name, $settings) = @$group;
	push @statements, "CREATE DATABASE $name TEMPLATE scene", "CREATE ROLE owner_$name LOGIN", "GRANT nobody TO owner_$name";
	# what would end the sessions of this test is set for the owner alone
	my $way = $group->[2] ? 1 + $turn % 2 : $turn % @ways;
	push @statements, settings_of($ways[$way]->($name, "owner_$name"), $settings);
	$turn++;
}
$node->safe_psql('postgres', join ";\n", @statements);
for my $group (@groups)
{
	# A worker that stands in the way of one account must not be the end of the others: see the lock below.
	$node->safe_psql($group->[0], "CALL public.t_own('owner_$group->[0]'); SELECT public.t_scene()");
}
my @held = qw(timeouts serializable role no_plans spelling);
my @sessions = map { hold($node, $_, 'UPDATE public.users SET username = username WHERE id = 3') } @held;
$node->safe_psql('postgres', "ALTER SYSTEM SET kudos_projector.databases = '" . join(', ', map { $_->[0] } @groups) . "'; SELECT pg_reload_conf()");
for my $name (@held)
{
	wait_until($node, $name, q{SELECT stuck_targets OPERATOR(pg_catalog.=) '{"users 3 (locked)"}'::text[] FROM public.kudos_health()},
		"$name: health names the account that somebody holds");
	wait_until($node, $name, 'SELECT count(*) OPERATOR(pg_catalog.=) 1 FROM public.kudos_ledger WHERE NOT applied AND NOT escrow',
		"$name: and everything else is folded");
}
let_go($_) for @sessions;
my $right = '';
for my $group (reverse @groups) # "defaults" is the first
{
	my ($name) = @$group;
	wait_until($node, $name, 'SELECT public.t_settled()', "$name: the worker folds everything");
	my $result = $node->safe_psql($name, 'SELECT public.t_result()');
	$right = $result if $name eq 'defaults';
	is($result, $right, "$name: to the same result");
	is(number($node, $name, 'SELECT problem IS NULL AND mode IS NOT DISTINCT FROM $$ledger$$ FROM public.kudos_health()'), 't', "$name: health has nothing to tell")
	  unless $name eq 'path'; # of an evil "="
}
unlike($right, qr/^error/m, 'which is what the archive says');
like($right, qr/^$_$/m, "among it: $_")
  for qr/standing\|users\.kudos\|1\|977\|-50/, qr/standing\|user_stats\|1\/accumulated\|9007199254740994\|-50/,
  qr/standing\|users\.kudos\|5\|61\|-50/, qr/utc\|row\|5\|t/, qr/ledger\|4\|FLOOR_ADJUSTMENT\|f\|95\.25\|t\|.*\|1/;

# Every public function, in sessions that begin under these settings ------------------------------------

set_config($node, 'kudos_projector.databases' => '');
wait_until($node, 'postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = '$worker_type'", 'the workers leave');

# Without operators of its own: those of the path may be evil.
my $calls = q{
	\pset null NULL
	SELECT public.t_scene();
	SELECT f.lock_acquired, f.cycles, f.currency_rows, f.stat_rows, f.quarantined_rows, f.floor_adjustments, f.promoted_users,
	       f.drained_users, f.settled FROM public.kudos_fold_now() f;
	CALL public.kudos_catch_up();
	SELECT public.t_result();
	SELECT u, public.kudos_floor(u), public.kudos_available(u), public.kudos_effective(u) FROM pg_catalog.generate_series(0, 5) u;
	SELECT r.* FROM public.kudos_reserve(1, E'\\\\odd "{NULL}', 99.99) r;
	SELECT r.* FROM public.kudos_reserve(4, 'too much', 10) r;
	SELECT p.id IS NULL FROM public.kudos_post(1, -0.33, 'SPEND', false, '00000000-0000-0000-0000-00000000e010', NULL,
	       pg_catalog.jsonb_build_object('reservation_id', E'\\\\odd "{NULL}'), NULL, NULL, '2026-03-04 05:06:07.89') p;
	SELECT p.id IS NULL FROM public.kudos_post_stat('AWARD', 12.5, 'kudos', 2, stat_action => E'\\\\"', record => 'user_kudos') p;
	SELECT t.transferred, t.replayed FROM public.kudos_transfer(1, 2, 12.34, 'key') t;
	SELECT t.transferred, t.replayed, t.event_id FROM public.kudos_transfer(1, 2, 12.34, 'key') t;
	SELECT public.kudos_effective(1), public.kudos_available(1);
	SELECT public.kudos_mode(), public.kudos_pin_mode();
	BEGIN ISOLATION LEVEL READ COMMITTED;
	SELECT public.kudos_set_mode('shadow');
	COMMIT;
	BEGIN ISOLATION LEVEL READ COMMITTED;
	SELECT public.kudos_set_mode('ledger');
	COMMIT;
	SELECT public.kudos_wait_applied('00000000-0000-0000-0000-00000000e010', '0 s');
	SELECT public.kudos_release(E'\\\\odd "{NULL}');
	SELECT public.kudos_snapshot() AS snapshot \gset
	UPDATE public.users SET kudos = 1000 WHERE oauth_id IN ('acct-0002');
	UPDATE public.user_records SET value = 7.01 WHERE record IN ('image');
	CALL public.outside('users.kudos', '2', 494);
	CALL public.outside('user_records', '1/USAGE/image', -123456782.78);
	SELECT r.target, r.key, r.expected, r.actual, r.drift, r.events FROM public.kudos_reconcile(:'snapshot') r ORDER BY 1, 2;
	SELECT pg_catalog.count(*) FROM public.kudos_repair(:'snapshot') r;
	CALL public.kudos_catch_up();
	SELECT pg_catalog.count(*) FROM public.kudos_reconcile(:'snapshot', true) r;
	SELECT q.reason, q.rows, q.would_change FROM public.kudos_quarantine q ORDER BY 1;
	SELECT h.mode, h.pending_rows, h.quarantined_rows, h.active_reservations, h.problem, h.stuck_target_count FROM public.kudos_health() h;
	SELECT pg_catalog.every(c.object IS NOT NULL) FROM public.kudos_check_schema() c;
	SELECT public.t_result();
};

# What the calls print in a session of the role "caller" that begins under these settings.
sub outcome
{
	my ($name, $way, $settings) = @_;
	my ($target) = $way->('scene', 'caller');
	$node->safe_psql('scene', join ";\n", 'CALL public.reset_case()', 'TRUNCATE kudos_transfers, kudos_transfer_requests RESTART IDENTITY',
		settings_of($target, $settings));
	my ($status, $output, $errors) = $node->psql('scene', "\\set ON_ERROR_STOP on\n$calls", extra_params => [ '-U', 'caller' ]);
	$node->safe_psql('scene', join ";\n", "$target RESET search_path", "$target RESET ALL");
	$errors =~ s/^psql:.*(?:NOTICE|WARNING|LOG|DEBUG|DETAIL|HINT|LINE|CONTEXT):.*\n//mg;
	is($status, 0, "$name: all calls succeed") or diag($errors);
	return $output;
}

$turn = 0;
my $expected = outcome('defaults', $ways[0], {});
unlike($expected, qr/^error/m, 'defaults: the targets are what the archive says');
for my $group (grep { !$_->[2] && $_->[0] ne 'defaults' } @groups)
{
	my ($name, $settings) = @$group;
	my $way = $turn % 5 == 4 ? sub { 'ALTER ROLE ALL' } : $ways[ $turn % 5 ];
	is(outcome($name, $way, $settings), $expected, "$name: every call gives the same");
	$turn++;
}

# Read-only by default: nothing is written, and all that only looks works ------------------------------

$node->safe_psql('scene', "CALL reset_case(); SELECT t_scene(); ALTER DATABASE scene SET default_transaction_read_only = on");
for my $call ('SELECT kudos_fold_now()', 'CALL kudos_catch_up()', "SELECT kudos_set_mode('shadow')", 'SELECT kudos_snapshot()',
	"SELECT kudos_reserve(1, 'b', 1)", "SELECT kudos_release('b')", "SELECT kudos_post(1, 1, 'AWARD')", "SELECT kudos_transfer(1, 2, 1, 'k')")
{
	my ($status, undef, $errors) = $node->psql('scene', "\\set VERBOSITY sqlstate\n$call");
	like($errors, qr/ERROR:\s+25006/, "read-only: refused is $call");
}
is(number($node, 'scene', 'SELECT kudos_available(1), kudos_floor(1), kudos_mode(), kudos_effective(1), (SELECT pending_rows FROM kudos_health())'),
	'899.25|25.00|ledger|976.50|37', 'read-only: the others answer');
$node->safe_psql('postgres', 'ALTER DATABASE scene RESET default_transaction_read_only');

is(scalar(log_lines($node, qr/hijacked/)), 0, 'nothing on a path was run');
ends_well($node);
done_testing();
