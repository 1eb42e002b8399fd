# Every function, setting and column of the surface with arguments that no sane caller gives: nothing worse
# than a clean error comes back, the session lives on, and what was accepted is folded right.
#
# A run is repeated by its seed: KUDOS_FUZZ_SEED=17 KUDOS_FUZZ_CALLS=20000 prove ... 046_fuzz.pl
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{KUDOS_FUZZ_SEED} // 1;
my $calls = $ENV{KUDOS_FUZZ_CALLS} // 1500;
my $calls_a_session = 250;
srand($seed);
diag("seed $seed, $calls calls");

my $node = new_server('fuzz', { 'kudos_projector.lock_timeout' => '100ms', 'kudos_projector.trust_threshold' => '10' });
$node->safe_psql('postgres', 'CREATE DATABASE horde');
load_fixture($node, 'horde');

# --- What is thrown: SQL expressions, so that a megabyte is sent as a few characters.

sub pick { return $_[ rand @_ ]; }
sub quoted { my ($text) = @_; $text =~ s/'/''/g; $text =~ s/\\/\\\\/g; return "E'$text'"; }

my @texts = (
	q(''), q(' '), q('x'), quoted(q('; DROP TABLE users; --)), quoted(q("quoted" ''twice'' \\)), q('%s%n%s%1$s %d'), q('$1 $$ $q$'),
	q(repeat('x', 10240)), q(repeat(U&'\+01F40E', 20)), q(repeat(U&'\+01F40E', 21)), q(repeat(U&'\+01F40E', 3000)),
	q(U&'\0001\0007\001b[31m\007f'), q(E'\n\r\t'), q(U&'u\0308\200b\202e\feff'), q(U&'us\0435r_kudos'), q('NULL'),
	q('anon'), q('user_kudos'), q('worker_kudos'), q('STAT_RECORD'), q('STAT_ACTIVITY'), q('CONTRIBUTION'), q('ledger'), q('shadow'),
	q('kudos'), q('things'), q('count'), q('last_active'), q('a'), q('b'), q(U&'\0660'));
my @ids = (qw(0 1 2 3 4 5 6 -1 2147483647), '(-2147483648)', 'NULL');
my @amounts = (
	qw(0 1 -1 0.01 -0.01 0.005 -0.005 25 999999999999999999.99 -999999999999999999.99 999999999999999999.994 1000000000000000000 1e131071
	  -1e131071 1e-16383 1.000 1.50 9223372036854775807 -9223372036854775808 2147483648 170141183460469231731687303715884105727),
	q('NaN'), q('Infinity'), q('-Infinity'), q(repeat('9', 1000)::numeric), q((repeat('9', 18) || '.' || repeat('9', 400))::numeric), 'NULL');
my @uuids = (
	q(gen_random_uuid()), q('00000000-0000-0000-0000-0000000000f1'), q('00000000-0000-0000-0000-0000000000a1'),
	q('00000000-0000-0000-0000-000000000000'), q('ffffffff-ffff-ffff-ffff-ffffffffffff'), q('{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'),
	q('a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11'), q('not a uuid'), 'NULL');
my @times = (q('infinity'), q('-infinity'), q('4713-01-01 BC'), q('294276-12-31 23:59:59.999999'), q('1970-01-01'), q(now()::timestamp), 'NULL');
my @intervals = (q('0'), q('-1 day'), q('1 ms'), q('178000000 years'), q('-178000000 years'), q('5 ms'), 'NULL');
my @details = (
	q('{}'), q('[]'), q('"x"'), q('null'), q('0'), q('{"a": {"a": 1}, "a": 2}'),
	q((repeat('[', 6000) || repeat(']', 6000))::jsonb), q((repeat('{"a":', 1000) || '1' || repeat('}', 1000))::jsonb),
	q(jsonb_build_object('reservation_id', repeat('x', 1000000))), q(jsonb_build_object('touch_last_active', repeat('x', 1000000))),
	q('{"n": 1e130000}'), q('{"n": 1e400000}'), q('{"reservation_id": 1e1000}'), q('{"reservation_id": "\\u0000"}'), q('{"reservation_id": "\\ud83d"}'),
	(map { (qq('{"reservation_id": $_}'), qq('{"touch_last_active": $_}')) }
		qw(null true false 0 -0 0.0 1e-400 1 "" "a" "b" "0" [] [0] {} {"a":1} [[]])),
	q('{"reservation_id": "a", "touch_last_active": true, "kudos_repair": {"target": "users.kudos", "key": "1"}}'), 'NULL');
my @booleans = qw(true false NULL);
my @counts = (qw(1 2 1000 0 -1 100000 2147483647 NULL), '(-2147483648)');

my %values = (
	text => \@texts, integer => \@ids, numeric => \@amounts, uuid => \@uuids, jsonb => \@details, boolean => \@booleans,
	interval => \@intervals, 'timestamp without time zone' => \@times);

# One in eight is NULL, whatever the type.
sub any
{
	my ($type) = @_;
	return "NULL::$type" if rand() < 0.125;
	return '(' . pick(@{ $values{$type} }) . ")::$type";
}

# What a caller who knows the function would give now and then, or few calls would get far.
my @sensible = (
	q(SELECT kudos_post(1 + (random() * 5)::int % 5, (random() * 100 - 50)::numeric(20,2), 'GENERATION', detail => '{"reservation_id": "a"}')),
	q(SELECT kudos_post(1, 7.77, 'AWARD', escrow => true)), q(SELECT kudos_post_stat('GENERATION', 0.4, 'kudos', 1, stat_action => 'accumulated', record => 'user_kudos')),
	q(SELECT kudos_post_stat('STAT_CONTRIBUTION', 3, 'things', worker_id => '00000000-0000-0000-0000-0000000000f1', team_id => '00000000-0000-0000-0000-0000000000a1', stat_action => 'contributions')),
	q(SELECT kudos_reserve(1, 'a', 1)), q(SELECT kudos_reserve(2, 'b', 1.23)), q(SELECT kudos_release('a')), q(SELECT kudos_transfer(1, 2, 1, 'key' || random())),
	q(SELECT kudos_fold_now()), q(SELECT kudos_fold_now(3, 2)), q(CALL kudos_catch_up()), q(SELECT kudos_snapshot()), q(SELECT kudos_set_mode('ledger')),
	q(SELECT kudos_reconcile((SELECT snapshot_id FROM kudos_snapshots ORDER BY random() LIMIT 1))),
	q(SELECT kudos_repair((SELECT snapshot_id FROM kudos_snapshots ORDER BY random() LIMIT 1))),
	q(SELECT kudos_requeue((SELECT event_id FROM kudos_quarantine ORDER BY random() LIMIT 1))),
	q(SELECT kudos_accept_quarantined((SELECT event_id FROM kudos_quarantine ORDER BY random() LIMIT 1), 'so be it')));

# --- Calls of whatever functions there are

my @functions = map { [ split /\|/, $_, -1 ] } split /\n/, $node->safe_psql('horde', q{
	SELECT p.oid::regproc, p.prokind, p.pronargs, p.pronargdefaults, pg_get_function_identity_arguments(p.oid),
	       (SELECT string_agg(format_type(t, NULL), ',' ORDER BY o) FROM unnest(p.proargtypes) WITH ORDINALITY a(t, o))
	  FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
	  JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'kudos_projector' ORDER BY 1});
cmp_ok(scalar @functions, '>', 20, 'the functions of the extension are known');

sub call
{
	my ($name, $kind, $arguments, $defaults, undef, $types) = @{ pick(@functions) };
	my @types = split /,/, $types // '';
	my $given = @types - int(rand($defaults + 1));
	my $list = join ', ', map { any($_) } @types[ 0 .. $given - 1 ];
	return $kind eq 'p' ? "CALL $name($list)" : pick("SELECT * FROM $name($list)", "SELECT $name($list)");
}

# --- Settings

my @names = (
	q(''), q(' '), q('nosuch'), q('public'), quoted(q("public")), quoted(q(Pub"lic)), quoted(q('; DROP TABLE users; --)), q('%s%n%s'), q(repeat('x', 10240)),
	q(repeat(U&'\+01F40E', 100)), q('a,b'), q('"a","b'), q('pg_catalog'), q('pg_temp'), q('information_schema'), q(U&'\0007'));
my @numbers = (qw('' '0' '-1' '1' '10' 'NaN' 'inf' '1e400' '0x10' '2147483647' '2147483648' '1kB' '1d' '-0.005' '.' '1e'), q(repeat('9', 10240)), q('1;2'));
my %settings = (
	'kudos_projector.schema' => \@names, 'kudos_projector.trust_threshold' => \@numbers,
	map { ("kudos_projector.$_" => \@numbers) } qw(batch_size max_catchup_cycles lock_timeout trust_minimum_age suspicion_threshold));

sub with_setting
{
	my $setting = pick(sort keys %settings);
	my $value = pick(@{ $settings{$setting} });
	return ("SELECT set_config('$setting', $value, false)", call(), pick('SELECT * FROM kudos_health()', 'SELECT * FROM kudos_check_schema()',
		'SELECT * FROM kudos_install_ledger(true)', 'SELECT kudos_fold_now()'), "RESET $setting");
}

# --- Rows that no function would write

sub planted
{
	return sprintf('INSERT INTO kudos_ledger (created, event_id, entry_type, user_id, escrow, amount, detail) VALUES (%s, %s, left(%s, 32), %s, %s, %s, %s)',
		map { any($_) } 'timestamp without time zone', 'uuid', 'text', 'integer', 'boolean', 'numeric', 'jsonb')
	  if rand() < 0.4;
	return sprintf('INSERT INTO kudos_stat_events (created, event_id, entry_type, user_id, worker_id, team_id, amount, unit, stat_action, record, detail)'
		  . ' VALUES (%s, %s, left(%s, 32), %s, %s, %s, %s, left(%s, 16), left(%s, 32), left(%s, 32), %s)',
		pick(any('timestamp without time zone'), q('2026-05-05')), any('uuid'), any('text'),
		pick([ pick(0 .. 5), 'NULL' ], [ 'NULL', any('uuid') ], [ any('integer'), 'NULL' ])->@*,
		map { any($_) } 'uuid', 'numeric', 'text', 'text', 'text', 'jsonb')
	  if rand() < 0.6;
	return sprintf('INSERT INTO kudos_reservations (business_id, user_id, event_id, original_amount, remaining_amount, created, released_at)'
		  . ' VALUES (left(%s, 128), %s, %s, %s, %s, %s, %s)', map { any($_) } 'text', 'integer', 'uuid', 'numeric', 'numeric',
		('timestamp without time zone') x 2)
	  if rand() < 0.5;
	return pick(
		q(UPDATE users SET oauth_id = left(concat('{urn:', gen_random_uuid(), '}', id), 50) WHERE id = 4),
		q(WITH u AS (UPDATE users SET last_active = 'infinity' WHERE id = 5) UPDATE t_touched SET last_active = 'infinity' WHERE user_id = 5), q(UPDATE users SET created = '-infinity' WHERE id = 2),
		q(UPDATE kudos_ledger_applier_state SET applied_at = 'infinity'), q(UPDATE kudos_ledger_applier_state SET applied_at = NULL),
		q(UPDATE kudos_reservations SET event_id = (SELECT event_id FROM kudos_ledger ORDER BY random() LIMIT 1)),
		q(DELETE FROM kudos_ledger_control), q(DELETE FROM kudos_ledger_applier_state),
		q(DELETE FROM kudos_snapshots WHERE random() < 0.2));
}

# --- The run

# Only these may come back; XX000 and its like are faults of ours, whatever was asked.
sub is_clean
{
	my ($state) = @_;
	return $state !~ /^(XX|P0004|57P0[123]|08|58)/;
}

my ($thrown, $refused) = (0, 0);
my (%states, @unclean);

# Runs them in one session. Each answers with its own SQLSTATE, and a word that the session is there.
sub run_session
{
	my (@statements) = @_;
	my $script = "\\set VERBOSITY verbose\n\\set ON_ERROR_STOP off\n\\o /dev/null\nSET client_min_messages = warning; SET statement_timeout = '20s'; SELECT setseed($thrown / 1e6);\n"
	  . join('', map { "$statements[$_];\n\\echo <$_> :SQLSTATE\n" } 0 .. $#statements) . "\\echo alive\n";
	my ($stdout, $stderr) = ('', '');
	$node->psql('horde', $script, stdout => \$stdout, stderr => \$stderr, on_error_stop => 0, on_error_die => 0, extra_params => []);
	my %state = $stdout =~ /<(\d+)> (\w{5})/g;
	for my $i (0 .. $#statements)
	{
		my $state = $state{$i} // '08006';
		$states{$state}++;
		$refused++ if $state ne '00000';
		push @unclean, "$state: $statements[$i]" if !is_clean($state);
	}
	$thrown += @statements;
	push @unclean, "a session ended early: $stderr" if $stdout !~ /^alive$/m;
}

while ($thrown < $calls)
{
	my @statements;
	while (@statements < $calls_a_session)
	{
		my $dice = rand;
		push @statements, $dice < 0.45 ? call() : $dice < 0.6 ? pick(@sensible) : $dice < 0.72 ? with_setting() : planted();
		# One transaction of several, now and then: an error in it must not leave the next one anything.
		push @statements, 'BEGIN ISOLATION LEVEL REPEATABLE READ', call(), pick(@sensible), pick('COMMIT', 'ROLLBACK') if rand() < 0.05;
		push @statements, q(SELECT kudos_set_mode('ledger')), 'SELECT kudos_fold_now()' if rand() < 0.1;
	}
	run_session(@statements);
}
is_deeply(\@unclean, [], 'nothing worse than a clean error came back');
note(join ', ', map { "$_ x $states{$_}" } sort keys %states);
cmp_ok($refused, '>', $thrown / 10, 'many calls were refused');
cmp_ok($states{'00000'} // 0, '>', $thrown / 10, 'and many were not');

# --- Settings that only a reload brings

my @values = (@names, q('a,b,c,d'), q(repeat('a,', 100) || 'a'), q('"HORDE"'), q('horde, horde'), q(','));
my ($status, $stdout, $stderr) = $node->psql('postgres',
	join('', map { "SELECT format('ALTER SYSTEM SET kudos_projector.databases = %L', $_) \\gexec\nSELECT pg_reload_conf();\n" } @values),
	on_error_stop => 0);
my $refusals = () = $stderr =~ /ERROR:/g;
cmp_ok($refusals, '<', @values - 5, 'names of databases that are none are taken, and waited for');
set_config($node, 'kudos_projector.databases' => 'horde', 'kudos_projector.trust_threshold' => undef);
wait_for_worker($node, 'horde');

# --- What was accepted is folded right; what could never be folded says so

$node->safe_psql('horde', q{SELECT kudos_set_mode('ledger')});
wait_until($node, 'horde', q{SELECT NOT EXISTS (SELECT FROM kudos_ledger WHERE NOT applied AND abs(amount) < 1e15)
  OR (SELECT stuck_target_count > 0 FROM kudos_health())}, 'the worker folds what was accepted');
is($node->safe_psql('horde', q{SELECT last_error FROM kudos_health()}), '', 'without an error');
# Holds were planted in every state; their own rules are tested elsewhere.
is($node->safe_psql('horde', q{SELECT * FROM target_errors() WHERE target <> 'kudos_reservations'}), '', 'every target is right');
ends_well($node);
done_testing();
