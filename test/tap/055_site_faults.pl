# D03, L06, W16 with a worker: a trigger that raises for one account, a balance that does not fit its column, a schema
# that is renamed. Money waits, the log stays short, the worker lives on, and what is mended folds without a restart.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('site', { 'kudos_projector.databases' => 'trigger, narrow, renamed' });
$node->safe_psql('postgres', "CREATE DATABASE $_") for qw(trigger narrow renamed);
load_fixture($node, 'trigger');
for my $database (qw(narrow renamed))
{
	load_fixture($node, $database, bare => 1);
	$node->safe_psql($database, 'CREATE SCHEMA ext; CREATE EXTENSION kudos_projector SCHEMA ext');
}
$node->poll_query_until('trigger', q{SELECT count(*) = 3 FROM kudos_projector_stats WHERE state IN ('idle', 'folding')}) or die 'no workers';
my %pid = map { $_ => worker_pid($node, $_) } qw(trigger narrow renamed);

# D03 ----------------------------------------------------------------------------------------------

my $from = -s $node->logfile;
$node->safe_psql('trigger', q{
	CREATE FUNCTION boom() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN IF NEW.id = 2 THEN RAISE EXCEPTION 'audit table full'; END IF; RETURN NEW; END $$;
	CREATE TRIGGER boom BEFORE UPDATE ON users FOR EACH ROW EXECUTE FUNCTION boom();
	SELECT t_post(1, 5), t_post(2, 5), t_ustat(1, 'accumulated', 5)});
wait_until($node, 'trigger', 'SELECT errors > 1 OR stuck_target_count > 0 FROM kudos_health(), kudos_projector_stats
	WHERE database = current_database()', 'D03: health tells of a trigger that raises for one account');
is(number($node, 'trigger', 'SELECT two, quarantined, EXISTS (SELECT FROM kudos_ledger WHERE user_id = 2 AND applied) FROM t_look'),
	'500|0|f', 'D03: his row waits, and nothing is quarantined');
is_right($node, 'trigger');
$node->safe_psql('trigger', 'DROP TRIGGER boom ON users');
wait_until($node, 'trigger', 'SELECT ledger + stats = 0 FROM t_pending', 'D03: without the trigger all is folded');
is(number($node, 'trigger', 'SELECT one, two, value FROM t_look, user_stats'), '1005|505|5', 'D03: once');
is_right($node, 'trigger');
is(worker_pid($node, 'trigger'), $pid{trigger}, 'D03: by the same worker');
cmp_ok(scalar(log_lines($node, qr/\[$pid{trigger}\]/, $from)), '<=', 12, 'D03: which said little');

# L06 ----------------------------------------------------------------------------------------------

$node->safe_psql('narrow', 'SELECT t_post(1, 3000000000, true), t_post(2, 10)');
wait_until($node, 'narrow', 'SELECT kudos = 510 FROM users WHERE id = 2', 'L06: who is not concerned is folded');
my $ticks = number($node, 'narrow', "SELECT ticks FROM ext.kudos_projector_stats WHERE database = 'narrow'");
wait_until($node, 'narrow', "SELECT ticks > $ticks + 20 FROM ext.kudos_projector_stats WHERE database = 'narrow'", 'L06: many ticks go by');
is( number($node, 'narrow', q{SELECT evaluating_kudos, kudos, amount, applied, (SELECT count(*) FROM kudos_stat_events)
		FROM users JOIN kudos_ledger ON user_id = users.id WHERE users.id = 1}),
	'0|1000|3000000000.00|f|0', 'L06: the balance neither wraps nor is clamped, and its row waits');
is(number($node, 'narrow', q{SELECT stuck_target_count, stuck_targets[1] ~ '^users 1 ' FROM ext.kudos_health()}), '1|t', 'L06: health names the account');
cmp_ok(scalar(log_lines($node, qr/\[$pid{narrow}\]/)), '<=', 6, 'L06: the log is not filled with it');
$node->safe_psql('narrow', 'DROP VIEW t_bal; ALTER TABLE users ALTER evaluating_kudos TYPE bigint');
wait_until($node, 'narrow', 'SELECT ledger = 0 FROM t_pending', 'L06: once it fits it is folded');
is(number($node, 'narrow', 'SELECT evaluating_kudos, kudos FROM users WHERE id = 1'), '3000000000|1000', 'L06: whole');
is(worker_pid($node, 'narrow'), $pid{narrow}, 'L06: by the same worker');

# W16 ----------------------------------------------------------------------------------------------

# Posts 5 for user 1 of the Horde in SCHEMA, wherever the extension is.
sub post
{
	my ($schema) = @_;
	$node->safe_psql('renamed', "SET search_path = $schema; SELECT t_post(1, 5), t_ustat(1, 'accumulated', 5)");
}

post('public');
wait_until($node, 'renamed', 'SELECT kudos = 1005 FROM users WHERE id = 1', 'W16: the extension in a schema of its own');
$node->safe_psql('renamed', 'ALTER SCHEMA public RENAME TO horde_app');
post('horde_app');
wait_until($node, 'renamed', q{SELECT problem ~ 'kudos_projector.schema' FROM ext.kudos_health()}, 'W16: health names the setting of a schema that is gone');
$node->safe_psql('renamed', 'ALTER DATABASE renamed SET kudos_projector.schema = horde_app');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid{renamed})");
wait_until($node, 'renamed', 'SELECT kudos = 1010 FROM horde_app.users WHERE id = 1', 'W16: set, it folds there');
wait_until($node, 'renamed', 'SELECT problem IS NULL FROM ext.kudos_health()', 'W16: and has no problem');
post('horde_app');
wait_until($node, 'renamed', 'SELECT kudos = 1015 FROM horde_app.users WHERE id = 1', 'W16: and goes on');
is(number($node, 'renamed', 'SELECT value FROM horde_app.user_stats'), 15, 'W16: counters and all');
is(scalar(log_lines($node, qr/function .* does not exist/)), 0, 'W16: nothing was looked for in a schema that it is not in');

ends_well($node);
done_testing();
