# D01, D03: constraints and triggers that are looked at when a cycle commits. One that raises for an account leaves that
# account's rows unapplied and no other's, whoever folds. Gone, everything is folded once.
use strict;
use warnings;
use KudosTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('deferred', { 'kudos_projector.databases' => 'horde' });
$node->safe_psql('postgres', 'CREATE DATABASE horde; CREATE ROLE keeper LOGIN');
load_fixture($node, 'horde');
wait_for_worker($node, 'horde');
$node->safe_psql('horde', join ';', map { "ALTER TABLE $_ OWNER TO keeper" } qw(kudos_ledger kudos_stat_events kudos_reservations kudos_ledger_applier_state
	  kudos_ledger_control users user_stats user_records workers worker_stats teams user_roles user_suspicions kudos_balance_snapshots));
$node->safe_psql('horde', q{
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE EXCEPTION 'refused at the commit, as %', current_user; END$$;
	CREATE TABLE owed (id int PRIMARY KEY);
	INSERT INTO owed SELECT g FROM generate_series(1, 100000) g;
	GRANT ALL ON owed TO keeper});
my $posting = q{SELECT t_post(1, 5), t_post(2, 7), t_ustat(2, 'accumulated', 7), t_ustat(1, 'accumulated', 5), t_rec(2, 'USAGE', 'image', 1),
	t_wstat('00000000-0000-0000-0000-0000000000f1', 'generated', 1, '00000000-0000-0000-0000-0000000000a1')};

for my $case (
	[ 'a constraint trigger on users', 'CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON users DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION refuse()',
		'refused at the commit, as keeper', 'DROP TRIGGER late ON users' ],
	[ 'a constraint trigger on kudos_ledger', 'CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON kudos_ledger DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.user_id = 2) EXECUTE FUNCTION refuse()',
		'refused at the commit, as keeper', 'DROP TRIGGER late ON kudos_ledger' ],
	[ 'a constraint trigger on new counters', 'CREATE CONSTRAINT TRIGGER late AFTER INSERT ON user_records DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()',
		'refused at the commit, as keeper', 'DROP TRIGGER late ON user_records' ],
	[ 'a unique constraint on balances', 'UPDATE users SET kudos = 507 WHERE id = 3; ALTER TABLE users ADD CONSTRAINT late UNIQUE (kudos) DEFERRABLE INITIALLY DEFERRED',
		'violates unique constraint', 'ALTER TABLE users DROP CONSTRAINT late; UPDATE users SET kudos = 100 WHERE id = 3' ],
	[ 'a foreign key of a balance', 'DELETE FROM owed WHERE id = 507; ALTER TABLE users ADD CONSTRAINT late FOREIGN KEY (kudos) REFERENCES owed DEFERRABLE INITIALLY DEFERRED NOT VALID', 'violates foreign key constraint', 'ALTER TABLE users DROP CONSTRAINT late' ])
{
	my ($name, $ddl, $problem, $undo) = @$case;
	$node->safe_psql('horde', "CALL reset_case(); $ddl");
	$node->safe_psql('horde', 'CALL remember_opening()');
	$node->safe_psql('horde', $posting);
	wait_until($node, 'horde', "SELECT stuck_targets::text ~ '$problem' AND consecutive_errors = 0 FROM kudos_health()", "$name: health says what was raised");
	wait_until($node, 'horde', 'SELECT one = 1005 FROM t_look', "$name: other accounts are folded");
	isnt(number($node, 'horde', 'SELECT ledger + stats FROM t_look'), 0, "$name: the rows of this one wait");
	is_right($node, 'horde', "$name: targets are right meanwhile");
	$node->psql('horde', 'SELECT kudos_fold_now()');
	isnt(number($node, 'horde', 'SELECT ledger + stats FROM t_look'), 0, "$name: a caller cannot fold them either");
	is_right($node, 'horde', "$name: and spoils nothing");
	$node->safe_psql('horde', $undo);
	$node->safe_psql('horde', "CALL outside('users.kudos', '3', -407)") if $name =~ /unique/;
	wait_until($node, 'horde', 'SELECT ledger = 0 AND stats = 0 FROM t_look', "$name: everything is folded when it is gone");
	is(number($node, 'horde', 'SELECT one, two FROM t_look'), '1005|507', "$name: once");
	is(number($node, 'horde', 'SELECT stuck_target_count FROM kudos_health()'), 0, "$name: nothing is stuck any more")
	  if $node->poll_query_until('horde', 'SELECT stuck_target_count = 0 FROM kudos_health()');
	is_right($node, 'horde', "$name: targets are right");
}

ends_well($node);
done_testing();
